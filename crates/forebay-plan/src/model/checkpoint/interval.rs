//! How often to save, and what the saves, the lost work and the restarts cost.
//!
//! Plain functions of seconds: a [`Job`] stalls for C = `stall` at each save, fails after M = `mtbf` on average, needs R =
//! `restart` before work goes on, and can restart from a save once D = `commit_delay` has passed since the stall; `interval`
//! tau is the training time between two saves. Failures are exponential and may also hit a restart.
//!
//! A run of a length t has (t - D) / (tau + C) saves that count, rounded down, so a failure finds on average
//! exp(-D/M) / (exp((tau + C)/M) - 1) of them. With x = (tau + C) / M the share of time that trains is
//!
//! ```text
//! goodput = exp(-R/M) exp(-D/M) x tau / (tau + C) x x / (exp(x) - 1) = tau exp(-D/M) / (M exp(R/M) (exp(x) - 1))
//! ```
//!
//! The first form never overflows, and its factors are the causes of loss: restarts, saves, work done again. The delay is a
//! factor of its own, so it moves no optimum; it only forbids intervals that are shorter than the drain.

/// Rounds of halving; each adds a bit, and a float has 53.
const BISECTIONS: usize = 200;

/// What a job is up against, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// What a save costs the training.
    pub stall: f64,
    /// From the end of the stall until a restart can load the save; 0 when training waits for the storage.
    pub commit_delay: f64,
    /// Mean time between failures of the whole job.
    pub mtbf: f64,
    /// What follows a failure before work goes on.
    pub restart: f64,
}

/// Where the time of a job goes; the four shares add up to one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// Training that counts.
    pub goodput: f64,
    /// Waiting for saves that were needed once.
    pub save: f64,
    /// Training and saving that a failure undid.
    pub rework: f64,
    /// Detecting failures, restarting, loading.
    pub restart: f64,
}

/// Share of time that trains when nothing fails.
pub fn availability(interval: f64, stall: f64) -> f64 {
    interval / (interval + stall)
}

/// The interval whose saves take a given share of the time.
pub fn interval_for_share(stall: f64, share: f64) -> f64 {
    stall * (1.0 - share) / share
}

/// Young's interval.
pub fn young(stall: f64, mtbf: f64) -> f64 {
    (2.0 * stall * mtbf).sqrt()
}

/// Daly's interval; the mean time between failures when a save takes twice that or more.
pub fn daly(stall: f64, mtbf: f64) -> f64 {
    if stall >= 2.0 * mtbf {
        return mtbf;
    }
    let correction = 1.0 + (stall / (2.0 * mtbf)).sqrt() / 3.0 + stall / (18.0 * mtbf);
    young(stall, mtbf) * correction - stall
}

/// The training time between saves with the best availability when restarts, and saves that do not count yet, are lost.
pub fn availability_optimal(job: Job) -> f64 {
    let lost = job.mtbf + job.restart + job.commit_delay;
    (2.0 * lost * job.stall + job.stall * job.stall).sqrt()
}

/// The interval with the highest goodput among those of at least `interval_min`: where 1 - tau/M = exp(-(tau + C)/M), to the
/// last bit, or the shortest that is allowed. The goodput has one maximum, so beyond it shorter is better.
pub fn exact(stall: f64, mtbf: f64, interval_min: f64) -> f64 {
    let (mut low, mut high) = (0.0, mtbf);
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        // Written with expm1, since both sides are close to one for short intervals.
        if -middle / mtbf > (-(middle + stall) / mtbf).exp_m1() {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high).max(interval_min)
}

/// Where the time goes.
pub fn shares(interval: f64, job: Job) -> Shares {
    let attempt = (interval + job.stall) / job.mtbf;
    let running = (-job.restart / job.mtbf).exp();
    // x / (exp(x) - 1): the share of running time that no failure undoes, were each save good at once.
    let saved = if attempt > 0.0 {
        attempt / attempt.exp_m1()
    } else {
        1.0
    };
    let kept = saved * (-job.commit_delay / job.mtbf).exp();
    let trained = availability(interval, job.stall);
    Shares {
        goodput: running * kept * trained,
        save: running * kept * (1.0 - trained),
        rework: running * (1.0 - kept),
        restart: 1.0 - running,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_of_the_formula_agree() {
        for (interval, stall, commit_delay, mtbf, restart) in [
            (1116.0f64, 60.0f64, 0.0f64, 11_131.0f64, 600.0f64),
            (309.0, 30.0, 200.0, 1800.0, 300.0),
        ] {
            let rate = mtbf * (restart / mtbf).exp() * (((interval + stall) / mtbf).exp() - 1.0);
            let direct = interval * (-commit_delay / mtbf).exp() / rate;
            let job = Job {
                stall,
                commit_delay,
                mtbf,
                restart,
            };
            assert!((shares(interval, job).goodput - direct).abs() < 1e-12);
        }
    }

    #[test]
    fn the_optimum_is_flat() {
        let job = Job {
            stall: 60.0,
            commit_delay: 0.0,
            mtbf: 11_131.0,
            restart: 600.0,
        };
        let exact = exact(job.stall, job.mtbf, 0.0);
        let best = shares(exact, job).goodput;
        for factor in [0.7, 1.3] {
            let near = shares(factor * exact, job).goodput;
            assert!(best > near && best - near < 0.01, "{best} {near}");
        }
    }

    proptest! {
        #[test]
        fn shares_add_up_and_the_exact_interval_is_best(
            stall in 0.1f64..1e4, commit_delay in 0.0f64..1e5, mtbf in 1.0f64..1e8, restart in 0.0f64..1e5,
            interval in 1.0f64..1e7, interval_min in 0.0f64..1e5,
        ) {
            let job = Job { stall, commit_delay, mtbf, restart };
            let interval = interval.max(interval_min);
            let here = shares(interval, job);
            let sum = here.goodput + here.save + here.rework + here.restart;
            prop_assert!((sum - 1.0).abs() < 1e-9, "{here:?}");
            prop_assert!([here.goodput, here.save, here.rework, here.restart].iter().all(|share| *share >= 0.0));
            let exact = exact(stall, mtbf, interval_min);
            prop_assert!(exact >= interval_min);
            let best = shares(exact, job).goodput;
            prop_assert!(best + 1e-9 >= here.goodput, "{best} {here:?}");
        }
    }
}
