//! How long a save takes, how long training stands still for it, and when a restart can load it.
//!
//! A synchronous save stalls training until the storage has it; an asynchronous one until the state is in host memory, from
//! where it drains to the storage and the tiers behind it, one after the other. What a failure finds in host memory is lost, so an
//! asynchronous save counts only once it is at the place a restart loads from. Measured rates take precedence over assumed ones.

use forebay_core::Result;

use super::size::Sizes;
use super::{Calibration, Mode, Path, Request, clashes};
use crate::quantity::{BytesPerSecond, Unit};
use crate::sheet::{Num, Sheet, item_names, of_item, wrong};
use crate::source;

/// Share of the line rate of PCI Express that a copy to pinned memory reaches.
const HOST_COPY_SHARE: f64 = 0.8;

/// Lanes of a GPU.
const GPU_LANES: f64 = 16.0;

/// The place a restart loads from when there is one only.
const STORAGE: &str = "storage";

/// What a save costs, and what limits the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saving {
    pub(super) stall: Num,
    /// The rate of the storage, where it is known.
    pub(super) storage: Option<Num>,
    /// Only when saves are asynchronous.
    pub(super) background: Option<Background>,
}

/// What an asynchronous save does while training goes on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Background {
    /// The slowest single drain, which bounds how often one can start.
    pub(super) drain: Num,
    /// From the end of the stall until a restart can load it.
    pub(super) commit_delay: Num,
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
    let path_time = path_time(sheet, request, sizes.rank_bytes)?;
    targets(sheet, request, sizes.size)?;
    let (rate, _) = calibrated(request, |measured| measured.write, request.storage);
    let storage = sheet.maybe("storage", rate).map(Num::positive).transpose()?;
    let write = match storage {
        Some(rate) => Some(write_time(sheet, request, sizes, rate, path_time)?),
        None => None,
    };
    let copy_time = copy_time(sheet, request, sizes.rank_bytes)?;
    let background = match request.mode {
        Mode::Async => Some(background(sheet, request, sizes.size, write)?),
        Mode::Sync => None,
    };
    let measured = request.calibration.as_ref().and_then(|measured| measured.stall);
    let stall = match (measured.or(request.stall), request.mode, write) {
        (Some(stall), _, _) => {
            let stall = sheet.given("stall", stall).positive()?;
            clashes::stall(sheet, request, stall, write);
            stall
        }
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
    Ok(Saving {
        stall,
        storage,
        background,
    })
}

/// The time the busiest rank takes to get its bytes out, on both paths; gives the one that is used.
fn path_time(sheet: &mut Sheet, request: &Request, rank_bytes: Num) -> Result<Num> {
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
    Ok(match request.path {
        Path::Gds => gds_time,
        Path::Bounce => bounce_time,
    })
}

/// The time the busiest rank takes to copy its bytes to host memory.
fn copy_time(sheet: &mut Sheet, request: &Request, rank_bytes: Num) -> Result<Num> {
    let (copy, from) = calibrated(request, |measured| measured.host_copy, request.host_copy);
    let copy = match sheet.maybe("host_copy", copy) {
        Some(copy) => copy.positive()?,
        None => {
            let lane = request.pcie.lane();
            let rate = HOST_COPY_SHARE * GPU_LANES * lane;
            let formula = format!(
                "{HOST_COPY_SHARE} x {GPU_LANES} x {lane}: {GPU_LANES} lanes of PCI Express {}",
                request.pcie.name()
            );
            sheet
                .from(source::HOST_COPY)
                .rate("host_copy", rate, &formula, &[])?
        }
    };
    let time = rank_bytes.v / copy.v;
    let inputs = [rank_bytes, copy];
    sheet
        .from(from)
        .seconds("copy_time", time, "rank_bytes / host_copy", &inputs)
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
    let mut limits = vec![
        (sizes.size.v / rate.v, "size / storage".to_owned(), "storage"),
        (path_time.v, path_time.name.to_owned(), "path out of the GPU"),
    ];
    let mut inputs = vec![sizes.size, rate, path_time];
    if let Some(node_write) = sheet.maybe("node_write", request.node_write) {
        let time = sizes.node_bytes.v / node_write.positive()?.v;
        limits.push((time, "node_bytes / node_write".to_owned(), "node"));
        inputs.extend([sizes.node_bytes, node_write]);
    }
    inputs.push(overhead);
    let mut slowest = &limits[0];
    for limit in &limits {
        if limit.0 > slowest.0 {
            slowest = limit;
        }
    }
    let terms: Vec<&str> = limits.iter().map(|limit| limit.1.as_str()).collect();
    let formula = format!(
        "max({}) + sync_overhead; limited by the {}",
        terms.join(", "),
        slowest.2
    );
    sheet
        .from(from)
        .seconds("save_time", slowest.0 + overhead.v, &formula, &inputs)
}

