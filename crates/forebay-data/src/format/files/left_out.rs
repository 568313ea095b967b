//! Files of a folder that are part of no sample: how many, of which kinds, and one of them by name.

use std::collections::BTreeMap;
use std::fmt;

use forebay_core::Key;

/// Kinds that are told apart; a folder with more of them is described well enough by these.
const KINDS_MAX: usize = 64;

/// Kinds named in one message.
const KINDS_TOLD_MAX: usize = 3;

/// Longest ending that is a kind of its own: what is behind the last dot of a longer one is a part of its name.
const ENDING_BYTES_MAX: usize = 16;

/// What is part of no sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    files: u64,
    /// How many have each ending, in lower case; those without one have an empty one.
    kinds: BTreeMap<String, u64>,
    /// The first by name, whatever order the listing has.
    example: Option<Key>,
}

impl LeftOut {
    /// How many there are.
    pub fn files(&self) -> u64 {
        self.files
    }

    pub(super) fn add(&mut self, below: &Key) {
        self.files += 1;
        let ending = ending(below.file_name());
        if self.kinds.len() < KINDS_MAX || self.kinds.contains_key(&ending) {
            *self.kinds.entry(ending).or_default() += 1;
        }
        if self.example.as_ref().is_none_or(|example| below < example) {
            self.example = Some(below.clone());
        }
    }

    /// A socket, a pipe or the like, which has no name as a key.
    pub(super) fn add_special(&mut self) {
        self.files += 1;
    }

    /// How a note about them begins; with [`fmt::Display`], which they are.
    pub(super) fn count(&self) -> String {
        match self.files {
            1 => "left out is 1 file".to_owned(),
            files => format!("left out are {files} files"),
        }
    }
}

/// `2 .txt, 1 .db, such as 'README.txt'`.
impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<(&String, &u64)> = self.kinds.iter().collect();
        kinds.sort_by(|a, b| b.1.cmp(a.1));
        let mut rest = self.files;
        let mut words = Vec::new();
        for (ending, files) in kinds.into_iter().take(KINDS_TOLD_MAX) {
            rest -= files;
            words.push(if ending.is_empty() {
                format!("{files} without an ending")
            } else {
                format!("{files} .{}", ending.escape_debug())
            });
        }
        if rest > 0 {
            words.push(format!("{rest} others"));
        }
        f.write_str(&words.join(", "))?;
        match &self.example {
            Some(example) => write!(f, ", such as '{}'", example.as_str().escape_debug()),
            None => Ok(()),
        }
    }
}

fn ending(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() && ending.len() <= ENDING_BYTES_MAX => {
            ending.to_ascii_lowercase()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_and_one_is_named() {
        let mut left_out = LeftOut::default();
        for name in [
            "dog/notes.txt",
            "dog/Thumbs.db",
            "README",
            "cat/notes.TXT",
            "a.csv",
            "a.xml",
        ] {
            left_out.add(&Key::parse(name).unwrap());
        }
        assert_eq!(left_out.files(), 6);
        assert_eq!(
            left_out.to_string(),
            "2 .txt, 1 without an ending, 1 .csv, 2 others, such as 'README'"
        );
        let many = (0..1000).map(|index| Key::parse(&format!("x.{index}")).unwrap());
        many.for_each(|key| left_out.add(&key));
        assert_eq!((left_out.files(), left_out.kinds.len()), (1006, KINDS_MAX));
    }
}
