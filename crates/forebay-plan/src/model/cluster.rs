//! All models of one scenario: what one of them finds is what the next is asked.
//!
//! A scenario is a table with shared values (`gpus`, `params`) and a table per model. Each model is told the shared values it has
//! fields for, then what earlier models found (the size of a checkpoint, the rate of reads), then what its own table says, the
//! later taking precedence; what its table says in another way (a preset beside shared parameters) is not told at all. A model without
//! a table runs when what it needs is known. All figures land in one report as `model.figure`.
//!
//! ```text
//! checkpoint -> size, period, goodput, write rate, shape     ingest -> read rate
//!      |            |            |        |        \               /
//!   failures    retention ---> cost    storage    network     storage     fabric  burst  tracking
//!                    \---------> storage
//! ```

use forebay_core::Result;
use serde_json::{Map, Value, json};

use crate::field::{Field, FieldValue, Kind, request};
use crate::quantity::{Count, Measure as _, PerSecond, Unit};
use crate::registry;
use crate::report::{Figure, Origin, Report, Warning};
use crate::sheet::wrong;

/// The table of one model, passed on as it is.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Section(Option<Map<String, Value>>);

impl FieldValue for Section {
    fn kind() -> Kind {
        Kind::Section
    }

    fn text(&self) -> Option<String> {
        None
    }
}

request! {
    /// A scenario.
    Request {
        /// What it is called.
        name: String = String::new(),
        /// GPUs, for every model that asks.
        gpus: Option<Count> = None,
        /// GPUs in a node, for every model that asks.
        gpus_per_node: Option<Count> = None,
        /// Number of parameters, for every model that asks.
        params: Option<Count> = None,
        /// Tokens per second and GPU, for every model that asks.
        tokens_per_gpu: Option<PerSecond> = None,
        /// Fields of the model checkpoint.
        checkpoint: Section = Section::default(),
        /// Fields of the model ingest.
        ingest: Section = Section::default(),
        /// Fields of the model storage.
        storage: Section = Section::default(),
        /// Fields of the model network.
        network: Section = Section::default(),
        /// Fields of the model fabric.
        fabric: Section = Section::default(),
        /// Fields of the model burst.
        burst: Section = Section::default(),
        /// Fields of the model retention.
        retention: Section = Section::default(),
        /// Fields of the model cost.
        cost: Section = Section::default(),
        /// Fields of the model tracking.
        tracking: Section = Section::default(),
        /// Fields of the model failures.
        failures: Section = Section::default(),
    }
}

/// A value that a model is not told when its own table names the same in another way: model, value, the other ways.
const OTHER_SOURCES: [(&str, &str, &[&str]); 5] = [
    ("checkpoint", "params", &["preset", "layers"]),
    (
        "ingest",
        "tokens_per_gpu",
        &["workload", "samples_per_second", "sample_size", "duration"],
    ),
    ("network", "params", &["preset"]),
    ("network", "layers", &["preset"]),
    ("network", "hidden", &["preset"]),
];

/// Parameters that differ by more than this share are those of two models.
const PARAMS_SLACK: f64 = 0.05;

/// Names and values a model is told.
type Facts = Vec<(&'static str, Value)>;

/// What a model is asked: shared values, findings, and its own table on top of them.
fn ask(
    request: &Request,
    model: &str,
    findings: Facts,
    own: Option<&Map<String, Value>>,
) -> Result<Map<String, Value>> {
    let fields = (registry::model(model)?.fields)();
    let known = |name: &str| fields.iter().any(|field: &Field| field.name == name);
    let named = |field: &str| own.is_some_and(|own| own.contains_key(field));
    let told = |name: &str| {
        let mut other = OTHER_SOURCES
            .iter()
            .filter(|other| other.0 == model && other.1 == name);
        known(name) && !other.any(|other| other.2.iter().any(|field| named(field)))
    };
    let shared = [
        ("gpus", request.gpus.map(|value| json!(value))),
        ("endpoints", request.gpus.map(|value| json!(value))),
        ("ranks", request.gpus.map(|value| json!(value))),
        ("gpus_per_node", request.gpus_per_node.map(|value| json!(value))),
        ("params", request.params.map(|value| json!(value))),
        ("tokens_per_gpu", request.tokens_per_gpu.map(|value| json!(value))),
    ];
    let shared = shared
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut asked = Map::new();
    for (name, value) in shared.chain(findings).filter(|(name, _)| told(name)) {
        asked.insert(name.to_owned(), value);
    }
    for (name, value) in own.into_iter().flatten() {
        asked.insert(name.clone(), value.clone());
    }
    Ok(asked)
}

/// A report in the making, with what was found so far.
struct Scenario<'a> {
    request: &'a Request,
    report: Report,
}

