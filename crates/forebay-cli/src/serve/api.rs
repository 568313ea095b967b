//! The JSON interface: models and their fields, plans, sweeps.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /api/models` | | every model with its fields |
//! | `POST /api/plan/<model>` | a table of fields | the report |
//! | `POST /api/sweep` | model, field, range, figures, request | the sweep with those figures |
//!
//! An error is `{"error": {"kind", "message", "hint", "place", "field"}}`; the place is the part of a cluster it is about, the
//! field the one of that part that is wrong, `tiers.hot.keep` in a table of a list.

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::model::retention;
use forebay_plan::{Field, Sweep, SweepRequest};
use http::StatusCode;
use http::header::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::planner::Stop;

/// Figures of one sweep; a plot with more lines shows nothing.
const SWEEP_FIGURES_MAX: usize = 16;

/// An error on its way to the client.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    error: Error,
    allowed: Option<String>,
}

#[derive(Debug, Serialize)]
struct FailureObject<'a> {
    error: FailureBody<'a>,
}

#[derive(Debug, Serialize)]
struct FailureBody<'a> {
    kind: ErrorKind,
    message: &'a str,
    hint: Option<&'a str>,
    place: Option<&'a str>,
    field: Option<&'a str>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, error: Error) -> Self {
        Self {
            status,
            error,
            allowed: None,
        }
    }

    pub(super) fn not_found(error: Error) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    pub(super) fn internal(error: Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error)
    }

    /// With the methods that would be right.
    pub(super) fn allowing(self, methods: String) -> Self {
        Self {
            allowed: Some(methods),
            ..self
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn allowed(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(self.allowed.as_deref()?).ok()
    }

    /// Whole seconds until another try.
    pub(super) fn retry_after(&self) -> Option<HeaderValue> {
        let pause = self.error.retry_after()?;
        Some(HeaderValue::from(pause.as_secs().max(1)))
    }

    /// Whether the request's body was not read to its end.
    pub(super) fn leaves_body(&self) -> bool {
        matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
        )
    }

    pub(super) fn body(&self) -> Vec<u8> {
        // A name that is wrong input elsewhere is a path that is not there.
        let kind = match self.status {
            StatusCode::NOT_FOUND => ErrorKind::NotFound,
            _ => self.error.kind(),
        };
        let object = FailureObject {
            error: FailureBody {
                kind,
                message: self.error.message(),
                hint: self.error.hint(),
                place: self.error.location(),
                field: self.error.field(),
            },
        };
        serde_json::to_vec(&object).unwrap_or_default()
    }
}

/// What the planner refuses is the request's fault.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::LimitExceeded => Self::new(StatusCode::BAD_REQUEST, error),
            ErrorKind::Cancelled => Self::new(StatusCode::SERVICE_UNAVAILABLE, error),
            _ => Self::internal(error),
        }
    }
}

/// Something to compute.
#[derive(Debug)]
pub(super) enum Call {
    /// A model's report.
    Plan(&'static str),
    /// A model over a range.
    Sweep,
    /// What ends when it is told to and in no other way.
    #[cfg(test)]
    Endless,
}

/// Body of `POST /api/sweep`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepCall {
    model: String,
    field: String,
    range: String,
    figures: Vec<String>,
    #[serde(default)]
    request: Map<String, Value>,
}

impl Call {
    /// The call a path names, if it is one; a model nobody has is not found.
    pub(super) fn of(path: &str) -> Result<Option<Self>, Failure> {
        if path == "/api/sweep" {
            return Ok(Some(Self::Sweep));
        }
        #[cfg(test)]
        if path == "/api/endless" {
            return Ok(Some(Self::Endless));
        }
        let Some(name) = path.strip_prefix("/api/plan/") else {
            return Ok(None);
        };
        let model = forebay_plan::model(name).map_err(Failure::not_found)?;
        Ok(Some(Self::Plan(model.name)))
    }

    /// The answer as JSON, unless it is told to stop.
    pub(super) fn run(&self, body: &[u8], stop: &Stop) -> Result<Vec<u8>, Failure> {
        let text = std::str::from_utf8(body).map_err(|_| invalid("the body is not UTF-8"))?;
        match self {
            Self::Plan(model) => {
                let request = forebay_plan::parse_json(text)?;
                encode(&forebay_plan::run(model, &request)?)
            }
            Self::Sweep => encode(&sweep(text, stop)?),
            #[cfg(test)]
            Self::Endless => {
                while !stop.is_cancelled() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Ok(Vec::new())
            }
        }
    }
}

