//! The sheet a model calculates on.
//!
//! A model writes its inputs down with [`Sheet::given`] and each result with a method of its unit (`bytes`, `seconds`, ...),
//! naming formula and inputs, after [`Sheet::from`] where the formula has a source. Both hand back a [`Num`], so later formulas can name earlier figures. These methods are the only way for a number
//! into a report, and they refuse what is not finite: no NaN leaves the planner, whatever a formula does.

use forebay_core::{Error, ErrorKind, Result};

use crate::quantity::{Measure, Unit};
use crate::report::{Alternative, Figure, Input, Reading, Report, Series, Warning};
use crate::source;

/// Beyond this a result is a slip in the inputs even if a float can hold it.
const FIGURE_MAX: f64 = 1e60;

/// Largest distance to a whole number that is rounding and not a fraction.
const WHOLE_SLACK: f64 = 1e-9;

/// Characters of the name of an item that are kept.
const ITEM_CHARS_MAX: usize = 32;

/// A named number on a sheet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Num {
    pub(crate) name: &'static str,
    /// The value, in the base unit.
    pub(crate) v: f64,
    pub(crate) unit: Unit,
}

impl Num {
    /// A number of an item of a list, which is not an input of its own.
    pub(crate) fn of<M: Measure>(name: &'static str, measure: M) -> Self {
        Self {
            name,
            v: measure.get(),
            unit: M::UNIT,
        }
    }

    fn input(self) -> Input {
        Input {
            name: self.name.to_owned(),
            value: self.v,
            unit: self.unit,
            given: false,
        }
    }

    /// The number in words.
    pub(crate) fn text(self) -> String {
        self.unit.show(self.v).text
    }

    /// Refuses zero.
    pub(crate) fn positive(self) -> Result<Self> {
        if self.v > 0.0 {
            return Ok(self);
        }
        let noun = self.unit.noun();
        Err(wrong(
            format!("{} is 0", self.name),
            format!("give a {noun} above zero, like {}", self.unit.examples()),
        ))
    }

    /// Refuses zero and fractions.
    pub(crate) fn whole(self) -> Result<Self> {
        self.positive()?;
        if (self.v - self.v.round()).abs() <= WHOLE_SLACK * self.v {
            return Ok(self);
        }
        let hint = format!("give {} or {}", self.v.floor().max(1.0), self.v.ceil().max(1.0));
        Err(wrong(
            format!("{} is {}, not a whole number", self.name, self.v),
            hint,
        ))
    }

    /// Refuses zero and what is above one.
    pub(crate) fn share(self) -> Result<Self> {
        self.positive()?;
        if self.v <= 1.0 {
            return Ok(self);
        }
        let hint = "give a share above 0 and up to 1, or a percentage like 40%";
        Err(wrong(format!("{} is {}, more than all", self.name, self.v), hint))
    }
}

/// A request that cannot be answered: what is wrong, and what would be right.
pub(crate) fn wrong(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "plan", message).with_hint(hint)
}

/// Rounds up to whole things, forgiving the last bits of a division.
pub(crate) fn ceil(value: f64) -> f64 {
    let near = value.round();
    if (value - near).abs() <= WHOLE_SLACK * near.abs() {
        near
    } else {
        value.ceil()
    }
}

/// Names of the items of a list that can stand in the name of a figure: lower case, and every one different.
pub(crate) fn item_names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut taken: Vec<String> = Vec::new();
    for (index, name) in names.enumerate() {
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '_'
            }
        };
        let name: String = name.chars().take(ITEM_CHARS_MAX).map(plain).collect();
        let unique = !name.is_empty() && !taken.contains(&name);
        taken.push(if unique {
            name
        } else {
            format!("{name}{}", index + 1)
        });
    }
    taken
}

/// A report in the making.
#[derive(Debug)]
pub(crate) struct Sheet {
    report: Report,
    group: &'static str,
    /// Of the next figure.
    source: String,
}

impl Sheet {
    pub(crate) fn new(model: &str) -> Self {
        Self {
            report: Report::new(model),
            group: "result",
            source: source::ARITHMETIC.to_owned(),
        }
    }

    /// Heading of the figures that follow.
    pub(crate) fn group(&mut self, group: &'static str) {
        self.group = group;
    }

    /// Writes an input down.
    pub(crate) fn given<M: Measure>(&mut self, name: &'static str, measure: M) -> Num {
        let num = Num::of(name, measure);
        if !self.report.inputs.iter().any(|input| input.name == name) {
            self.report.inputs.push(num.input());
        }
        num
    }

