//! How often to save, what remains of the time, and who eats the rest.

use forebay_core::Result;

use super::saving::Saving;
use super::size::Sizes;
use super::{IntervalMeans, IntervalRule, Request, interval};
use crate::quantity::Unit;
use crate::report::Series;
use crate::sheet::{Num, Sheet, wrong};
use crate::source;

/// Points of the curve of goodput against interval.
const CURVE_POINTS: usize = 61;

/// The curve spans this factor on both sides of the interval.
const CURVE_SPAN: f64 = 30.0;

const SECONDS_PER_HOUR: f64 = 3600.0;
const SECONDS_PER_DAY: f64 = 86_400.0;

pub(super) fn schedule(
    sheet: &mut Sheet,
    request: &Request,
    sizes: &Sizes,
    saving: Saving,
    restart: Num,
) -> Result<()> {
    sheet.group("failures");
    let mtbf = mtbf(sheet, request)?;
    sheet.group("interval");
    let interval = choose(sheet, request, saving, mtbf, restart)?;
    budget(sheet, request, saving.stall)?;
    no_failures(sheet, request, saving.stall, interval)?;
    sheet.group("time");
    shares(sheet, request, saving.stall, interval, mtbf, restart)?;
    sheet.group("demand");
    demand(sheet, sizes.size, saving.stall, interval)
}

fn mtbf(sheet: &mut Sheet, request: &Request) -> Result<Num> {
    if let Some(mtbf) = sheet.maybe("mtbf", request.mtbf) {
        return mtbf.positive();
    }
    let gpus = sheet.given("gpus", request.gpus);
    let (hours, from) = match sheet.maybe("gpu_hours_per_failure", request.gpu_hours_per_failure) {
        Some(hours) => (hours.positive()?, source::ARITHMETIC),
        None => {
            let hours = request.failures.gpu_hours();
            let from = request.failures.source();
            let formula = format!("published for {}", request.failures.name());
            (
                sheet
                    .from(from)
                    .count("gpu_hours_per_failure", hours, &formula, &[])?,
                from,
            )
        }
    };
    let value = hours.v / gpus.v * SECONDS_PER_HOUR;
    let formula = "gpu_hours_per_failure / gpus, in hours";
    sheet.from(from).seconds("mtbf", value, formula, &[hours, gpus])
}

/// Young, Daly, availability-optimal and exact, then the one that is used.
fn choose(sheet: &mut Sheet, request: &Request, saving: Saving, mtbf: Num, restart: Num) -> Result<Num> {
    let stall = saving.stall;
    let inputs = [stall, mtbf, restart];
    let mut rule = |name, value, formula: &str, inputs: &[Num], from: &str| {
        sheet.from(from).seconds(name, value, formula, inputs)
    };
    let young = interval::young(stall.v, mtbf.v);
    let young = rule(
        "interval_young",
        young,
        "sqrt(2 C M)",
        &inputs[..2],
        source::YOUNG,
    )?;
    let formula = "sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C; M when C >= 2M";
    let daly = interval::daly(stall.v, mtbf.v);
    let daly = rule("interval_daly", daly, formula, &inputs[..2], source::DALY)?;
    let formula = "sqrt(2 (M + R) C + C^2), training time between saves";
    let best = interval::availability_optimal(stall.v, mtbf.v, restart.v);
    let best = rule(
        "interval_availability",
        best,
        formula,
        &inputs,
        source::AVAILABILITY,
    )?;
    let formula = "where 1 - tau/M = exp(-(tau + C)/M)";
    let exact = interval::exact(stall.v, mtbf.v);
    let exact = rule("interval_exact", exact, formula, &inputs[..2], source::DALY)?;
    if let Some(given) = sheet.maybe("interval", request.interval) {
        return given_interval(sheet, request, saving, given.positive()?, daly);
    }
    let chosen = match request.interval_rule {
        IntervalRule::Young => young,
        IntervalRule::Daly => daly,
        IntervalRule::Availability => best,
        IntervalRule::Exact => exact,
    };
    let chosen = chosen.positive()?;
    match saving.drain {
        Some(drain) if drain.v > chosen.v + stall.v => {
            let message = format!(
                "the slowest tier takes {} for a save: the interval is stretched from {} to that",
                drain.text(),
                chosen.text()
            );
            sheet.warn("interval_used", message);
            let formula = "slowest drain: a save starts when the last one is drained";
            let inputs = [chosen, drain];
            sheet.seconds("interval_used", drain.v, formula, &inputs)
        }
        _ => {
            let formula = format!("{}, as interval_rule says", chosen.name);
            sheet.seconds("interval_used", chosen.v, &formula, &[chosen])
        }
    }
}

