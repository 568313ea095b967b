//! One field over a range: what becomes of the figures at each value.
//!
//! `range.rs` reads the range. Each report is taken apart as soon as it is made: of its figures only the numbers stay, in a column
//! each, with the warnings and readings once; so a sweep of a thousand points needs little more memory than one report. The
//! field may be dotted in the cluster model (`checkpoint.storage`). A value the model refuses is kept with its reason, so that one
//! impossible corner does not hide the rest; a sweep without any answer is an error.

mod range;

use std::collections::HashMap;

use forebay_core::{Error, ErrorKind, Result};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::field::Field;
use crate::model::failures;
use crate::quantity::{Count, Measure as _, Unit};
use crate::report::{Reading, Report, Series, Warning};
use crate::sheet::wrong;
use crate::table::Table;
use crate::{near, path, registry};

/// More points than a plot shows.
pub const SWEEP_POINTS_MAX: usize = 1000;

/// Simulated failures and saves of a whole sweep: as many as the longest one has by default, a few seconds of work.
pub const SWEEP_EVENTS_MAX: f64 = 200_000_000.0;

/// What to sweep.
#[derive(Debug, Clone, Copy)]
pub struct SweepRequest<'a> {
    /// Name of the model.
    pub model: &'a str,
    /// What it is told beside the field.
    pub request: &'a Value,
    /// Name of the field.
    pub field: &'a str,
    /// Its values.
    pub range: &'a str,
    /// Figures to keep, as people write them, in this order.
    pub figures: &'a [String],
    /// Whether all other figures are kept as well, after them.
    pub is_rest_kept: bool,
}

/// A value of the field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepValue {
    /// In its base unit, where it is a quantity.
    pub value: Option<f64>,
    /// In words.
    pub text: String,
}

/// A figure at each value.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepFigure {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// The numbers, in the order of the values; nothing where the model refused or did not give it.
    pub values: Vec<Option<f64>>,
}

/// A warning and at how many values it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SweepWarning {
    /// As it was given first.
    #[serde(flatten)]
    pub warning: Warning,
    /// How many values have a warning about the same.
    pub count: usize,
}

/// An ambiguity, at the first value where it matters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepReading {
    /// The value in words.
    pub at: String,
    /// As it is there.
    #[serde(flatten)]
    pub reading: Reading,
}

/// A value the model refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Which value.
    pub index: usize,
    /// Why, with what would be right.
    pub reason: String,
}

/// Figures over a range.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    /// Name of the model.
    pub model: String,
    /// Name of the field.
    pub field: String,
    /// Unit of the field, where it is a quantity.
    pub unit: Option<Unit>,
    /// Its values, in the order of the range.
    pub values: Vec<SweepValue>,
    /// The figures, a column each.
    pub figures: Vec<SweepFigure>,
    /// Contradictions.
    pub warnings: Vec<SweepWarning>,
    /// Ambiguities.
    pub readings: Vec<SweepReading>,
    /// Values without an answer.
    pub refusals: Vec<Refusal>,
}

/// Runs a model for each value of a field, as long as `keep_going` says so; `note` may add to each report before it is taken apart.
pub fn sweep(
    asked: &SweepRequest<'_>,
    keep_going: &dyn Fn() -> bool,
    note: &dyn Fn(&mut Report),
) -> Result<Sweep> {
    let field = find_field(asked.model, asked.field)?;
    let (values, written): (Vec<SweepValue>, Vec<Value>) =
        range::values(&field, asked.range)?.into_iter().unzip();
    check_work(asked, &written)?;
    let mut request = asked.request.clone();
    let mut keeper = Keeper {
        asked,
        indices: HashMap::new(),
        sweep: Sweep {
            model: asked.model.to_owned(),
            field: asked.field.to_owned(),
            unit: field.unit(),
            values,
            figures: Vec::new(),
            warnings: Vec::new(),
            readings: Vec::new(),
            refusals: Vec::new(),
        },
    };
    let count = written.len();
    for (index, value) in written.into_iter().enumerate() {
        if !keep_going() {
            let message = format!("the sweep was stopped at {index} of {count} values");
            return Err(Error::new(ErrorKind::Cancelled, "plan", message).with_hint("ask for fewer values"));
        }
        path::put(&mut request, asked.field, value)?;
        match registry::run(asked.model, &request) {
            Ok(mut report) => {
                note(&mut report);
                keeper.keep(index, &report)?;
            }
            Err(error) => keeper.refuse(index, &error),
        }
    }
    keeper.finish()
}

