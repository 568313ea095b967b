//! How reports are shown: one, or several side by side; as text, CSV, Markdown or JSON.
//!
//! Figures go to stdout; warnings and readings are talk, which `--json` has as parts of the report.

use std::borrow::Cow;
use std::fmt::Write as _;

use forebay_core::Result;
use forebay_plan::{Figure, Origin, Reading, Report, Scenario, Series, Table, side_by_side};
use serde::Serialize;

use super::flags::Format;
use super::plot::{self, Style};
use crate::printer::{Printed, Printer, visible};

/// A report as one line of `--json`.
#[derive(Debug, Serialize)]
struct ReportLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    scenario: Option<&'a str>,
    #[serde(flatten)]
    report: &'a Report,
}

/// A figure as one line of `--json --explain`.
#[derive(Debug, Serialize)]
struct FigureLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    scenario: Option<&'a str>,
    #[serde(flatten)]
    figure: &'a Figure,
}

/// An answer with the name of its scenario, where there is a list of them.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: Option<String>,
    pub(super) scenario: Scenario,
}

/// Leaves only the figures that are named, in that order.
pub(super) fn pick(report: &Report, names: &[String]) -> Result<Report> {
    let figures = names.iter().map(|name| report.find(name).map(Cow::into_owned));
    Ok(Report {
        figures: figures.collect::<Result<_>>()?,
        ..report.clone()
    })
}

/// Formula, inputs and source of figures.
pub(super) fn explain(runs: &[Run], names: &[String], printer: &Printer) -> Printed {
    let mut is_first = true;
    for run in runs {
        let report = &run.scenario.report;
        let figures: Vec<Cow<'_, Figure>> = if names.iter().any(|name| name == "all") {
            report.figures.iter().map(Cow::Borrowed).collect()
        } else {
            let found = names.iter().map(|name| report.find(name));
            found.collect::<Result<_>>()?
        };
        if printer.is_json() {
            for figure in figures {
                printer.json(&FigureLine {
                    scenario: run.name.as_deref(),
                    figure: &figure,
                })?;
            }
            continue;
        }
        for figure in figures {
            if !std::mem::take(&mut is_first) {
                printer.data("")?;
            }
            if let Some(name) = &run.name {
                printer.data(format_args!("scenario  {name}"))?;
            }
            for line in report.explain(&figure.name)?.lines() {
                printer.data(line)?;
            }
        }
    }
    Ok(())
}

/// All answers.
pub(super) fn reports(runs: &[Run], format: Format, printer: &Printer) -> Printed {
    if printer.is_json() {
        for run in runs {
            printer.json(&ReportLine {
                scenario: run.name.as_deref(),
                report: &run.scenario.report,
            })?;
        }
        return Ok(());
    }
    match runs {
        [run] => one(&run.scenario.report, format, printer)?,
        _ => several(runs, format, printer)?,
    }
    for run in runs {
        talk(run, runs.len() > 1, printer);
    }
    Ok(())
}

fn one(report: &Report, format: Format, printer: &Printer) -> Printed {
    match format {
        Format::Text => lines(&grouped(report), printer),
        Format::Csv => printer.raw(figures_csv(report).to_csv().as_bytes()),
        Format::Markdown => printer.raw(report.table().to_markdown().as_bytes()),
    }
}

fn several(runs: &[Run], format: Format, printer: &Printer) -> Printed {
    let scenarios: Vec<Scenario> = runs.iter().map(|run| run.scenario.clone()).collect();
    match format {
        Format::Text => lines(&side_by_side(&scenarios).to_text(), printer),
        Format::Csv => printer.raw(scenarios_csv(&scenarios).to_csv().as_bytes()),
        Format::Markdown => printer.raw(side_by_side(&scenarios).to_markdown().as_bytes()),
    }
}

pub(super) fn lines(text: &str, printer: &Printer) -> Printed {
    text.lines().try_for_each(|line| printer.data(line))
}

