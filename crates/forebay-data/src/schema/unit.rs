//! What integers count, where they are more than numbers: days, ticks of a clock, the last digit of a decimal.
//!
//! Values stay the integers they are; the unit says how to write them so that others read the same (Parquet has types for it), and what a filter means by
//! `price > 9.99` or `day >= '2024-05-31'`. Shards whose units differ do not go together: their integers would be mixed up without a trace.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What an integer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Unit {
    /// Days since 1970-01-01.
    Date,
    /// Ticks since midnight.
    Time(Tick),
    /// Ticks since 1970-01-01 00:00, of UTC or of wherever the clock hung.
    Timestamp {
        /// How long a tick is.
        tick: Tick,
        /// It is UTC.
        is_utc: bool,
    },
    /// Ticks between two times.
    Duration(Tick),
    /// The value times ten to the scale.
    Decimal {
        /// Digits that a value has at most.
        digits: u8,
        /// Digits behind the point.
        scale: u8,
    },
}

/// How long a tick is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Tick {
    Second,
    Milli,
    Micro,
    Nano,
}

/// Nanoseconds of a second.
const SECOND_NS: i128 = 1_000_000_000;

/// Nanoseconds of a day.
const DAY_NS: i128 = 86_400 * SECOND_NS;

impl Tick {
    const ALL: [Self; 4] = [Self::Second, Self::Milli, Self::Micro, Self::Nano];

    const fn name(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Milli => "ms",
            Self::Micro => "us",
            Self::Nano => "ns",
        }
    }

    const fn ns(self) -> i128 {
        match self {
            Self::Second => SECOND_NS,
            Self::Milli => 1_000_000,
            Self::Micro => 1_000,
            Self::Nano => 1,
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tick| tick.name() == name)
    }
}

/// Most digits of a decimal: those of 256 bits.
const DIGITS_MAX: u8 = 76;

impl Unit {
    /// What integers of both count, where that is the same: decimals of one scale may have more or fewer digits.
    pub(crate) fn common(self, other: Self) -> Option<Self> {
        match (self, other) {
            (
                Self::Decimal { digits, scale },
                Self::Decimal {
                    digits: more,
                    scale: same,
                },
            ) if scale == same => {
                let digits = digits.max(more);
                Some(Self::Decimal { digits, scale })
            }
            _ => (self == other).then_some(self),
        }
    }

    /// What a text that people write counts in this unit, twice: between two ticks is an odd number. `None` where it is no such text.
    pub(crate) fn halves(self, text: &str) -> Option<i128> {
        let (ns, tick_ns) = match self {
            Self::Date => (date(text)?.checked_mul(DAY_NS)?, DAY_NS),
            Self::Time(tick) => (clock(text)?, tick.ns()),
            Self::Timestamp { tick, is_utc } => (timestamp(text, is_utc)?, tick.ns()),
            Self::Duration(_) | Self::Decimal { .. } => return None,
        };
        let between = i128::from(ns.rem_euclid(tick_ns) != 0);
        Some(2 * ns.div_euclid(tick_ns) + between)
    }

    /// How such a text is written, where there is one.
    pub(crate) fn example(self) -> Option<&'static str> {
        match self {
            Self::Date => Some("'2024-05-31'"),
            Self::Time(_) => Some("'13:05:00'"),
            Self::Timestamp { .. } => Some("'2024-05-31' or '2024-05-31 13:05:00'"),
            Self::Duration(_) | Self::Decimal { .. } => None,
        }
    }
}

/// Digits, and nothing else.
fn digits(text: &str) -> Option<i128> {
    let is_digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok())?
}

/// Days since 1970-01-01 of `2024-05-31`, in the calendar that goes on for ever in both directions.
fn date(text: &str) -> Option<i128> {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || year.len() < 4 || month.len() != 2 || day.len() != 2 {
        return None;
    }
    let (year, month, day) = (sign * digits(year)?, digits(month)?, digits(day)?);
    let is_leap = year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let days = match month {
        2 => 28 + i128::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&day) {
        return None;
    }
    // Years that begin in March have their odd day at the end.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let before = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(365 * year + before + (153 * month + 2) / 5 + day - 1 - 719_468)
}

