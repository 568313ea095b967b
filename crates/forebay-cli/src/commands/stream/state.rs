//! Where a run stands, in a small file: written whole and durably, read back for `--resume`.

use std::ffi::OsStr;

use forebay_core::{Error, ErrorKind, Result, Span};
use forebay_data::order::{POSITION_BYTES_MAX, Position};
use forebay_store::{Context, PutOptions, ReadOptions, StoreExt, open_object};

use crate::target::Target;

/// A position given as JSON, or the name of a file or object that holds one.
pub(super) async fn load(text: &OsStr, context: &Context) -> Result<Position> {
    if let Some(json) = text.to_str().filter(|text| text.trim_start().starts_with('{')) {
        return Position::from_json(json);
    }
    let target = Target::parse(text)?;
    let (store, key) = open_object(&target.location, context).await?;
    let named = |error: Error| error.at(&target.location);
    let size = store.head(&key).await?.size;
    if size > POSITION_BYTES_MAX as u64 {
        let message = format!("{size} bytes are more than a position has");
        return Err(named(Error::new(ErrorKind::Corrupt, "read position", message)));
    }
    let options = ReadOptions::default();
    let (bytes, _ledger) = store.read(&key, Span::first(size), &options, context).await?;
    // Other bytes than text are no state either, and are refused as such.
    Position::from_json(&String::from_utf8_lossy(&bytes)).map_err(named)
}

/// Readers find the old position or this one, after a crash too.
pub(super) async fn save(path: &OsStr, position: &Position, context: &Context) -> Result<()> {
    let target = Target::parse(path)?;
    let (store, key) = open_object(&target.location, context).await?;
    let text = position.to_json()?;
    store
        .put_bytes(&key, text.as_bytes(), &PutOptions::default())
        .await?;
    Ok(())
}
