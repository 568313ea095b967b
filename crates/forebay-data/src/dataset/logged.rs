//! Tables that keep a log of which of their files count: Delta Lake, Iceberg, Hudi. Their folders hold rows that were deleted or replaced, too, so they are no data sets by what lies in them.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{ObjectMeta, Store};

/// Where Hudi says what a table is. The folder is hidden, so listings do not have it.
const HUDI: &str = ".hoodie/hoodie.properties";

/// A table with a log: who keeps it, and the keys of its files begin with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoggedTable {
    keeper: &'static str,
    prefix: String,
}

/// The tables whose logs are listed.
pub(super) fn tables(objects: &[ObjectMeta]) -> Vec<LoggedTable> {
    let mut tables: Vec<LoggedTable> = Vec::new();
    for table in objects.iter().filter_map(|meta| table_of(&meta.key)) {
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    tables
}

/// Refuse Parquet files of which only a log knows which are of a table.
pub(super) async fn refuse(
    store: &Arc<dyn Store>,
    tables: &[LoggedTable],
    shards: &[ObjectMeta],
) -> Result<()> {
    let has_shards = |table: &&LoggedTable| {
        shards
            .iter()
            .any(|meta| meta.key.as_str().starts_with(&table.prefix))
    };
    let (keeper, place) = match tables.iter().find(has_shards) {
        Some(table) => (table.keeper, table.prefix.as_str()),
        None if is_hudi(store).await? => ("Hudi", ""),
        None => return Ok(()),
    };
    let at = store.location().join(&Key::parse(place.trim_end_matches('/'))?);
    let message = format!(
        "this is a table of {keeper}: its log says which files count, and the others hold rows that were deleted or replaced"
    );
    Err(Error::new(ErrorKind::Unsupported, "open data set", message)
        .at(at)
        .with_hint(
            "write its rows as plain Parquet and stream those, or name the files that its present version has",
        ))
}

/// The table whose log a file is, or is part of.
fn table_of(key: &Key) -> Option<LoggedTable> {
    let path = key.as_str();
    let folder_of = |name: &str| {
        let at = format!("/{path}").find(&format!("/{name}/"))?;
        Some(path[..at].to_owned())
    };
    let (keeper, prefix) = if let Some(prefix) = folder_of("_delta_log") {
        ("Delta Lake", prefix)
    } else if path.ends_with(".metadata.json") {
        ("Iceberg", folder_of("metadata")?)
    } else {
        return None;
    };
    Some(LoggedTable { keeper, prefix })
}

async fn is_hudi(store: &Arc<dyn Store>) -> Result<bool> {
    match store.head(&Key::parse(HUDI)?).await {
        Ok(_) => Ok(true),
        // Where only some names may be looked at, a missing one is forbidden.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("metadata/a.json", None),
            ("_delta_log.parquet", None),
            ("day=1/part-0.parquet", None),
        ] {
            let table = table.map(|(keeper, prefix)| LoggedTable {
                keeper,
                prefix: prefix.to_owned(),
            });
            assert_eq!(table_of(&Key::parse(name).unwrap()), table, "{name}");
        }
    }
}
