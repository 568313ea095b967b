//! Bursts: how fast many senders fill a switch buffer, and what a pause costs.

use forebay_core::Result;

use crate::field::request;
use crate::quantity::{Bytes, BytesPerSecond, Count, Seconds, lit};
use crate::report::Report;
use crate::sheet::{Sheet, wrong};

request! {
    /// What to ask about bursts.
    Request {
        /// Nodes that send at once to one receiver.
        senders: Count = lit(50.0),
        /// GPUs whose links are all busy at once.
        gpus: Count = lit(1024.0),
        /// Rate of a link.
        link: BytesPerSecond = lit(50e9),
        /// Shared buffer of the switch; that of a common 400 Gb/s switch.
        buffer: Bytes = lit(64e6),
        /// Length of a burst.
        burst: Seconds = lit(500e-6),
        /// Time over which a monitor takes the mean.
        window: Seconds = lit(1.0),
        /// Rate of a flow that is paused with others; asks for the factor.
        paused_rate: Option<BytesPerSecond> = None,
    }
}

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("burst");
    let link = sheet.given("link", request.link).positive()?;
    let senders = sheet.given("senders", request.senders).whole()?;
    let buffer = sheet.given("buffer", request.buffer).positive()?;
    sheet.group("incast");
    if senders.v < 2.0 {
        return Err(wrong(
            "one sender cannot overload a receiver",
            "give 2 senders or more",
        ));
    }
    let excess = (senders.v - 1.0) * link.v;
    let formula = "(senders - 1) x link: what arrives beyond what leaves";
    let inputs = [senders, link];
    let excess = sheet.rate("excess", excess, formula, &inputs)?;
    let formula = "buffer / excess";
    let full = buffer.v / excess.v;
    sheet.seconds("buffer_full", full, formula, &[buffer, excess])?;
    sheet.group("micro-burst");
    let gpus = sheet.given("gpus", request.gpus).whole()?;
    let burst = sheet.given("burst", request.burst).positive()?;
    let window = sheet.given("window", request.window).positive()?;
    let formula = "gpus x link";
    let total = gpus.v * link.v;
    sheet.rate("rate_total", total, formula, &[gpus, link])?;
    let formula = "burst x link";
    let port = burst.v * link.v;
    let port = sheet.bytes("burst_port", port, formula, &[burst, link])?;
    let formula = "burst_port x gpus";
    let all = port.v * gpus.v;
    sheet.bytes("burst_total", all, formula, &[port, gpus])?;
    let formula = "burst / window: what a monitor shows of a full link";
    let share = burst.v / window.v;
    sheet.ratio("burst_share", share, formula, &[burst, window])?;
    let formula = "window / 100: the burst behind a mean of 1 %";
    let time = window.v / 100.0;
    sheet.seconds("burst_of_one_percent", time, formula, &[window])?;
    if let Some(paused) = sheet.maybe("paused_rate", request.paused_rate) {
        sheet.group("pause");
        let factor = link.v / paused.positive()?.v;
        let formula = "link / paused_rate";
        sheet.factor("pause_slowdown", factor, formula, &[link, paused])?;
    }
    Ok(sheet.finish())
}
