//! Reading quantities as people write them: a number, then a unit that must fit the kind of quantity.
//!
//! Letters mean what they mean on data sheets: `b` is a bit and `B` a byte, `k M G T P E` are powers of 1000 and
//! `Ki Mi Gi Ti Pi Ei` powers of 1024; for counts `B` is a billion and `T` a trillion. What could mean two things (`mb`, `5m`)
//! is refused with a hint instead of guessed.

use forebay_core::{Error, ErrorKind, Result};

use super::Unit;
use super::scale::{BINARY, DECIMAL, TIMES};

/// Other words for times; a month is 30 days.
const TIME_WORDS: [(&str, f64); 9] = [
    ("sec", 1.0),
    ("hour", 3600.0),
    ("hours", 3600.0),
    ("day", 86_400.0),
    ("days", 86_400.0),
    ("w", 604_800.0),
    ("week", 604_800.0),
    ("weeks", 604_800.0),
    ("month", 2_592_000.0),
];

/// What may follow a count per second.
const PER_SECOND: [&str; 9] = [
    "tokens/s",
    "tok/s",
    "images/s",
    "img/s",
    "samples/s",
    "requests/s",
    "req/s",
    "IOPS",
    "/s",
];

/// Characters of a refused text that its error repeats.
const TEXT_CHARS_MAX: usize = 64;

impl Unit {
    /// Reads a text such as `1.5TB` as a number in this unit.
    pub fn parse(self, text: &str) -> Result<f64> {
        let value = self.read(text.trim()).map_err(|why| self.refuse(text, &why))?;
        self.check(value)
    }

    fn refuse(self, text: &str, why: &str) -> Error {
        let shown: String = text.chars().take(TEXT_CHARS_MAX).collect();
        let message = format!("'{}' is not {}", shown.escape_debug(), self.a_noun());
        let hint = format!("{why}write {} like {}", self.a_noun(), self.examples());
        Error::new(ErrorKind::InvalidInput, "plan", message).with_hint(hint)
    }

    /// The number, or what is particularly wrong (perhaps nothing), ending in `; `.
    fn read(self, text: &str) -> Result<f64, String> {
        if self == Self::Seconds {
            return times(text);
        }
        let text = if self.symbol().starts_with('$') {
            text.strip_prefix('$').unwrap_or(text)
        } else {
            text
        };
        let (number, rest) = number(text)?;
        Ok(number * self.factor(rest)?)
    }

    /// What a number before `suffix` is multiplied with.
    fn factor(self, suffix: &str) -> Result<f64, String> {
        match self {
            Self::Bytes => bytes(suffix),
            Self::BytesPerSecond => rate(suffix),
            Self::Seconds => time(suffix),
            Self::MoneyPerHour => find(&[("", 1.0), ("/h", 1.0), ("/hour", 1.0)], suffix),
            Self::MoneyPerGbMonth => per_gb(
                suffix
                    .strip_suffix("-month")
                    .or(suffix.strip_suffix("/month"))
                    .or(suffix.is_empty().then_some(""))
                    .ok_or("the month is missing; ")?,
            ),
            Self::MoneyPerGb => per_gb(suffix),
            Self::MoneyPerThousand => find(
                &[
                    ("", 1.0),
                    ("/1000", 1.0),
                    ("/1k", 1.0),
                    ("/k", 1.0),
                    ("/M", 1e-3),
                    ("/1M", 1e-3),
                ],
                suffix,
            ),
            Self::MoneyPerKilowattHour => find(&[("", 1.0), ("/kWh", 1.0), ("/MWh", 1e-3)], suffix),
            Self::Watts => decimal(suffix.strip_suffix('W').unwrap_or(suffix)),
            Self::WattHours => match suffix.strip_suffix('J') {
                Some(prefix) => decimal(prefix).map(|factor| factor / 3600.0),
                None => decimal(suffix.strip_suffix("Wh").unwrap_or(suffix)),
            },
            Self::Flops => {
                let endings = ["FLOP/s", "FLOPS", "FLOPs", "FLOP", "F"];
                let prefix = endings.iter().find_map(|ending| suffix.strip_suffix(ending));
                decimal(prefix.unwrap_or(suffix))
            }
            Self::Count | Self::Money => count(suffix),
            Self::PerSecond => {
                let prefix = PER_SECOND.iter().find_map(|ending| suffix.strip_suffix(ending));
                count(prefix.unwrap_or(suffix).trim_end())
            }
            Self::Ratio => find(&[("", 1.0), ("%", 0.01)], suffix),
            Self::Factor => find(&[("", 1.0), ("x", 1.0)], suffix),
        }
    }
}

