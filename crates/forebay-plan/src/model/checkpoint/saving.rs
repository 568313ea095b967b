//! How long a save takes, and how long training stands still for it.
//!
//! A synchronous save stalls training until the storage has it; an asynchronous one until the state is in host memory, from
//! where it drains to the tiers one after the other. Measured rates take precedence over assumed ones.

use forebay_core::Result;

use super::size::Sizes;
use super::{Calibration, Mode, Path, Request};
use crate::quantity::{BytesPerSecond, Unit};
use crate::sheet::{Num, Sheet, item_names, of_item, wrong};
use crate::source;

/// The stall of a save, and how long the slowest tier takes to take it in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saving {
    pub(super) stall: Num,
    /// Only when saves are asynchronous.
    pub(super) drain: Option<Num>,
}

/// The measured rate with its source, or the assumed one.
pub(super) fn calibrated(
    request: &Request,
    pick: fn(&Calibration) -> Option<BytesPerSecond>,
    otherwise: Option<BytesPerSecond>,
) -> (Option<BytesPerSecond>, &str) {
    let measured = request
        .calibration
        .as_ref()
        .and_then(|calibration| Some((pick(calibration)?, calibration.from.as_str())));
    match measured {
        Some((rate, from)) => (Some(rate), from),
        None => (otherwise, source::ARITHMETIC),
    }
}

/// Fills in the times of a save.
pub(super) fn saving(sheet: &mut Sheet, request: &Request, sizes: &Sizes) -> Result<Saving> {
    sheet.group("save");
    let rank_bytes = sizes.rank_bytes;
    let gds = sheet.given("gds_rate", request.gds_rate).positive()?;
    let bounce = sheet.given("bounce_rate", request.bounce_rate).positive()?;
    let mut path = |name, rate: Num, formula: &str| {
        let time = rank_bytes.v / rate.v;
        sheet
            .from(source::GDS)
            .seconds(name, time, formula, &[rank_bytes, rate])
    };
    let gds_time = path("gds_time", gds, "rank_bytes / gds_rate")?;
    let bounce_time = path("bounce_time", bounce, "rank_bytes / bounce_rate")?;
    let inputs = [gds, bounce];
    let speedup = gds.v / bounce.v;
    sheet
        .from(source::GDS)
        .factor("gds_speedup", speedup, "gds_rate / bounce_rate", &inputs)?;
    let path_time = match request.path {
        Path::Gds => gds_time,
        Path::Bounce => bounce_time,
    };
    targets(sheet, request, sizes.size)?;
    let (rate, _) = calibrated(request, |measured| measured.write, request.storage);
    let rate = sheet.maybe("storage", rate).map(Num::positive).transpose()?;
    let write = match rate {
        Some(rate) => Some(write_time(sheet, request, sizes, rate, path_time)?),
        None => None,
    };
    let (copy, from) = calibrated(request, |measured| measured.host_copy, Some(request.host_copy));
    let copy = sheet
        .given("host_copy", copy.unwrap_or(request.host_copy))
        .positive()?;
    let time = rank_bytes.v / copy.v;
    let inputs = [rank_bytes, copy];
    let copy_time = sheet
        .from(from)
        .seconds("copy_time", time, "rank_bytes / host_copy", &inputs)?;
    let drain = match request.mode {
        Mode::Async => drain(sheet, request, sizes.size, write)?,
        Mode::Sync => None,
    };
    let measured = request.calibration.as_ref().and_then(|measured| measured.stall);
    let stall = match (measured.or(request.stall), request.mode, write) {
        (Some(stall), _, _) => sheet.given("stall", stall).positive()?,
        (None, Mode::Async, _) => {
            let formula = "copy_time: training goes on once the state is in host memory";
            sheet.seconds("stall", copy_time.v, formula, &[copy_time])?
        }
        (None, Mode::Sync, Some(write)) => {
            let formula = "save_time: training waits for the storage";
            sheet.seconds("stall", write.v, formula, &[write])?
        }
        (None, Mode::Sync, None) => {
            return Err(wrong(
                "checkpoint does not know how fast saves are written",
                "give storage (1TB/s), or stall (45s) when it is known, or mode async",
            ));
        }
    };
    Ok(Saving { stall, drain })
}

