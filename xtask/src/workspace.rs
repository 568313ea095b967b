//! Where things are: the checkout, its build folder, its virtual environment, and the cache outside of it.
//!
//! Everything that costs minutes to make and does not depend on the checkout (cargo-deny, Garage) lives in the cache
//! folder, so that a fresh checkout does not pay for it again.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};

use crate::env;

/// Folders of one checkout.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the checkout: from cargo's hint when started by `cargo xtask`, else upward from the working directory.
    pub(crate) fn find() -> Result<Self> {
        let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => std::env::current_dir().context("cannot read the working directory")?,
        };
        let root = start
            .ancestors()
            .find(|folder| folder.join("Cargo.lock").exists() && folder.join("xtask/Cargo.toml").exists())
            .or_else(|| {
                start
                    .ancestors()
                    .find(|folder| folder.join("xtask/Cargo.toml").exists())
            })
            .ok_or_else(|| anyhow!("no Forebay checkout at or above {}", start.display()))?;
        Ok(Self {
            root: root.to_path_buf(),
        })
    }

    /// Top folder of the checkout.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The cargo build folder.
    pub(crate) fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR") {
            Some(folder) => self.root.join(folder),
            None => self.root.join("target"),
        }
    }

    /// The Python environment of this checkout.
    pub(crate) fn venv(&self) -> PathBuf {
        self.root.join(".venv")
    }

    /// A program inside the Python environment.
    pub(crate) fn venv_bin(&self, name: &str) -> PathBuf {
        self.venv().join("bin").join(name)
    }

    /// The crate that becomes the Python wheel.
    pub(crate) fn python_crate(&self) -> PathBuf {
        self.root.join("crates/forebay-python")
    }
}

/// The folder for tools built once per machine.
pub(crate) fn cache() -> Result<PathBuf> {
    cache_from(|name| std::env::var_os(name).map(PathBuf::from))
}

fn cache_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    if let Some(folder) = variable(env::DEV_CACHE) {
        return Ok(folder);
    }
    let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("forebay"))
        .ok_or_else(|| anyhow!("no cache folder: set {}, XDG_CACHE_HOME or HOME", env::DEV_CACHE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_with(set: &[(&str, &str)]) -> Result<PathBuf> {
        cache_from(|name| {
            set.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| PathBuf::from(value))
        })
    }

    #[test]
    fn cache_folder_follows_the_most_specific_variable() {
        let all = [(env::DEV_CACHE, "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(cache_with(&all).unwrap(), Path::new("/a"));
        assert_eq!(cache_with(&all[1..]).unwrap(), Path::new("/b/forebay"));
        assert_eq!(cache_with(&all[2..]).unwrap(), Path::new("/c/.cache/forebay"));
        assert!(cache_with(&[]).is_err());
    }
}
