//! Numbers with a unit: bytes, rates, times, money, power, counts, shares and factors.
//!
//! Every quantity that enters the planner is one of the types below. [`Unit`] names the base unit its number is kept in,
//! reads text in that unit ([`Unit::parse`], in `parse.rs`) and writes it for people ([`Unit::show`], in `text.rs`). A
//! constructor refuses what is not a finite number of at least zero, or what is beyond [`QUANTITY_MAX`], so no model ever
//! starts from a NaN. GB is 10^9 bytes and GiB is 2^30, everywhere.
//!
//! In JSON and TOML a quantity is a plain number in its base unit or a text such as `"1.5TB"`.

mod parse;
mod scale;
mod text;

use std::fmt;
use std::str::FromStr;

use forebay_core::{Error, ErrorKind, Result};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::field::{FieldValue, Kind};
pub use text::Shown;

/// Nothing in a data centre is larger than this in its base unit (a yottabyte, 10^24 parameters); a larger number is a
/// slip, and refusing it keeps products of inputs far from the end of a 64-bit float.
pub const QUANTITY_MAX: f64 = 1e24;

/// Makes everything there is once per unit from one table: the unit with its symbol, noun, word in help texts and examples, and
/// the type of such a quantity.
macro_rules! units {
    ($( $(#[doc = $doc:literal])+ $name:ident: $symbol:literal, $noun:literal, $word:literal, $examples:literal; )*) => {
        /// What a number is measured in; numbers are kept in the base unit named here.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Unit {
            $( $(#[doc = $doc])+ $name, )*
        }

        impl Unit {
            /// Every unit.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )* ];

            /// Symbol of the base unit; empty for counts, shares and factors.
            pub const fn symbol(self) -> &'static str {
                match self { $( Self::$name => $symbol, )* }
            }

            /// What people call it.
            pub const fn noun(self) -> &'static str {
                match self { $( Self::$name => $noun, )* }
            }

            /// What stands for a value in help texts.
            pub const fn word(self) -> &'static str {
                match self { $( Self::$name => $word, )* }
            }

            /// How it is written, for hints.
            pub const fn examples(self) -> &'static str {
                match self { $( Self::$name => $examples, )* }
            }
        }

        $( quantity! { $(#[doc = $doc])+ $name } )*
    };
}

macro_rules! quantity {
    ($(#[doc = $doc:literal])+ $name:ident) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
        pub struct $name(f64);

        impl $name {
            /// From a number in the base unit; refuses what is not finite, negative or absurd.
            pub fn new(value: f64) -> Result<Self> {
                Unit::$name.check(value).map(Self)
            }
        }

        impl Measure for $name {
            const UNIT: Unit = Unit::$name;

            fn get(self) -> f64 {
                self.0
            }
        }

        impl Literal for $name {
            fn literal(value: f64) -> Self {
                Self(value)
            }
        }

        impl FieldValue for $name {
            fn kind() -> Kind {
                Kind::Quantity(Unit::$name)
            }

            fn text(&self) -> Option<String> {
                Some(Unit::$name.show(self.0).text)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Unit::$name.parse(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&Unit::$name.show(self.0).both())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_f64(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Written(Unit::$name)).map(Self)
            }
        }
    };
}

units! {
    /// A size in bytes.
    Bytes: "B", "size", "BYTES", "1.5TB, 1TiB, 256MB or 4096";
    /// A data rate in bytes per second.
    BytesPerSecond: "B/s", "data rate", "BYTES/S", "1TB/s, 50GB/s, 400Gb/s or 4GiB/s";
    /// A time in seconds.
    Seconds: "s", "time", "TIME", "45s, 30min, 4h, 1h30min, 7d or 50ms";
    /// An amount of money; the planner never converts currencies and writes all of them with `$`.
    Money: "$", "amount of money", "MONEY", "$100 or 1.5k";
    /// A price per hour.
    MoneyPerHour: "$/h", "price", "MONEY/H", "$2.50/h";
    /// A price per GB (10^9 bytes) and month.
    MoneyPerGbMonth: "$/GB-month", "price", "MONEY/GB-MONTH", "$0.023/GB-month";
    /// A price per GB (10^9 bytes).
    MoneyPerGb: "$/GB", "price", "MONEY/GB", "$0.09/GB";
    /// A price per 1000 requests.
    MoneyPerThousand: "$/1000", "price", "MONEY/1000", "$0.005/1000";
    /// A price per kilowatt-hour.
    MoneyPerKilowattHour: "$/kWh", "price", "MONEY/KWH", "$0.10/kWh";
    /// Power in watts.
    Watts: "W", "power", "WATTS", "700W, 10.2kW or 5MW";
    /// Energy in watt-hours; also reads joules.
    WattHours: "Wh", "energy", "WATT-HOURS", "720MWh, 3kWh or 3.6MJ";
    /// Floating-point operations per second.
    Flops: "FLOP/s", "compute rate", "FLOP/S", "989TFLOP/s";
    /// A number of things: parameters, GPUs, tokens.
    Count: "", "count", "COUNT", "405B, 16384, 100k, 128Ki or 1T";
    /// Things per second.
    PerSecond: "1/s", "rate", "PER-SECOND", "100k, 5500/s";
    /// A share, written in percent.
    Ratio: "", "share", "SHARE", "0.4 or 40%";
    /// A factor, written like 2.5x.
    Factor: "", "factor", "FACTOR", "2.5x or 3";
}

impl Unit {
    /// What people call one of it: `an energy`.
    pub(crate) fn a_noun(self) -> String {
        let article = if self.noun().starts_with(['a', 'e', 'i', 'o', 'u']) {
            "an"
        } else {
            "a"
        };
        format!("{article} {}", self.noun())
    }

    /// The number, when it is one a quantity may have.
    pub(crate) fn check(self, value: f64) -> Result<f64> {
        let noun = self.a_noun();
        let wrong = if !value.is_finite() {
            format!("{value} is not {noun}")
        } else if value < 0.0 {
            format!("{noun} of {value} is negative")
        } else if value > QUANTITY_MAX {
            format!(
                "{noun} of {value:e} {} is beyond anything that exists",
                self.symbol()
            )
        } else {
            // Adding zero turns -0 into 0, which prints without a sign.
            return Ok(value + 0.0);
        };
        Err(Error::new(ErrorKind::InvalidInput, "plan", wrong)
            .with_hint(format!("write {noun} like {}", self.examples())))
    }
}

/// As its symbol.
impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.symbol())
    }
}

