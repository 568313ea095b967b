//! What a model is asked: the file, one request per scenario, then measured rates, then flags, the later taking precedence.

use std::io::Read;
use std::path::Path;

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::{Model, expand, parse_json, parse_toml, put};
use serde_json::{Map, Value};

use super::calibrate::{self, Measured};
use super::flags::PlanCommand;

/// A request or a benchmark's result larger than this is a mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One question to the model.
#[derive(Debug)]
pub(super) struct Ask {
    /// Name of the scenario, where the file has a list of them.
    pub(super) name: Option<String>,
    /// What the model is told.
    pub(super) request: Value,
    /// What is told about it beside the answer.
    pub(super) measured: Option<Measured>,
}

/// An error of the user with what would be right.
pub(super) fn wrong(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "plan", message.into()).with_hint(hint.into())
}

/// Every question of a command line.
pub(super) fn asks(command: &PlanCommand) -> Result<Vec<Ask>> {
    let options = &command.options;
    let file = match &options.file {
        Some(path) => read_request(path)?,
        None => Value::Object(Map::new()),
    };
    let is_list = file.get("scenario").is_some();
    let place = |error: Error| match &options.file {
        Some(path) => error.at(path.display()),
        None => error,
    };
    let mut requests = expand(&file).map_err(place)?;
    if let Some(wanted) = &options.scenario {
        let names: Vec<String> = requests.iter().map(|(name, _)| name.clone()).collect();
        requests.retain(|(name, _)| name == wanted);
        if requests.is_empty() {
            let message = format!("there is no scenario '{}'", wanted.escape_debug());
            return Err(place(wrong(
                message,
                format!("scenarios are {}", names.join(", ")),
            )));
        }
    }
    let measured = match &options.calibrate {
        Some(path) => Some(calibrate::read(path, options.calibrate_nodes)?),
        None => None,
    };
    let mut asks = Vec::new();
    for (name, request) in requests {
        let mut ask = Ask {
            name: is_list.then_some(name),
            request,
            measured: measured.clone(),
        };
        fill(&mut ask, command)?;
        asks.push(ask);
    }
    Ok(asks)
}

/// Puts measured rates and what the command line says on top of the file's values.
fn fill(ask: &mut Ask, command: &PlanCommand) -> Result<()> {
    if let Some(map) = ask.request.as_object_mut()
        && !has_field(command.model, "name")
    {
        // The name of a scenario is ours, where the model has no use for it.
        map.remove("name");
    }
    if let Some(measured) = &ask.measured {
        let path = calibration_path(command.model)?;
        put(&mut ask.request, path, measured.to_table())?;
    }
    for (name, value) in &command.fields {
        put(&mut ask.request, name, value.clone())?;
    }
    for setting in &command.options.set {
        let Some((name, text)) = setting.split_once('=') else {
            let message = format!("'{}' sets nothing", setting.escape_debug());
            return Err(wrong(message, "write --set checkpoint.storage=1TB/s"));
        };
        put(&mut ask.request, &field_name(name), set_value(text)?)?;
    }
    Ok(())
}

fn has_field(model: &Model, name: &str) -> bool {
    (model.fields)().iter().any(|field| field.name == name)
}

/// Where a model takes measured rates.
fn calibration_path(model: &Model) -> Result<&'static str> {
    if has_field(model, "calibration") {
        return Ok("calibration");
    }
    if has_field(model, "checkpoint") && model.name == "cluster" {
        return Ok("checkpoint.calibration");
    }
    Err(wrong(
        format!("{} takes no measured rates", model.name),
        "--calibrate works with plan checkpoint and plan cluster; give fields such as --drive-rate by hand",
    ))
}

/// A field as files write it: the command line writes `_` as `-`.
pub(super) fn field_name(name: &str) -> String {
    name.trim().replace('-', "_")
}

/// A value of `--set`: a list, table or quoted text as in TOML, any other text as it is.
fn set_value(text: &str) -> Result<Value> {
    let text = text.trim();
    if !text.starts_with(['[', '{', '"', '\'']) {
        return Ok(Value::String(text.to_owned()));
    }
    let mut table = parse_toml(&format!("value = {text}"))?;
    Ok(table.get_mut("value").map(Value::take).unwrap_or_default())
}

/// A file as a table of fields: JSON where it begins like an object, TOML otherwise.
fn read_request(path: &Path) -> Result<Value> {
    let text = read_text(path)?;
    let parsed = if text.trim_start().starts_with('{') {
        parse_json(&text)
    } else {
        parse_toml(&text)
    };
    parsed.map_err(|error| error.at(path.display()))
}

/// The text of a small file, or of stdin.
pub(super) fn read_text(path: &Path) -> Result<String> {
    let fail = |error: std::io::Error| Error::from_io("read", error).at(path.display());
    let mut text = String::new();
    let bytes = if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(FILE_BYTES_MAX + 1)
            .read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path).map_err(fail)?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)
    };
    let bytes = bytes.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => wrong("not a text", "give a TOML or JSON file").at(path.display()),
        _ => fail(error),
    })?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(Error::new(ErrorKind::LimitExceeded, "read", "larger than 1 MiB").at(path.display()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_set_are_words_or_toml() {
        assert_eq!(set_value("1TB/s").unwrap(), json!("1TB/s"));
        assert_eq!(set_value("true").unwrap(), json!("true"));
        assert_eq!(
            set_value("[{ name = 'ssd', write = '1GB/s' }]").unwrap(),
            json!([{ "name": "ssd", "write": "1GB/s" }])
        );
        assert!(set_value("[1,").is_err());
    }
}
