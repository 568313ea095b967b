//! The sheet a model calculates on.
//!
//! A model writes its inputs down with [`Sheet::given`] and each result with a method of its unit (`bytes`, `seconds`, ...),
//! naming formula and inputs, after [`Sheet::from`] where the formula has a source. Both hand back a [`Num`], so later formulas can name earlier figures. These methods are the only way for a number
//! into a report, and they refuse what is not finite: no NaN leaves the planner, whatever a formula does.

use std::collections::HashSet;

use forebay_core::{Error, ErrorKind, Result};

use crate::quantity::{Measure, Unit};
use crate::report::{Alternative, Figure, Input, Operand, Origin, Reading, Report, Series, Warning};
use crate::source;

/// Beyond this a result is a slip in the inputs even if a float can hold it.
const FIGURE_MAX: f64 = 1e60;

/// Largest distance to a whole number that is rounding and not a fraction.
const WHOLE_SLACK: f64 = 1e-9;

/// Largest part of its inputs by which a difference falls below zero through rounding alone.
const NEGATIVE_SLACK: f64 = 1e-9;

/// Characters of the name of an item that are kept.
const ITEM_CHARS_MAX: usize = 32;

/// A named number on a sheet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Num {
    pub(crate) name: &'static str,
    /// Which item of the sheet it is of, where it is the result of an item of a list; small, since models pass numbers around.
    item: Option<u16>,
    /// The value, in the base unit.
    pub(crate) v: f64,
    pub(crate) unit: Unit,
}

impl Num {
    /// A number of an item of a list, which is not an input of its own.
    pub(crate) fn of<M: Measure>(name: &'static str, measure: M) -> Self {
        Self {
            name,
            item: None,
            v: measure.get(),
            unit: M::UNIT,
        }
    }

    /// The error of this number.
    fn wrong(self, what: &str, hint: impl Into<String>) -> Error {
        wrong(format!("{} is {what}", self.name), hint).with_field(self.name)
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
        let hint = format!(
            "give {} above zero, like {}",
            self.unit.a_noun(),
            self.unit.examples()
        );
        Err(self.wrong("0", hint))
    }

    /// Refuses fractions.
    pub(crate) fn integral(self) -> Result<Self> {
        if (self.v - self.v.round()).abs() <= WHOLE_SLACK * self.v {
            return Ok(self);
        }
        let hint = match self.v.floor() {
            0.0 => "give 1 or more".to_owned(),
            below => format!("give {below} or {}", self.v.ceil()),
        };
        Err(self.wrong(&format!("{}, not a whole number", self.v), hint))
    }

    /// Refuses zero and fractions.
    pub(crate) fn whole(self) -> Result<Self> {
        self.positive()?.integral()
    }

    /// Refuses zero and what is above one.
    pub(crate) fn share(self) -> Result<Self> {
        self.positive()?;
        if self.v <= 1.0 {
            return Ok(self);
        }
        let hint = "give a share above 0 and up to 1, or a percentage like 40%";
        Err(self.wrong(&format!("{}, more than all", self.v), hint))
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
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '_'
        }
    };
    let plain: Vec<String> = names
        .map(|name| name.chars().take(ITEM_CHARS_MAX).map(plain).collect())
        .collect();
    // A number that makes a name different must not make it the one that another item has said.
    let said: HashSet<&str> = plain.iter().map(String::as_str).collect();
    let mut taken: HashSet<String> = HashSet::new();
    let mut unique = Vec::new();
    for (index, name) in plain.iter().enumerate() {
        let is_free = |found: &String| {
            !found.is_empty() && !taken.contains(found) && (found == name || !said.contains(found.as_str()))
        };
        let mut found = name.clone();
        for number in index + 1.. {
            if is_free(&found) {
                break;
            }
            found = format!("{name}{number}");
        }
        taken.insert(found.clone());
        unique.push(found);
    }
    unique
}

/// The error of an item of a list: its field is one of the item's.
pub(crate) fn of_item(list: &str, item: &str, error: Error) -> Error {
    match error.field().map(|field| format!("{list}.{item}.{field}")) {
        Some(field) => error.with_field(field),
        None => error,
    }
}

/// A report in the making.
#[derive(Debug)]
pub(crate) struct Sheet {
    report: Report,
    group: &'static str,
    /// Of the next figure.
    source: String,
    /// Names of the items that have results.
    items: Vec<String>,
}

impl Sheet {
    pub(crate) fn new(model: &str) -> Self {
        Self {
            report: Report::new(model),
            group: "result",
            source: source::ARITHMETIC.to_owned(),
            items: Vec::new(),
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
            self.report.inputs.push(Input {
                name: name.to_owned(),
                value: num.v,
                unit: num.unit,
                // The registry knows the request, and changes it where the request says so.
                origin: Origin::Default,
            });
        }
        num
    }