/// Refuses a sweep whose simulations would take minutes.
fn check_work(asked: &SweepRequest<'_>, values: &[Value]) -> Result<()> {
    let (section, events) = match asked.model {
        "failures" => (Some(asked.request), "events"),
        "cluster" => (asked.request.get("failures"), "failures.events"),
        _ => return Ok(()),
    };
    if section.is_none() && !asked.field.starts_with("failures.") {
        return Ok(());
    }
    let default = || failures::Request::default().events.get();
    // What is no count is refused by the model, without any work.
    let read = |value: &Value| Count::deserialize(value).map_or(0.0, Count::get);
    let total: f64 = if asked.field == events {
        values.iter().map(read).sum()
    } else {
        let said = section.and_then(|section| section.get("events"));
        said.map_or_else(default, read) * values.len() as f64
    };
    if total <= SWEEP_EVENTS_MAX {
        return Ok(());
    }
    let show = |count: f64| Unit::Count.show(count).text;
    Err(wrong(
        format!(
            "{} simulated events would take minutes, a sweep has up to {}",
            show(total),
            show(SWEEP_EVENTS_MAX)
        ),
        format!(
            "give fewer values, or events up to {}",
            show((SWEEP_EVENTS_MAX / values.len() as f64).floor())
        ),
    ))
}

/// The field of a model, or `model.field` of the cluster model.
fn find_field(model: &str, name: &str) -> Result<Field> {
    let (model, name) = match (model, name.split_once('.')) {
        ("cluster", Some((part, name))) => (part, name),
        _ => (model, name),
    };
    let mut fields = (registry::model(model)?.fields)();
    let Some(index) = fields.iter().position(|field| field.name == name) else {
        let hint = near::hint(name, "fields", fields.iter().map(|field| field.name));
        let message = format!("{model} has no field '{}'", name.escape_debug());
        return Err(wrong(message, hint));
    };
    Ok(fields.swap_remove(index))
}

/// A sweep in the making.
struct Keeper<'a> {
    asked: &'a SweepRequest<'a>,
    /// Where the figure of a name is kept.
    indices: HashMap<String, usize>,
    sweep: Sweep,
}

impl Keeper<'_> {
    fn keep(&mut self, index: usize, report: &Report) -> Result<()> {
        if self.indices.is_empty() {
            for name in self.asked.figures {
                let figure = report.find(name)?;
                self.column(&figure.name, figure.unit);
            }
        }
        if self.asked.is_rest_kept {
            for figure in &report.figures {
                self.column(&figure.name, figure.unit);
            }
        }
        // A figure goes before the input of the same name.
        let inputs = report.inputs.iter().map(|input| (&input.name, input.value));
        let figures = report.figures.iter().map(|figure| (&figure.name, figure.value));
        for (name, value) in inputs.chain(figures) {
            if let Some(column) = self.indices.get(name) {
                self.sweep.figures[*column].values[index] = Some(value);
            }
        }
        self.warn(report);
        for reading in report.readings.iter().filter(|reading| reading.is_open()) {
            let mut known = self.sweep.readings.iter();
            if !known.any(|known| known.reading.about == reading.about) {
                self.sweep.readings.push(SweepReading {
                    at: self.sweep.values[index].text.clone(),
                    reading: reading.clone(),
                });
            }
        }
        Ok(())
    }

    fn column(&mut self, name: &str, unit: Unit) {
        if self.indices.contains_key(name) {
            return;
        }
        self.indices.insert(name.to_owned(), self.sweep.figures.len());
        self.sweep.figures.push(SweepFigure {
            name: name.to_owned(),
            unit,
            values: vec![None; self.sweep.values.len()],
        });
    }

    /// Counts each figure or field that is warned of once.
    fn warn(&mut self, report: &Report) {
        for (index, warning) in report.warnings.iter().enumerate() {
            let mut before = report.warnings[..index].iter();
            if before.any(|before| before.about == warning.about) {
                continue;
            }
            let mut known = self.sweep.warnings.iter_mut();
            match known.find(|known| known.warning.about == warning.about) {
                Some(known) => known.count += 1,
                None => self.sweep.warnings.push(SweepWarning {
                    warning: warning.clone(),
                    count: 1,
                }),
            }
        }
    }

    fn refuse(&mut self, index: usize, error: &Error) {
        let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        self.sweep.refusals.push(Refusal {
            index,
            reason: format!("{}{hint}", error.message()),
        });
    }

    fn finish(self) -> Result<Sweep> {
        let sweep = self.sweep;
        match sweep.refusals.first() {
            Some(first) if sweep.refusals.len() == sweep.values.len() => Err(wrong(
                format!("no value of {} can be computed: {}", sweep.field, first.reason),
                "give what is missing, or another range",
            )),
            _ => Ok(sweep),
        }
    }
}