/// A given interval, as training time; a save must fit into it.
fn given_interval(
    sheet: &mut Sheet,
    request: &Request,
    saving: Saving,
    given: Num,
    advised: Num,
) -> Result<Num> {
    let stall = saving.stall;
    let busy = saving.drain.filter(|drain| drain.v > stall.v).unwrap_or(stall);
    if busy.v >= given.v {
        let hint = format!(
            "save every {} (Daly), or make storage {} times faster",
            Unit::Seconds.show(advised.v.max(busy.v)).text,
            (busy.v / given.v * 2.0).ceil()
        );
        let message = format!("a save takes {} but is due every {}", busy.text(), given.text());
        return Err(wrong(message, hint));
    }
    let (value, formula) = match request.interval_means {
        IntervalMeans::Training => (given.v, "interval: training time between saves"),
        IntervalMeans::Period => (given.v - stall.v, "interval - stall: from save to save"),
    };
    let inputs = [given, stall];
    sheet.seconds("interval_used", value, formula, &inputs)
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
    let formula = "interval_used / (interval_used + stall), without failures";
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

fn shares(
    sheet: &mut Sheet,
    request: &Request,
    stall: Num,
    used: Num,
    mtbf: Num,
    restart: Num,
) -> Result<()> {
    let shares = interval::shares(used.v, stall.v, mtbf.v, restart.v);
    let inputs = [used, stall, mtbf, restart];
    let mut share =
        |name, value, formula: &str| sheet.from(source::DALY).ratio(name, value, formula, &inputs);
    let formula = "tau / (M exp(R/M) (exp((tau + C)/M) - 1))";
    let goodput = share("goodput", shares.goodput, formula)?;
    share(
        "loss_save",
        shares.save,
        "exp(-R/M) x/(exp(x) - 1) C/(tau + C), x = (tau + C)/M",
    )?;
    share(
        "loss_rework",
        shares.rework,
        "exp(-R/M) (1 - x/(exp(x) - 1)), x = (tau + C)/M",
    )?;
    share("loss_restart", shares.restart, "1 - exp(-R/M)")?;
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
    let points = (0..CURVE_POINTS).map(|index| {
        let exponent = 2.0 * index as f64 / (CURVE_POINTS - 1) as f64 - 1.0;
        let x = used.v * CURVE_SPAN.powf(exponent);
        [x, interval::shares(x, stall.v, mtbf.v, restart.v).goodput]
    });
    sheet.series(Series {
        name: "goodput_by_interval".to_owned(),
        x_name: "interval".to_owned(),
        x_unit: Unit::Seconds,
        y_name: "goodput".to_owned(),
        y_unit: Unit::Ratio,
        points: points.collect(),
        mark: Some([used.v, goodput.v]),
    });
    Ok(())
}

/// What storage must take in.
fn demand(sheet: &mut Sheet, size: Num, stall: Num, used: Num) -> Result<()> {
    let inputs = [used, stall];
    let per_day = SECONDS_PER_DAY / (used.v + stall.v);
    let formula = "1 day / (interval_used + stall)";
    let saves = sheet.count("saves_per_day", per_day, formula, &inputs)?;
    let inputs = [size, saves];
    let formula = "size x saves_per_day";
    sheet.bytes("bytes_per_day", size.v * per_day, formula, &inputs)?;
    let formula = "size / interval_used: enough when a save drains until the next";
    let inputs = [size, used];
    let rate = size.v / used.v;
    sheet.rate("drain_needed", rate, formula, &inputs)?;
    Ok(())
}
