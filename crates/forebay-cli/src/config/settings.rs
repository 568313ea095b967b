//! Every setting: name in the file, variable, option, kind, default and meaning, in one table.
//!
//! Resolving, `forebay config`, the reference page and the errors about unknown names all read this table, so they cannot
//! disagree.

mod table;

use std::path::{Path, PathBuf};

use forebay_core::env::EnvVar;
use forebay_core::{ByteSize, Error, ErrorKind, Limits, Result};
use forebay_store::cache::CacheConfig;
use forebay_store::remote::RemoteConfig;

use crate::args::SettingArgs;
pub(crate) use table::SETTINGS;

/// What a setting's value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes, written like `64MiB`.
    Size(Bounds),
    /// A whole number.
    Count(Bounds),
    /// True or false.
    Switch,
    /// One of some words.
    Choice(&'static [&'static str]),
    /// A path.
    Path,
    /// Any text.
    Text,
    /// The URL of a server, without credentials in it.
    Endpoint,
    /// Directory and size of a cache.
    Cache,
}

/// The smallest and the largest number a setting may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Smallest.
    pub(crate) min: u64,
    /// Largest.
    pub(crate) max: u64,
}

/// A checked value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// Bytes.
    Size(u64),
    /// A whole number.
    Count(u64),
    /// True or false.
    Switch(bool),
    /// A word or any text.
    Text(String),
    /// A path.
    Path(PathBuf),
    /// Left to whoever uses it.
    Unset,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size(bytes) => f.pad(&exact(*bytes)),
            Self::Count(count) => f.pad(&count.to_string()),
            Self::Switch(on) => f.pad(if *on { "true" } else { "false" }),
            Self::Text(text) => f.pad(text),
            Self::Path(path) => f.pad(&path.to_string_lossy()),
            Self::Unset => f.pad("-"),
        }
    }
}

/// A size that reads back as the same number.
fn exact(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// `section.key` in the file.
    pub(crate) key: &'static str,
    /// What it may be.
    pub(crate) kind: Kind,
    /// Variable of the environment.
    pub(crate) env: Option<EnvVar>,
    /// Option of the command line, with how to read it from the parsed arguments.
    pub(crate) flag: Option<(&'static str, FlagValue)>,
    /// What it does.
    pub(crate) doc: &'static str,
    /// Its default.
    pub(crate) default: fn(&Limits) -> Value,
}

/// Reads one option out of the parsed arguments.
pub(crate) type FlagValue = fn(&SettingArgs) -> Option<&std::ffi::OsString>;

impl Setting {
    /// Check and take a value from text, as options and variables give it.
    pub(crate) fn parse(&self, text: &str) -> Result<Value> {
        let number = |value: u64, bounds: Bounds, make: fn(u64) -> Value| {
            if value < bounds.min {
                Err(self.refused(text, &format!("at least {}", make(bounds.min))))
            } else if value > bounds.max {
                Err(self.refused(text, &format!("at most {}", make(bounds.max))))
            } else {
                Ok(make(value))
            }
        };
        match self.kind {
            Kind::Size(bounds) => {
                let size = text
                    .parse::<ByteSize>()
                    .map_err(|_| self.refused(text, "a size such as 4096, 64KiB or 1.5GB"))?;
                number(size.0, bounds, Value::Size)
            }
            Kind::Count(bounds) => {
                let count = text
                    .trim()
                    .parse::<u64>()
                    .map_err(|_| self.refused(text, "a whole number"))?;
                number(count, bounds, Value::Count)
            }
            Kind::Switch => match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => Ok(Value::Switch(true)),
                "0" | "false" | "no" | "off" => Ok(Value::Switch(false)),
                _ => Err(self.refused(text, "true or false")),
            },
            Kind::Choice(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Kind::Choice(words) => Err(self.refused(text, &format!("one of: {}", words.join(", ")))),
            Kind::Path => Ok(Value::Path(PathBuf::from(text))),
            Kind::Text => Ok(Value::Text(text.to_owned())),
            // Checked here as the store does it, and never repeated: people put keys into it.
            Kind::Endpoint => RemoteConfig::check_endpoint(text).map(Value::Text),
            // Checked here, so that it is told even where no cache is used; relative names are resolved by whoever opens it.
            Kind::Cache => CacheConfig::parse(text, Path::new("/")).map(|_| Value::Text(text.to_owned())),
        }
    }

    /// The error for a value of the wrong kind. The value is repeated: it is no secret, except where people put one into an endpoint.
    pub(crate) fn refused(&self, text: &str, wanted: &str) -> Error {
        let message = match self.kind {
            Kind::Endpoint => format!("{} is not what it should be", self.key),
            _ => format!("{} is '{}'", self.key, text.escape_debug()),
        };
        Error::new(ErrorKind::InvalidInput, "configure", message).with_hint(format!("it must be {wanted}"))
    }
}

/// The setting of that name in the file.
pub(crate) fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_a_setting() {
        let limits = serde_json::to_value(Limits::default()).unwrap();
        for field in limits.as_object().unwrap().keys() {
            assert!(find(&format!("limits.{field}")).is_some(), "{field}");
        }
    }

    #[test]
    fn defaults_read_back_as_themselves() {
        for setting in SETTINGS {
            let value = (setting.default)(&Limits::default());
            if value != Value::Unset {
                assert_eq!(
                    setting.parse(&value.to_string()).unwrap(),
                    value,
                    "{}",
                    setting.key
                );
            }
        }
    }

    #[test]
    fn every_number_has_bounds_around_its_default() {
        for setting in SETTINGS {
            if let (Kind::Size(bounds) | Kind::Count(bounds), Value::Size(default) | Value::Count(default)) =
                (setting.kind, (setting.default)(&Limits::default()))
            {
                let allowed = bounds.min..=bounds.max;
                assert!(
                    allowed.contains(&default) && bounds.max < u64::MAX,
                    "{}",
                    setting.key
                );
            }
        }
    }

    #[test]
    fn endpoints_with_credentials_are_refused_and_not_repeated() {
        let setting = find("s3.endpoint").unwrap();
        for text in [
            "http://user:canary@host",
            "https://h/?sig=canary",
            "canary",
            "ftp://canary",
        ] {
            let error = setting.parse(text).unwrap_err();
            assert!(
                !format!("{error} {:?}", error.hint()).contains("canary"),
                "{error}"
            );
        }
        assert_eq!(
            setting.parse("http://127.0.0.1:8333/").unwrap(),
            Value::Text("http://127.0.0.1:8333".to_owned())
        );
    }

    #[test]
    fn values_of_the_wrong_kind_name_the_setting() {
        for (key, text) in [
            ("limits.part_bytes", "8 apples"),
            ("limits.part_bytes", "1"),
            ("limits.store_requests_max", "0"),
            ("limits.store_requests_max", "1.5"),
            ("limits.worker_threads", "30000"),
            ("limits.ring_entries", "4000000000"),
            ("limits.store_requests_max", "99999999999"),
            ("limits.buffer_bytes_max", "8000PB"),
            ("disk.engine", "spdk"),
            ("disk.huge_pages", "perhaps"),
        ] {
            let error = find(key).unwrap().parse(text).unwrap_err();
            assert!(
                error.to_string().contains(key) && error.hint().is_some(),
                "{error}"
            );
        }
    }
}
