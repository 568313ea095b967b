//! Measured rates for the planner, from the JSON of `forebay bench disk`, `forebay bench store` or `forebay demo`.
//!
//! A benchmark runs on one node. What the planner asks for is the rate of all writers together: that is the measured rate for storage all
//! nodes share, and a multiple of it where each node has a disk of its own, which only the user can know (`--calibrate-nodes`).

use std::path::Path;

use forebay_core::{ByteSize, Result};
use forebay_plan::{Model, Report, Warning};
use serde_json::{Value, json};

use super::request::{read_text, wrong};

/// Fields of the checkpoint model that measured rates take the place of.
const MEASURED: [&str; 2] = ["storage", "storage_read"];

/// Rates with where they come from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    /// Which command measured where.
    from: String,
    write_bytes_per_s: f64,
    read_bytes_per_s: f64,
    /// Nodes that have these rates each; nothing when nobody said.
    nodes: Option<u32>,
    /// Measured on a directory of this node, not through a store.
    is_local: bool,
}

/// Reads a benchmark's result.
pub(super) fn read(path: &Path, nodes: Option<u32>) -> Result<Measured> {
    let text = read_text(path)?;
    let found = serde_json::from_str(&text)
        .ok()
        .and_then(|json: Value| parse(&json));
    let Some(mut measured) = found else {
        let message = "not the JSON of forebay bench disk, forebay bench store or forebay demo";
        let hint = "make one with: forebay bench disk DIR --json > bench.json";
        return Err(wrong(message, hint).at(path.display()));
    };
    if measured.write_bytes_per_s <= 0.0 || measured.read_bytes_per_s <= 0.0 {
        let message = "a measured rate is not above zero";
        return Err(wrong(message, "measure again, with a larger --size").at(path.display()));
    }
    measured.nodes = nodes;
    Ok(measured)
}

/// The rates of a result, whichever of the three commands made it.
fn parse(json: &Value) -> Option<Measured> {
    let text = |name: &str| json.get(name).and_then(Value::as_str);
    let runs = || json.get("runs").and_then(Value::as_u64);
    let size = ByteSize(json.get("size")?.as_u64()?);
    let (from, write, read, is_local) = if let Some(steps) = json.get("steps") {
        let rate = |name| row(steps, name)?.get("bytes_per_s")?.as_f64();
        let from = format!("measured by forebay demo in {}, {size}", text("dir")?);
        (from, rate("write, durable")?, rate("read back, next")?, true)
    } else if let Some(dir) = text("dir") {
        let rate = |name| {
            row(json.get("tests")?, name)?
                .get("forebay")?
                .get("bytes_per_s")?
                .as_f64()
        };
        let from = format!(
            "measured by forebay bench disk in {dir}, {size}, median of {}",
            runs()?
        );
        (from, rate("durable write")?, rate("sequential read")?, true)
    } else {
        let rate = |name| row(json.get("tests")?, name)?.get("bytes_per_s")?.as_f64();
        let from = format!(
            "measured by forebay bench store at {}, {size}, median of {}",
            text("url")?,
            runs()?
        );
        (from, rate("put in parts")?, rate("get in ranges")?, false)
    };
    Some(Measured {
        from,
        write_bytes_per_s: write,
        read_bytes_per_s: read,
        nodes: None,
        is_local,
    })
}

/// The row of that name.
fn row<'a>(rows: &'a Value, name: &str) -> Option<&'a Value> {
    let rows = rows.as_array()?;
    rows.iter()
        .find(|row| row.get("name").and_then(Value::as_str) == Some(name))
}

/// Refuses to sweep what was measured: the values of the sweep would change nothing.
pub(super) fn allow_sweep(model: &Model, field: &str) -> Result<()> {
    let own = match model.name {
        "cluster" => field.strip_prefix("checkpoint."),
        _ => Some(field),
    };
    if own.is_some_and(|own| MEASURED.contains(&own) || own.starts_with("calibration")) {
        let message = format!("{field} cannot be swept: the measured rate is used at every value");
        return Err(wrong(message, "leave out --calibrate, or sweep another field"));
    }
    Ok(())
}

impl Measured {
    /// As the checkpoint model takes it.
    pub(super) fn to_table(&self) -> Value {
        let nodes = f64::from(self.nodes.unwrap_or(1));
        let from = match self.nodes {
            Some(nodes) if nodes > 1 => format!("{}, times {nodes} nodes", self.from),
            _ => self.from.clone(),
        };
        json!({
            "from": from,
            "write": self.write_bytes_per_s * nodes,
            "read": self.read_bytes_per_s * nodes,
        })
    }

    /// Tells what the measured rates replaced, and what one node cannot have measured.
    pub(super) fn warn(&self, request: &Value, report: &mut Report) {
        let part = if report.model == "cluster" {
            "checkpoint."
        } else {
            ""
        };
        let table = match part {
            "" => Some(request),
            _ => request.get("checkpoint"),
        };
        for field in MEASURED {
            if table.and_then(|table| table.get(field)).is_some() {
                let message = format!("{field} was given, the measured rate is used instead");
                report.warnings.push(Warning {
                    about: format!("{part}{field}"),
                    message,
                });
            }
        }
        let input = |name: &str| {
            let mut inputs = report.inputs.iter();
            inputs
                .find(|input| input.name == format!("{part}{name}"))
                .map(|input| input.value)
        };
        let nodes = input("gpus").map(|gpus| (gpus / input("gpus_per_node").unwrap_or(1.0)).ceil());
        let message = match (nodes, self.nodes) {
            (Some(nodes), None) if nodes > 1.0 && self.is_local => format!(
                "the rates were measured by one node, and are taken for all {nodes} together; \
                 where each node has such a disk, give --calibrate-nodes {nodes}"
            ),
            (Some(nodes), Some(given)) if f64::from(given) > nodes => format!(
                "--calibrate-nodes is {given}, the job has only {nodes}: no more than those write at the same time"
            ),
            _ => return,
        };
        report.warnings.push(Warning {
            about: format!("{part}calibration"),
            message,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_gives_its_rates() {
        let disk = json!({ "dir": "/nvme", "size": 1 << 30, "runs": 3, "tests": [
            { "name": "sequential read", "forebay": { "bytes_per_s": 7e9 } },
            { "name": "durable write", "forebay": { "bytes_per_s": 5e9 } },
        ] });
        let store = json!({ "url": "s3://b", "size": 1 << 30, "runs": 3, "tests": [
            { "name": "put in parts", "bytes_per_s": 2e9 },
            { "name": "get in ranges", "bytes_per_s": 3e9 },
        ] });
        let demo = json!({ "dir": "/nvme", "size": 1 << 30, "steps": [
            { "name": "write, durable", "bytes_per_s": 1e9 },
            { "name": "read back, next", "bytes_per_s": 4e9 },
        ] });
        for (json, write, read, is_local) in [
            (disk, 5e9, 7e9, true),
            (store, 2e9, 3e9, false),
            (demo, 1e9, 4e9, true),
        ] {
            let found = parse(&json).unwrap();
            assert_eq!(
                (found.write_bytes_per_s, found.read_bytes_per_s, found.is_local),
                (write, read, is_local)
            );
            let table = Measured {
                nodes: Some(4),
                ..found
            }
            .to_table();
            assert_eq!(table["write"], write * 4.0);
            assert!(table["from"].as_str().unwrap().ends_with("times 4 nodes"));
        }
        for json in [json!({}), json!([1]), json!({ "size": 1, "tests": [] })] {
            assert!(parse(&json).is_none(), "{json}");
        }
    }
}