/// Splits a number from what follows; an exponent needs digits, so that `1E` is an exa.
fn number(text: &str) -> Result<(f64, &str), String> {
    let bytes = text.as_bytes();
    let digits_from = |start: usize| {
        bytes[start.min(bytes.len())..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit() || **byte == b'.' || **byte == b'_')
            .count()
    };
    let sign = usize::from(text.starts_with('-'));
    let mut end = sign + digits_from(sign);
    if end == sign {
        return Err("a number comes first; ".to_owned());
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let digits = digits_from(end + 1 + signed);
        if digits > 0 {
            end += 1 + signed + digits;
        }
    }
    // Only ASCII was skipped, so `end` is at the border of a character.
    let number = text[..end].replace('_', "").parse::<f64>();
    Ok((number.map_err(|_| String::new())?, text[end..].trim()))
}

/// A sum of times such as `1h30min`; a number without a unit is seconds, and stands alone.
fn times(text: &str) -> Result<f64, String> {
    let mut rest = text;
    let mut sum = 0.0;
    loop {
        if rest.starts_with('-') {
            return Err("a time has no sign; ".to_owned());
        }
        let (value, after) = number(rest)?;
        let letters = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let unit = after[..letters].trim();
        let is_alone = rest.len() == text.len() && letters == after.len();
        if unit.is_empty() && !is_alone {
            return Err(format!("{value} has no unit; "));
        }
        sum += value * time(unit)?;
        rest = &after[letters..];
        if rest.is_empty() {
            return Ok(sum);
        }
    }
}

fn time(unit: &str) -> Result<f64, String> {
    match unit {
        "" => Ok(1.0),
        "m" => Err("m could be minutes or months, write min; ".to_owned()),
        _ => find(&TIMES, unit).or_else(|_| find(&TIME_WORDS, unit)),
    }
}

fn find(table: &[(&str, f64)], suffix: &str) -> Result<f64, String> {
    let row = table.iter().find(|(name, _)| *name == suffix);
    row.map(|(_, factor)| *factor).ok_or_else(String::new)
}

/// A power of 1000; `K` is tolerated for `k`.
fn decimal(prefix: &str) -> Result<f64, String> {
    find(&DECIMAL, if prefix == "K" { "k" } else { prefix })
}

fn prefixed(prefix: &str) -> Result<f64, String> {
    decimal(prefix).or_else(|_| find(&BINARY, prefix))
}

fn count(suffix: &str) -> Result<f64, String> {
    match suffix {
        "B" => Ok(1e9),
        "b" => Err("a billion is written B; ".to_owned()),
        _ => prefixed(suffix),
    }
}

fn bytes(suffix: &str) -> Result<f64, String> {
    let prefix = suffix.strip_suffix('B').unwrap_or(suffix);
    prefixed(prefix).map_err(|_| {
        if suffix.ends_with('b') || suffix.ends_with("bit") {
            "b is a bit: write B for bytes, as in MB or GB; ".to_owned()
        } else if prefix.chars().all(|c| c.is_ascii_lowercase()) && prefix.len() == 1 {
            format!("write {} in capitals; ", prefix.to_ascii_uppercase())
        } else {
            String::new()
        }
    })
}

fn rate(suffix: &str) -> Result<f64, String> {
    let Some(amount) = suffix.strip_suffix("/s").or(suffix.strip_suffix("ps")) else {
        return if suffix.is_empty() {
            Ok(1.0)
        } else {
            Err("a data rate ends in /s; ".to_owned())
        };
    };
    if let Some(prefix) = amount.strip_suffix('B') {
        return prefixed(prefix);
    }
    let bits = amount.strip_suffix("bit").or(amount.strip_suffix('b'));
    match bits {
        Some(prefix) => prefixed(prefix).map(|factor| factor / 8.0),
        None => Err("say whether bits (Gb/s) or bytes (GB/s); ".to_owned()),
    }
}

