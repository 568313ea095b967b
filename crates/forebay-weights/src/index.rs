//! `*.index.json`: which file of a folder holds which tensor, as model hubs write it.
//!
//! ```json
//! {"metadata": {"total_size": 123}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use forebay_core::{Error, ErrorKind, Key, Result};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

/// How the name of an index ends.
pub const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// Longest index: the longest header a file may have is as long.
pub const INDEX_BYTES_MAX: u64 = 100_000_000;

/// Most files of one index: a slip of the pen, or an attack on the limit of open files.
const FILES_MAX: usize = 65_536;

/// A parsed index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    files: Vec<Key>,
    /// Tensor to number in `files`.
    weights: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct Raw {
    weight_map: WeightMap,
}

struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors and files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut weights = BTreeMap::new();
        while let Some((name, file)) = map.next_entry::<String, String>()? {
            match weights.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(file);
                }
                Entry::Occupied(twin) => {
                    let message = format!("tensor '{}' comes twice", twin.key().escape_debug());
                    return Err(de::Error::custom(message));
                }
            }
        }
        Ok(WeightMap(weights))
    }
}

impl Index {
    /// Parse and check. `Corrupt` for what is no index, `InvalidInput` for a file outside the folder.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fail = |message: String| Error::new(ErrorKind::Corrupt, "read index", message);
        let raw: Raw = serde_json::from_slice(bytes).map_err(|error| fail(error.to_string()))?;
        if raw.weight_map.0.is_empty() {
            return Err(fail("it names no tensor".to_owned()));
        }
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        for file in raw.weight_map.0.values() {
            let next = numbers.len();
            numbers.entry(file).or_insert(next);
            if numbers.len() > FILES_MAX {
                return Err(fail(format!("it names more than {FILES_MAX} files")));
            }
        }
        let mut files = vec![Key::ROOT; numbers.len()];
        for (file, number) in &numbers {
            files[*number] = file_key(file)?;
        }
        let weights = raw
            .weight_map
            .0
            .iter()
            .map(|(name, file)| (name.clone(), numbers[file.as_str()]))
            .collect();
        let mut index = Self { files, weights };
        index.sort();
        Ok(index)
    }

    /// Files in the order of their names: that is mostly the order of the model's layers.
    fn sort(&mut self) {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        order.sort_by(|a, b| self.files[*a].cmp(&self.files[*b]));
        let mut numbers = vec![0; order.len()];
        for (number, old) in order.iter().enumerate() {
            numbers[*old] = number;
        }
        self.files = order.iter().map(|old| self.files[*old].clone()).collect();
        for file in self.weights.values_mut() {
            *file = numbers[*file];
        }
    }

    /// The files, relative to the folder of the index.
    pub fn files(&self) -> &[Key] {
        &self.files
    }

    /// The tensors and the numbers of their files.
    pub fn weights(&self) -> &BTreeMap<String, usize> {
        &self.weights
    }
}

/// A name in the folder of the index; what leaves it is refused, since an index may come from anywhere.
fn file_key(name: &str) -> Result<Key> {
    let key = Key::parse(name).ok().filter(|key| !key.is_root());
    key.ok_or_else(|| {
        let message = format!("file '{}' is not in the folder of the index", name.escape_debug());
        Error::new(ErrorKind::InvalidInput, "read index", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_gives_files_and_tensors() {
        let index = Index::parse(
            br#"{"metadata":{"total_size":4},"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}}"#,
        )
        .unwrap();
        let files: Vec<&str> = index.files().iter().map(Key::as_str).collect();
        assert_eq!(files, ["m-1.safetensors", "m-2.safetensors"]);
        assert_eq!(index.weights()["a"], 1);
        assert_eq!(index.weights()["b"], 0);
    }

    #[test]
    fn what_is_no_index_is_refused() {
        for (text, kind) in [
            ("", ErrorKind::Corrupt),
            ("[]", ErrorKind::Corrupt),
            ("{}", ErrorKind::Corrupt),
            (r#"{"weight_map":{}}"#, ErrorKind::Corrupt),
            (r#"{"weight_map":{"a":1}}"#, ErrorKind::Corrupt),
            (r#"{"weight_map":{"a":"x","a":"y"}}"#, ErrorKind::Corrupt),
            (r#"{"weight_map":{"a":"../x"}}"#, ErrorKind::InvalidInput),
            (r#"{"weight_map":{"a":"/etc/passwd"}}"#, ErrorKind::InvalidInput),
            (r#"{"weight_map":{"a":"x/../../y"}}"#, ErrorKind::InvalidInput),
            (r#"{"weight_map":{"a":""}}"#, ErrorKind::InvalidInput),
        ] {
            let error = Index::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), kind, "{text}: {error}");
        }
    }
}
