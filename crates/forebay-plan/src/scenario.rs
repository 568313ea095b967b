//! Several scenarios side by side.
//!
//! A file is one scenario of the cluster model, or a base with a list `[[scenario]]`, each of which changes what it names: tables
//! are merged key by key, everything else is replaced.

use forebay_core::Result;
use serde_json::{Map, Value};

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
    let mut expanded: Vec<(String, Value)> = Vec::new();
    for (index, change) in list.into_iter().enumerate() {
        let mut request = Value::Object(base.clone());
        merge(&mut request, change);
        let name = request.get("name").and_then(Value::as_str).unwrap_or_default();
        let name = if name.is_empty() {
            format!("scenario {}", index + 1)
        } else {
            name.to_owned()
        };
        if expanded.iter().any(|(known, _)| *known == name) {
            let message = format!("two scenarios are called '{}'", name.escape_debug());
            return Err(wrong(message, "give each [[scenario]] a name of its own"));
        }
        expanded.push((name, request));
    }
    Ok(expanded)
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
        let figure = run.report.lookup(name);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    #[test]
    fn each_scenario_has_a_name_of_its_own() {
        let names = |file: &Value| -> Vec<String> {
            let expanded = expand(file).unwrap();
            expanded.into_iter().map(|(name, _)| name).collect()
        };
        let file = json!({ "scenario": [{}, { "name": "b" }, {}] });
        assert_eq!(names(&file), ["scenario 1", "b", "scenario 3"]);
        for list in [
            json!([{ "name": "a" }, { "name": "b" }, { "name": "a" }]),
            json!([{ "name": "scenario 2" }, {}]),
        ] {
            let error = expand(&json!({ "scenario": list })).unwrap_err();
            assert!(error.message().contains("two scenarios are called '"), "{error}");
        }
        // A name of the base would be the name of all of them.
        assert!(expand(&json!({ "name": "base", "scenario": [{}, {}] })).is_err());
    }

    #[test]
    fn what_one_computes_stands_beside_what_another_gives() {
        let base = json!({ "size": "50TB", "gpus": 1024, "storage": "1TB/s" });
        let list = json!([{ "name": "computed" }, { "name": "given", "stall": "1h" }]);
        let mut file = base.clone();
        file["scenario"] = list;
        let run = |(name, mut request): (String, Value)| {
            request.as_object_mut().unwrap().remove("name");
            let report = registry::run("checkpoint", &request).unwrap();
            Scenario {
                name,
                request,
                report,
            }
        };
        let runs: Vec<Scenario> = expand(&file).unwrap().into_iter().map(run).collect();
        let table = side_by_side(&runs);
        let row = table.rows.iter().find(|row| row[0] == "stall").unwrap();
        assert_eq!(row[2], "1 h");
        assert!(table.rows.iter().all(|row| !row[1].is_empty()));
    }
}
