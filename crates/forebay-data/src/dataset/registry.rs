//! The one place that knows every format by name.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_store::{Context, ObjectMeta, Store};
use serde_json::Value;

use super::Discovered;
use crate::format::Format;
use crate::format::tfrecord::{Records, TfRecord};
use crate::format::tokens::{Cut, Tokens};
use crate::format::wds::Wds;
use crate::manifest::FormatSpec;
use crate::schema::Dtype;

/// Name of the format of plain folders, which is taken where no other fits.
pub(super) const FILES: &str = "files";

/// Every format that can be asked for by name.
pub const FORMAT_NAMES: &[&str] = &["wds", "tfrecord", "tokens"];

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
        "tfrecord" => Ok(Arc::new(tfrecord(spec)?)),
        "tokens" => Ok(Arc::new(tokens(spec)?)),
        #[cfg(test)]
        "lines" => Ok(Arc::new(super::tests::lines::Lines)),
        name => Err(unknown(name)),
    }
}

/// Parameters: `records` (`auto`, `examples` or `raw`), and `lists` where every feature is to be a list.
fn tfrecord(spec: &FormatSpec) -> Result<TfRecord> {
    let records = match text_param(spec, "records")? {
        None | Some("auto") => Records::Auto,
        Some("examples") => Records::Examples,
        Some("raw") => Records::Raw,
        Some(other) => return Err(bad_param(spec, "records", other)),
    };
    let format = TfRecord::new(records);
    match spec.params.get("lists") {
        None | Some(Value::Bool(false)) => Ok(format),
        Some(Value::Bool(true)) => Ok(format.with_lists()),
        Some(other) => Err(bad_param(spec, "lists", &other.to_string())),
    }
}

/// Parameters: `tokens` of one sample, without which samples are the documents of an index, and `dtype`, where the files do not say it.
fn tokens(spec: &FormatSpec) -> Result<Tokens> {
    let cut = match spec.params.get("tokens") {
        None => Cut::Documents,
        Some(value) => Cut::Windows(
            value
                .as_u64()
                .ok_or_else(|| bad_param(spec, "tokens", &value.to_string()))?,
        ),
    };
    let dtype = match text_param(spec, "dtype")? {
        None => None,
        Some(name) => Some(Dtype::parse(name).ok_or_else(|| bad_param(spec, "dtype", name))?),
    };
    Tokens::new(dtype, cut)
}

fn text_param<'a>(spec: &'a FormatSpec, name: &str) -> Result<Option<&'a str>> {
    match spec.params.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(bad_param(spec, name, &other.to_string())),
    }
}

fn bad_param(spec: &FormatSpec, name: &str, value: &str) -> Error {
    let message = format!(
        "format {} cannot have {name} '{}'",
        spec.name,
        value.escape_debug()
    );
    Error::new(ErrorKind::InvalidInput, "open data set", message)
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