/// With the numbers in words beside them.
impl Serialize for SweepFigure {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            name: &'a str,
            unit: Unit,
            values: &'a [Option<f64>],
            texts: Vec<Option<String>>,
        }
        let written = Written {
            name: &self.name,
            unit: self.unit,
            values: &self.values,
            texts: self.texts().collect(),
        };
        written.serialize(serializer)
    }
}

impl SweepFigure {
    /// The numbers in words.
    pub fn texts(&self) -> impl Iterator<Item = Option<String>> + '_ {
        let values = self.values.iter();
        values.map(|value| value.map(|value| self.unit.show(value).text))
    }

    /// Whether it is not the same at all values that have an answer.
    pub fn is_changing(&self, sweep: &Sweep) -> bool {
        let is_refused = |index| sweep.refusals.iter().any(|refusal| refusal.index == index);
        let answered = self.values.iter().enumerate();
        let mut answered = answered.filter(|(index, _)| !is_refused(*index));
        let first = answered.next().map(|(_, value)| value);
        answered.any(|(_, value)| Some(value) != first)
    }
}

impl Sweep {
    /// The figure of that name.
    pub fn figure(&self, name: &str) -> Option<&SweepFigure> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    /// Only these figures, in this order.
    pub fn only(mut self, names: &[String]) -> Self {
        let figures = names.iter().filter_map(|name| self.figure(name).cloned());
        self.figures = figures.collect();
        self
    }

    /// One row per value, one column per figure, and one for refusals.
    pub fn table(&self) -> Table {
        let mut columns = vec![self.field.clone()];
        columns.extend(self.figures.iter().map(|figure| figure.name.clone()));
        columns.push("refused".to_owned());
        let mut rows: Vec<Vec<String>> = self.values.iter().map(|value| vec![value.text.clone()]).collect();
        for figure in &self.figures {
            for (row, text) in rows.iter_mut().zip(figure.texts()) {
                row.push(text.unwrap_or_default());
            }
        }
        for (index, row) in rows.iter_mut().enumerate() {
            let refusal = self.refusals.iter().find(|refusal| refusal.index == index);
            row.push(refusal.map(|refusal| refusal.reason.clone()).unwrap_or_default());
        }
        Table { columns, rows }
    }

    /// A figure against the field, for a plot; nothing for a field that is no quantity or a figure nobody kept.
    pub fn series(&self, figure: &str) -> Option<Series> {
        let figure = self.figure(figure)?;
        let points = self.values.iter().zip(&figure.values);
        let points = points.filter_map(|(x, y)| Some([x.value?, (*y)?]));
        Some(Series {
            name: format!("{}_by_{}", figure.name, self.field),
            x_name: self.field.clone(),
            x_unit: self.unit?,
            y_name: figure.name.clone(),
            y_unit: figure.unit,
            points: points.collect(),
            mark: None,
        })
    }
}

#[cfg(test)]
mod tests;
