//! The values of a sweep: `1GB/s..1TB/s:10` (ten values in equal factors), `1..10:10 linear` (in equal steps), or a list `1h,2h,4h`.

use forebay_core::Result;
use serde_json::{Value, json};

use super::{SWEEP_POINTS_MAX, SweepValue};
use crate::field::{Field, Kind};
use crate::quantity::Unit;
use crate::sheet::wrong;

/// Points when a range does not say.
const POINTS_DEFAULT: usize = 10;

/// A value of the field, and as the model reads it.
type Choice = (SweepValue, Value);

/// The values a range names.
pub(super) fn values(field: &Field, range: &str) -> Result<Vec<Choice>> {
    let choices = match &field.kind {
        Kind::Quantity(unit) => quantities(*unit, range)?,
        Kind::Choice(_) | Kind::Text => {
            let words = range.split(',').map(str::trim).filter(|word| !word.is_empty());
            // One more than there may be shows that there are too many.
            words.take(SWEEP_POINTS_MAX + 1).map(word).collect()
        }
        kind => {
            return Err(wrong(
                format!("{} is not one value: {kind}", field.name),
                "sweep a field that is a quantity or a word",
            ));
        }
    };
    if (1..=SWEEP_POINTS_MAX).contains(&choices.len()) {
        return Ok(choices);
    }
    Err(wrong(
        format!(
            "{} values for {} are not between 1 and {SWEEP_POINTS_MAX}",
            choices.len(),
            field.name
        ),
        "write a list a,b,c or a range from..to:10",
    ))
}

fn word(word: &str) -> Choice {
    let value = SweepValue {
        value: None,
        text: word.to_owned(),
    };
    (value, Value::String(word.to_owned()))
}

fn quantities(unit: Unit, range: &str) -> Result<Vec<Choice>> {
    let numbers = match range.split_once("..") {
        Some((from, rest)) => points(unit, range, from, rest)?,
        None => {
            let parts = range.split(',').take(SWEEP_POINTS_MAX + 1);
            parts.map(|part| unit.parse(part)).collect::<Result<_>>()?
        }
    };
    let choice = |number: f64| {
        let value = SweepValue {
            value: Some(number),
            text: unit.show(number).text,
        };
        (value, json!(number))
    };
    Ok(numbers.into_iter().map(choice).collect())
}

/// The points of a range from `from` to what `rest` says.
fn points(unit: Unit, range: &str, from: &str, rest: &str) -> Result<Vec<f64>> {
    let (rest, is_linear) = match rest.strip_suffix("linear") {
        Some(rest) => (rest.trim_end(), true),
        None => (rest, false),
    };
    let (to, count) = match rest.rsplit_once(':') {
        Some((to, count)) => (to, count.trim().parse().unwrap_or(0)),
        None => (rest, POINTS_DEFAULT),
    };
    let (from, to) = (unit.parse(from)?, unit.parse(to)?);
    if !(2..=SWEEP_POINTS_MAX).contains(&count) {
        let message = format!("a sweep has 2 to {SWEEP_POINTS_MAX} points");
        return Err(wrong(message, "write from..to:10"));
    }
    if from >= to || (!is_linear && from <= 0.0) {
        return Err(wrong(
            format!("'{}' is not a rising range", range.escape_debug()),
            "write from..to:10 with from below to; a range from 0 needs ' linear' at its end",
        ));
    }
    // A range of things from a whole number to another has only such points.
    let is_whole = unit == Unit::Count && from.fract() == 0.0 && to.fract() == 0.0;
    let last = (count - 1) as f64;
    let at = |index: usize| {
        let part = index as f64;
        let value = match (index + 1 == count, is_linear) {
            (true, _) => to,
            (false, true) => (from * (last - part) + to * part) / last,
            (false, false) => from * (to / from).powf(part / last),
        };
        if is_whole { value.round() } else { short(value) }
    };
    let mut points: Vec<f64> = (0..count).map(at).collect();
    points.dedup();
    Ok(points)
}

/// Without the last bits, which no person has written.
fn short(value: f64) -> f64 {
    format!("{value:.11e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(unit: Unit, range: &str) -> Vec<f64> {
        let found = quantities(unit, range).unwrap();
        found.iter().filter_map(|(value, _)| value.value).collect()
    }

    #[test]
    fn things_are_counted_in_whole_numbers() {
        assert_eq!(
            numbers(Unit::Count, "1000..2000:4"),
            [1000.0, 1260.0, 1587.0, 2000.0]
        );
        assert_eq!(numbers(Unit::Count, "1..4:10 linear"), [1.0, 2.0, 3.0, 4.0]);
        // Who writes fractions wants them.
        assert_eq!(numbers(Unit::Count, "0.5..2:4 linear"), [0.5, 1.0, 1.5, 2.0]);
        assert_eq!(numbers(Unit::Factor, "1..2:3 linear"), [1.0, 1.5, 2.0]);
    }

    #[test]
    fn points_are_as_short_as_people_write_them() {
        assert_eq!(
            numbers(Unit::Factor, "1..2:6 linear"),
            [1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
        );
        assert_eq!(numbers(Unit::Ratio, "10%..30%:3 linear"), [0.1, 0.2, 0.3]);
        assert_eq!(numbers(Unit::Factor, "1..1000:4"), [1.0, 10.0, 100.0, 1000.0]);
    }
}
