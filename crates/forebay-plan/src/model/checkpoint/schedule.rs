//! How often to save, what remains of the time, and who eats the rest.

use forebay_core::Result;

use super::interval::{self, Job};
use super::saving::Saving;
use super::size::Sizes;
use super::{IntervalMeans, IntervalRule, Mode, Request};
use crate::hardware::Published;
use crate::quantity::Unit;
use crate::report::Series;
use crate::sheet::{Num, Sheet, wrong};
use crate::source;

/// Points of the curve of goodput against interval, on each side of the interval that is used.
const CURVE_POINTS: usize = 30;

/// The curve spans this factor on both sides of the interval.
const CURVE_SPAN: f64 = 30.0;

/// A hint is shown with four digits and must still be accepted when typed in.
const SHOWN_SLACK: f64 = 1.001;

const SECONDS_PER_HOUR: f64 = 3600.0;
const SECONDS_PER_DAY: f64 = 86_400.0;

/// The numbers that a schedule is made of.
#[derive(Debug, Clone, Copy)]
struct Terms {
    saving: Saving,
    mtbf: Num,
    restart: Num,
}

impl Terms {
    fn job(&self) -> Job {
        Job {
            stall: self.saving.stall.v,
            commit_delay: self.commit_delay().map_or(0.0, |delay| delay.v),
            mtbf: self.mtbf.v,
            restart: self.restart.v,
        }
    }

    fn commit_delay(&self) -> Option<Num> {
        self.saving.background.map(|background| background.commit_delay)
    }

    /// The shortest training time between two saves: a save starts when the last one is drained.
    fn interval_min(&self) -> f64 {
        self.saving
            .background
            .map_or(0.0, |background| background.drain.v)
    }
}

pub(super) fn schedule(
    sheet: &mut Sheet,
    request: &Request,
    sizes: &Sizes,
    saving: Saving,
    restart: Num,
) -> Result<()> {
    sheet.group("failures");
    let mtbf = mtbf(sheet, request)?;
    let terms = Terms {
        saving,
        mtbf,
        restart,
    };
    sheet.group("interval");
    let used = choose(sheet, request, &terms)?;
    let inputs = [used, saving.stall];
    let formula = "interval_used + stall: from save to save";
    let period = sheet.seconds("period", used.v + saving.stall.v, formula, &inputs)?;
    budget(sheet, request, saving.stall)?;
    no_failures(sheet, request, saving.stall, used)?;
    sheet.group("time");
    shares(sheet, request, &terms, used)?;
    sheet.group("demand");
    demand(sheet, request, sizes.size, saving, used, period)
}

fn mtbf(sheet: &mut Sheet, request: &Request) -> Result<Num> {
    if let Some(mtbf) = sheet.maybe("mtbf", request.mtbf) {
        return mtbf.positive();
    }
    let gpus = sheet.given("gpus", request.gpus);
    let published = request.failures;
    let given = sheet.maybe("gpu_hours_per_failure", request.gpu_hours_per_failure);
    let (hours, from) = match given {
        Some(hours) => (hours.positive()?, source::ARITHMETIC),
        None => {
            let formula = format!("{}: published for {}", published.formula(), published.name());
            let from = published.source();
            let hours = published.gpu_hours();
            sheet.from(from);
            (sheet.count("gpu_hours_per_failure", hours, &formula, &[])?, from)
        }
    };
    let time = |hours: f64| hours / gpus.v * SECONDS_PER_HOUR;
    let formula = "gpu_hours_per_failure / gpus x 3600";
    let mtbf = sheet
        .from(from)
        .seconds("mtbf", time(hours.v), formula, &[hours, gpus])?;
    let mut answers: Vec<(&str, f64, bool)> = Vec::new();
    if given.is_some() {
        answers.push(("gpu_hours_per_failure as given", mtbf.v, true));
    }
    for &(name, cluster) in Published::ALL {
        let used = given.is_none() && cluster == published;
        answers.push((name, time(cluster.gpu_hours()), used));
    }
    let question =
        "published rates of failure differ seven times over (failures); a log of your own is better (mtbf)";
    sheet.reading(mtbf, question, &answers);
    Ok(mtbf)
}