/// Figures under their headings: name, value, and the value in the unit it is confused with.
fn grouped(report: &Report) -> String {
    let rows = report.rows();
    let width = |cell: fn(&forebay_plan::Row) -> &String| {
        rows.iter()
            .map(|row| cell(row).chars().count())
            .max()
            .unwrap_or(0)
    };
    let (name_width, value_width) = (width(|row| &row.name), width(|row| &row.value));
    let mut text = String::new();
    let mut group = None;
    for row in &rows {
        if group != Some(&row.group) {
            let gap = if group.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{gap}{}", row.group);
            group = Some(&row.group);
        }
        let (name, value) = (&row.name, &row.value);
        let line = format!("  {name:<name_width$}  {value:>value_width$}  {}", row.other);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// For programs: numbers in base units.
fn figures_csv(report: &Report) -> Table {
    let columns = [
        "group", "figure", "value", "unit", "text", "also", "formula", "source",
    ];
    let row = |figure: &Figure| {
        let shown = figure.unit.show(figure.value);
        vec![
            figure.group.clone(),
            figure.name.clone(),
            figure.value.to_string(),
            figure.unit.symbol().to_owned(),
            shown.text,
            shown.other.unwrap_or_default(),
            figure.formula.clone(),
            figure.source.clone(),
        ]
    };
    Table {
        columns: columns.map(str::to_owned).to_vec(),
        rows: report.figures.iter().map(row).collect(),
    }
}

fn scenarios_csv(runs: &[Scenario]) -> Table {
    let mut table = side_by_side(runs);
    for row in &mut table.rows {
        let figures = runs.iter().map(|run| run.report.lookup(&row[0]));
        let figures: Vec<Option<Cow<'_, Figure>>> = figures.collect();
        let unit = figures
            .iter()
            .flatten()
            .next()
            .map_or("", |figure| figure.unit.symbol());
        let numbers = figures.iter().map(|figure| {
            figure
                .as_ref()
                .map_or_else(String::new, |figure| figure.value.to_string())
        });
        *row = [row[0].clone(), unit.to_owned()]
            .into_iter()
            .chain(numbers)
            .collect();
    }
    table.columns.insert(1, "unit".to_owned());
    table
}

/// Warnings, readings, and with `--verbose` what was assumed.
fn talk(run: &Run, is_named: bool, printer: &Printer) {
    let name = match &run.name {
        Some(name) if is_named => format!("{}: ", visible(name)),
        _ => String::new(),
    };
    let report = &run.scenario.report;
    for warning in &report.warnings {
        let (about, message) = (visible(&warning.about), visible(&warning.message));
        printer.say(format_args!("warning: {name}{about}: {message}"));
    }
    for reading in report.readings.iter().filter(|reading| reading.is_open()) {
        let about = visible(&reading.about);
        printer.say(format_args!("reading: {name}{about}: {}", reading_words(reading)));
    }
    let assumed = report.inputs.iter();
    let assumed = assumed.filter(|input| input.origin == Origin::Default);
    let assumed: Vec<String> = assumed
        .map(|input| format!("{} {}", input.name, input.unit.show(input.value).text))
        .collect();
    if !assumed.is_empty() {
        printer.detail(format_args!("assumed: {name}{}", assumed.join(", ")));
    }
}

/// A question with its answers.
pub(super) fn reading_words(reading: &Reading) -> String {
    let answers = reading.alternatives.iter().map(|answer| {
        let used = if answer.used { ", used here" } else { "" };
        let shown = answer.unit.show(answer.value).both();
        format!("{} ({}{used})", shown, answer.label)
    });
    let answers: Vec<String> = answers.collect();
    format!("{}: {}", visible(&reading.question), answers.join(" or "))
}

/// A curve on stdout.
pub(super) fn draw(series: &Series, printer: &Printer) -> Printed {
    let style = if printer.is_stdout_terminal() {
        Style::Unicode
    } else {
        Style::Ascii
    };
    plot::draw(series, style)
        .iter()
        .try_for_each(|line| printer.data(line))
}
