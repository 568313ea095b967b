//! Sizes and rates as people write and read them: `64MiB`, `1.5GB`, `2.31 GB/s`.
//!
//! `k`, `M`, `G` are powers of 1000 and `Ki`, `Mi`, `Gi` powers of 1024; a trailing `B` is optional.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, ErrorKind};

/// A number of bytes that parses from `64MiB` and prints as `64.0 MiB`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 13] = [
    ("", 1),
    ("k", 1_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("p", 1_000_000_000_000_000),
    ("e", 1_000_000_000_000_000_000),
    ("ki", 1 << 10),
    ("mi", 1 << 20),
    ("gi", 1 << 30),
    ("ti", 1 << 40),
    ("pi", 1 << 50),
    ("ei", 1 << 60),
];

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = || {
            Error::new(
                ErrorKind::InvalidInput,
                "size",
                format!("'{}' is not a size", text.escape_debug()),
            )
            .with_hint("write sizes like 4096, 64KiB, 1.5GB")
        };
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
            .unwrap_or(trimmed.len());
        let number = trimmed[..digits].replace('_', "");
        let unit = trimmed[digits..].trim_start().to_ascii_lowercase();
        let unit = unit.strip_suffix('b').unwrap_or(&unit);
        let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?.1;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(refuse);
        }
        let value = number.parse::<f64>().map_err(|_| refuse())? * factor as f64;
        if value.is_finite() && value >= 0.0 && value < u64::MAX as f64 {
            Ok(Self(value.round() as u64))
        } else {
            Err(refuse())
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        // Ten binary orders of magnitude make a unit.
        let order = self.0.ilog2() / 10;
        let value = self.0 as f64 / (1u64 << (order * 10)) as f64;
        f.pad(&format!("{value:.1} {}", NAMES[order as usize - 1]))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Bytes per second; prints in powers of 1000 as disks and networks are sold.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(pub f64);

impl Rate {
    /// `bytes` in `time`; zero for no time.
    pub fn of(bytes: u64, time: Duration) -> Self {
        if time.is_zero() {
            Self(0.0)
        } else {
            Self(bytes as f64 / time.as_secs_f64())
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            rate if rate >= 1e9 => format!("{:.2} GB/s", rate / 1e9),
            rate if rate >= 1e6 => format!("{:.1} MB/s", rate / 1e6),
            rate => format!("{:.1} kB/s", rate / 1e3),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_parse_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("1.5GB", 1_500_000_000),
            ("200GiB", 200 << 30),
            ("1_000k", 1_000_000),
            ("0", 0),
            ("2T", 2_000_000_000_000),
            ("1Ki", 1024),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
        for text in [
            "",
            "MiB",
            "-1",
            "1.2.3",
            "1XB",
            "99999999999E",
            "nan",
            "inf",
            "1e9",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,20}", bytes: u64) {
            let _ = text.parse::<ByteSize>();
            prop_assert!(ByteSize(bytes).to_string().ends_with('B'));
        }
    }

    #[test]
    fn sizes_and_rates_print_in_their_units() {
        assert_eq!(ByteSize(1023).to_string(), "1023 B");
        assert_eq!(ByteSize(64 << 20).to_string(), "64.0 MiB");
        assert_eq!(
            Rate::of(3_600_000_000, Duration::from_secs(1)).to_string(),
            "3.60 GB/s"
        );
    }
}