/// Young, Daly, availability-optimal and exact, then the one that is used.
fn choose(sheet: &mut Sheet, request: &Request, terms: &Terms) -> Result<Num> {
    let rules = rules(sheet, terms)?;
    let rule = match request.interval_rule {
        IntervalRule::Young => rules[0],
        IntervalRule::Daly => rules[1],
        IntervalRule::Availability => rules[2],
        IntervalRule::Exact => rules[3],
    };
    if let Some(given) = sheet.maybe("interval", request.interval) {
        return given_interval(sheet, request, terms, given.positive()?, rule);
    }
    let rule = rule.positive()?;
    let Some(background) = terms.saving.background.filter(|behind| behind.drain.v > rule.v) else {
        let formula = format!("{}: as interval_rule says", rule.name);
        return sheet.seconds("interval_used", rule.v, &formula, &[rule]);
    };
    let drain = background.drain;
    let message = format!(
        "the slowest drain of a save takes {}: the interval is stretched from {} to that",
        drain.text(),
        rule.text()
    );
    sheet.warn("interval_used", message);
    let formula = format!("{}: a save starts when the last one is drained", drain.name);
    sheet.seconds("interval_used", drain.v, &formula, &[drain])
}

fn rules(sheet: &mut Sheet, terms: &Terms) -> Result<[Num; 4]> {
    let Terms { mtbf, restart, .. } = *terms;
    let stall = terms.saving.stall;
    let inputs = [stall, mtbf];
    let value = interval::young(stall.v, mtbf.v);
    let formula = "sqrt(2 x stall x mtbf)";
    sheet.from(source::YOUNG);
    let young = sheet.seconds("interval_young", value, formula, &inputs)?;
    let value = interval::daly(stall.v, mtbf.v);
    sheet.from(source::DALY);
    let daly = if stall.v >= 2.0 * mtbf.v {
        let formula = "mtbf: a save takes twice as long or longer";
        sheet.seconds("interval_daly", value, formula, &inputs[1..])?
    } else {
        let formula =
            "sqrt(2 x stall x mtbf) x (1 + sqrt(stall / (2 x mtbf)) / 3 + stall / (18 x mtbf)) - stall";
        sheet.seconds("interval_daly", value, formula, &inputs)?
    };
    let value = interval::availability_optimal(terms.job());
    sheet.from(source::AVAILABILITY);
    let name = "interval_availability";
    let best = match terms.commit_delay() {
        Some(delay) => {
            let formula = "sqrt(2 x (mtbf + restart_time + commit_delay) x stall + stall^2)";
            sheet.seconds(name, value, formula, &[stall, mtbf, restart, delay])?
        }
        None => {
            let formula = "sqrt(2 x (mtbf + restart_time) x stall + stall^2)";
            sheet.seconds(name, value, formula, &[stall, mtbf, restart])?
        }
    };
    let value = interval::exact(stall.v, mtbf.v, terms.interval_min());
    let mut inputs = inputs.to_vec();
    let mut formula = "where 1 - interval / mtbf = exp(-(interval + stall) / mtbf)".to_owned();
    if let Some(background) = terms.saving.background {
        formula = format!("{formula}, at least {}", background.drain.name);
        inputs.push(background.drain);
    }
    sheet.from(source::DALY);
    let exact = sheet.seconds("interval_exact", value, &formula, &inputs)?;
    Ok([young, daly, best, exact])
}