    /// Says that an input was measured, whatever the request says beside it.
    pub(crate) fn measured(&mut self, name: &str) {
        for input in self.report.inputs.iter_mut().filter(|input| input.name == name) {
            input.origin = Origin::Measured;
        }
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
        let largest = inputs.iter().map(|input| input.v.abs()).fold(0.0, f64::max);
        let scale = if unit == Unit::Ratio { 1.0 } else { largest };
        let is_negative = value < -NEGATIVE_SLACK * scale;
        if !value.is_finite() || value > FIGURE_MAX || is_negative {
            let of: Vec<String> = inputs
                .iter()
                .map(|input| format!("{} = {}", self.name_of(*input), input.text()))
                .collect();
            let what = if is_negative {
                "falls below zero"
            } else {
                "has no meaningful value"
            };
            return Err(wrong(
                format!("{name} = {formula} {what}"),
                format!("check {}", of.join(", ")),
            ));
        }
        // Differences of equal numbers may fall below zero by rounding.
        let value = value.max(0.0);
        let inputs = inputs.iter().map(|input| Operand {
            name: self.name_of(*input),
            value: input.v,
            unit: input.unit,
        });
        let inputs = inputs.collect();
        self.report.figures.push(Figure {
            name: name.to_owned(),
            group: self.group.to_owned(),
            value,
            unit,
            formula: formula.to_owned(),
            inputs,
            source,
        });
        Ok(Num {
            name,
            item: None,
            v: value,
            unit,
        })
    }

    /// Name of a number, with the item it is of.
    fn name_of(&self, num: Num) -> String {
        match num.item.and_then(|item| self.items.get(usize::from(item))) {
            Some(item) => format!("{}.{item}", num.name),
            None => num.name.to_owned(),
        }
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
        let known = self.items.iter().position(|known| known == item);
        let index = known.unwrap_or_else(|| {
            self.items.push(item.to_owned());
            self.items.len() - 1
        });
        let num = Num {
            item: u16::try_from(index).ok(),
            ..num
        };
        let full = self.name_of(num);
        if let Some(figure) = self.report.figures.last_mut() {
            figure.name = full;
        }
        Ok(num)
    }

    /// Warn when a value has several sources: listed in the order in which they are used, with whether they were given.
    pub(crate) fn warn_left_aside(&mut self, about: &str, sources: &[(&str, bool)]) {
        let mut given = sources.iter().filter(|(_, given)| *given).map(|(name, _)| *name);
        let Some(used) = given.next() else { return };
        let others: Vec<&str> = given.collect();
        if !others.is_empty() {
            let message = format!("{used} is used, {} is left aside", others.join(" and "));
            self.warn(about, message);
        }
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
            about: self.name_of(about),
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
    fn only_rounding_is_forgiven_below_zero() {
        let mut sheet = Sheet::new("test");
        let gpus = sheet.given("gpus", Count::new(1e6).unwrap());
        let share = sheet.ratio("share", -1e-16, "1 - 1", &[gpus]).unwrap();
        assert!(share.v.abs() < f64::MIN_POSITIVE);
        assert!(sheet.count("left", -1e-4, "gpus - gpus", &[gpus]).is_ok());
        let error = sheet.ratio("share", -1e-3, "1 - gpus", &[gpus]).unwrap_err();
        assert!(error.message().contains("share = 1 - gpus falls below zero"));
        assert!(error.hint().unwrap().contains("gpus = "));
        assert!(sheet.count("left", -1.0, "gpus - more", &[gpus]).is_err());
        assert!(sheet.count("left", -1.0, "- 1", &[]).is_err());
    }

    #[test]
    fn items_have_names_of_their_own() {
        for (names, expected) in [
            (vec!["a3", "a", "a"], vec!["a3", "a", "a4"]),
            (vec!["a", "a", "a2"], vec!["a", "a3", "a2"]),
            (vec!["", "", "2"], vec!["1", "3", "2"]),
            (vec!["Hot!", "hot?"], vec!["hot_", "hot_2"]),
        ] {
            assert_eq!(item_names(names.into_iter()), expected);
        }
        let letters = ["a", "a1", "a2", "a11", "", "1", "11"];
        // Every list of five of these names.
        for list in 0..letters.len().pow(5) {
            let names = (0..5u32).map(|place| letters[list / letters.len().pow(place) % letters.len()]);
            let unique: HashSet<String> = item_names(names.clone()).into_iter().collect();
            assert_eq!(unique.len(), 5, "{:?}", names.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_sum_names_the_items_it_is_of() {
        let mut sheet = Sheet::new("test");
        let mut parts = Vec::new();
        for item in ["hot", "cold"] {
            let bytes = sheet.item("bytes", item, Unit::Bytes, 1e9, "size", &[]);
            parts.push(bytes.unwrap());
        }
        sheet.bytes("kept", 2e9, "sum of the tiers", &parts).unwrap();
        let report = sheet.finish();
        let names: Vec<&str> = report.figures[2]
            .inputs
            .iter()
            .map(|input| input.name.as_str())
            .collect();
        assert_eq!(names, ["bytes.hot", "bytes.cold"]);
        assert!(names.iter().all(|name| report.figure(name).is_some()));
    }

    #[test]
    fn rounding_up_forgives_the_last_bits() {
        assert!((ceil(0.1 + 0.2 - 0.3 + 51.0) - 51.0).abs() < 1e-12);
        assert!((ceil(50.025_6) - 51.0).abs() < 1e-12);
    }
}
