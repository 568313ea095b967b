//! How a sweep is shown: a row per value of the field, a column per figure that changes, and a plot of one of them.
//!
//! Which figures are shown is settled first, whatever the form: those that are named, or those that change, the ones most people
//! want to know before the others.

use forebay_core::Result;
use forebay_plan::quantity::Unit;
use forebay_plan::{Model, Sweep, SweepRequest, Table};

use super::calibrate;
use super::flags::{Format, PlanOptions};
use super::print::{draw, lines, reading_words};
use super::request::{Ask, field_name, wrong};
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

/// A sweep with what is to be shown of it.
#[derive(Debug)]
pub(super) struct Swept {
    /// With the figures to show, in their order.
    sweep: Sweep,
    /// Name of the figure to draw.
    drawn: Option<String>,
    /// Whether somebody chose the figures.
    is_chosen: bool,
}

/// Runs the sweep a command line asks for, as far as it can be shown.
pub(super) fn run(model: &Model, options: &PlanOptions, asks: &[Ask], text: &str) -> Result<Swept> {
    let Some((field, range)) = text.split_once('=') else {
        let message = format!("'{}' is no sweep", text.escape_debug());
        return Err(wrong(message, "write --sweep storage=10GB/s..1TB/s:10"));
    };
    let [ask] = asks else {
        let names: Vec<&str> = asks.iter().filter_map(|ask| ask.name.as_deref()).collect();
        let message = format!("a sweep is of one scenario, the file has {}", asks.len());
        return Err(wrong(
            message,
            format!("choose one with --scenario: {}", names.join(", ")),
        ));
    };
    let field = field_name(field);
    if ask.measured.is_some() {
        calibrate::allow_sweep(model, &field)?;
    }
    // What is drawn comes first, so that it is the first figure of the answer.
    let figures: Vec<String> = options.plot.iter().chain(&options.figures).cloned().collect();
    let asked = SweepRequest {
        model: model.name,
        request: &ask.request,
        field: &field,
        range,
        figures: &figures,
        is_rest_kept: options.figures.is_empty(),
    };
    // Ctrl-C ends the program without waiting for this.
    let keep_going = || true;
    let sweep = forebay_plan::sweep(&asked, &keep_going, &|report| {
        if let Some(measured) = &ask.measured {
            measured.warn(&ask.request, report);
        }
    })?;
    choose(sweep, options)
}

/// Settles what is shown.
fn choose(sweep: Sweep, options: &PlanOptions) -> Result<Swept> {
    let names = |is_shown: &dyn Fn(usize) -> bool| -> Vec<String> {
        let figures = sweep.figures.iter().enumerate();
        let shown = figures.filter(|(index, _)| is_shown(*index));
        shown.map(|(_, figure)| figure.name.clone()).collect()
    };
    let is_plotted = |index: usize| options.plot.is_some() && index == 0;
    let is_changing = |index: usize| sweep.figures[index].is_changing(&sweep);
    let chosen = if options.figures.is_empty() {
        let mut chosen = names(&is_plotted);
        chosen.extend(headed(names(&|index| !is_plotted(index) && is_changing(index))));
        chosen
    } else {
        names(&|_| true)
    };
    let head = match (&options.plot, options.figures.is_empty()) {
        (None, false) => headed(names(&is_changing)).into_iter().next(),
        _ => chosen.first().cloned(),
    };
    let curve = head.as_deref().and_then(|name| sweep.series(name));
    let is_drawable = curve.is_some_and(|series| series.points.len() > 1);
    if options.plot.is_some() && !is_drawable {
        let message = format!("{} has no two points to draw", sweep.field);
        let hint = "sweep a quantity over a range, such as storage=10GB/s..1TB/s";
        return Err(wrong(message, hint));
    }
    Ok(Swept {
        drawn: head.filter(|_| is_drawable),
        is_chosen: !options.figures.is_empty(),
        sweep: sweep.only(&chosen),
    })
}

/// Figures with what most people want to know before the others, which stay in their order.
fn headed(mut figures: Vec<String>) -> Vec<String> {
    let rank = |name: &String| {
        let end = name.rsplit('.').next();
        let mut headlines = HEADLINES.iter();
        headlines
            .position(|headline| end == Some(headline))
            .unwrap_or(HEADLINES.len())
    };
    // A stable sort, so that equals stay in their order.
    figures.sort_by_key(rank);
    figures
}

/// A sweep: a row per value, and a plot.
pub(super) fn print(swept: Swept, format: Format, printer: &Printer) -> Printed {
    let sweep = swept.sweep;
    if printer.is_json() {
        return printer.json(&sweep);
    }
    match format {
        Format::Csv => printer.raw(csv(&sweep).to_csv().as_bytes())?,
        Format::Markdown => printer.raw(tidied(&sweep).to_markdown().as_bytes())?,
        Format::Text => {
            let names: Vec<String> = sweep.figures.iter().map(|figure| figure.name.clone()).collect();
            let fitting = if swept.is_chosen {
                names.len()
            } else {
                names.len().min(SWEEP_FIGURES_MAX)
            };
            let (shown, hidden) = names.split_at(fitting);
            lines(&tidied(&sweep.clone().only(shown)).to_text(), printer)?;
            if let Some(series) = swept.drawn.and_then(|name| sweep.series(&name)) {
                printer.data("")?;
                draw(&series, printer)?;
            }
            talk(&sweep, printer);
            if !hidden.is_empty() {
                let hidden = visible(&hidden.join(", "));
                printer.say(format_args!("also change, see --figures: {hidden}"));
            }
            return Ok(());
        }
    }
    talk(&sweep, printer);
    Ok(())
}

/// Warnings and readings, once for each figure or field they are about.
fn talk(sweep: &Sweep, printer: &Printer) {
    let answered = sweep.values.len() - sweep.refusals.len();
    for warning in &sweep.warnings {
        let (about, message) = (visible(&warning.warning.about), visible(&warning.warning.message));
        let count = warning.count;
        printer.say(format_args!(
            "warning: {about}, at {count} of {answered} values: {message}"
        ));
    }
    for reading in &sweep.readings {
        let about = visible(&reading.reading.about);
        let words = reading_words(&reading.reading);
        printer.say(format_args!(
            "reading: {about}, at {}: {words}",
            visible(&reading.at)
        ));
    }
}

/// The table of a sweep, without the column of refusals where there is none.
fn tidied(sweep: &Sweep) -> Table {
    let mut table = sweep.table();
    if sweep.refusals.is_empty() {
        table.columns.pop();
        for row in &mut table.rows {
            row.pop();
        }
    }
    table
}

/// For programs: numbers in base units.
fn csv(sweep: &Sweep) -> Table {
    let mut table = sweep.table();
    let headed = |name: &str, unit: &str| match unit {
        "" => name.to_owned(),
        unit => format!("{name} ({unit})"),
    };
    table.columns[0] = headed(&sweep.field, sweep.unit.map_or("", Unit::symbol));
    for (row, value) in table.rows.iter_mut().zip(&sweep.values) {
        if let Some(value) = value.value {
            row[0] = value.to_string();
        }
    }
    for (index, figure) in sweep.figures.iter().enumerate() {
        table.columns[index + 1] = headed(&figure.name, figure.unit.symbol());
        for (row, value) in table.rows.iter_mut().zip(&figure.values) {
            row[index + 1] = value.map_or_else(String::new, |value| value.to_string());
        }
    }
    table
}
