//! What a model answers: figures that can explain themselves, warnings, readings, and points for plots.
//!
//! A [`Report`] is the same shape for every model, so that whoever prints it (as a table, CSV, Markdown, JSON or a plot) needs to
//! know none of them. Each number is a [`Figure`] with its formula, its inputs and where the formula or constant comes
//! from; [`Report::explain`] puts that into words. Reports are made by a `Sheet` (see `sheet.rs`), which lets only finite numbers in.

use std::borrow::Cow;
use std::fmt::Write as _;

use forebay_core::Result;
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::near;
use crate::quantity::Unit;
use crate::sheet::wrong;
use crate::table::Table;

/// Where an input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The caller said it.
    Given,
    /// Nobody said it.
    Default,
    /// Another model of the cluster found it.
    Found,
    /// A benchmark measured it.
    Measured,
}

impl Origin {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Given => "as given",
            Self::Default => "as the planner assumes",
            Self::Found => "as another model found",
            Self::Measured => "as measured",
        }
    }
}

/// A field of the request, as it was used.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Name of the field.
    pub name: String,
    /// The number, in the base unit.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// Where it comes from.
    pub origin: Origin,
}

/// A number that went into a figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Operand {
    /// Name of an input, of another figure, or of a field of the item the figure is of.
    pub name: String,
    /// The number, in the base unit.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
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
    pub inputs: Vec<Operand>,
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

    /// The figure of that name, or the input that was given in its place.
    pub fn lookup(&self, name: &str) -> Option<Cow<'_, Figure>> {
        let input = || self.inputs.iter().find(|input| input.name == name);
        let figure = self.figure(name).map(Cow::Borrowed);
        figure.or_else(|| input().map(|input| Cow::Owned(input.to_figure())))
    }

    /// The figure or input a person means: by its name, with `-` for `_`, or by the end of its name where no other ends so. An
    /// unknown name is answered with the nearest one.
    pub fn find(&self, name: &str) -> Result<Cow<'_, Figure>> {
        let same = name.replace('-', "_");
        if let Some(figure) = self.lookup(name).or_else(|| self.lookup(&same)) {
            return Ok(figure);
        }
        let end = format!(".{same}");
        let figures = self.figures.iter().filter(|figure| figure.name.ends_with(&end));
        let mut found: Vec<Cow<'_, Figure>> = figures.map(Cow::Borrowed).collect();
        // A figure goes before the input that another model makes of it.
        if found.is_empty() {
            let inputs = self.inputs.iter().filter(|input| input.name.ends_with(&end));
            found = inputs.map(|input| Cow::Owned(input.to_figure())).collect();
        }
        let (model, shown) = (&self.model, name.escape_debug());
        if found.len() > 1 {
            let names: Vec<&str> = found.iter().map(|figure| figure.name.as_str()).collect();
            return Err(wrong(
                format!("{model} has several figures '{shown}'"),
                format!("write one of {}", names.join(", ")),
            ));
        }
        let figures = self.figures.iter().map(|figure| figure.name.as_str());
        let names = figures.chain(self.inputs.iter().map(|input| input.name.as_str()));
        found.pop().ok_or_else(|| {
            wrong(
                format!("{model} has no figure '{shown}'"),
                near::hint(&same, "figures", names),
            )
        })
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

    /// Formula, inputs and source of what [`Report::find`] finds, in words.
    pub fn explain(&self, name: &str) -> Result<String> {
        let figure = self.find(name)?;
        let name = figure.name.as_str();
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

impl Input {
    /// Whether the caller gave it.
    pub fn is_given(&self) -> bool {
        self.origin == Origin::Given
    }

    /// As the figure it stands in place of.
    fn to_figure(&self) -> Figure {
        Figure {
            name: self.name.clone(),
            group: "inputs".to_owned(),
            value: self.value,
            unit: self.unit,
            formula: self.origin.words().to_owned(),
            inputs: Vec::new(),
            source: "request".to_owned(),
        }
    }
}

impl Reading {
    /// Whether it matters: not where it is the same in words however it is read.
    pub fn is_open(&self) -> bool {
        let texts = self.alternatives.iter();
        let mut texts = texts.map(|answer| answer.unit.show(answer.value).text);
        let first = texts.next();
        texts.any(|text| Some(text) != first)
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
    ($type:ident($this:ident) { $first:ident $(, $field:ident: $value:expr)* $(,)? }) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $this = self;
                let shown = $this.unit.show($this.value);
                let fields = [stringify!($first) $(, stringify!($field))*].len() + 4;
                let mut state = serializer.serialize_struct(stringify!($type), fields)?;
                state.serialize_field(stringify!($first), &$this.$first)?;
                state.serialize_field("value", &$this.value)?;
                state.serialize_field("unit", &$this.unit)?;
                state.serialize_field("text", &shown.text)?;
                state.serialize_field("also", &shown.other)?;
                $( state.serialize_field(stringify!($field), &$value)?; )*
                state.end()
            }
        }
    };
}

serialize_with_text!(Input(this) { name, origin: this.origin, given: this.is_given() });
serialize_with_text!(Operand(this) { name });
serialize_with_text!(Figure(this) {
    name,
    group: this.group,
    formula: this.formula,
    inputs: this.inputs,
    source: this.source,
});
serialize_with_text!(Alternative(this) { label, used: this.used });
