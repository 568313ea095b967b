//! The door to every model: by name, with a table of fields, for the command line, the web interface and the tests alike.

use forebay_core::Result;
use serde_json::Value;

use crate::field::{self, Field};
use crate::model::{
    burst, checkpoint, cluster, cost, fabric, failures, ingest, network, retention, storage, tracking,
};
use crate::report::{Origin, Report};
use crate::sheet::wrong;
use crate::{near, path};

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
    let message = format!("there is no model '{}'", name.escape_debug());
    Err(wrong(message, near::hint(name, "models", names)))
}

/// Asks a model: a table of fields in, a report of finite numbers or an error with a hint out.
pub fn run(name: &str, request: &Value) -> Result<Report> {
    run_from(name, request, &|_| Origin::Given)
}

/// Asks a model with a request from several places: `origin` says where what it says about an input comes from.
pub(crate) fn run_from(name: &str, request: &Value, origin: &dyn Fn(&str) -> Origin) -> Result<Report> {
    let mut report = (model(name)?.run)(request)?;
    let inputs = report.inputs.iter_mut();
    for input in inputs.filter(|input| input.origin == Origin::Default) {
        if path::at(request, &input.name).is_some() {
            input.origin = origin(&input.name);
        }
    }
    Ok(report)
}

/// Reads a TOML text as a table of fields.
pub fn parse_toml(text: &str) -> Result<Value> {
    toml::from_str::<Value>(text).map_err(|error| {
        let message = format!("not TOML: {}", error.to_string().trim().replace('\n', " | "));
        wrong(message, "write lines like gpus = 1024 or storage = \"1TB/s\"")
    })
}

/// Reads a JSON text as a table of fields.
pub fn parse_json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| {
        wrong(
            format!("not JSON: {error}"),
            "write an object like {\"gpus\": 1024, \"storage\": \"1TB/s\"}",
        )
    })
}
