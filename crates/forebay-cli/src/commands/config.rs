//! `forebay config`: every setting in force, and where it comes from.

use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::config::Origin;
use crate::printer::Printed;
use crate::table::Table;

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    key: &'a str,
    value: Option<String>,
    #[serde(flatten)]
    origin: &'a Origin,
}

/// Print the table.
pub(super) fn run(app: &App) -> Printed<Exit> {
    let (printer, config) = (app.printer(), app.config());
    if printer.is_json() {
        for row in config.rows() {
            let value = row.value.to_string();
            printer.json(&Row {
                key: row.setting.key,
                value: (value != "-").then_some(value),
                origin: &row.origin,
            })?;
        }
        return Ok(Exit::Success);
    }
    match config.file() {
        Some(path) => printer.say(format_args!("configuration file: {}", path.display())),
        None => printer.say("configuration file: none"),
    }
    let mut table = Table::new(&["setting", "value", "from"]);
    for row in config.rows() {
        table.row([
            row.setting.key.to_owned(),
            row.value.to_string(),
            row.origin.to_string(),
        ]);
    }
    for line in table.lines() {
        printer.data(line)?;
    }
    Ok(Exit::Success)
}
