//! The door to every model: by name, with a table of fields, for the command line, the web interface and the tests alike.

use forebay_core::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::field::{self, Field};
use crate::model::{
    burst, checkpoint, cluster, cost, fabric, failures, ingest, network, retention, storage, tracking,
};
use crate::near;
use crate::report::Report;

/// A model by name.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// What it answers, in a line.
    pub summary: &'static str,
    /// What it may be told.
    pub fields: fn() -> Vec<Field>,
    run: fn(&Value) -> Result<Report>,
}

macro_rules! models {
    ($( $name:ident: $summary:literal; )*) => {
        [ $( Model {
            name: stringify!($name),
            summary: $summary,
            fields: $name::Request::fields,
            run: |value| $name::plan(&field::read(stringify!($name), &$name::Request::fields(), value)?),
        }, )* ]
    };
}

static MODELS: [Model; 11] = models! {
    checkpoint: "size of checkpoints, how long and how often to save, and what remains of the time";
    ingest: "read rate, shards and memory of feeding a training";
    storage: "targets, streams, prefixes, drives and cores that serve a demand";
    network: "bytes and time per step for each way to split a training";
    fabric: "switches and cables of a network";
    burst: "how fast senders fill a switch buffer";
    retention: "room that checkpoints take in each tier";
    cost: "money and energy per month";
    tracking: "what experiment tracking writes";
    failures: "seeded simulation of failures against the goodput formula";
    cluster: "all models of one scenario together";
};

/// Every model, in the order they are listed.
pub fn models() -> &'static [Model] {
    &MODELS
}

/// The model of that name; an unknown name is answered with the nearest one.
pub fn model(name: &str) -> Result<&'static Model> {
    if let Some(model) = MODELS.iter().find(|model| model.name == name) {
        return Ok(model);
    }
    let names = MODELS.iter().map(|model| model.name);
    let hint = match near::nearest(name, names.clone()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("models are {}", names.collect::<Vec<_>>().join(", ")),
    };
    let message = format!("there is no model '{}'", name.escape_debug());
    Err(Error::new(ErrorKind::InvalidInput, "plan", message).with_hint(hint))
}

/// Asks a model: a table of fields in, a report of finite numbers or an error with a hint out.
pub fn run(name: &str, request: &Value) -> Result<Report> {
    let mut report = (model(name)?.run)(request)?;
    for input in &mut report.inputs {
        let path: Vec<&str> = input.name.split('.').collect();
        let found = path.iter().try_fold(request, |value, key| value.get(key));
        input.given = input.given || found.is_some();
    }
    Ok(report)
}

/// Reads a TOML text as a table of fields.
pub fn parse_toml(text: &str) -> Result<Value> {
    toml::from_str::<Value>(text).map_err(|error| {
        let message = format!("not TOML: {}", error.to_string().trim().replace('\n', " | "));
        Error::new(ErrorKind::InvalidInput, "plan", message)
            .with_hint("write lines like gpus = 1024 or storage = \"1TB/s\"")
    })
}

/// Reads a JSON text as a table of fields.
pub fn parse_json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, "plan", format!("not JSON: {error}"))
            .with_hint("write an object like {\"gpus\": 1024, \"storage\": \"1TB/s\"}")
    })
}
