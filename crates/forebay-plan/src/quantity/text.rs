//! Writing quantities for people: four significant digits, the unit people use, and the other unit where two are confused.

use super::Unit;
use super::scale::{BINARY, DECIMAL, TIMES};

/// Counts by their names in English.
const COUNTS: [(&str, f64); 4] = [("", 1.0), ("M", 1e6), ("B", 1e9), ("T", 1e12)];

/// From here on a number is written with an exponent.
const PLAIN_MAX: f64 = 1e9;

/// Up to here a count is written out.
const COUNT_PLAIN_MAX: f64 = 1e6;

/// Below this a share says nothing but that it is not zero.
const PERCENT_MIN: f64 = 1e-4;

/// A quantity in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// In the unit people use.
    pub text: String,
    /// In the unit it is confused with, where there is one.
    pub other: Option<String>,
}

impl Shown {
    fn plain(text: String) -> Self {
        Self { text, other: None }
    }

    /// `1.5 TB (1.364 TiB)`.
    pub fn both(&self) -> String {
        match &self.other {
            Some(other) => format!("{} ({other})", self.text),
            None => self.text.clone(),
        }
    }
}

impl Unit {
    /// Writes a number of this unit.
    pub fn show(self, value: f64) -> Shown {
        match self {
            Self::Bytes => Shown {
                text: scaled(value, &DECIMAL, "B"),
                other: (value >= 1024.0).then(|| scaled(value, &BINARY, "B")),
            },
            Self::BytesPerSecond => Shown {
                text: scaled(value, &DECIMAL, "B/s"),
                other: (value >= 1.0).then(|| scaled(value * 8.0, &DECIMAL, "b/s")),
            },
            Self::Seconds => Shown {
                text: scaled(value, &TIMES, ""),
                other: (value >= 60.0).then(|| format!("{} s", digits(value))),
            },
            Self::Count if rounded(value) < COUNT_PLAIN_MAX => Shown::plain(digits(value)),
            Self::Count => Shown {
                text: scaled(value, &COUNTS, ""),
                other: (value < 1e15).then(|| grouped(value)),
            },
            Self::PerSecond => Shown::plain(scaled(value, &DECIMAL, "/s")),
            Self::Ratio if value > 0.0 && value * 100.0 < PERCENT_MIN => {
                Shown::plain(format!("< {PERCENT_MIN} %"))
            }
            Self::Ratio => Shown::plain(format!("{} %", digits(value * 100.0))),
            Self::Factor => Shown::plain(format!("{}x", digits(value))),
            Self::Money if value >= 1e9 => Shown::plain(format!("${}", scaled(value, &COUNTS, ""))),
            Self::Money if value >= 1000.0 => Shown::plain(format!("${}", digits_of(value, 0))),
            Self::Money => Shown::plain(format!("${}", digits(value))),
            Self::MoneyPerHour
            | Self::MoneyPerGbMonth
            | Self::MoneyPerGb
            | Self::MoneyPerThousand
            | Self::MoneyPerKilowattHour => {
                let unit = self.symbol().trim_start_matches('$');
                Shown::plain(format!("${}{unit}", digits(value)))
            }
            Self::Watts | Self::WattHours | Self::Flops => {
                Shown::plain(scaled(value, &DECIMAL, self.symbol()))
            }
        }
    }
}

/// In the largest unit that leaves at least one whole.
fn scaled(value: f64, table: &[(&str, f64)], unit: &str) -> String {
    let fitting = table.iter().rposition(|(_, factor)| value >= *factor);
    // Zero and what is smaller than the smallest unit stay in the plain unit.
    let plain = || table.iter().position(|(_, factor)| *factor >= 1.0);
    let index = fitting.or_else(plain).unwrap_or(0);
    let name_and_factor = |index: usize| table.get(index).copied();
    let (mut name, mut factor) = name_and_factor(index).unwrap_or(("", 1.0));
    // Rounding may make it one of the next unit: 999.99 kW is 1 MW.
    let shown = rounded(value / factor) * (1.0 + f64::EPSILON);
    if let Some(next) = name_and_factor(index + 1).filter(|(_, next)| shown >= next / factor) {
        (name, factor) = next;
    }
    let text = format!("{} {name}{unit}", digits(value / factor));
    text.trim_end().to_owned()
}

/// The number as [`digits`] writes it.
fn rounded(value: f64) -> f64 {
    digits(value).parse().unwrap_or(value)
}

/// Four significant digits, never fewer than the whole part.
fn digits(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..PLAIN_MAX).contains(&size) {
        return format!("{value:.3e}");
    }
    digits_of(value, (3 - size.log10().floor() as i32).max(0) as usize)
}

/// With so many decimals, without zeros at the end.
fn digits_of(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A whole number in groups of three digits.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_people_use() {
        for (unit, value, text) in [
            (Unit::Bytes, 0.0, "0 B"),
            (Unit::Bytes, 112.4e9, "112.4 GB (104.7 GiB)"),
            (Unit::Seconds, 0.0, "0 s"),
            (Unit::Seconds, 26e-6, "26 us"),
            (Unit::Seconds, 255.0, "4.25 min (255 s)"),
            (Unit::Count, 16384.0, "16384"),
            (Unit::Count, 405.85e9, "405.9 B (405,850,000,000)"),
            (Unit::Ratio, 0.853, "85.3 %"),
            (Unit::Factor, 2.81, "2.81x"),
            (Unit::MoneyPerGbMonth, 0.023, "$0.023/GB-month"),
            (Unit::Money, 23000.0, "$23000"),
            (Unit::WattHours, 720e6, "720 MWh"),
            (Unit::Flops, 989e12, "989 TFLOP/s"),
            // What is rounded up to the next unit is written in it.
            (Unit::Watts, 999_999.0, "1 MW"),
            (Unit::Watts, 999_940.0, "999.9 kW"),
            (Unit::Bytes, 1_048_575.6, "1.049 MB (1 MiB)"),
            (Unit::Seconds, 59.9999, "1 min"),
            (Unit::Seconds, 999.99e-6, "1 ms"),
            (Unit::Seconds, 999.99e-9, "1 us"),
            (Unit::Count, 999_999.8, "1 M (1,000,000)"),
            (Unit::Ratio, 0.0, "0 %"),
            (Unit::Ratio, 6.596e-222, "< 0.0001 %"),
            (Unit::Ratio, 2e-6, "0.0002 %"),
        ] {
            assert_eq!(unit.show(value).both(), text);
        }
        assert_eq!(Unit::Bytes.show(1e300).text, "1.000e282 EB");
    }
}
