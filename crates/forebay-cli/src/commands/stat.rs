//! `forebay stat`: what is known of an object, or what a store can be relied on for.

use forebay_core::{Location, PathPolicy, Result};
use forebay_io::{Access, EngineReport, NameOp, OpenHow};
use forebay_store::{Capabilities, Checksum, Context, ObjectMeta, Proof, Store};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::StatArgs;
use crate::printer::Printed;
use crate::progress::Bar;
use crate::table::{Table, utc};
use crate::target::{Found, Target};

/// `--json` for an object.
#[derive(Debug, Serialize)]
struct ObjectReport<'a> {
    kind: &'static str,
    url: String,
    size: u64,
    modified: Option<f64>,
    version: Option<&'a str>,
    checksum: Option<Checksum>,
    /// How a local file is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<AccessReport>,
}

/// `--json` for a store, prefix or directory.
#[derive(Debug, Serialize)]
struct StoreReport {
    kind: &'static str,
    url: String,
    capabilities: Capabilities,
    engine: EngineReport,
    /// How files in a local directory are written and read.
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<AccessReport>,
}

/// Around the page cache or through it.
#[derive(Debug, Serialize)]
struct AccessReport {
    /// The path bytes take.
    path: forebay_core::DataPath,
    /// Alignment of direct requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    align: Option<u32>,
    /// Why not directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Show.
pub(super) async fn run(args: &StatArgs, app: &App) -> Printed<Exit> {
    let target = Target::parse(&args.url)?;
    let context = app.context()?;
    match target.look(&context).await? {
        Found::Object { meta, .. } => show_object(&target.location, &meta, &context, app).await,
        Found::Prefix { store } => show_store(&*store, &context, app).await,
    }
}

async fn show_object(location: &Location, meta: &ObjectMeta, context: &Context, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    let access = match location.to_path() {
        Some(path) => {
            let disk = context.disk();
            let file = disk.open_file(path, OpenHow::READ, PathPolicy::Fastest).await?;
            Some(access_report(context, file.access()))
        }
        None => None,
    };
    if printer.is_json() {
        printer.json(&ObjectReport {
            kind: "object",
            url: location.to_string(),
            size: meta.size,
            modified: meta.modified.map(|time| time.as_secs_f64()),
            version: meta.version.as_deref(),
            checksum: meta.checksum,
            access,
        })?;
        return Ok(Exit::Success);
    }
    let mut table = Table::bare();
    table.row(["url", &location.to_string()]);
    table.row([
        "size",
        &format!("{} ({})", meta.size, forebay_core::ByteSize(meta.size)),
    ]);
    table.row(["modified", &meta.modified.map_or("-".to_owned(), utc)]);
    table.row(["version", meta.version.as_deref().unwrap_or("-")]);
    table.row([
        "checksum",
        &meta.checksum.map_or("none kept".to_owned(), describe_checksum),
    ]);
    if let Some(access) = &access {
        table.row(["read by", &describe_access(access)]);
    }
    for line in table.lines() {
        printer.data(line)?;
    }
    Ok(Exit::Success)
}

async fn show_store(store: &dyn Store, context: &Context, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    // The first look at a store tries everything that is relied on, which takes a while far away.
    let bar = Bar::waiting(printer, "probing");
    let capabilities = store.capabilities().await;
    bar.finish();
    let capabilities = capabilities?;
    let engine = context.disk().report();
    let access = local_access(store.location(), context).await?;
    if printer.is_json() {
        printer.json(&StoreReport {
            kind: "store",
            url: store.location().to_string(),
            capabilities,
            engine,
            access,
        })?;
        return Ok(Exit::Success);
    }
    let mut table = Table::bare();
    table.row(["url", &store.location().to_string()]);
    if let Some(probed) = capabilities.probed {
        table.row(["probed", &utc(probed)]);
    }
    for (name, proof) in capabilities.rows() {
        table.row([name, &describe_proof(proof)]);
    }
    if let Some(access) = &access {
        table.row(["files", &describe_access(access)]);
        table.row(["engine", &format!("{:?}", engine.kind).to_lowercase()]);
        if let Some(reason) = &engine.fallback_reason {
            table.row(["", &format!("not uring: {reason}")]);
        }
        for note in &engine.notes {
            table.row(["", note]);
        }
    }
    for line in table.lines() {
        printer.data(line)?;
    }
    Ok(Exit::Success)
}

/// How a large file in a local directory would be accessed, found out with a temporary one.
async fn local_access(location: &Location, context: &Context) -> Result<Option<AccessReport>> {
    let Some(dir) = location.to_path() else {
        return Ok(None);
    };
    let disk = context.disk();
    let path = dir.join(format!(".forebay-tmp-{}-stat", std::process::id()));
    let how = OpenHow::CREATE.with_size_hint(context.limits().part_bytes);
    match disk.open_file(&path, how, PathPolicy::Fastest).await {
        Ok(file) => {
            let report = access_report(context, file.access());
            disk.name(NameOp::Unlink { path }).await?;
            Ok(Some(report))
        }
        // A directory that cannot be written to can still be looked at.
        Err(error) => {
            tracing::debug!(%error, "cannot try direct access");
            Ok(None)
        }
    }
}

fn access_report(context: &Context, access: &Access) -> AccessReport {
    let path = context.disk().report().kind.path(access);
    match access {
        Access::Direct { align } => AccessReport {
            path,
            align: Some(*align),
            reason: None,
        },
        Access::Buffered { reason } => AccessReport {
            path,
            align: None,
            reason: Some(reason.clone()),
        },
    }
}

fn describe_access(access: &AccessReport) -> String {
    match (&access.align, &access.reason) {
        (Some(align), _) => format!("{}, aligned to {align} bytes", access.path),
        (None, Some(reason)) => format!("{}: {reason}", access.path),
        (None, None) => access.path.to_string(),
    }
}

fn describe_checksum(checksum: Checksum) -> String {
    match checksum {
        Checksum::Crc32c(sum) => format!("crc32c {sum:08x}"),
        Checksum::Crc64Nvme(sum) => format!("crc64nvme {sum:016x}"),
    }
}

fn describe_proof(proof: &Proof) -> String {
    match proof {
        Proof::Shown => "yes".to_owned(),
        Proof::Refuted(why) => format!("no: {why}"),
        Proof::Untried(why) => format!("not tried: {why}"),
    }
}
