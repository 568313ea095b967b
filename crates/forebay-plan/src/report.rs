//! What a model answers: figures that can explain themselves, warnings, readings, and points for plots.
//!
//! A [`Report`] is the same shape for every model, so that whoever prints it (as a table, CSV, Markdown, JSON or a plot) needs to
//! know none of them. Each number is a [`Figure`] with its formula, its inputs and where the formula or constant comes
//! from; [`Report::explain`] puts that into words. Reports are made by a `Sheet` (see `sheet.rs`), which lets only finite numbers in.

use std::fmt::Write as _;

use forebay_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::near;
use crate::quantity::Unit;
use crate::table::Table;

/// A number that went into a figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Name of the request's field or of another figure.
    pub name: String,
    /// The number, in the base unit.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// Whether the caller gave it; otherwise it is a default or a figure.
    pub given: bool,
}

/// A number of a report with everything needed to check it.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Name, unique in the report; `part.name` in the report of a cluster.
    pub name: String,
    /// Heading it stands under.
    pub group: String,
    /// The number, finite and at least zero, in the base unit.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// How it follows from the inputs.
    pub formula: String,
    /// The numbers that went in.
    pub inputs: Vec<Input>,
    /// Where formula or constant come from.
    pub source: String,
}

/// Inputs that contradict each other, or a result nobody can want.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The figure or field it is about.
    pub about: String,
    /// A sentence.
    pub message: String,
}

/// One way to read a claim or an input.
#[derive(Debug, Clone, PartialEq)]
pub struct Alternative {
    /// The reading in words.
    pub label: String,
    /// What it gives.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// Whether the report uses it.
    pub used: bool,
}

/// A question with more than one honest answer, and which one the report takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reading {
    /// The figure it is about.
    pub about: String,
    /// What is ambiguous.
    pub question: String,
    /// The answers.
    pub alternatives: Vec<Alternative>,
}

/// Points of a curve.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Name of the curve.
    pub name: String,
    /// What is on the horizontal axis.
    pub x_name: String,
    /// Its unit.
    pub x_unit: Unit,
    /// What is on the vertical axis.
    pub y_name: String,
    /// Its unit.
    pub y_unit: Unit,
    /// The points, by rising `x`.
    pub points: Vec<[f64; 2]>,
    /// The point the report uses.
    pub mark: Option<[f64; 2]>,
}

/// The answer of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// What the request said, defaults included.
    pub inputs: Vec<Input>,
    /// The numbers, in the order they are printed.
    pub figures: Vec<Figure>,
    /// Contradictions.
    pub warnings: Vec<Warning>,
    /// Ambiguities.
    pub readings: Vec<Reading>,
    /// Curves.
    pub series: Vec<Series>,
}

/// A figure as a row of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Heading.
    pub group: String,
    /// Name of the figure.
    pub name: String,
    /// The number in the unit people use.
    pub value: String,
    /// The number in the unit it is confused with, or nothing.
    pub other: String,
    /// The formula.
    pub note: String,
}

impl Report {
    /// An empty report of a model.
    pub(crate) fn new(model: &str) -> Self {
        Self {
            model: model.to_owned(),
            inputs: Vec::new(),
            figures: Vec::new(),
            warnings: Vec::new(),
            readings: Vec::new(),
            series: Vec::new(),
        }
    }

