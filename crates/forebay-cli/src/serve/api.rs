//! The JSON interface: models and their fields, plans, sweeps.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /api/models` | | every model with its fields |
//! | `POST /api/plan/<model>` | a table of fields | the report |
//! | `POST /api/sweep` | model, field, range, figures, request | those figures for each value |
//!
//! An error is `{"error": {"kind", "message", "hint", "place"}}`; the place is the part of a cluster it is about.

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::Field;
use http::StatusCode;
use http::header::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

    /// Whether the request's body was not read to its end.
    pub(super) fn leaves_body(&self) -> bool {
        matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
        )
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let object = FailureObject {
            error: FailureBody {
                kind: self.error.kind(),
                message: self.error.message(),
                hint: self.error.hint(),
                place: self.error.location(),
            },
        };
        serde_json::to_vec(&object).unwrap_or_default()
    }
}

/// What the planner refuses is the request's fault.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidInput => Self::new(StatusCode::BAD_REQUEST, error),
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
}

/// Body of `POST /api/sweep`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepRequest {
    model: String,
    field: String,
    range: String,
    figures: Vec<String>,
    #[serde(default)]
    request: Map<String, Value>,
}

#[derive(Debug, Serialize)]
struct SweepAnswer {
    model: String,
    field: String,
    unit: Option<&'static str>,
    points: Vec<PointAnswer>,
}

/// One value of a sweep: its figures in the order they were asked for, or why there are none.
#[derive(Debug, Serialize)]
struct PointAnswer {
    value: Option<f64>,
    text: String,
    figures: Vec<Option<FigureAnswer>>,
    refused: Option<String>,
}

#[derive(Debug, Serialize)]
struct FigureAnswer {
    name: String,
    value: f64,
    unit: &'static str,
    text: String,
}

impl Call {
    /// The call a path names, if it is one; a model nobody has is not found.
    pub(super) fn of(path: &str) -> Result<Option<Self>, Failure> {
        if path == "/api/sweep" {
            return Ok(Some(Self::Sweep));
        }
        let Some(name) = path.strip_prefix("/api/plan/") else {
            return Ok(None);
        };
        let model = forebay_plan::model(name).map_err(Failure::not_found)?;
        Ok(Some(Self::Plan(model.name)))
    }

    /// The answer as JSON.
    pub(super) fn run(&self, body: &[u8]) -> Result<Vec<u8>, Failure> {
        let text = std::str::from_utf8(body).map_err(|_| invalid("the body is not UTF-8"))?;
        match self {
            Self::Plan(model) => {
                let request = forebay_plan::parse_json(text)?;
                encode(&forebay_plan::run(model, &request)?)
            }
            Self::Sweep => encode(&sweep(text)?),
        }
    }
}

fn sweep(text: &str) -> Result<SweepAnswer> {
    let asked: SweepRequest = serde_json::from_str(text).map_err(|error| {
        invalid(&format!("not a sweep: {error}"))
            .with_hint("write {\"model\", \"field\", \"range\", \"figures\": [...], \"request\": {...}}")
    })?;
    if asked.figures.is_empty() || asked.figures.len() > SWEEP_FIGURES_MAX {
        let message = format!("a sweep answers 1 to {SWEEP_FIGURES_MAX} figures");
        return Err(invalid(&message).with_hint("name them in the list figures, such as [\"goodput\"]"));
    }
    let request = Value::Object(asked.request);
    let found = forebay_plan::sweep(&asked.model, &request, &asked.field, &asked.range)?;
    let points = found.points.into_iter().map(|point| PointAnswer {
        figures: asked
            .figures
            .iter()
            .map(|name| figure(point.report.as_ref(), name))
            .collect(),
        value: point.value,
        text: point.text,
        refused: point.refused,
    });
    Ok(SweepAnswer {
        points: points.collect(),
        model: found.model,
        field: found.field,
        unit: found.unit.map(forebay_plan::quantity::Unit::symbol),
    })
}

fn figure(report: Option<&forebay_plan::Report>, name: &str) -> Option<FigureAnswer> {
    let figure = report?.figure(name)?;
    Some(FigureAnswer {
        name: figure.name.clone(),
        value: figure.value,
        unit: figure.unit.symbol(),
        text: figure.unit.show(figure.value).text,
    })
}

#[derive(Debug, Serialize)]
struct ModelsAnswer {
    models: Vec<ModelAnswer>,
}

#[derive(Debug, Serialize)]
struct ModelAnswer {
    name: &'static str,
    summary: &'static str,
    fields: Vec<Field>,
}

/// Every model with its fields.
pub(super) fn models() -> Result<Vec<u8>, Failure> {
    let models = forebay_plan::models().iter().map(|model| ModelAnswer {
        name: model.name,
        summary: model.summary,
        fields: (model.fields)(),
    });
    encode(&ModelsAnswer {
        models: models.collect(),
    })
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
