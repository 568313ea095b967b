//! A simulation of failures, to check the goodput formula: seeded, so the same request gives the same report.
//!
//! A job works for an interval and saves; a failure, exponential in time, undoes what was done since the last save and starts a
//! restart, which may fail as well. The simulation counts where the time went.

use forebay_core::{Result, Rng, Seed};

use super::checkpoint::interval::{self, Shares};
use crate::field::request;
use crate::quantity::{Count, Seconds, lit};
use crate::report::Report;
use crate::sheet::{Sheet, wrong};
use crate::source;

request! {
    /// What to simulate.
    Request {
        /// Training time between two saves.
        interval: Seconds = lit(1116.0),
        /// What a save costs the training.
        stall: Seconds = lit(60.0),
        /// Mean time between failures of the job; that of 16,384 H100.
        mtbf: Seconds = lit(11_135.0),
        /// Restart after a failure.
        restart: Seconds = lit(600.0),
        /// Failures and saves to simulate; more are more exact.
        events: Count = lit(200_000.0),
        /// Seed of the random numbers.
        seed: Count = lit(1.0),
    }
}

/// More would take minutes.
const EVENTS_MAX: f64 = 20_000_000.0;

/// Time until the next failure.
fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    // 53 bits in (0, 1]: never the logarithm of zero.
    let uniform = ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -mean * uniform.ln()
}

/// Simulates so many saves and failures and says where the time went.
pub fn simulate(interval: f64, stall: f64, mtbf: f64, restart: f64, events: u64, seed: Seed) -> Shares {
    let mut rng = seed.rng();
    let mut failure = exponential(&mut rng, mtbf);
    let mut shares = Shares {
        goodput: 0.0,
        save: 0.0,
        rework: 0.0,
        restart: 0.0,
    };
    let mut restarting = false;
    for _ in 0..events {
        let wanted = if restarting { restart } else { interval + stall };
        let done = failure >= wanted;
        let spent = wanted.min(failure);
        match (restarting, done) {
            (true, _) => shares.restart += spent,
            (false, true) => {
                shares.goodput += interval;
                shares.save += stall;
            }
            (false, false) => shares.rework += spent,
        }
        restarting = !done;
        failure = if done {
            failure - wanted
        } else {
            exponential(&mut rng, mtbf)
        };
    }
    let total = shares.goodput + shares.save + shares.rework + shares.restart;
    Shares {
        goodput: shares.goodput / total,
        save: shares.save / total,
        rework: shares.rework / total,
        restart: shares.restart / total,
    }
}

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("failures");
    let interval = sheet.given("interval", request.interval).positive()?;
    let stall = sheet.given("stall", request.stall);
    let mtbf = sheet.given("mtbf", request.mtbf).positive()?;
    let restart = sheet.given("restart", request.restart);
    let events = sheet.given("events", request.events).whole()?;
    let seed = sheet.given("seed", request.seed).integral()?;
    if events.v > EVENTS_MAX {
        return Err(wrong(
            format!("{} events would take minutes", events.text()),
            format!("simulate up to {EVENTS_MAX}"),
        ));
    }
    let inputs = [interval, stall, mtbf, restart, events, seed];
    let found = simulate(
        interval.v,
        stall.v,
        mtbf.v,
        restart.v,
        events.v as u64,
        Seed(seed.v as u64),
    );
    let expected = interval::shares(interval.v, stall.v, mtbf.v, restart.v);
    sheet.group("simulated");
    for (name, value, formula) in [
        (
            "goodput",
            found.goodput,
            "time of training that counted / all time",
        ),
        ("loss_save", found.save, "time of saves that counted / all time"),
        ("loss_rework", found.rework, "time undone by failures / all time"),
        ("loss_restart", found.restart, "time of restarts / all time"),
    ] {
        sheet
            .from("simulation with exponential failures")
            .ratio(name, value, formula, &inputs)?;
    }
    sheet.group("formula");
    let formula = "tau / (M exp(R/M) (exp((tau + C)/M) - 1))";
    let inputs = &inputs[..4];
    sheet
        .from(source::DALY)
        .ratio("goodput_formula", expected.goodput, formula, inputs)?;
    let difference = (found.goodput - expected.goodput).abs();
    let formula = "|goodput - goodput_formula|";
    sheet.ratio("difference", difference, formula, inputs)?;
    Ok(sheet.finish())
}