/// Storage that a wish needs.
fn targets(sheet: &mut Sheet, request: &Request, size: Num) -> Result<()> {
    let Some(target) = sheet.maybe("save_time_target", request.save_time_target) else {
        return Ok(());
    };
    let rate = size.v / target.positive()?.v;
    let inputs = [size, target];
    let formula = "size / save_time_target";
    let needed = sheet.rate("storage_for_target", rate, formula, &inputs)?;
    let gpus = sheet.given("gpus", request.gpus);
    sheet.rate(
        "storage_for_target_per_gpu",
        rate / gpus.v,
        "storage_for_target / gpus",
        &[needed, gpus],
    )?;
    Ok(())
}

/// S / B + T_sync, where B is what storage, nodes and ranks can do together.
fn write_time(sheet: &mut Sheet, request: &Request, sizes: &Sizes, rate: Num, path_time: Num) -> Result<Num> {
    let overhead = sheet.given("sync_overhead", request.sync_overhead);
    let (_, from) = calibrated(request, |measured| measured.write, None);
    let mut inputs = vec![sizes.size, rate, path_time, overhead];
    let mut slowest = (sizes.size.v / rate.v).max(path_time.v);
    let mut limit = if path_time.v > sizes.size.v / rate.v {
        "path"
    } else {
        "storage"
    };
    if let Some(node_write) = sheet.maybe("node_write", request.node_write) {
        let per_node = (request.gpus_per_node, request.gpus);
        let in_node = sheet
            .given("gpus_per_node", per_node.0)
            .v
            .min(sheet.given("gpus", per_node.1).v);
        let time = sizes.rank_bytes.v * in_node / node_write.positive()?.v;
        inputs.push(node_write);
        if time > slowest {
            slowest = time;
            limit = "node";
        }
    }
    let formula =
        format!("max(size / storage, busiest rank, busiest node) + sync_overhead; limited by the {limit}");
    sheet
        .from(from)
        .seconds("save_time", slowest + overhead.v, &formula, &inputs)
}

/// Time until each tier has the checkpoint; gives the slowest single drain, which bounds how often one can start.
fn drain(sheet: &mut Sheet, request: &Request, size: Num, write: Option<Num>) -> Result<Option<Num>> {
    let mut slowest = write;
    let mut total = write.map_or(0.0, |write| write.v);
    let mut inputs: Vec<Num> = write.into_iter().collect();
    let names = item_names(request.tiers.iter().map(|tier| tier.name.as_str()));
    for (tier, name) in request.tiers.iter().zip(&names) {
        let Some(rate) = tier.write else {
            return Err(wrong(
                format!("tier '{name}' has no write rate"),
                "give write = \"20GB/s\"",
            ));
        };
        let rate = Num::of("write", rate).positive();
        let rate = rate.map_err(|error| of_item("tiers", name, error))?;
        let time = size.v / rate.v;
        total += time;
        let formula = "size / write of the tier";
        let here = sheet.item("drain_time", name, Unit::Seconds, time, formula, &[size, rate])?;
        inputs.push(here);
        if slowest.is_none_or(|slowest| here.v > slowest.v) {
            slowest = Some(here);
        }
    }
    if slowest.is_none() {
        return Err(wrong(
            "asynchronous saves have nowhere to go",
            "give storage (1TB/s) or tiers with a write rate each",
        ));
    }
    let formula = "save_time and drain_time of every tier, one after the other";
    sheet.seconds("drain_total", total, formula, &inputs)?;
    Ok(slowest)
}