/// A place a save is drained to.
#[derive(Debug, Clone)]
struct Place {
    name: String,
    time: Num,
    /// Until the save is there, counted from the end of the stall.
    reached: f64,
}

/// Time until each place has the save: the slowest single drain, and the one after which a restart can load it.
fn background(sheet: &mut Sheet, request: &Request, size: Num, write: Option<Num>) -> Result<Background> {
    let mut places: Vec<Place> = Vec::new();
    if let Some(write) = write {
        places.push(Place {
            name: STORAGE.to_owned(),
            time: write,
            reached: write.v,
        });
    }
    let names = item_names(request.tiers.iter().map(|tier| tier.name.as_str()));
    for (tier, name) in request.tiers.iter().zip(names) {
        let Some(rate) = tier.write else {
            return Err(wrong(
                format!("tier '{name}' has no write rate"),
                "give write = \"20GB/s\"",
            ));
        };
        let rate = Num::of("write", rate).positive();
        let rate = rate.map_err(|error| of_item("tiers", &name, error))?;
        let time = size.v / rate.v;
        let formula = "size / write";
        let time = sheet.item("drain_time", &name, Unit::Seconds, time, formula, &[size, rate])?;
        let reached = places.last().map_or(0.0, |place| place.reached) + time.v;
        places.push(Place { name, time, reached });
    }
    let Some(last) = places.last() else {
        return Err(wrong(
            "asynchronous saves have nowhere to go",
            "give storage (1TB/s) or tiers with a write rate each",
        ));
    };
    let (formula, inputs) = drained(&places);
    sheet.seconds("drain_total", last.reached, &formula, &inputs)?;
    let mut drain = last.time;
    for place in &places {
        if place.time.v > drain.v {
            drain = place.time;
        }
    }
    let commit_delay = commit_delay(sheet, request, &places)?;
    Ok(Background { drain, commit_delay })
}

/// The time of all these drains together, as a formula with its inputs.
fn drained(places: &[Place]) -> (String, Vec<Num>) {
    let inputs: Vec<Num> = places.iter().map(|place| place.time).collect();
    let storage = places.iter().any(|place| place.time.name == "save_time");
    let tiers = places.iter().any(|place| place.time.name != "save_time");
    let formula = match (storage, tiers) {
        (true, true) => "save_time + sum(drain_time)",
        (true, false) => "save_time",
        _ => "sum(drain_time)",
    };
    (formula.to_owned(), inputs)
}

/// When a restart can load the save. Without a word it loads from the storage, or else from the last tier: one ahead of it is
/// likely inside the nodes, and lost with them.
fn commit_delay(sheet: &mut Sheet, request: &Request, places: &[Place]) -> Result<Num> {
    let wanted = request.restart_from.trim();
    let found = if wanted.is_empty() {
        let storage = places.iter().position(|place| place.name == STORAGE);
        storage.or(places.len().checked_sub(1))
    } else {
        let wanted = item_names(std::iter::once(wanted));
        places.iter().position(|place| wanted.contains(&place.name))
    };
    let names: Vec<&str> = places.iter().map(|place| place.name.as_str()).collect();
    let Some(index) = found else {
        return Err(wrong(
            format!("nothing is drained to '{}'", wanted.escape_debug()),
            format!("restart_from is one of {}", names.join(", ")),
        ));
    };
    let (formula, inputs) = drained(&places[..=index]);
    let formula = format!(
        "{formula}: a save counts once {} has it, from where a restart loads",
        names[index]
    );
    let delay = sheet.seconds("commit_delay", places[index].reached, &formula, &inputs)?;
    if places.len() > 1 {
        let answers: Vec<(&str, f64, bool)> = places
            .iter()
            .enumerate()
            .map(|(at, place)| (place.name.as_str(), place.reached, at == index))
            .collect();
        let question = "where a restart loads from (restart_from); what has not reached it is lost";
        sheet.reading(delay, question, &answers);
    }
    Ok(delay)
}
