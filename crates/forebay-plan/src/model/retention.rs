//! How much room checkpoints take in each tier, and whether it is there.

use forebay_core::Result;

use crate::field::request;
use crate::quantity::{Bytes, Count, Factor, Measure as _, MoneyPerGbMonth, Seconds, Unit, lit};
use crate::report::Report;
use crate::sheet::{Num, Sheet, ceil, item_names, of_item, wrong};

request! {
    /// A tier and what it keeps.
    Tier {
        /// What it is called.
        name: String = String::new(),
        /// Newest saves it keeps.
        keep: Option<Count> = None,
        /// How long it keeps saves, instead of how many.
        window: Option<Seconds> = None,
        /// Time between the saves it keeps; every save when not given.
        every: Option<Seconds> = None,
        /// How much smaller a save is here, by compression, deduplication or increments; measure it.
        reduction: Factor = lit(1.0),
        /// Copies, or the overhead of erasure coding.
        copies: Factor = lit(1.0),
        /// Room that is there.
        capacity: Option<Bytes> = None,
        /// Price of holding it; no cost is given without one.
        price: Option<MoneyPerGbMonth> = None,
    }
}

request! {
    /// What to ask about keeping checkpoints.
    Request {
        /// Size of a checkpoint.
        size: Option<Bytes> = None,
        /// Time from checkpoint to checkpoint.
        interval: Seconds = lit(1800.0),
        /// Time of the whole training; asks for the sum of everything ever saved.
        duration: Option<Seconds> = None,
        /// The tiers.
        tiers: Vec<Tier> = default_tiers(),
    }
}

/// The newest 3 on fast storage, a day of all of them behind it, one a day for 90 days in an object store; at list prices of
/// network volumes and of S3 Standard.
fn default_tiers() -> Vec<Tier> {
    let tier = |name: &str| Tier {
        name: name.to_owned(),
        ..Tier::default()
    };
    vec![
        Tier {
            keep: Some(lit(3.0)),
            price: Some(lit(0.1)),
            ..tier("hot")
        },
        Tier {
            window: Some(lit(86_400.0)),
            price: Some(lit(0.1)),
            ..tier("warm")
        },
        Tier {
            window: Some(lit(90.0 * 86_400.0)),
            every: Some(lit(86_400.0)),
            price: Some(lit(0.023)),
            ..tier("cold")
        },
    ]
}

const BYTES_PER_GB: f64 = 1e9;

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("retention");
    let Some(size) = sheet.maybe("size", request.size) else {
        return Err(wrong(
            "retention does not know what is kept",
            "give the size of a checkpoint (980GB)",
        ));
    };
    let size = size.positive()?;
    let interval = sheet.given("interval", request.interval).positive()?;
    let mut total = 0.0;
    let mut inputs = Vec::new();
    let names = item_names(request.tiers.iter().map(|tier| tier.name.as_str()));
    sheet.group("tiers");
    for (tier, name) in request.tiers.iter().zip(&names) {
        let bytes = hold(&mut sheet, tier, name, size, interval);
        let bytes = bytes.map_err(|error| of_item("tiers", name, error))?;
        total += bytes.v;
        inputs.push(bytes);
    }
    sheet.group("sum");
    let formula = "sum(bytes)";
    let total = sheet.bytes("kept", total, formula, &inputs)?;
    if let Some(duration) = sheet.maybe("duration", request.duration) {
        let saves = duration.positive()?.v / interval.v;
        let formula = "duration / interval";
        let inputs = [duration, interval];
        let saves = sheet.count("saves", saves, formula, &inputs)?;
        let formula = "size x saves: without any retention";
        let all = size.v * saves.v;
        sheet.bytes("written", all, formula, &[size, saves])?;
    }
    let answers = [
        ("without reduction or as given", total.v, true),
        ("increments that save half", total.v / 2.0, false),
        ("increments that save four fifths", total.v / 5.0, false),
    ];
    let question = "published savings of increments and compression range from none to 100x: measure, then set reduction";
    sheet.reading(total, question, &answers);
    Ok(sheet.finish())
}

/// Bytes a tier holds, or why it cannot.
fn hold(sheet: &mut Sheet, tier: &Tier, name: &str, size: Num, interval: Num) -> Result<Num> {
    let every = tier.every.map(|every| Num::of("every", every).positive());
    let (saves, formula, inputs) = match (tier.keep, tier.window) {
        (Some(keep), None) => {
            let keep = Num::of("keep", keep).whole()?;
            (keep.v, "keep", vec![keep])
        }
        (None, Some(window)) => {
            let window = Num::of("window", window).positive()?;
            match every.transpose()? {
                Some(every) => {
                    let saves = ceil(window.v / every.v.max(interval.v));
                    let formula = "ceil(window / max(every, interval))";
                    (saves, formula, vec![window, every, interval])
                }
                None => {
                    let saves = ceil(window.v / interval.v);
                    (saves, "ceil(window / interval)", vec![window, interval])
                }
            }
        }
        (None, None) | (Some(_), Some(_)) => {
            return Err(wrong(
                format!("tier {name} needs either keep or window"),
                "give keep = 3 for the newest three, or window = \"24h\"",
            ));
        }
    };
    let saves = sheet.item("saves", name, Unit::Count, saves, formula, &inputs)?;
    let reduction = Num::of("reduction", tier.reduction).positive()?;
    let copies = Num::of("copies", tier.copies).positive()?;
    let value = size.v * saves.v * copies.v / reduction.v;
    let inputs = [size, saves, copies, reduction];
    let formula = "size x saves x copies / reduction";
    let bytes = sheet.item("bytes", name, Unit::Bytes, value, formula, &inputs)?;
    if let Some(price) = tier.price {
        let price = Num::of("price", price);
        let cost = bytes.v / BYTES_PER_GB * price.v;
        let formula = "bytes / 1e9 x price: per month";
        sheet.item("tier_cost", name, Unit::Money, cost, formula, &[bytes, price])?;
    }
    let Some(capacity) = tier.capacity.filter(|capacity| capacity.get() < bytes.v) else {
        return Ok(bytes);
    };
    let fitting = (capacity.get() * reduction.v / (size.v * copies.v)).floor();
    let hint = if fitting >= 1.0 {
        format!("give it at least {}, or keep {fitting} saves", bytes.text())
    } else {
        format!("give it at least {}; not even one save fits", bytes.text())
    };
    let room = Unit::Bytes.show(capacity.get()).text;
    let kept = Unit::Count.show(saves.v).text;
    let message = format!(
        "tier {name} keeps {kept} saves, which is {}, but has {room}",
        bytes.text()
    );
    Err(wrong(message, hint))
}