fn sweep(text: &str, stop: &Stop) -> Result<Sweep> {
    let asked: SweepCall = serde_json::from_str(text).map_err(|error| {
        invalid(&format!("not a sweep: {error}"))
            .with_hint("write {\"model\", \"field\", \"range\", \"figures\": [...], \"request\": {...}}")
    })?;
    if asked.figures.is_empty() || asked.figures.len() > SWEEP_FIGURES_MAX {
        let message = format!("a sweep answers 1 to {SWEEP_FIGURES_MAX} figures");
        return Err(invalid(&message).with_hint("name them in the list figures, such as [\"goodput\"]"));
    }
    let request = SweepRequest {
        model: &asked.model,
        request: &Value::Object(asked.request),
        field: &asked.field,
        range: &asked.range,
        figures: &asked.figures,
        is_rest_kept: false,
    };
    forebay_plan::sweep(&request, &|| !stop.is_cancelled(), &|_| {})
}

#[derive(Debug, Serialize)]
struct ModelsAnswer {
    models: Vec<ModelAnswer>,
}

#[derive(Debug, Serialize)]
struct ModelAnswer {
    name: &'static str,
    summary: &'static str,
    fields: Vec<FieldAnswer>,
}

#[derive(Debug, Serialize)]
struct FieldAnswer {
    #[serde(flatten)]
    field: Field,
    /// The default of a list of tables, table by table.
    items: Vec<Map<String, Value>>,
}

/// Every model with its fields.
pub(super) fn models() -> Result<Vec<u8>, Failure> {
    let models = forebay_plan::models().iter().map(|model| ModelAnswer {
        name: model.name,
        summary: model.summary,
        fields: (model.fields)()
            .into_iter()
            .map(|field| FieldAnswer {
                items: items(model.name, field.name),
                field,
            })
            .collect(),
    });
    encode(&ModelsAnswer {
        models: models.collect(),
    })
}

/// The tables a list begins with; tiers are the only list that does not begin empty.
fn items(model: &str, field: &str) -> Vec<Map<String, Value>> {
    if (model, field) != ("retention", "tiers") {
        return Vec::new();
    }
    let fields = retention::Tier::fields();
    let tiers = retention::Request::default().tiers;
    tiers.iter().map(|tier| said(&fields, tier)).collect()
}

/// What a table says beyond the defaults of its fields, as people would write it.
fn said(fields: &[Field], table: &impl Serialize) -> Map<String, Value> {
    let Ok(Value::Object(values)) = serde_json::to_value(table) else {
        return Map::new();
    };
    let text = |field: &Field| match (values.get(field.name)?, field.unit()) {
        (Value::Number(number), Some(unit)) => Some(unit.show(number.as_f64()?).text),
        (Value::String(text), _) => Some(text.clone()),
        _ => None,
    };
    let pairs = fields.iter().filter_map(|field| {
        let text = text(field).filter(|text| field.default.as_ref() != Some(text))?;
        Some((field.name.to_owned(), Value::String(text)))
    });
    pairs.collect()
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value).map_err(|error| {
        let error = Error::new(ErrorKind::Internal, "serve", "the answer cannot be JSON").with_source(error);
        Failure::internal(error)
    })
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "serve", message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sweep_that_is_told_to_stop_stops() {
        let body =
            json!({ "model": "failures", "field": "mtbf", "range": "1h..100h:1000", "figures": ["goodput"] });
        let stop = Stop::new();
        stop.cancel();
        let failure = Call::Sweep.run(body.to_string().as_bytes(), &stop).unwrap_err();
        assert_eq!(failure.error.kind(), ErrorKind::Cancelled);
        assert_eq!(failure.status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn tables_say_what_they_have_beyond_the_defaults_of_their_fields() {
        let tier = retention::Tier {
            name: "far".to_owned(),
            ..retention::Tier::default()
        };
        let said = said(&retention::Tier::fields(), &tier);
        assert_eq!(Value::Object(said), json!({ "name": "far" }));
        let tiers = items("retention", "tiers");
        assert_eq!(tiers.len(), retention::Request::default().tiers.len());
        // What is said is what was meant: read back, it is the default again.
        let request = |tiers: Vec<Map<String, Value>>| json!({ "size": "1TB", "tiers": tiers });
        let spelled = forebay_plan::run("retention", &request(tiers)).unwrap();
        let assumed = forebay_plan::run("retention", &json!({ "size": "1TB" })).unwrap();
        assert_eq!(spelled.figures, assumed.figures);
        assert!(items("cost", "tiers").is_empty());
    }
}
