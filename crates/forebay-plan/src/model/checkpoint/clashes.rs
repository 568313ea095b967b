//! Inputs that cannot all hold, or of which one is left aside: what is used instead is said in a warning.

use super::{Mode, Request};
use crate::quantity::Measure as _;
use crate::sheet::{Num, Sheet};

/// Stalls within this factor of the computed time of a save are one and the same.
const STALL_FACTOR_MAX: f64 = 2.0;

/// Warns of everything that is given twice or for nothing.
pub(super) fn clashes(sheet: &mut Sheet, request: &Request) {
    shape(sheet, request);
    failures(sheet, request);
    if request.mode == Mode::Sync && !request.tiers.is_empty() {
        let message = "tiers are for asynchronous saves: a synchronous one goes to the storage alone";
        sheet.warn("tiers", message);
    }
    if request.mode == Mode::Sync && !request.restart_from.is_empty() {
        let message = "restart_from is for asynchronous saves: a synchronous one is loaded from the storage";
        sheet.warn("restart_from", message);
    }
    let measured = request.calibration.as_ref().and_then(|measured| measured.read);
    let read = request.storage_read.or(measured);
    if read.is_none() && (request.load_replicas.get() - 1.0).abs() > f64::EPSILON {
        let message = "load_replicas changes nothing without storage_read, the rate they are read with";
        sheet.warn("load_replicas", message);
    }
}

/// The fields that describe a shape, where they are given.
fn shape_fields(request: &Request) -> Vec<&'static str> {
    // A default that is said has said nothing new.
    let usual = Request::default();
    let fields = [
        ("layers", request.layers),
        ("hidden", request.hidden),
        ("heads", request.heads),
        ("kv_heads", request.kv_heads),
        ("ffn", request.ffn),
        ("vocab", Some(request.vocab).filter(|vocab| *vocab != usual.vocab)),
    ];
    let given = fields.into_iter().filter(|(_, value)| value.is_some());
    given.map(|(name, _)| name).collect()
}

fn shape(sheet: &mut Sheet, request: &Request) {
    let fields = shape_fields(request);
    let listed = fields.join(", ");
    if request.preset.is_some() && !fields.is_empty() {
        let message = format!("the preset says what {listed} would say: the preset is used");
        sheet.warn("preset", message);
    } else if request.layers.is_none() && !fields.is_empty() {
        let message = format!("without layers there is no architecture: {listed} is left aside");
        sheet.warn("layers", message);
    }
    if request.params.is_some() && (request.preset.is_some() || request.layers.is_some()) {
        let other = if request.preset.is_some() {
            "the preset"
        } else {
            "the architecture"
        };
        let message = format!("params are given, and {other} has its own: params are used");
        sheet.warn("params", message);
    }
    if let (Some(heads), Some(kv_heads)) = (request.heads, request.kv_heads)
        && kv_heads > heads
    {
        let message = format!(
            "{} heads of keys and values for {} heads: there are at most as many",
            kv_heads.get(),
            heads.get()
        );
        sheet.warn("kv_heads", message);
    }
}

/// The mean time between failures has three sources; the most direct one is used.
fn failures(sheet: &mut Sheet, request: &Request) {
    let sources = [
        ("mtbf", request.mtbf.is_some()),
        ("gpu_hours_per_failure", request.gpu_hours_per_failure.is_some()),
        // A default that is said has said nothing new.
        ("failures", request.failures != Request::default().failures),
    ];
    sheet.warn_left_aside("mtbf", &sources);
}

/// A stall that is given beside the rate of the storage should follow from it when training waits for the storage.
pub(super) fn stall(sheet: &mut Sheet, request: &Request, stall: Num, save_time: Option<Num>) {
    let Some(save_time) = save_time.filter(|_| request.mode == Mode::Sync) else {
        return;
    };
    let factor = stall.v / save_time.v;
    if (1.0 / STALL_FACTOR_MAX..=STALL_FACTOR_MAX).contains(&factor) {
        return;
    }
    let message = format!(
        "a stall of {} is given and used, storage would take {}",
        stall.text(),
        save_time.text()
    );
    sheet.warn("stall", message);
}