impl Scenario<'_> {
    /// A figure, or the input that was given in its place.
    fn found(&self, name: &str) -> Option<f64> {
        self.report.lookup(name).map(|figure| figure.value)
    }

    /// Pairs each field with a figure, where the figure is there.
    fn facts(&self, pairs: &[(&'static str, &str)]) -> Facts {
        let facts = pairs.iter();
        facts
            .filter_map(|(field, figure)| Some((*field, json!(self.found(figure)?))))
            .collect()
    }

    /// Runs a model when it has a table, or when it is `wanted` anyway.
    fn run(&mut self, model: &'static str, section: &Section, wanted: bool, findings: Facts) -> Result<()> {
        if section.0.is_none() && !wanted {
            return Ok(());
        }
        let found: Vec<&str> = findings.iter().map(|(name, _)| *name).collect();
        let own = section.0.as_ref();
        let asked = ask(self.request, model, findings, own)?;
        let origin = |name: &str| {
            let is_own = own.is_some_and(|own| own.contains_key(name));
            if found.contains(&name) && !is_own {
                Origin::Found
            } else {
                Origin::Given
            }
        };
        let report =
            registry::run_from(model, &Value::Object(asked), &origin).map_err(|error| error.at(model))?;
        self.report.absorb(model, report);
        Ok(())
    }
}

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut scenario = Scenario {
        request,
        report: Report::new("cluster"),
    };
    scenario.run("checkpoint", &request.checkpoint, false, Vec::new())?;
    two_models(&mut scenario, request);
    let model = scenario.facts(&[("params", "checkpoint.params")]);
    let reads = request.tokens_per_gpu.is_some() && request.gpus.is_some();
    scenario.run("ingest", &request.ingest, reads, model)?;
    let size = scenario.facts(&[("size", "checkpoint.size")]);
    let mut findings = size.clone();
    findings.extend(scenario.facts(&[("interval", "checkpoint.period")]));
    scenario.run("retention", &request.retention, !size.is_empty(), findings)?;
    storage(&mut scenario, request)?;
    let shape = scenario.facts(&[
        ("params", "checkpoint.params"),
        ("layers", "checkpoint.layers"),
        ("hidden", "checkpoint.hidden"),
    ]);
    let knows_params = request.params.is_some() || scenario.found("checkpoint.params").is_some();
    let moves = knows_params && request.gpus.is_some();
    scenario.run("network", &request.network, moves, shape)?;
    scenario.run("fabric", &request.fabric, request.gpus.is_some(), Vec::new())?;
    scenario.run("burst", &request.burst, false, Vec::new())?;
    let mut findings = scenario.facts(&[("goodput", "checkpoint.goodput")]);
    findings.extend(priced_tiers(&scenario));
    let wanted = request.gpus.is_some();
    scenario.run("cost", &request.cost, wanted, findings)?;
    let findings = scenario.facts(&[("checkpoint", "checkpoint.size")]);
    scenario.run("tracking", &request.tracking, false, findings)?;
    let findings = scenario.facts(&[
        ("interval", "checkpoint.interval_used"),
        ("stall", "checkpoint.stall"),
        ("commit_delay", "checkpoint.commit_delay"),
        ("mtbf", "checkpoint.mtbf"),
        ("restart", "checkpoint.restart_time"),
    ]);
    scenario.run("failures", &request.failures, false, findings)?;
    if scenario.report.figures.is_empty() {
        return Err(wrong(
            "the scenario asks nothing",
            "give gpus and params, or a table such as [checkpoint] with its fields",
        ));
    }
    Ok(scenario.report)
}

/// A scenario is about one model; where shared parameters and the table of checkpoint name two, the table's is taken, and said.
fn two_models(scenario: &mut Scenario<'_>, request: &Request) {
    let (Some(shared), Some(found)) = (request.params, scenario.found("checkpoint.params")) else {
        return;
    };
    let shared = shared.get();
    if (shared - found).abs() <= PARAMS_SLACK * found {
        return;
    }
    let text = |value: f64| Unit::Count.show(value).text;
    scenario.report.warnings.push(Warning {
        about: "params".to_owned(),
        message: format!(
            "the scenario has {} parameters, the table of checkpoint {}: the table is used",
            text(shared),
            text(found)
        ),
    });
}

/// Storage must take what checkpoints write at the rate they were planned with, give what the training reads, and hold what is kept.
fn storage(scenario: &mut Scenario<'_>, request: &Request) -> Result<()> {
    let mut findings = scenario.facts(&[
        ("read", "ingest.read_rate"),
        ("write", "checkpoint.write_needed"),
        ("checkpoint_interval", "checkpoint.period"),
    ]);
    let wanted = !findings.is_empty();
    findings.extend(scenario.facts(&[
        ("checkpoint_size", "checkpoint.size"),
        ("capacity", "retention.kept"),
    ]));
    scenario.run("storage", &request.storage, wanted, findings)
}

/// The tiers of the retention, as the cost model is asked.
fn priced_tiers(scenario: &Scenario<'_>) -> Facts {
    let prefix = "retention.tier_cost.";
    let tier = |figure: &Figure| {
        let name = figure.name.strip_prefix(prefix)?;
        let input = |name: &str| figure.inputs.iter().find(|input| input.name == name);
        let bytes = input(&format!("bytes.{name}"))?;
        Some(json!({ "name": name, "bytes": bytes.value, "price": input("price")?.value }))
    };
    let tiers: Vec<Value> = scenario.report.figures.iter().filter_map(tier).collect();
    if tiers.is_empty() {
        return Vec::new();
    }
    vec![("tiers", Value::Array(tiers))]
}
