//! Tables that keep a log of which of their files count: Delta Lake, Iceberg, Hudi. Their folders hold rows that were deleted or replaced, too, so they are no data sets by what lies in them.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{ObjectMeta, Store};

/// Where Hudi says what a table is. The folder is hidden, so listings do not have it.
const HUDI: &str = ".hoodie/hoodie.properties";

/// Refuse Parquet files of which only a log knows which are of the table.
pub(super) async fn refuse(store: &Arc<dyn Store>, objects: &[ObjectMeta]) -> Result<()> {
    let keeper = match objects.iter().find_map(|meta| by_name(&meta.key)) {
        None => by_look(store).await?,
        found => found,
    };
    let Some(keeper) = keeper else {
        return Ok(());
    };
    let message = format!(
        "this is a table of {keeper}: its log says which files count, and the others hold rows that were deleted or replaced"
    );
    Err(Error::new(ErrorKind::Unsupported, "open data set", message)
        .at(store.location())
        .with_hint(
            "write its rows as plain Parquet and stream those, or name the files that its present version has",
        ))
}

/// Whose log a file is, or lies in.
fn by_name(key: &Key) -> Option<&'static str> {
    let folder = key.parent();
    let lies_in = |name: &str| folder.as_str().split('/').any(|part| part == name);
    if lies_in("_delta_log") {
        Some("Delta Lake")
    } else if lies_in("metadata") && key.as_str().ends_with(".metadata.json") {
        Some("Iceberg")
    } else {
        None
    }
}

async fn by_look(store: &Arc<dyn Store>) -> Result<Option<&'static str>> {
    match store.head(&Key::parse(HUDI)?).await {
        Ok(_) => Ok(Some("Hudi")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_known_by_their_names() {
        for (name, keeper) in [
            ("_delta_log/00000000000000000000.json", Some("Delta Lake")),
            ("sales/_delta_log/_last_checkpoint", Some("Delta Lake")),
            ("metadata/v1.metadata.json", Some("Iceberg")),
            ("metadata/a.json", None),
            ("_delta_log.parquet", None),
            ("day=1/part-0.parquet", None),
        ] {
            assert_eq!(by_name(&Key::parse(name).unwrap()), keeper, "{name}");
        }
    }
}