/// Nanoseconds since midnight of `13:05`, `13:05:09` or `13:05:09.25`.
fn clock(text: &str) -> Option<i128> {
    let (text, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts = text.split(':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next());
    let is_odd = |part: &str| part.len() != 2;
    if parts.next().is_some() || is_odd(hour) || is_odd(minute) || second.is_some_and(is_odd) {
        return None;
    }
    let (hour, minute, second) = (digits(hour)?, digits(minute)?, digits(second.unwrap_or("00"))?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let fraction = digits(fraction)? * 10i128.pow(9u32.checked_sub(fraction.len() as u32)?);
    Some(((hour * 60 + minute) * 60 + second) * SECOND_NS + fraction)
}

/// Nanoseconds since 1970-01-01 00:00 of a date, with a clock behind it or without. That it is UTC may be said where it is.
fn timestamp(text: &str, is_utc: bool) -> Option<i128> {
    let Some((day, time)) = text.split_once(['T', ' ']) else {
        return Some(date(text)? * DAY_NS);
    };
    let time = time.strip_suffix('Z').filter(|_| is_utc).unwrap_or(time);
    Some(date(day)? * DAY_NS + clock(time)?)
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Date => f.write_str("date"),
            Self::Time(tick) => write!(f, "time:{}", tick.name()),
            Self::Timestamp { tick, is_utc: false } => write!(f, "timestamp:{}", tick.name()),
            Self::Timestamp { tick, is_utc: true } => write!(f, "timestamp:{}:utc", tick.name()),
            Self::Duration(tick) => write!(f, "duration:{}", tick.name()),
            Self::Decimal { digits, scale } => write!(f, "decimal:{digits},{scale}"),
        }
    }
}

impl FromStr for Unit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let unit = match name {
            _ if text == "date" => Some(Self::Date),
            "time" => Tick::parse(rest).map(Self::Time),
            "duration" => Tick::parse(rest).map(Self::Duration),
            "timestamp" => {
                let (tick, is_utc) = match rest.strip_suffix(":utc") {
                    Some(tick) => (tick, true),
                    None => (rest, false),
                };
                Tick::parse(tick).map(|tick| Self::Timestamp { tick, is_utc })
            }
            "decimal" => rest.split_once(',').and_then(|(digits, scale)| {
                let (digits, scale) = (digits.parse().ok()?, scale.parse().ok()?);
                let is_possible = (1..=DIGITS_MAX).contains(&digits) && scale <= digits;
                is_possible.then_some(Self::Decimal { digits, scale })
            }),
            _ => None,
        };
        unit.ok_or_else(|| format!("there is no unit '{}'", text.escape_debug()))
    }
}

/// A unit that is written somewhere; one of a later version is none, and its numbers are what they are.
pub(super) fn known<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Unit>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

impl TryFrom<String> for Unit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Unit> for String {
    fn from(unit: Unit) -> Self {
        unit.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_as_they_are_written() {
        let ticks = Tick::ALL.into_iter().flat_map(|tick| {
            let stamp = |is_utc| Unit::Timestamp { tick, is_utc };
            [Unit::Time(tick), Unit::Duration(tick), stamp(true), stamp(false)]
        });
        let decimal = Unit::Decimal { digits: 10, scale: 2 };
        for unit in ticks.chain([Unit::Date, decimal]) {
            assert_eq!(unit.to_string().parse(), Ok(unit));
        }
        for text in [
            "",
            "date:",
            "date:ns",
            "time",
            "time:h",
            "timestamp:us:UTC",
            "decimal:10",
            "decimal:-1,2",
        ] {
            assert!(text.parse::<Unit>().is_err(), "{text}");
        }
    }

    #[test]
    fn days_are_counted_over_leap_years_and_before_1970() {
        let cases = [
            ("1970-01-01", 0),
            ("1969-12-31", -1),
            ("2000-02-29", 11_016),
            ("2000-03-01", 11_017),
            ("1900-03-01", -25_508),
            ("2024-05-31", 19_874),
            ("0001-01-01", -719_162),
            ("9999-12-31", 2_932_896),
        ];
        for (text, days) in cases {
            assert_eq!(date(text), Some(days), "{text}");
        }
        for text in [
            "2023-02-29",
            "1900-02-29",
            "2024-13-01",
            "2024-1-1",
            "2024-05-32",
            "2024-05",
            "x",
            "",
        ] {
            assert_eq!(date(text), None, "{text}");
        }
    }

    #[test]
    fn what_lies_between_two_ticks_is_told_from_both() {
        let millis = Unit::Timestamp {
            tick: Tick::Milli,
            is_utc: true,
        };
        assert_eq!(millis.halves("1970-01-01T00:00:01.5Z"), Some(3000));
        assert_eq!(millis.halves("1970-01-01 00:00:00.0005"), Some(1));
        assert_eq!(millis.halves("1970-01-01Z"), None);
        let anywhere = Unit::Timestamp {
            tick: Tick::Milli,
            is_utc: false,
        };
        assert_eq!(anywhere.halves("1970-01-01 00:00:00Z"), None);
        assert_eq!(millis.halves("1969-12-31 23:59:59.9995"), Some(-1));
        assert_eq!(Unit::Date.halves("1970-01-03"), Some(4));
        assert_eq!(Unit::Date.halves("1970-01-03 10:00"), None);
        assert_eq!(Unit::Time(Tick::Second).halves("01:00:01"), Some(7202));
        for text in [
            "24:00",
            "1:00",
            "00:60",
            "00:00:60",
            "00:00:00.",
            "00:00:00.1234567890",
            "-1:00",
        ] {
            assert_eq!(Unit::Time(Tick::Nano).halves(text), None, "{text}");
        }
    }
}
