//! Folders that are called `name=value`, as Spark, Hive and pyarrow call those of partitions: the column they were split by is in their names alone.

use std::collections::BTreeSet;

use forebay_store::ObjectMeta;

/// Most columns that are listed.
const LISTED_MAX: usize = 8;

/// What is to be said where shards lie in such folders.
pub(super) fn told(shards: &[ObjectMeta]) -> Option<String> {
    let names: BTreeSet<&str> = shards
        .iter()
        .flat_map(|meta| columns(meta.key.as_str()))
        .collect();
    if names.is_empty() {
        return None;
    }
    let listed: Vec<String> = names
        .iter()
        .take(LISTED_MAX)
        .map(|name| format!("'{}'", name.escape_debug()))
        .collect();
    Some(format!(
        "the data set is partitioned by {}: what is in names of folders alone is no field; to have one value of it, name its folder, and to have it as a field, \
         write the files with the column in them",
        listed.join(", ")
    ))
}

/// The columns that the folders of a key say.
fn columns(key: &str) -> impl Iterator<Item = &str> {
    let folders = key.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders
        .split('/')
        .filter_map(|folder| folder.split_once('='))
        .map(|(name, _)| name)
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_say_columns() {
        let said = |key| columns(key).collect::<Vec<_>>();
        assert_eq!(said("year=2024/month=5/part-0.parquet"), ["year", "month"]);
        assert_eq!(said("a/x=1=2/p.parquet"), ["x"]);
        assert!(said("a/b/x=1.parquet").is_empty());
        assert!(said("=1/p.parquet").is_empty());
    }
}