/// Price per GB from a price per `/GB`, `/TiB` and the like.
fn per_gb(suffix: &str) -> Result<f64, String> {
    match suffix.strip_prefix('/') {
        None if suffix.is_empty() => Ok(1.0),
        None => Err(String::new()),
        Some(size) => match size.strip_suffix('B') {
            Some(prefix) => prefixed(prefix).map(|factor| 1e9 / factor),
            None => Err("b is a bit: write GB; ".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(unit: Unit, text: &str, expected: f64) {
        let value = unit.parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(
            (value - expected).abs() <= expected.abs() * 1e-12,
            "{text}: {value}"
        );
    }

    #[test]
    fn what_people_write_is_read() {
        for (unit, text, expected) in [
            (Unit::Count, "405B", 405e9),
            (Unit::Count, "1T", 1e12),
            (Unit::Count, "100k", 1e5),
            (Unit::Count, "128Ki", 131_072.0),
            (Unit::Count, "16_384", 16_384.0),
            (Unit::Count, "1e9", 1e9),
            (Unit::Bytes, "1.5TB", 1.5e12),
            (Unit::Bytes, "1TiB", 1_099_511_627_776.0),
            (Unit::Bytes, "64 KiB", 65_536.0),
            (Unit::Bytes, "1EB", 1e18),
            (Unit::Bytes, "2E", 2e18),
            (Unit::BytesPerSecond, "400Gb/s", 50e9),
            (Unit::BytesPerSecond, "400Gbps", 50e9),
            (Unit::BytesPerSecond, "10 Gbit/s", 1.25e9),
            (Unit::BytesPerSecond, "1TB/s", 1e12),
            (Unit::BytesPerSecond, "4GiB/s", 4_294_967_296.0),
            (Unit::Seconds, "4h", 14_400.0),
            (Unit::Seconds, "30min", 1800.0),
            (Unit::Seconds, "1h30min", 5400.0),
            (Unit::Seconds, "1 h 30 min", 5400.0),
            (Unit::Seconds, "50ms", 0.05),
            (Unit::Seconds, "1month", 2_592_000.0),
            (Unit::MoneyPerGbMonth, "$0.023/GB-month", 0.023),
            (Unit::MoneyPerGbMonth, "$23/TB-month", 0.023),
            (Unit::MoneyPerGb, "$0.09/GB", 0.09),
            (Unit::MoneyPerThousand, "$5/M", 0.005),
            (Unit::MoneyPerHour, "$30/h", 30.0),
            (Unit::Money, "$1.5k", 1500.0),
            (Unit::Watts, "5MW", 5e6),
            (Unit::WattHours, "3.6MJ", 1000.0),
            (Unit::WattHours, "720MWh", 720e6),
            (Unit::Flops, "989TFLOP/s", 989e12),
            (Unit::PerSecond, "100k tok/s", 1e5),
            (Unit::PerSecond, "5500/s", 5500.0),
            (Unit::Ratio, "40%", 0.4),
            (Unit::Factor, "2.5x", 2.5),
        ] {
            close(unit, text, expected);
        }
    }

    #[test]
    fn what_could_mean_two_things_is_refused_with_a_hint() {
        for (unit, text, hint) in [
            (Unit::Bytes, "100Mb", "bit"),
            (Unit::Bytes, "1g", "capitals"),
            (Unit::Bytes, "-1GB", "like"),
            (Unit::Bytes, "", "number"),
            (Unit::Bytes, "GB", "number"),
            (Unit::Bytes, "1.2.3GB", "like"),
            (Unit::BytesPerSecond, "1TB", "/s"),
            (Unit::BytesPerSecond, "1T/s", "bits"),
            (Unit::Seconds, "5m", "min"),
            (Unit::Seconds, "5 parsecs", "like"),
            (Unit::Seconds, "5 6", "5 has no unit"),
            (Unit::Seconds, "1h30", "30 has no unit"),
            (Unit::Seconds, "1h 30", "30 has no unit"),
            (Unit::Seconds, "-1h2h", "no sign"),
            (Unit::Seconds, "1h-2h", "like"),
            (Unit::Seconds, "-5", "no sign"),
            (Unit::Count, "7b", "B"),
            (Unit::Count, "inf", "number"),
            (Unit::Count, "nan", "number"),
            (Unit::Count, "1e400", "like"),
            (Unit::MoneyPerGbMonth, "$1/GB", "month"),
            (Unit::Money, "much", "write an amount of money like"),
            (Unit::WattHours, "much", "write an energy like"),
        ] {
            let error = unit.parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let said = error.hint().unwrap_or_default().to_owned();
            assert!(said.contains(hint), "{text}: {said}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_quantity_or_an_error_with_a_hint(text in ".{0,24}", index in 0..Unit::ALL.len()) {
            match Unit::ALL[index].parse(&text) {
                Ok(value) => prop_assert!(value.is_finite() && value >= 0.0),
                Err(error) => prop_assert!(error.hint().is_some()),
            }
        }

        #[test]
        fn what_is_shown_can_be_read_again(exponent in -3.0f64..20.0, index in 0..Unit::ALL.len()) {
            let unit = Unit::ALL[index];
            let value = 10f64.powf(exponent);
            let text = unit.show(value).text;
            let again = unit.parse(&text);
            prop_assert!(again.is_ok(), "{}: {:?}", text, again);
            let again = again.unwrap();
            prop_assert!((again - value).abs() <= value * 2e-3, "{text}: {again} for {value}");
        }
    }
}
