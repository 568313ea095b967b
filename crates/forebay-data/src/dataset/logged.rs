//! Tables that keep a log of which of their files count: Delta Lake, Iceberg, Hudi. Their folders hold rows that were deleted or replaced, too, so they are no data sets by what lies in them.

use std::collections::BTreeSet;

use forebay_core::{Error, ErrorKind, Key, Location, Result};
use forebay_store::ObjectMeta;

/// Where Hudi says what a table is. The folder is hidden, so listings do not have it.
const HUDI: &str = ".hoodie/hoodie.properties";

/// A table with a log: who keeps it, and the keys of its files begin with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoggedTable {
    keeper: &'static str,
    prefix: String,
}

/// The table of Hudi that an object describes. It is in a hidden folder, which listings do not keep: whoever lists asks before it is dropped.
pub(super) fn hudi_of(key: &Key) -> Option<LoggedTable> {
    let prefix = key.as_str().strip_suffix(HUDI)?;
    (prefix.is_empty() || prefix.ends_with('/')).then(|| LoggedTable {
        keeper: "Hudi",
        prefix: prefix.to_owned(),
    })
}

/// The tables whose logs are listed, beside those that are `known`.
pub(super) fn tables(objects: &[ObjectMeta], known: BTreeSet<LoggedTable>) -> BTreeSet<LoggedTable> {
    let mut tables = known;
    for (keeper, prefix) in objects.iter().filter_map(|meta| table_of(&meta.key)) {
        let prefix = prefix.to_owned();
        tables.insert(LoggedTable { keeper, prefix });
    }
    tables
}

/// Refuse Parquet files of which only a log knows which are of a table.
pub(super) fn refuse(
    location: &Location,
    tables: &BTreeSet<LoggedTable>,
    shards: &[ObjectMeta],
) -> Result<()> {
    let has_shards = |table: &&LoggedTable| {
        shards
            .iter()
            .any(|meta| meta.key.as_str().starts_with(&table.prefix))
    };
    let Some(LoggedTable { keeper, prefix }) = tables.iter().find(has_shards) else {
        return Ok(());
    };
    let at = location.join(&Key::parse(prefix.trim_end_matches('/'))?);
    let message = format!(
        "this is a table of {keeper}: its log says which files count, and the others hold rows that were deleted or replaced"
    );
    Err(Error::new(ErrorKind::Unsupported, "open data set", message)
        .at(at)
        .with_hint(
            "write its rows as plain Parquet and stream those, or name the files that its present version has; --format parquet reads all files that lie here",
        ))
}

/// Ends the names of the files that say which version of an Iceberg table is the present one.
const ICEBERG: &str = ".metadata.json";

/// Who keeps the table whose log a file is, or is part of, and what the keys of its files begin with. Asked of every object of a listing.
fn table_of(key: &Key) -> Option<(&'static str, &str)> {
    const DELTA: &str = "_delta_log/";
    let path = key.as_str();
    let is_folder = |at: &usize| *at == 0 || path.as_bytes().get(at - 1) == Some(&b'/');
    let mut logs = path.match_indices(DELTA).map(|(at, _)| at);
    if let Some(prefix) = logs.find(is_folder).and_then(|at| path.get(..at)) {
        return Some(("Delta Lake", prefix));
    }
    let folder = path.strip_suffix(key.file_name())?.strip_suffix("metadata/")?;
    let is_log = path.ends_with(ICEBERG) && (folder.is_empty() || folder.ends_with('/'));
    (is_log && is_iceberg(key.file_name())).then_some(("Iceberg", folder))
}

/// True for the names that Iceberg gives them: `v3.metadata.json` and `00003-UUID.metadata.json`, both also with `.gz` before that. Others call the descriptions of
/// data sets `train.metadata.json`.
fn is_iceberg(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(stem) = name.strip_suffix(ICEBERG) else {
        return false;
    };
    let stem = stem.strip_suffix(".gz").unwrap_or(stem);
    match (stem.strip_prefix('v'), stem.split_once('-')) {
        (Some(version), _) => is_number(version),
        (None, Some((version, id))) => is_number(version) && is_uuid(id),
        (None, None) => false,
    }
}

fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_hudi_are_known_by_what_describes_them() {
        for (name, prefix) in [
            (".hoodie/hoodie.properties", Some("")),
            ("a/sales/.hoodie/hoodie.properties", Some("a/sales/")),
            ("a.hoodie/hoodie.properties", None),
            (".hoodie/other/hoodie.properties", None),
            (".hoodie/hoodie.properties.backup", None),
        ] {
            let table = hudi_of(&Key::parse(name).unwrap());
            assert_eq!(
                table.as_ref().map(|table| table.prefix.as_str()),
                prefix,
                "{name}"
            );
        }
    }

    #[test]
    fn logs_are_known_by_their_names() {
        for (name, table) in [
            ("_delta_log/00000000000000000000.json", Some(("Delta Lake", ""))),
            (
                "a/sales/_delta_log/_last_checkpoint",
                Some(("Delta Lake", "a/sales/")),
            ),
            ("metadata/v1.metadata.json", Some(("Iceberg", ""))),
            ("t/metadata/v1.metadata.json", Some(("Iceberg", "t/"))),
            (
                "t/metadata/00001-9c12d441-03fe-4693-9a96-a0705ddf69c1.metadata.json",
                Some(("Iceberg", "t/")),
            ),
            ("metadata/v12.gz.metadata.json", Some(("Iceberg", ""))),
            ("metadata/train.metadata.json", None),
            ("metadata/2024-05.metadata.json", None),
            ("metadata/v.metadata.json", None),
            ("metadata/a/v1.metadata.json", None),
            ("othermetadata/v1.metadata.json", None),
            ("a_delta_log/0.json", None),
            (
                "a_delta_log/_delta_log/0.json",
                Some(("Delta Lake", "a_delta_log/")),
            ),
            ("metadata/a.json", None),
            ("_delta_log.parquet", None),
            ("day=1/part-0.parquet", None),
        ] {
            assert_eq!(table_of(&Key::parse(name).unwrap()), table, "{name}");
        }
    }
}