/// A given interval, as training time. A save that training waits for may take longer than the training between two of them;
/// one in the background must be drained until the next, and a period must leave time to train.
fn given_interval(sheet: &mut Sheet, request: &Request, terms: &Terms, given: Num, rule: Num) -> Result<Num> {
    let stall = terms.saving.stall;
    let least = terms.interval_min();
    let is_period = request.interval_means == IntervalMeans::Period;
    let training = if is_period { given.v - stall.v } else { given.v };
    if training <= 0.0 || training < least {
        // In the terms of the given number, so that what is advised can be typed in.
        let offset = if is_period { stall.v } else { 0.0 };
        let busy = least + offset;
        let faster = (busy / given.v).floor() + 1.0;
        let shortest = Unit::Seconds.show(busy * SHOWN_SLACK).text;
        let hint = if rule.v > least * SHOWN_SLACK {
            format!(
                "save every {} as interval_rule {} says, every {shortest} at the most often, or make saves {faster} times faster",
                Unit::Seconds.show(rule.v + offset).text,
                request.interval_rule.name()
            )
        } else {
            format!("save every {shortest} or less often, or make saves {faster} times faster")
        };
        let busy = Unit::Seconds.show(busy).text;
        let message = format!("a save takes {busy} but is due every {}", given.text());
        return Err(wrong(message, hint));
    }
    if training < stall.v {
        let message = format!(
            "a save takes {}, longer than the {} of training between two of them",
            stall.text(),
            Unit::Seconds.show(training).text
        );
        sheet.warn("interval_used", message);
    }
    if is_period {
        let formula = "interval - stall: from save to save";
        return sheet.seconds("interval_used", training, formula, &[given, stall]);
    }
    let formula = "interval: training time between saves";
    sheet.seconds("interval_used", training, formula, &[given])
}

fn budget(sheet: &mut Sheet, request: &Request, stall: Num) -> Result<()> {
    if let Some(budget) = sheet.maybe("loss_budget", request.loss_budget) {
        let value = interval::interval_for_share(stall.v, budget.share()?.v);
        let formula = "stall x (1 - loss_budget) / loss_budget";
        let inputs = [stall, budget];
        sheet.seconds("interval_for_budget", value, formula, &inputs)?;
    }
    Ok(())
}

/// What saves alone cost, in both readings of a given interval.
fn no_failures(sheet: &mut Sheet, request: &Request, stall: Num, used: Num) -> Result<()> {
    let formula = "interval_used / (interval_used + stall): without failures";
    let value = interval::availability(used.v, stall.v);
    let inputs = [used, stall];
    let available = sheet.ratio("availability", value, formula, &inputs)?;
    let gpus = sheet.given("gpus", request.gpus);
    let lost = gpus.v * (1.0 - available.v);
    let formula = "gpus x (1 - availability)";
    let inputs = [gpus, available];
    sheet.count("gpus_waiting", lost, formula, &inputs)?;
    let power = sheet.maybe("power", request.power);
    let wasted = match power {
        Some(power) => {
            let formula = "power x (1 - availability)";
            let inputs = [power, available];
            let value = power.v * (1.0 - available.v);
            Some(sheet.watts("power_waiting", value, formula, &inputs)?)
        }
        None => None,
    };
    let Some(given) = request.interval else {
        return Ok(());
    };
    let given = sheet.given("interval", given);
    let training = interval::availability(given.v, stall.v);
    let period = 1.0 - stall.v / given.v;
    // A period that the save fills leaves no second answer.
    let period = if period > 0.0 { period } else { f64::NAN };
    let is_training = request.interval_means == IntervalMeans::Training;
    let question = format!("{} every {}", stall.text(), given.text());
    let labels = [
        "of training between saves (interval_means = training)",
        "from save to save (interval_means = period)",
    ];
    let answers = |training: f64, period: f64| {
        [
            (labels[0], training, is_training),
            (labels[1], period, !is_training),
        ]
    };
    sheet.reading(available, &question, &answers(training, period));
    if let (Some(power), Some(wasted)) = (power, wasted) {
        let lost = answers(power.v * (1.0 - training), power.v * (1.0 - period));
        sheet.reading(wasted, &question, &lost);
    }
    Ok(())
}