    /// Writes an optional input down.
    pub(crate) fn maybe<M: Measure>(&mut self, name: &'static str, measure: Option<M>) -> Option<Num> {
        measure.map(|measure| self.given(name, measure))
    }

    /// Where the next figure's formula comes from; without it, it is plain arithmetic.
    pub(crate) fn from(&mut self, source: &str) -> &mut Self {
        source.clone_into(&mut self.source);
        self
    }

    /// Writes a result down.
    fn figure(
        &mut self,
        name: &'static str,
        unit: Unit,
        value: f64,
        formula: &str,
        inputs: &[Num],
    ) -> Result<Num> {
        let source = std::mem::replace(&mut self.source, source::ARITHMETIC.to_owned());
        if !value.is_finite() || value.abs() > FIGURE_MAX {
            let of: Vec<String> = inputs
                .iter()
                .map(|input| format!("{} = {}", input.name, input.text()))
                .collect();
            return Err(wrong(
                format!("{name} = {formula} has no meaningful value"),
                format!("check {}", of.join(", ")),
            ));
        }
        // Differences of equal numbers may fall below zero by rounding.
        let value = value.max(0.0);
        self.report.figures.push(Figure {
            name: name.to_owned(),
            group: self.group.to_owned(),
            value,
            unit,
            formula: formula.to_owned(),
            inputs: inputs.iter().map(|input| input.input()).collect(),
            source,
        });
        Ok(Num { name, v: value, unit })
    }

    /// Writes the result of an item of a list down, as `name.item`.
    pub(crate) fn item(
        &mut self,
        name: &'static str,
        item: &str,
        unit: Unit,
        value: f64,
        formula: &str,
        inputs: &[Num],
    ) -> Result<Num> {
        let num = self.figure(name, unit, value, formula, inputs)?;
        if let Some(figure) = self.report.figures.last_mut() {
            figure.name = format!("{name}.{item}");
        }
        Ok(num)
    }

    pub(crate) fn warn(&mut self, about: &str, message: impl Into<String>) {
        self.report.warnings.push(Warning {
            about: about.to_owned(),
            message: message.into(),
        });
    }

    /// Names the readings of a figure; only those with a finite value.
    pub(crate) fn reading(&mut self, about: Num, question: &str, answers: &[(&str, f64, bool)]) {
        let answers = answers.iter().filter(|(_, value, _)| value.is_finite());
        self.report.readings.push(Reading {
            about: about.name.to_owned(),
            question: question.to_owned(),
            alternatives: answers
                .map(|(label, value, used)| Alternative {
                    label: (*label).to_owned(),
                    value: *value,
                    unit: about.unit,
                    used: *used,
                })
                .collect(),
        });
    }

    /// Adds a curve, keeping its finite points.
    pub(crate) fn series(&mut self, mut series: Series) {
        series.points.retain(|[x, y]| x.is_finite() && y.is_finite());
        self.report.series.push(series);
    }

    pub(crate) fn finish(self) -> Report {
        self.report
    }
}

/// One method per unit, so that a figure is one line.
macro_rules! figures {
    ($( $method:ident: $unit:ident, )*) => {
        impl Sheet {
            $(
                /// Writes a result of this unit down: name, value, formula, inputs.
                pub(crate) fn $method(
                    &mut self,
                    name: &'static str,
                    value: f64,
                    formula: &str,
                    inputs: &[Num],
                ) -> Result<Num> {
                    self.figure(name, Unit::$unit, value, formula, inputs)
                }
            )*
        }
    };
}

figures! {
    bytes: Bytes,
    rate: BytesPerSecond,
    seconds: Seconds,
    money: Money,
    money_per_hour: MoneyPerHour,
    watts: Watts,
    watt_hours: WattHours,
    count: Count,
    per_second: PerSecond,
    ratio: Ratio,
    factor: Factor,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Count;

    #[test]
    fn only_finite_numbers_get_in() {
        let mut sheet = Sheet::new("test");
        let gpus = sheet.given("gpus", Count::new(0.0).unwrap());
        for value in [f64::NAN, f64::INFINITY, 1e80] {
            let error = sheet.count("x", value, "1 / gpus", &[gpus]);
            assert!(error.unwrap_err().hint().unwrap().contains("gpus = 0"));
        }
        assert!(gpus.positive().unwrap_err().message().contains("gpus is 0"));
        assert!(sheet.finish().figures.is_empty());
    }

    #[test]
    fn rounding_up_forgives_the_last_bits() {
        assert!((ceil(0.1 + 0.2 - 0.3 + 51.0) - 51.0).abs() < 1e-12);
        assert!((ceil(50.025_6) - 51.0).abs() < 1e-12);
    }
}
