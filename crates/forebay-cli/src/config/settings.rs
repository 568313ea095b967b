//! Every setting: name in the file, variable, option, kind, default and meaning, in one table.
//!
//! Resolving, `forebay config`, the reference page and the errors about unknown names all read this table, so they cannot
//! disagree.

use std::path::PathBuf;

use forebay_core::env::{self, EnvVar};
use forebay_core::{ByteSize, Error, ErrorKind, Limits, Result};

use crate::args::SettingArgs;

/// What a setting's value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes, written like `64MiB`.
    Size,
    /// A whole number.
    Count,
    /// True or false.
    Switch,
    /// One of some words.
    Choice(&'static [&'static str]),
    /// A path.
    Path,
    /// Any text.
    Text,
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
    /// Smallest allowed number.
    pub(crate) min: u64,
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
        let number = |value: u64, make: fn(u64) -> Value| {
            if value < self.min {
                Err(self.refused(text, &format!("at least {}", self.min)))
            } else {
                Ok(make(value))
            }
        };
        match self.kind {
            Kind::Size => {
                let size = text
                    .parse::<ByteSize>()
                    .map_err(|_| self.refused(text, "a size such as 4096, 64KiB or 1.5GB"))?;
                number(size.0, Value::Size)
            }
            Kind::Count => {
                let count = text
                    .trim()
                    .parse::<u32>()
                    .map_err(|_| self.refused(text, "a whole number"))?;
                number(count.into(), Value::Count)
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
        }
    }

    /// The error for a value of the wrong kind. The value is repeated: no setting is a secret.
    pub(crate) fn refused(&self, text: &str, wanted: &str) -> Error {
        let message = format!("{} is '{}'", self.key, text.escape_debug());
        Error::new(ErrorKind::InvalidInput, "configure", message).with_hint(format!("it must be {wanted}"))
    }
}