    /// The figure of that name.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    /// The number of the figure of that name, in its base unit.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figure(name).map(|figure| figure.value)
    }

    /// The figures as rows of text.
    pub fn rows(&self) -> Vec<Row> {
        self.figures.iter().map(Figure::row).collect()
    }

    /// The figures as a table with the columns figure, value, also, formula.
    pub fn table(&self) -> Table {
        let rows = self.rows().into_iter();
        Table {
            columns: ["figure", "value", "also", "formula"].map(str::to_owned).to_vec(),
            rows: rows
                .map(|row| vec![row.name, row.value, row.other, row.note])
                .collect(),
        }
    }

    /// Formula, inputs and source of a figure, in words; an unknown name is answered with the nearest one.
    pub fn explain(&self, name: &str) -> Result<String> {
        let Some(figure) = self.figure(name) else {
            let names = self.figures.iter().map(|figure| figure.name.as_str());
            let hint = match near::nearest(name, names.clone()) {
                Some(name) => format!("did you mean {name}?"),
                None => format!("figures are {}", names.collect::<Vec<_>>().join(", ")),
            };
            let message = format!("{} has no figure '{}'", self.model, name.escape_debug());
            return Err(Error::new(ErrorKind::InvalidInput, "explain", message).with_hint(hint));
        };
        let mut text = figure.explain();
        for reading in self.readings.iter().filter(|reading| reading.about == name) {
            let _ = writeln!(text, "reading   {}", reading.question);
            for alternative in &reading.alternatives {
                let used = if alternative.used { " (used)" } else { "" };
                let shown = alternative.unit.show(alternative.value).both();
                let _ = writeln!(text, "          {}: {shown}{used}", alternative.label);
            }
        }
        for warning in self.warnings.iter().filter(|warning| warning.about == name) {
            let _ = writeln!(text, "warning   {}", warning.message);
        }
        Ok(text)
    }

    /// Takes over another report under a name, as a part of this one.
    pub(crate) fn absorb(&mut self, part: &str, report: Self) {
        let prefix = |name: &str| format!("{part}.{name}");
        self.inputs.extend(report.inputs.into_iter().map(|input| Input {
            name: prefix(&input.name),
            ..input
        }));
        self.figures
            .extend(report.figures.into_iter().map(|figure| Figure {
                name: prefix(&figure.name),
                group: format!("{part}: {}", figure.group),
                ..figure
            }));
        self.warnings
            .extend(report.warnings.into_iter().map(|warning| Warning {
                about: prefix(&warning.about),
                ..warning
            }));
        self.readings
            .extend(report.readings.into_iter().map(|reading| Reading {
                about: prefix(&reading.about),
                ..reading
            }));
        self.series.extend(report.series.into_iter().map(|series| Series {
            name: prefix(&series.name),
            ..series
        }));
    }
}

impl Figure {
    fn row(&self) -> Row {
        let shown = self.unit.show(self.value);
        Row {
            group: self.group.clone(),
            name: self.name.clone(),
            value: shown.text,
            other: shown.other.unwrap_or_default(),
            note: self.formula.clone(),
        }
    }

    fn explain(&self) -> String {
        let shown = self.unit.show(self.value).both();
        let mut text = format!("{} = {shown}\nformula   {}\n", self.name, self.formula);
        for (index, input) in self.inputs.iter().enumerate() {
            let head = if index == 0 { "inputs" } else { "" };
            let shown = input.unit.show(input.value).both();
            let _ = writeln!(text, "{head:<9} {} = {shown}", input.name);
        }
        let _ = writeln!(text, "source    {}", self.source);
        text
    }
}

/// Number, unit, and the number in words: what every number of a report looks like in JSON.
macro_rules! serialize_with_text {
    ($type:ident { $first:ident, $($field:ident),* }) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let shown = self.unit.show(self.value);
                let fields = [stringify!($first), $(stringify!($field)),*].len() + 4;
                let mut state = serializer.serialize_struct(stringify!($type), fields)?;
                state.serialize_field(stringify!($first), &self.$first)?;
                state.serialize_field("value", &self.value)?;
                state.serialize_field("unit", self.unit.symbol())?;
                state.serialize_field("text", &shown.text)?;
                state.serialize_field("also", &shown.other)?;
                $( state.serialize_field(stringify!($field), &self.$field)?; )*
                state.end()
            }
        }
    };
}

serialize_with_text!(Input { name, given });
serialize_with_text!(Figure {
    name,
    group,
    formula,
    inputs,
    source
});
serialize_with_text!(Alternative { label, used });
