//! `forebay plan`: the planner's models on the command line.
//!
//! ```text
//! flags.rs      command line -> model, fields, options
//! request.rs    + file, scenarios, measured rates (calibrate.rs) -> requests
//! this module   requests -> reports or a sweep, on a thread that Ctrl-C need not wait for
//! print.rs      reports -> text, CSV, Markdown, JSON; sweep.rs the same for sweeps; plot.rs -> curves
//! ```

mod calibrate;
mod flags;
mod plot;
mod print;
mod request;
mod sweep;

use forebay_core::{Error, ErrorKind, Result};
use forebay_plan::Scenario;

use crate::Exit;
use crate::app::App;
use crate::printer::{Printed, Printer};
pub(crate) use flags::PlanCommand;
use flags::{Format, PlanOptions};
use print::Run;
use request::{Ask, wrong};

/// What a model answered.
#[derive(Debug)]
enum Answer {
    Reports(Vec<Run>),
    Sweep(Box<sweep::Swept>),
}

/// Ask and show.
pub(super) async fn run(command: PlanCommand, app: &App) -> Printed<Exit> {
    let format = format(&command.options, app.printer())?;
    let work = async {
        let asking = tokio::task::spawn_blocking(move || (answer(&command), command.options));
        asking
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, "plan", "a model ended").with_source(error))
    };
    let (answer, options) = app.unless_cancelled(work).await?;
    match answer? {
        Answer::Sweep(found) => sweep::print(*found, format, app.printer())?,
        Answer::Reports(runs) if !options.explain.is_empty() => {
            print::explain(&runs, &options.explain, app.printer())?;
        }
        Answer::Reports(runs) => {
            print::reports(&runs, format, app.printer())?;
            if let Some(name) = &options.plot {
                curves(&runs, name, app.printer())?;
            }
        }
    }
    Ok(Exit::Success)
}

/// The form of the table; what no form has is refused rather than left out.
fn format(options: &PlanOptions, printer: &Printer) -> Result<Format> {
    if printer.is_json() && options.format.is_some() {
        return Err(wrong(
            "--json and --format are two forms of the same",
            "give one of them",
        ));
    }
    let format = options.format.unwrap_or(Format::Text);
    if options.plot.is_some() && (printer.is_json() || format != Format::Text) {
        return Err(wrong(
            "a plot is text",
            "leave out --plot; --json has the points, --format csv the table",
        ));
    }
    Ok(format)
}

fn answer(command: &PlanCommand) -> Result<Answer> {
    let asks = request::asks(command)?;
    if let Some(text) = &command.options.sweep {
        let found = sweep::run(command.model, &command.options, &asks, text)?;
        return Ok(Answer::Sweep(Box::new(found)));
    }
    let runs = asks.into_iter().map(|ask| asked(command, ask));
    Ok(Answer::Reports(runs.collect::<Result<_>>()?))
}

fn asked(command: &PlanCommand, ask: Ask) -> Result<Run> {
    let mut report =
        forebay_plan::run(command.model.name, &ask.request).map_err(|error| match &ask.name {
            Some(name) => error.at(name),
            None => error,
        })?;
    if let Some(measured) = &ask.measured {
        measured.warn(&ask.request, &mut report);
    }
    if !command.options.figures.is_empty() {
        report = print::pick(&report, &command.options.figures)?;
    }
    Ok(Run {
        scenario: Scenario {
            name: ask.name.clone().unwrap_or_default(),
            request: ask.request,
            report,
        },
        name: ask.name,
    })
}

/// The curve of a figure that the model itself gives, for each scenario.
fn curves(runs: &[Run], name: &str, printer: &Printer) -> Printed {
    let same = name.replace('-', "_");
    for run in runs {
        let curves = &run.scenario.report.series;
        let is_named = |text: &str| text == same || text.ends_with(&format!(".{same}"));
        let found = curves
            .iter()
            .find(|series| is_named(&series.name) || is_named(&series.y_name));
        let Some(series) = found else {
            let names: Vec<&str> = curves.iter().map(|series| series.name.as_str()).collect();
            let hint = if names.is_empty() {
                "give --sweep FIELD=RANGE to draw a figure over a field".to_owned()
            } else {
                format!(
                    "curves are {}; --sweep FIELD=RANGE draws any figure",
                    names.join(", ")
                )
            };
            let message = format!(
                "{} gives no curve of '{}'",
                run.scenario.report.model,
                name.escape_debug()
            );
            return Err(wrong(message, hint).into());
        };
        printer.data("")?;
        if let Some(name) = &run.name {
            printer.data(format_args!("scenario  {name}"))?;
        }
        print::draw(series, printer)?;
    }
    Ok(())
}