/// A type of this module: a number in the base unit of [`Measure::UNIT`].
pub trait Measure: Copy {
    /// The unit of the number.
    const UNIT: Unit;

    /// The number.
    fn get(self) -> f64;
}

/// Unchecked construction, for the defaults of requests only; a test checks those.
pub(crate) trait Literal: Sized {
    /// From a number in the base unit.
    fn literal(value: f64) -> Self;
}

/// A default.
pub(crate) fn lit<T: Literal>(value: f64) -> T {
    T::literal(value)
}

/// Reads a number or a text in the unit.
struct Written(Unit);

impl Visitor<'_> for Written {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} like {}", self.0.a_noun(), self.0.examples())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<f64, E> {
        self.0.check(value).map_err(|error| E::custom(sentence(&error)))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<f64, E> {
        self.visit_f64(value as f64)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<f64, E> {
        self.visit_f64(value as f64)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<f64, E> {
        self.0.parse(text).map_err(|error| E::custom(sentence(&error)))
    }
}

/// Message and hint in one, for formats whose errors are plain text.
fn sentence(error: &Error) -> String {
    match error.hint() {
        Some(hint) => format!("{}: {hint}", error.message()),
        None => error.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_refuse_what_is_no_quantity() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e25] {
            let error = Bytes::new(value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.hint().is_some(), "{value}");
        }
        assert!(Bytes::new(0.0).is_ok());
    }

    #[test]
    fn json_takes_numbers_and_text_and_gives_numbers() {
        let from = |text: &str| serde_json::from_str::<Bytes>(text);
        assert!((from("\"1.5TB\"").unwrap().get() - 1.5e12).abs() < 1.0);
        assert!((from("4096").unwrap().get() - 4096.0).abs() < 1e-9);
        assert_eq!(
            serde_json::to_string(&from("\"1kB\"").unwrap()).unwrap(),
            "1000.0"
        );
        for text in ["-1", "\"1 parsec\"", "null", "[]", "true", "1e300"] {
            assert!(from(text).is_err(), "{text}");
        }
        let error = from("\"4Gb\"").unwrap_err().to_string();
        assert!(error.contains("GB"), "{error}");
    }

    #[test]
    fn display_shows_both_units_where_people_confuse_them() {
        assert_eq!(
            "1.5TB".parse::<Bytes>().unwrap().to_string(),
            "1.5 TB (1.364 TiB)"
        );
        assert_eq!(
            "400Gb/s".parse::<BytesPerSecond>().unwrap().to_string(),
            "50 GB/s (400 Gb/s)"
        );
        assert_eq!("90min".parse::<Seconds>().unwrap().to_string(), "1.5 h (5400 s)");
        assert_eq!("40%".parse::<Ratio>().unwrap().to_string(), "40 %");
    }
}
