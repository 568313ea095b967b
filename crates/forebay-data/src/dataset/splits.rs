//! What names of shards say of splits: training data and what it is to be tested with, in one folder, are two data sets to people and one to us.

use std::collections::BTreeMap;

use forebay_core::Key;
use forebay_store::ObjectMeta;

/// Words that begin the name of a file or folder of a split, with what each is called.
const WORDS: [(&str, &str); 9] = [
    ("train", "train"),
    ("training", "train"),
    ("test", "test"),
    ("testing", "test"),
    ("val", "validation"),
    ("valid", "validation"),
    ("validation", "validation"),
    ("dev", "validation"),
    ("eval", "validation"),
];

/// What is to be said where shards of several splits are read together.
pub(super) fn told(shards: &[ObjectMeta]) -> Option<String> {
    let mut splits: BTreeMap<&str, u64> = BTreeMap::new();
    for meta in shards {
        if let Some(split) = split_of(&meta.key) {
            *splits.entry(split).or_default() += 1;
        }
    }
    if splits.len() < 2 {
        return None;
    }
    let listed: Vec<String> = splits
        .iter()
        .map(|(split, count)| format!("{split} ({count})"))
        .collect();
    Some(format!(
        "several splits are read together, by the names of their files: {}; to have one alone, name its folder, or its shards by a pattern such as 'train-*'",
        listed.join(", ")
    ))
}

/// The split that the first part of a key that says so says.
fn split_of(key: &Key) -> Option<&'static str> {
    key.as_str().split('/').find_map(|part| {
        let word = part.split(['-', '_', '.']).next().unwrap_or(part);
        let found = WORDS.iter().find(|(name, _)| word.eq_ignore_ascii_case(name));
        found.map(|(_, split)| *split)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str) -> Option<&'static str> {
        split_of(&Key::parse(name).unwrap())
    }

    #[test]
    fn names_say_splits() {
        assert_eq!(split("data/train-00000-of-00002.parquet"), Some("train"));
        assert_eq!(split("Validation/shard.00000.mds"), Some("validation"));
        assert_eq!(split("val_000.tar"), Some("validation"));
        assert_eq!(split("imagenet/test/n01/1.jpg"), Some("test"));
        assert_eq!(split("trainer-000.tar"), None);
        assert_eq!(split("latest.tar"), None);
    }
}
