//! How answers are shown: one report, several side by side, a sweep; as text, CSV, Markdown or JSON.
//!
//! Figures go to stdout; warnings and readings are talk, which `--json` has as parts of the report.

use std::fmt::Write as _;

use forebay_core::Result;
use forebay_plan::{Figure, Report, Scenario, Sweep, SweepPoint, Table, side_by_side};
use serde::Serialize;

use super::flags::Format;
use super::plot::{self, Style};
use super::request::wrong;
use crate::printer::{Printed, Printer, visible};

/// Figures beside the field in the text of a sweep: what fits into a terminal. The other forms have all that change.
const SWEEP_FIGURES_MAX: usize = 5;

/// Figures a sweep shows first.
const HEADLINES: &[&str] = &[
    "goodput",
    "save_time",
    "interval_used",
    "loss_save",
    "loss_restart",
    "read_rate",
    "network_time",
    "total_cost",
];

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

/// The figure a user means: by its name, with `-` for `_`, or by the end of its name where no other figure ends so.
pub(super) fn find<'a>(report: &'a Report, name: &str) -> Result<&'a Figure> {
    let same = name.replace('-', "_");
    if let Some(figure) = report.figure(name).or_else(|| report.figure(&same)) {
        return Ok(figure);
    }
    let end = format!(".{same}");
    let mut ends = report.figures.iter().filter(|figure| figure.name.ends_with(&end));
    if let (Some(figure), None) = (ends.next(), ends.next()) {
        return Ok(figure);
    }
    // It is not there, so that this is the error which says what is.
    report.explain(&same)?;
    Err(wrong(
        format!("there is no figure '{}'", name.escape_debug()),
        "leave out --figures to see all",
    ))
}