/// `limits.*`, whose defaults are the library's.
macro_rules! limit {
    ($field:ident, $kind:ident, $min:expr, $env:expr, $flag:expr, $doc:literal) => {
        Setting {
            key: concat!("limits.", stringify!($field)),
            kind: Kind::$kind,
            min: $min,
            env: $env,
            flag: $flag,
            doc: $doc,
            default: |limits| Value::$kind(u64::from(limits.$field)),
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// All of them, in the order of the reference page.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        key: "state_dir",
        kind: Kind::Path,
        min: 0,
        env: Some(env::STATE_DIR),
        flag: Some(("--state-dir", |args| args.state_dir.as_ref())),
        doc: "Folder for small state: store probes, transfers in progress. Default: `forebay` in the user's cache folder.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "cache",
        kind: Kind::Text,
        min: 0,
        env: Some(env::CACHE),
        flag: Some(("--cache", |args| args.cache.as_ref())),
        doc: "Keep what `cat` and `cp` read from remote stores on a local disk: `directory:size`, such as `/nvme/cache:200GiB`. Default: no cache.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "cache_immutable",
        kind: Kind::Switch,
        min: 0,
        env: Some(env::CACHE_IMMUTABLE),
        flag: Some(("--cache-immutable", |args| args.cache_immutable.as_ref())),
        doc: "Objects never change once written: what is cached is used without asking the store.",
        default: |_| Value::Switch(false),
    },
    Setting {
        key: "disk.engine",
        kind: Kind::Choice(&["auto", "uring", "psync"]),
        min: 0,
        env: Some(env::ENGINE),
        flag: Some(("--engine", |args| args.engine.as_ref())),
        doc: "Disk engine: io_uring where it works (`auto`), io_uring or an error (`uring`), blocking calls on threads (`psync`).",
        default: |_| Value::Text("auto".to_owned()),
    },
    Setting {
        key: "disk.huge_pages",
        kind: Kind::Switch,
        min: 0,
        env: Some(env::HUGE_PAGES),
        flag: Some(("--huge-pages", |args| args.huge_pages.as_ref())),
        doc: "Try 2 MiB pages for buffer memory.",
        default: |_| Value::Switch(false),
    },
    limit!(
        buffer_bytes_max,
        Size,
        MIB,
        Some(env::BUFFER_MEMORY),
        Some(("--buffer-memory", |args| args.buffer_memory.as_ref())),
        "Ceiling of buffer memory in flight, over all operations of the process."
    ),
    limit!(
        disk_request_bytes,
        Size,
        4 * KIB,
        None,
        None,
        "Size of one disk request."
    ),
    limit!(
        disk_depth,
        Count,
        1,
        None,
        None,
        "Disk requests of one operation in flight."
    ),
    limit!(ring_entries, Count, 1, None, None, "Entries of one io_uring."),
    limit!(
        worker_threads,
        Count,
        1,
        None,
        None,
        "Threads of the blocking engine and for operations on names."
    ),
    limit!(
        queue_requests_max,
        Count,
        1,
        None,
        None,
        "Requests waiting for a worker thread or a ring before submitting waits."
    ),
    limit!(
        part_bytes,
        Size,
        64 * KIB,
        Some(env::PART_SIZE),
        Some(("--part-size", |args| args.part_size.as_ref())),
        "Size of one ranged GET and of one uploaded part."
    ),
    limit!(
        store_requests_max,
        Count,
        1,
        Some(env::CONCURRENCY),
        Some(("--concurrency", |args| args.concurrency.as_ref())),
        "Requests to one store in flight."
    ),
    limit!(
        tries_max,
        Count,
        1,
        None,
        None,
        "Tries of one request, the first included."
    ),
    limit!(
        retry_budget_percent,
        Count,
        0,
        None,
        None,
        "Retries that may be spent for each 100 requests over a store's life."
    ),
    limit!(
        retry_pause_ms,
        Count,
        0,
        None,
        None,
        "First pause before a retry, in milliseconds."
    ),
    limit!(
        retry_pause_ms_max,
        Count,
        0,
        None,
        None,
        "Longest pause before a retry, in milliseconds."
    ),
    limit!(
        stall_ms_max,
        Count,
        1,
        None,
        None,
        "Time without a single byte of progress before a request counts as stalled, in milliseconds."
    ),
    limit!(
        connect_ms_max,
        Count,
        1,
        None,
        None,
        "Time to connect, in milliseconds."
    ),
    limit!(
        reply_bytes_max,
        Size,
        KIB,
        None,
        None,
        "Longest message or document of a server that is read into memory."
    ),
    Setting {
        key: "s3.endpoint",
        kind: Kind::Text,
        min: 0,
        env: Some(env::S3_ENDPOINT),
        flag: Some(("--s3-endpoint", |args| args.s3_endpoint.as_ref())),
        doc: "S3 endpoint URL. Default: the variables and profiles of AWS, then AWS itself.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "s3.region",
        kind: Kind::Text,
        min: 0,
        env: Some(env::S3_REGION),
        flag: Some(("--s3-region", |args| args.s3_region.as_ref())),
        doc: "S3 region. Default: the variables and profiles of AWS.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "s3.addressing",
        kind: Kind::Choice(&["auto", "path", "virtual"]),
        min: 0,
        env: Some(env::S3_ADDRESSING),
        flag: Some(("--s3-addressing", |args| args.s3_addressing.as_ref())),
        doc: "Address buckets as `host/bucket` (`path`) or `bucket.host` (`virtual`). Default: by path behind an endpoint of one's own.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "s3.unsigned",
        kind: Kind::Switch,
        min: 0,
        env: Some(env::S3_UNSIGNED),
        flag: Some(("--s3-unsigned", |args| args.s3_unsigned.as_ref())),
        doc: "Send S3 requests without a signature, for public buckets.",
        default: |_| Value::Unset,
    },
];

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
    fn values_of_the_wrong_kind_name_the_setting() {
        for (key, text) in [
            ("limits.part_bytes", "8 apples"),
            ("limits.part_bytes", "1"),
            ("limits.store_requests_max", "0"),
            ("limits.store_requests_max", "1.5"),
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
