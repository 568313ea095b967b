//! Settings, resolved once: options over variables over the file over defaults.
//!
//! [`Config::resolve`] takes the parsed arguments, looks at the environment and the file, and keeps for every setting its value and
//! where it came from. Everything built from settings (the disk, the stores' context) is built here.

mod file;
pub(crate) mod settings;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use forebay_core::{Error, ErrorKind, Limits, Result, env};
use forebay_io::{DiskConfig, EngineChoice, Pages};
use forebay_store::Context;
use forebay_store::cache::{CacheConfig, Freshness};
use forebay_store::remote::Environment;
use serde::Serialize;

use crate::args::SettingArgs;
use settings::{SETTINGS, Setting, Value};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "from")]
pub(crate) enum Origin {
    /// Nobody said anything.
    Default,
    /// The configuration file.
    File {
        /// Which.
        path: PathBuf,
        /// On which line.
        line: usize,
    },
    /// The environment.
    Env {
        /// Which variable.
        name: &'static str,
    },
    /// The command line.
    Flag {
        /// Which option.
        name: &'static str,
    },
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env { name } | Self::Flag { name } => f.write_str(name),
        }
    }
}

/// A setting with its value and origin.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// Which.
    pub(crate) setting: &'static Setting,
    /// Its value.
    pub(crate) value: Value,
    /// Where from.
    pub(crate) origin: Origin,
}

/// All settings in force.
#[derive(Debug)]
pub(crate) struct Config {
    resolved: Vec<Resolved>,
    file: Option<PathBuf>,
}

impl Config {
    /// Look at the arguments, the environment and the file.
    pub(crate) fn resolve(args: &SettingArgs) -> Result<Self> {
        let asked = args
            .config
            .clone()
            .or_else(|| env::CONFIG.get_os().map(PathBuf::from));
        let path = asked.clone().or_else(file::default_path);
        let values = match &path {
            Some(path) => file::read(path, asked.is_some())?,
            None => None,
        };
        let file = values.is_some().then_some(path).flatten();
        let values = values.unwrap_or_default();
        let limits = Limits::default();
        let mut resolved = Vec::with_capacity(SETTINGS.len());
        for setting in SETTINGS {
            let (value, origin) = match (from_flag(setting, args)?, from_env(setting)?) {
                (Some(found), _) | (None, Some(found)) => found,
                (None, None) => match (values.iter().find(|value| value.key == setting.key), &file) {
                    (Some(found), Some(path)) => {
                        let origin = Origin::File {
                            path: path.clone(),
                            line: found.line,
                        };
                        (found.value.clone(), origin)
                    }
                    _ => ((setting.default)(&limits), Origin::Default),
                },
            };
            resolved.push(Resolved {
                setting,
                value,
                origin,
            });
        }
        Ok(Self { resolved, file })
    }

    /// Every setting, in table order.
    pub(crate) fn rows(&self) -> &[Resolved] {
        &self.resolved
    }

    /// The file that was read.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Make the surroundings of stores. Inside a runtime only.
    pub(crate) fn context(&self) -> Result<Context> {
        let engine: EngineChoice = self.text("disk.engine").unwrap_or("auto").parse()?;
        let disk = DiskConfig {
            limits: self.limits()?,
            engine,
            pages: if self.value("disk.huge_pages") == Some(&Value::Switch(true)) {
                Pages::Huge
            } else {
                Pages::default()
            },
            ..DiskConfig::default()
        };
        let remote = self
            .resolved
            .iter()
            .filter(|row| row.setting.key.starts_with("s3.") && row.value != Value::Unset);
        let remote = remote.filter_map(|row| Some((row.setting.env?, row.value.to_string())));
        let context = Context::open(disk)?.with_environment(Environment::process().with(remote));
        Ok(match self.value("state_dir") {
            Some(Value::Path(path)) => context.with_state_dir(Some(path.clone())),
            _ => context,
        })
    }

    /// True when the command line has the setting.
    pub(crate) fn is_flag(&self, key: &str) -> bool {
        let row = self.resolved.iter().find(|row| row.setting.key == key);
        row.is_some_and(|row| matches!(row.origin, Origin::Flag { .. }))
    }

    /// The cache that is wanted.
    pub(crate) fn cache(&self) -> Result<Option<CacheConfig>> {
        let Some(text) = self.text("cache") else {
            return Ok(None);
        };
        let base = std::env::current_dir()
            .map_err(|error| Error::from_io("start", error).at("current directory"))?;
        let mut config = CacheConfig::parse(text, &base)?;
        if self.value("cache_immutable") == Some(&Value::Switch(true)) {
            config.freshness = Freshness::Immutable;
        }
        Ok(Some(config))
    }

    /// The bounds in force.
    pub(crate) fn limits(&self) -> Result<Limits> {
        let mut object = serde_json::Map::new();
        for row in &self.resolved {
            if let (Some(field), Value::Size(number) | Value::Count(number)) =
                (row.setting.key.strip_prefix("limits."), &row.value)
            {
                object.insert(field.to_owned(), (*number).into());
            }
        }
        serde_json::from_value(object.into()).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, "configure", "a limit is out of range").with_source(error)
        })
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.resolved
            .iter()
            .find(|row| row.setting.key == key)
            .map(|row| &row.value)
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.value(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }
}

type Found = Option<(Value, Origin)>;

fn from_flag(setting: &Setting, args: &SettingArgs) -> Result<Found> {
    let Some((name, read)) = setting.flag else {
        return Ok(None);
    };
    match read(args) {
        None => Ok(None),
        Some(text) => take(setting, text, name).map(|value| Some((value, Origin::Flag { name }))),
    }
}

fn from_env(setting: &Setting) -> Result<Found> {
    let Some(var) = setting.env else { return Ok(None) };
    match var.get_os() {
        None => Ok(None),
        Some(text) => {
            take(setting, &text, var.name).map(|value| Some((value, Origin::Env { name: var.name })))
        }
    }
}

fn take(setting: &Setting, text: &OsStr, from: &'static str) -> Result<Value> {
    if setting.kind == settings::Kind::Path {
        return Ok(Value::Path(PathBuf::from(text)));
    }
    let checked = match text.to_str() {
        Some(text) => setting.parse(text),
        None => Err(setting.refused(&text.to_string_lossy(), "UTF-8")),
    };
    checked.map_err(|error| error.at(from))
}