/// Goodput and the three losses, with formulas that name what they use.
fn shares(sheet: &mut Sheet, request: &Request, terms: &Terms, used: Num) -> Result<()> {
    let shares = interval::shares(used.v, terms.job());
    let stall = terms.saving.stall;
    let mut inputs = vec![used, stall, terms.mtbf, terms.restart];
    inputs.extend(terms.commit_delay());
    let late = match terms.commit_delay() {
        Some(_) => "exp(-commit_delay / mtbf) x ",
        None => "",
    };
    let mut share = |name, value, formula: String, inputs: &[Num]| {
        sheet.from(source::DALY).ratio(name, value, &formula, inputs)
    };
    let attempts = "(exp((interval_used + stall) / mtbf) - 1)";
    let formula = format!("{late}interval_used / (mtbf x exp(restart_time / mtbf) x {attempts})");
    let goodput = share("goodput", shares.goodput, formula, &inputs)?;
    let formula = format!("{late}exp(-restart_time / mtbf) x stall / mtbf / {attempts}");
    share("loss_save", shares.save, formula, &inputs)?;
    let formula =
        format!("exp(-restart_time / mtbf) x (1 - {late}(interval_used + stall) / mtbf / {attempts})");
    share("loss_rework", shares.rework, formula, &inputs)?;
    let formula = "1 - exp(-restart_time / mtbf)".to_owned();
    share("loss_restart", shares.restart, formula, &inputs[2..4])?;
    let causes = [
        ("saves", shares.save),
        ("work done again", shares.rework),
        ("restarts", shares.restart),
    ];
    let worst = causes.iter().max_by(|left, right| left.1.total_cmp(&right.1));
    if let Some((cause, _)) = worst.filter(|_| goodput.v < 0.5) {
        let message = format!("less than half of the time trains; most of the loss is {cause}");
        sheet.warn("goodput", message);
    }
    let gpus = sheet.given("gpus", request.gpus);
    let lost = gpus.v * (1.0 - goodput.v);
    let formula = "gpus x (1 - goodput)";
    sheet.count("gpus_lost", lost, formula, &[gpus, goodput])?;
    curve(sheet, terms, used, goodput);
    Ok(())
}

/// Goodput against interval, from the shortest that is possible.
fn curve(sheet: &mut Sheet, terms: &Terms, used: Num, goodput: Num) {
    let first = (used.v / CURVE_SPAN).max(terms.interval_min());
    let step = |index: usize| index as f64 / CURVE_POINTS as f64;
    let below = (0..CURVE_POINTS).map(|index| first * (used.v / first).powf(step(index)));
    let above = (0..=CURVE_POINTS).map(|index| used.v * CURVE_SPAN.powf(step(index)));
    let points = below
        .filter(|x| *x < used.v)
        .chain(above)
        .map(|x| [x, interval::shares(x, terms.job()).goodput]);
    sheet.series(Series {
        name: "goodput_by_interval".to_owned(),
        x_name: "interval".to_owned(),
        x_unit: Unit::Seconds,
        y_name: "goodput".to_owned(),
        y_unit: Unit::Ratio,
        points: points.collect(),
        mark: Some([used.v, goodput.v]),
    });
}

/// What storage must take in.
fn demand(
    sheet: &mut Sheet,
    request: &Request,
    size: Num,
    saving: Saving,
    used: Num,
    period: Num,
) -> Result<()> {
    let per_day = SECONDS_PER_DAY / period.v;
    let saves = sheet.count("saves_per_day", per_day, "86400 / period", &[period])?;
    let inputs = [size, saves];
    let formula = "size x saves_per_day";
    sheet.bytes("bytes_per_day", size.v * per_day, formula, &inputs)?;
    let formula = "size / interval_used: enough for a save that drains until the next, in the background";
    let inputs = [size, used];
    let rate = size.v / used.v;
    let drained = sheet.rate("drain_needed", rate, formula, &inputs)?;
    let waited = saving.storage.filter(|_| request.mode == Mode::Sync);
    match waited {
        Some(storage) => {
            let formula = "storage: training waits for saves at this rate";
            sheet.rate("write_needed", storage.v, formula, &[storage])?
        }
        None => sheet.rate("write_needed", drained.v, "drain_needed", &[drained])?,
    };
    Ok(())
}
