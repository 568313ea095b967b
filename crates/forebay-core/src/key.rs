//! Names of objects inside a store.
//!
//! A [`Key`] is a `/`-separated relative name in UTF-8 without empty, `.` or `..` parts, so it can be joined to a directory or
//! a bucket prefix without ever leaving it. What cannot be a key (names that are not UTF-8, `a//b`) is refused by name.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// Longest key in bytes: the limit of S3, GCS and Azure.
pub const KEY_BYTES_MAX: usize = 1024;

/// The name of an object inside a store; the empty key is the store's root.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

impl Key {
    /// The root of a store.
    pub const ROOT: Self = Self(String::new());

    /// Check and take a name; one trailing `/` (a prefix as people write it) is dropped.
    pub fn parse(name: &str) -> Result<Self> {
        let trimmed = name.strip_suffix('/').unwrap_or(name);
        let refuse = |why: &str| {
            Err(Error::new(
                ErrorKind::InvalidInput,
                "name",
                format!("{why}: {}", name.escape_debug()),
            )
            .with_hint("object names are relative, '/'-separated, without empty, '.' or '..' parts"))
        };
        if trimmed.is_empty() {
            return if name.is_empty() {
                Ok(Self::ROOT)
            } else {
                refuse("object name is empty")
            };
        }
        if trimmed.len() > KEY_BYTES_MAX {
            return refuse("object name is longer than 1024 bytes");
        }
        if trimmed.contains('\0') {
            return refuse("object name contains a zero byte");
        }
        for part in trimmed.split('/') {
            match part {
                "" => return refuse("object name has an empty part"),
                "." | ".." => return refuse("object name has a '.' or '..' part"),
                _ => {}
            }
        }
        Ok(Self(trimmed.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// `self/other`.
    pub fn join(&self, other: &Self) -> Self {
        match (self.is_root(), other.is_root()) {
            (true, _) => other.clone(),
            (_, true) => self.clone(),
            _ => Self(format!("{}/{}", self.0, other.0)),
        }
    }

    /// The part after the last `/`.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or("")
    }

    /// Everything before the last `/`; the root for a name without one.
    pub fn parent(&self) -> Self {
        self.0
            .rsplit_once('/')
            .map_or(Self::ROOT, |(parent, _)| Self(parent.to_owned()))
    }

    /// What remains below `prefix` (whole parts only); the root when they are equal, `None` when `self` is not below it.
    pub fn below(&self, prefix: &Self) -> Option<Self> {
        if prefix.is_root() {
            return Some(self.clone());
        }
        match self.0.strip_prefix(&prefix.0)? {
            "" => Some(Self::ROOT),
            rest => rest.strip_prefix('/').map(|rest| Self(rest.to_owned())),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::parse(&name)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_a_store_are_refused() {
        for name in [
            "/",
            "/etc/passwd",
            "a//b",
            "a/../b",
            "..",
            "./a",
            "a\0b",
            "a//",
            &"x".repeat(1025),
        ] {
            assert_eq!(
                Key::parse(name).unwrap_err().kind(),
                ErrorKind::InvalidInput,
                "{name:?}"
            );
        }
    }

    #[test]
    fn ordinary_and_odd_names_pass() {
        for name in ["a", "a/b c/\u{e9}", "...", "..a", "a%2Fb", "tab\there", "a/"] {
            assert!(Key::parse(name).is_ok(), "{name:?}");
        }
        assert!(Key::parse("").unwrap().is_root());
    }

    #[test]
    fn join_below_and_parent_agree() {
        let (a, bc) = (Key::parse("a").unwrap(), Key::parse("b/c").unwrap());
        let joined = a.join(&bc);
        assert_eq!(joined.as_str(), "a/b/c");
        assert_eq!(joined.below(&a).unwrap(), bc);
        assert_eq!(joined.parent().as_str(), "a/b");
        assert_eq!(joined.file_name(), "c");
        assert!(Key::parse("ab").unwrap().below(&a).is_none());
    }
}