/// Leaves only the figures that are named, in that order.
pub(super) fn pick(report: &Report, names: &[String]) -> Result<Report> {
    let figures = names.iter().map(|name| find(report, name).cloned());
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
        let figures: Vec<&Figure> = if names.iter().any(|name| name == "all") {
            report.figures.iter().collect()
        } else {
            names
                .iter()
                .map(|name| find(report, name))
                .collect::<Result<_>>()?
        };
        if printer.is_json() {
            for figure in figures {
                printer.json(&FigureLine {
                    scenario: run.name.as_deref(),
                    figure,
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

fn lines(text: &str, printer: &Printer) -> Printed {
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
        let figures: Vec<Option<&Figure>> = runs.iter().map(|run| run.report.figure(&row[0])).collect();
        let unit = figures
            .iter()
            .flatten()
            .next()
            .map_or("", |figure| figure.unit.symbol());
        let numbers = figures
            .iter()
            .map(|figure| figure.map_or_else(String::new, |figure| figure.value.to_string()));
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
    for reading in &report.readings {
        let answers = reading.alternatives.iter().map(|answer| {
            let used = if answer.used { ", used here" } else { "" };
            let shown = answer.unit.show(answer.value).both();
            format!("{} ({}{used})", shown, answer.label)
        });
        let answers: Vec<String> = answers.collect();
        let mut values = reading
            .alternatives
            .iter()
            .map(|answer| answer.unit.show(answer.value).text);
        let first = values.next();
        if values.all(|value| Some(value) == first) {
            // It is the same however it is read.
            continue;
        }
        let (about, question) = (visible(&reading.about), visible(&reading.question));
        printer.say(format_args!(
            "reading: {name}{about}: {question}: {}",
            answers.join(" or ")
        ));
    }
    let assumed = report.inputs.iter().filter(|input| !input.given);
    let assumed: Vec<String> = assumed
        .map(|input| format!("{} {}", input.name, input.unit.show(input.value).text))
        .collect();
    if !assumed.is_empty() {
        printer.detail(format_args!("assumed: {name}{}", assumed.join(", ")));
    }
}

/// A sweep: a row per value, and a plot.
pub(super) fn sweep(
    sweep: &Sweep,
    figures: &[String],
    plotted: Option<&str>,
    format: Format,
    printer: &Printer,
) -> Printed {
    if printer.is_json() {
        return printer.json(sweep);
    }
    let Some(first) = sweep.points.iter().find_map(|point| point.report.as_ref()) else {
        return Err(all_refused(sweep).into());
    };
    let plotted = match plotted {
        Some(name) => Some(find(first, name)?.name.as_str()),
        None => None,
    };
    let changing = headed(&changing(sweep, first));
    let head = plotted.or_else(|| changing.first().copied());
    let chosen: Vec<&str> = if figures.is_empty() {
        let others = changing.iter().copied().filter(|name| Some(*name) != head);
        head.into_iter().chain(others).collect()
    } else {
        let named = figures
            .iter()
            .map(|name| find(first, name).map(|figure| figure.name.as_str()));
        named.collect::<Result<_>>()?
    };
    match format {
        Format::Csv => return printer.raw(sweep_csv(sweep, &chosen).to_csv().as_bytes()),
        Format::Markdown => return printer.raw(tidied(sweep, &chosen).to_markdown().as_bytes()),
        Format::Text => {}
    }
    let shown = if figures.is_empty() {
        &chosen[..chosen.len().min(SWEEP_FIGURES_MAX)]
    } else {
        &chosen[..]
    };
    lines(&tidied(sweep, shown).to_text(), printer)?;
    curve(sweep, plotted, head, printer)?;
    let hidden = &chosen[shown.len()..];
    if !hidden.is_empty() {
        printer.say(format_args!(
            "also change, see --figures: {}",
            visible(&hidden.join(", "))
        ));
    }
    Ok(())
}

/// The plot of a sweep, where the field is a quantity; asking for one where it is not is an error.
fn curve(sweep: &Sweep, plotted: Option<&str>, head: Option<&str>, printer: &Printer) -> Printed {
    let series = head.and_then(|name| sweep.series(name));
    match series.filter(|series| series.points.len() > 1) {
        Some(series) => {
            printer.data("")?;
            draw(&series, printer)
        }
        None if plotted.is_some() => {
            let message = format!("{} has no two points to draw", sweep.field);
            Err(wrong(
                message,
                "sweep a quantity over a range, such as storage=10GB/s..1TB/s",
            )
            .into())
        }
        None => Ok(()),
    }
}

/// A curve on stdout.
pub(super) fn draw(series: &forebay_plan::Series, printer: &Printer) -> Printed {
    let style = if printer.is_stdout_terminal() {
        Style::Unicode
    } else {
        Style::Ascii
    };
    plot::draw(series, style)
        .iter()
        .try_for_each(|line| printer.data(line))
}

fn all_refused(sweep: &Sweep) -> forebay_core::Error {
    let reason = sweep.points.iter().find_map(|point| point.refused.as_deref());
    wrong(
        format!(
            "no value of {} can be computed: {}",
            sweep.field,
            reason.unwrap_or_default()
        ),
        "give what is missing, or another range",
    )
}

/// Names of figures that are not the same for all values.
fn changing<'a>(sweep: &Sweep, first: &'a Report) -> Vec<&'a str> {
    let value = |point: &SweepPoint, name: &str| point.report.as_ref().map(|report| report.value(name));
    let is_changing = |figure: &&Figure| {
        let mut values = sweep.points.iter().filter_map(|point| value(point, &figure.name));
        values.any(|value| value != Some(figure.value))
    };
    let figures = first.figures.iter().filter(is_changing);
    figures.map(|figure| figure.name.as_str()).collect()
}

/// Figures with what most people want to know before the others, which stay in their order.
fn headed<'a>(figures: &[&'a str]) -> Vec<&'a str> {
    let is_headline =
        |name: &str, headline: &str| name == headline || name.ends_with(&format!(".{headline}"));
    let rank = |name: &str| {
        let mut headlines = HEADLINES.iter();
        headlines
            .position(|headline| is_headline(name, headline))
            .unwrap_or(HEADLINES.len())
    };
    let mut ranked = figures.to_vec();
    // A stable sort, so that equals stay in their order.
    ranked.sort_by_key(|name| rank(name));
    ranked
}

/// The table of a sweep, without the column of refusals where there is none.
fn tidied(sweep: &Sweep, figures: &[&str]) -> Table {
    let mut table = sweep.table(figures);
    if sweep.points.iter().all(|point| point.refused.is_none()) {
        table.columns.pop();
        for row in &mut table.rows {
            row.pop();
        }
    }
    table
}

fn sweep_csv(sweep: &Sweep, figures: &[&str]) -> Table {
    let mut table = sweep.table(figures);
    let headed = |name: &str, unit: Option<&str>| match unit {
        Some(unit) if !unit.is_empty() => format!("{name} ({unit})"),
        _ => name.to_owned(),
    };
    table.columns[0] = headed(&sweep.field, sweep.unit.map(forebay_plan::quantity::Unit::symbol));
    for (index, name) in figures.iter().enumerate() {
        let figure = |point: &SweepPoint| {
            point
                .report
                .as_ref()
                .and_then(|report| report.figure(name))
                .cloned()
        };
        let unit = sweep
            .points
            .iter()
            .find_map(figure)
            .map(|figure| figure.unit.symbol());
        table.columns[index + 1] = headed(name, unit);
        for (row, point) in table.rows.iter_mut().zip(&sweep.points) {
            row[index + 1] = figure(point).map_or_else(String::new, |figure| figure.value.to_string());
        }
    }
    for (row, point) in table.rows.iter_mut().zip(&sweep.points) {
        if let Some(value) = point.value {
            row[0] = value.to_string();
        }
    }
    table
}
