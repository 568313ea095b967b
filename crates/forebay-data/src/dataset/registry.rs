//! The one place that knows every format by name.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_store::{Context, ObjectMeta, Store};

use super::Discovered;
use crate::format::Format;
use crate::format::wds::Wds;
use crate::manifest::FormatSpec;

/// Name of the format of plain folders, which is taken where no other fits.
pub(super) const FILES: &str = "files";

/// Every format that can be asked for by name.
pub const FORMAT_NAMES: &[&str] = &["wds"];

/// The format that a manifest, or a user, names.
///
/// Formats that describe their shards in a file of their own read it again.
pub async fn format_of(
    spec: &FormatSpec,
    _store: &Arc<dyn Store>,
    _context: &Context,
) -> Result<Arc<dyn Format>> {
    match spec.name.as_str() {
        "wds" => Ok(Arc::new(Wds)),
        #[cfg(test)]
        "lines" => Ok(Arc::new(super::tests::lines::Lines)),
        name => Err(unknown(name)),
    }
}

/// Formats that list their shards in a file of their own.
#[expect(
    clippy::unused_async,
    reason = "formats with an index of their own read it here"
)]
pub(super) async fn by_index(
    _store: &Arc<dyn Store>,
    _context: &Context,
    _choice: Option<&FormatSpec>,
    _objects: &[ObjectMeta],
) -> Result<Option<Discovered>> {
    Ok(None)
}

/// The store that shards are read from: the one given, but for formats whose shards are made of other objects.
#[expect(clippy::unused_async, reason = "formats made of many objects list them here")]
pub(super) async fn shard_store(
    store: Arc<dyn Store>,
    _spec: &FormatSpec,
    _context: &Context,
) -> Result<Arc<dyn Store>> {
    Ok(store)
}

fn unknown(name: &str) -> Error {
    let message = format!("there is no format '{}'", name.escape_debug());
    let known = FORMAT_NAMES.join(", ");
    Error::new(ErrorKind::Unsupported, "open data set", message).with_hint(format!("formats are: {known}"))
}
