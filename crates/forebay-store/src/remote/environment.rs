//! Where settings and credentials are looked up: the process's environment, or a fixed table in tests.
//!
//! Everything a remote store learns from outside (variables, the home folder, profile files) comes through an [`Environment`], so a
//! test describes a whole machine without touching the process it runs in.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::env::{self, EnvVar};
use forebay_core::{Error, ErrorKind, Result};

/// Largest profile or token file that is read: the files of people are a few KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The source of variables and files.
#[derive(Clone, Default)]
pub struct Environment {
    /// `None`: the environment of this process.
    fixed: Option<Vars>,
    /// Variables that count before those, as a caller's own settings do.
    over: Vars,
}

type Vars = Arc<BTreeMap<String, String>>;

impl Environment {
    /// The environment of this process.
    pub fn process() -> Self {
        Self::default()
    }

    /// Exactly these variables and no others.
    pub fn fixed<K: Into<String>, V: Into<String>>(vars: impl IntoIterator<Item = (K, V)>) -> Self {
        let vars = vars.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self {
            fixed: Some(Arc::new(vars.collect())),
            over: Arc::default(),
        }
    }

    /// The same, but with these variables before its own: settings from a command line or a configuration file.
    pub fn with(self, vars: impl IntoIterator<Item = (EnvVar, String)>) -> Self {
        let vars = vars.into_iter().map(|(var, value)| (var.name.to_owned(), value));
        Self {
            over: Arc::new(vars.collect()),
            ..self
        }
    }

    /// The value of a variable; an empty one counts as absent.
    pub fn get(&self, var: EnvVar) -> Option<String> {
        let in_vars = |vars: &Vars| vars.get(var.name).filter(|value| !value.is_empty()).cloned();
        in_vars(&self.over).or_else(|| match &self.fixed {
            None => var.get(),
            Some(vars) => in_vars(vars),
        })
    }

    /// True when the variable is set to anything but `0`, `false`, `no` or `off`.
    pub fn is_on(&self, var: EnvVar) -> bool {
        self.get(var)
            .is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false" | "no" | "off"))
    }

    /// The first of these variables that is set.
    pub(crate) fn first(&self, vars: &[EnvVar]) -> Option<String> {
        vars.iter().find_map(|var| self.get(*var))
    }

    /// The path in `var`, or `default` below the home folder.
    pub(crate) fn path(&self, var: EnvVar, default: &str) -> Option<PathBuf> {
        match self.get(var) {
            Some(path) => Some(self.expand(&path)),
            None => Some(PathBuf::from(self.get(env::HOME)?).join(default)),
        }
    }

    /// `~/` is the home folder.
    fn expand(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), self.get(env::HOME)) {
            (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
            _ => PathBuf::from(path),
        }
    }
}

/// Names only: values may be credentials.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = f.debug_set();
        match &self.fixed {
            None => names.entry(&"the process's own"),
            Some(vars) => names.entries(vars.keys()),
        };
        names.entries(self.over.keys()).finish()
    }
}

/// A small text file; `None` when there is none. The content may be a credential and is never repeated in an error.
pub(crate) async fn read_small(path: &std::path::Path) -> Result<Option<String>> {
    let at = |error: Error| error.at(path.display());
    let size = match tokio::fs::metadata(path).await {
        Ok(stat) => stat.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(Error::from_io("read", error))),
    };
    if size > FILE_BYTES_MAX {
        let message = format!("file of {size} bytes is too large for settings or a token");
        return Err(at(Error::new(ErrorKind::LimitExceeded, "read", message)));
    }
    let bytes = tokio::fs::read(path)
        .await
        .map_err(|error| at(Error::from_io("read", error)))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(at(Error::new(
            ErrorKind::InvalidInput,
            "read",
            "file is not valid UTF-8",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_caller_count_first_and_no_value_is_printed() {
        let environment = Environment::fixed([("FOREBAY_S3_REGION", "canary-a"), ("HOME", "canary-b")])
            .with([(env::S3_REGION, "canary-c".to_owned())]);
        assert_eq!(environment.get(env::S3_REGION).as_deref(), Some("canary-c"));
        assert_eq!(environment.get(env::HOME).as_deref(), Some("canary-b"));
        assert!(!format!("{environment:?}").contains("canary"));
    }
}
