//! Several scenarios side by side.
//!
//! A file is one scenario of the cluster model, or a base with a list `[[scenario]]`, each of which changes what it names: tables
//! are merged key by key, everything else is replaced.

use forebay_core::Result;
use serde_json::{Map, Value};

use crate::registry;
use crate::report::Report;
use crate::sheet::wrong;
use crate::table::Table;

/// More would not fit beside each other.
pub const SCENARIOS_MAX: usize = 64;

/// A scenario and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Its name, or its number.
    pub name: String,
    /// Its request to the cluster model.
    pub request: Value,
    /// Its report.
    pub report: Report,
}

/// Runs every scenario of a file.
pub fn scenarios(file: &Value) -> Result<Vec<Scenario>> {
    let mut runs = Vec::new();
    for (name, request) in expand(file)? {
        let report = registry::run("cluster", &request).map_err(|error| error.at(&name))?;
        runs.push(Scenario {
            name,
            request,
            report,
        });
    }
    Ok(runs)
}

/// The requests of a file with their names: the base with each change of its list, or the file itself where it has none.
pub fn expand(file: &Value) -> Result<Vec<(String, Value)>> {
    let Value::Object(file) = file else {
        return Err(wrong("a scenario is a table", "write lines like gpus = 1024"));
    };
    let mut base = file.clone();
    let list = match base.remove("scenario") {
        None => vec![Value::Object(Map::new())],
        Some(Value::Array(list)) if !list.is_empty() && list.len() <= SCENARIOS_MAX => list,
        Some(_) => {
            let message = format!("scenario is not a list of 1 to {SCENARIOS_MAX} tables");
            return Err(wrong(message, "write [[scenario]] and below it what it changes"));
        }
    };
    let expanded = list.into_iter().enumerate().map(|(index, change)| {
        let mut request = Value::Object(base.clone());
        merge(&mut request, change);
        let name = request.get("name").and_then(Value::as_str).unwrap_or_default();
        let name = if name.is_empty() {
            format!("scenario {}", index + 1)
        } else {
            name.to_owned()
        };
        (name, request)
    });
    Ok(expanded.collect())
}

/// Changes a table key by key; recursion ends with the depth of the change, which its parser bounds.
fn merge(base: &mut Value, change: Value) {
    match (base, change) {
        (Value::Object(base), Value::Object(change)) => {
            for (key, value) in change {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, change) => *base = change,
    }
}

/// One row per figure that any scenario has, one column per scenario.
pub fn side_by_side(runs: &[Scenario]) -> Table {
    let mut names: Vec<&str> = Vec::new();
    for run in runs {
        for figure in &run.report.figures {
            if !names.contains(&figure.name.as_str()) {
                names.push(&figure.name);
            }
        }
    }
    let cell = |run: &Scenario, name: &str| {
        let figure = run.report.figure(name);
        figure.map_or_else(String::new, |figure| figure.unit.show(figure.value).text)
    };
    let mut columns = vec!["figure".to_owned()];
    columns.extend(runs.iter().map(|run| run.name.clone()));
    let row = |name: &str| {
        let mut row = vec![name.to_owned()];
        row.extend(runs.iter().map(|run| cell(run, name)));
        row
    };
    Table {
        columns,
        rows: names.into_iter().map(row).collect(),
    }
}
