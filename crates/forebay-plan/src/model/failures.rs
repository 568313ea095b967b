//! A simulation of failures, to check the goodput formula: seeded, so the same request gives the same report.
//!
//! A job works for an interval and saves; a save counts once its commit delay has passed. A failure, exponential in time, undoes
//! what was done since the last save that counts and starts a restart, which may fail as well. The simulation counts where the time went.

use forebay_core::{Result, Rng, Seed};

use super::checkpoint::interval::{self, Job, Shares};
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
        /// From the end of that until a restart can load the save; 0 when training waits for the storage.
        commit_delay: Seconds = lit(0.0),
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

/// A run from one restart to the next failure.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    /// How long it has run.
    clock: f64,
    /// Saves that were taken.
    saved: u64,
    /// Saves among them that a restart can load.
    committed: u64,
}

impl Run {
    /// Lets time pass; gives how many saves came to count.
    fn pass(&mut self, time: f64, period: f64, commit_delay: f64) -> u64 {
        self.clock += time;
        let before = self.committed;
        while self.committed < self.saved && (self.committed + 1) as f64 * period + commit_delay <= self.clock
        {
            self.committed += 1;
        }
        self.committed - before
    }
}

/// Simulates so many saves and failures and says where the time went.
pub fn simulate(interval: f64, job: Job, events: u64, seed: Seed) -> Shares {
    let mut rng = seed.rng();
    let period = interval + job.stall;
    let mut failure = exponential(&mut rng, job.mtbf);
    let (mut counted, mut rework, mut restart) = (0u64, 0.0, 0.0);
    let mut restarting = false;
    let mut run = Run::default();
    for _ in 0..events {
        let wanted = if restarting { job.restart } else { period };
        let done = failure >= wanted;
        let spent = wanted.min(failure);
        if restarting {
            restart += spent;
        } else {
            counted += run.pass(spent, period, job.commit_delay);
            run.saved += u64::from(done);
        }
        if !done && !restarting {
            rework += run.clock - run.committed as f64 * period;
            run = Run::default();
        }
        restarting = !done;
        failure = if done {
            failure - wanted
        } else {
            exponential(&mut rng, job.mtbf)
        };
    }
    // No failure undid what was on its way at the end.
    counted += run.saved - run.committed;
    let (goodput, save) = (counted as f64 * interval, counted as f64 * job.stall);
    let total = goodput + save + rework + restart;
    Shares {
        goodput: goodput / total,
        save: save / total,
        rework: rework / total,
        restart: restart / total,
    }
}

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("failures");
    let interval = sheet.given("interval", request.interval).positive()?;
    let stall = sheet.given("stall", request.stall);
    let commit_delay = sheet.given("commit_delay", request.commit_delay);
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
    let inputs = [interval, stall, commit_delay, mtbf, restart, events, seed];
    let job = Job {
        stall: stall.v,
        commit_delay: commit_delay.v,
        mtbf: mtbf.v,
        restart: restart.v,
    };
    let found = simulate(interval.v, job, events.v as u64, Seed(seed.v as u64));
    let expected = interval::shares(interval.v, job);
    sheet.group("simulated");
    let mut share = |name, value, formula: &str| {
        sheet
            .from("simulation with exponential failures")
            .ratio(name, value, formula, &inputs)
    };
    let formula = "time of training that counted / all time";
    let goodput = share("goodput", found.goodput, formula)?;
    share("loss_save", found.save, "time of saves that counted / all time")?;
    share("loss_rework", found.rework, "time undone by failures / all time")?;
    share("loss_restart", found.restart, "time of restarts / all time")?;
    sheet.group("formula");
    let formula = "exp(-commit_delay / mtbf) x interval / (mtbf x exp(restart / mtbf) x (exp((interval + stall) / mtbf) - 1))";
    let expected =
        sheet
            .from(source::DALY)
            .ratio("goodput_formula", expected.goodput, formula, &inputs[..5])?;
    let difference = (goodput.v - expected.v).abs();
    let formula = "abs(goodput - goodput_formula)";
    sheet.ratio("difference", difference, formula, &[goodput, expected])?;
    Ok(sheet.finish())
}
