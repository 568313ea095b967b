//! `forebay ckpt show`.

use forebay_ckpt::{Checkpoint, Content, Found, Manifest};
use forebay_core::{ByteSize, Error, ErrorKind};
use serde::Serialize;

use super::value::to_json;
use crate::Exit;
use crate::app::App;
use crate::args::CkptShowArgs;
use crate::data::count;
use crate::printer::{Printed, visible};

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    kind: &'static str,
    rank: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<&'a [u64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offsets: Option<&'a [u64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lengths: Option<&'a [u64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<serde_json::Value>,
}

/// Show.
pub(super) async fn run(args: &CkptShowArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let printer = app.printer();
    let mut checkpoint = super::open(&args.url, args.step, &context, printer).await?;
    if let Some(trusted) = args.trust.trusted()? {
        checkpoint = checkpoint.require_signature(&trusted)?;
    }
    let found = match &args.name {
        Some(name) => checkpoint.find(name).await?,
        None => checkpoint.entries().await?,
    };
    if let (Some(name), true) = (&args.name, found.is_empty()) {
        let message = format!("step {} has no tensor or value {name:?}", checkpoint.step());
        return Err(Error::new(ErrorKind::NotFound, "show", message).into());
    }
    if printer.is_json() {
        for found in &found {
            let value = value(&checkpoint, found, args.name.is_some()).await?;
            printer.json(&row(found, value))?;
        }
        return Ok(Exit::Success);
    }
    match &args.name {
        Some(_) => show_one(&checkpoint, &found, app).await?,
        None => show_all(&found, app)?,
    }
    let manifest = checkpoint.manifest();
    printer.say(format_args!(
        "step {}: {} of {}, {} in chunks of {} with {}",
        manifest.step,
        entries(manifest.entries),
        count(u64::from(manifest.world()), "rank"),
        ByteSize(manifest.raw_bytes),
        ByteSize(u64::from(manifest.chunk_bytes)),
        manifest.hash
    ));
    if let Some(how) = stored(manifest) {
        printer.say(how);
    }
    printer.detail(checkpoint.ledger());
    Ok(Exit::Success)
}

/// How it is stored, where that is not as it is.
fn stored(manifest: &Manifest) -> Option<String> {
    let mut words = Vec::new();
    if manifest.base.is_none() && manifest.written_bytes > 0 && !manifest.features.is_empty() {
        let ratio = manifest.raw_bytes as f64 / manifest.written_bytes as f64;
        let stored = ByteSize(manifest.written_bytes);
        words.push(format!("stored in {stored}, {ratio:.2} times smaller"));
    }
    if !manifest.features.is_empty() {
        words.push(format!("by {}", manifest.features.join(", ")));
    }
    match manifest.signers().unwrap_or_default().as_slice() {
        [] => {}
        // Said, not checked: that takes a key that is trusted.
        signers => {
            let signers: Vec<String> = signers.iter().map(ToString::to_string).collect();
            words.push(format!("signed by {}", signers.join(", ")));
        }
    }
    (!words.is_empty()).then(|| words.join("; "))
}

/// The value of an entry, where it is asked for by name.
async fn value(
    checkpoint: &Checkpoint,
    found: &Found,
    is_wanted: bool,
) -> Result<Option<serde_json::Value>, Error> {
    match found.entry.content {
        Content::Value(_) if is_wanted => {
            let value = checkpoint.value(&found.entry.name).await?;
            Ok(value.map(|value| to_json(&value)))
        }
        _ => Ok(None),
    }
}

fn row(found: &Found, value: Option<serde_json::Value>) -> Row<'_> {
    let mut row = Row {
        name: &found.entry.name,
        kind: kind(&found.entry.content),
        rank: found.rank,
        dtype: None,
        shape: None,
        offsets: None,
        lengths: None,
        bytes: None,
        target: None,
        value,
    };
    match &found.entry.content {
        Content::Slice { spec, .. } => {
            row.dtype = Some(spec.dtype.name());
            row.shape = Some(&spec.shape);
            row.offsets = Some(&spec.offsets);
            row.lengths = Some(&spec.lengths);
            row.bytes = Some(spec.bytes());
        }
        Content::Value(span) | Content::Opaque(span) => row.bytes = Some(span.len()),
        Content::Alias(alias) => {
            row.dtype = Some(alias.dtype.name());
            row.shape = Some(&alias.shape);
            row.target = Some(&alias.target);
        }
    }
    row
}

const fn kind(content: &Content) -> &'static str {
    match content {
        Content::Slice { .. } => "tensor",
        Content::Value(_) => "value",
        Content::Opaque(_) => "opaque",
        Content::Alias(_) => "alias",
    }
}

/// A line for each name.
fn show_all(found: &[Found], app: &App) -> Printed {
    let printer = app.printer();
    let mut rest = found;
    while let Some(first) = rest.first() {
        let same = rest
            .iter()
            .take_while(|found| found.entry.name == first.entry.name);
        let (group, more) = rest.split_at(same.count());
        rest = more;
        let name = visible(&first.entry.name);
        let line = match &first.entry.content {
            Content::Slice { spec, .. } => {
                let bytes = spec.dtype.bytes_of(&spec.shape).unwrap_or(0);
                let slices = count(group.len() as u64, "slice");
                format!(
                    "{:<12} {:<20} {:>11}  {slices:<10}  {name}",
                    spec.dtype.name(),
                    format!("{:?}", spec.shape),
                    ByteSize(bytes).to_string()
                )
            }
            Content::Value(span) | Content::Opaque(span) => format!(
                "{:<12} {:<20} {:>11}  {:<10}  {name}",
                kind(&first.entry.content),
                "",
                ByteSize(span.len()).to_string(),
                ""
            ),
            Content::Alias(alias) => {
                let target = visible(&alias.target);
                format!(
                    "{:<12} {:<20} {:>11}  {:<10}  {name} -> {target}",
                    "alias",
                    format!("{:?}", alias.shape),
                    "",
                    ""
                )
            }
        };
        printer.data(line)?;
    }
    Ok(())
}

/// Everything about one name.
async fn show_one(checkpoint: &Checkpoint, found: &[Found], app: &App) -> Printed {
    let printer = app.printer();
    for found in found {
        match &found.entry.content {
            Content::Slice { spec, .. } => {
                let (chunks, stored) = checkpoint.stored(found).await?;
                let stored = if stored == spec.bytes() {
                    String::new()
                } else {
                    format!(" in {}", ByteSize(stored))
                };
                printer.data(format_args!(
                    "rank {:>6}  {} {:?}  offsets {:?}  lengths {:?}  {}{stored}  {}",
                    found.rank,
                    spec.dtype,
                    spec.shape,
                    spec.offsets,
                    spec.lengths,
                    ByteSize(spec.bytes()),
                    count(chunks, "chunk")
                ))?;
            }
            _ => {
                let value = value(checkpoint, found, true).await?;
                let text = value.map_or_else(
                    || kind(&found.entry.content).to_owned(),
                    |value| value.to_string(),
                );
                printer.data(format_args!("rank {:>6}  {text}", found.rank))?;
            }
        }
    }
    Ok(())
}

/// So many of them, in words.
fn entries(count: u64) -> String {
    match count {
        1 => "1 entry".to_owned(),
        count => format!("{count} entries"),
    }
}
