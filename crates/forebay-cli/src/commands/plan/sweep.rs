//! How a sweep is shown: a row per value of the field, a column per figure that changes, and a plot of one of them.

use forebay_core::Result;
use forebay_plan::quantity::Unit;
use forebay_plan::{Figure, Report, Sweep, SweepPoint, Table};

use super::flags::Format;
use super::print::{draw, find, lines};
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

/// A sweep: a row per value, and a plot.
pub(super) fn print(
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
    warnings(sweep, printer);
    let hidden = &chosen[shown.len()..];
    if !hidden.is_empty() {
        printer.say(format_args!(
            "also change, see --figures: {}",
            visible(&hidden.join(", "))
        ));
    }
    Ok(())
}

/// What the reports warn of, once for each figure or field it is about.
fn warnings(sweep: &Sweep, printer: &Printer) {
    let reports: Vec<&Report> = sweep
        .points
        .iter()
        .filter_map(|point| point.report.as_ref())
        .collect();
    let mut told: Vec<&str> = Vec::new();
    for warning in reports.iter().flat_map(|report| &report.warnings) {
        if told.contains(&warning.about.as_str()) {
            continue;
        }
        told.push(&warning.about);
        let is_warned = |report: &&&Report| report.warnings.iter().any(|other| other.about == warning.about);
        let count = reports.iter().filter(is_warned).count();
        let (about, message) = (visible(&warning.about), visible(&warning.message));
        printer.say(format_args!(
            "warning: {about}, at {count} of {} values: {message}",
            reports.len()
        ));
    }
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
    table.columns[0] = headed(&sweep.field, sweep.unit.map(Unit::symbol));
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
