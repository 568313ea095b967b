//! What it costs per month: GPUs and the part of them that waits, energy, and storage with its requests and traffic.

use forebay_core::Result;

use crate::field::request;
use crate::quantity::{
    Bytes, Count, Factor, MoneyPerGb, MoneyPerGbMonth, MoneyPerHour, MoneyPerKilowattHour, MoneyPerThousand,
    Ratio, Seconds, Unit, Watts, lit,
};
use crate::report::Report;
use crate::sheet::{Num, Sheet, item_names, wrong};

request! {
    /// A tier and its price.
    Tier {
        /// What it is called.
        name: String = String::new(),
        /// Bytes it holds.
        bytes: Bytes = lit(0.0),
        /// Price of holding them; the default is S3 Standard's first tier.
        price: MoneyPerGbMonth = lit(0.023),
    }
}

request! {
    /// What to ask about cost and energy.
    Request {
        /// GPUs.
        gpus: Count = lit(0.0),
        /// Price of a GPU.
        gpu_price: MoneyPerHour = lit(2.5),
        /// Share of the time that trains.
        goodput: Ratio = lit(1.0),
        /// Length of a month; 30 days.
        month: Seconds = lit(2_592_000.0),
        /// Power of the whole job; from the GPUs when not given.
        power: Option<Watts> = None,
        /// Power per GPU with its share of the node: a DGX H100 takes 10.2 kW for 8.
        power_per_gpu: Watts = lit(1275.0),
        /// Power of the building per power of the machines.
        pue: Factor = lit(1.0),
        /// Price of energy.
        energy_price: MoneyPerKilowattHour = lit(0.1),
        /// Tiers of storage.
        tiers: Vec<Tier> = Vec::new(),
        /// Writing requests per month; not priced when not given.
        puts: Option<Count> = None,
        /// Price of writing requests; S3 Standard's.
        put_price: MoneyPerThousand = lit(0.005),
        /// Reading requests per month; not priced when not given.
        gets: Option<Count> = None,
        /// Price of reading requests; S3 Standard's.
        get_price: MoneyPerThousand = lit(0.0004),
        /// Bytes per month that leave the provider; not priced when not given.
        egress: Option<Bytes> = None,
        /// Price of such traffic; the first tier of a large provider.
        egress_price: MoneyPerGb = lit(0.09),
    }
}

const SECONDS_PER_HOUR: f64 = 3600.0;
const BYTES_PER_GB: f64 = 1e9;

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("cost");
    let goodput = sheet.given("goodput", request.goodput);
    if goodput.v > 1.0 {
        return Err(wrong(
            format!("goodput is {}, more than all", goodput.v),
            "give a share from 0 to 1, or a percentage like 90%",
        ));
    }
    let month = sheet.given("month", request.month).positive()?;
    let gpus = gpu_cost(&mut sheet, request, goodput, month)?;
    energy(&mut sheet, request, goodput, month)?;
    let storage = storage(&mut sheet, request)?;
    sheet.group("sum");
    let total = gpus.v + storage.v;
    let formula = "gpu_cost + storage_cost: energy is part of a rented GPU's price";
    let inputs = [gpus, storage];
    sheet.money("total_cost", total, formula, &inputs)?;
    Ok(sheet.finish())
}

fn gpu_cost(sheet: &mut Sheet, request: &Request, goodput: Num, month: Num) -> Result<Num> {
    sheet.group("gpus");
    let gpus = sheet.given("gpus", request.gpus);
    let price = sheet.given("gpu_price", request.gpu_price);
    let inputs = [gpus, price];
    let hour = gpus.v * price.v;
    let hour = sheet.money_per_hour("gpu_cost_hour", hour, "gpus x gpu_price", &inputs)?;
    let idle = hour.v * (1.0 - goodput.v);
    let formula = "gpu_cost_hour x (1 - goodput)";
    let inputs = [hour, goodput];
    let idle = sheet.money_per_hour("idle_cost_hour", idle, formula, &inputs)?;
    let hours = month.v / SECONDS_PER_HOUR;
    let formula = "idle_cost_hour x month / 3600";
    let inputs = [idle, month];
    sheet.money("idle_cost", idle.v * hours, formula, &inputs)?;
    let formula = "gpu_cost_hour x month / 3600";
    let inputs = [hour, month];
    sheet.money("gpu_cost", hour.v * hours, formula, &inputs)
}

fn energy(sheet: &mut Sheet, request: &Request, goodput: Num, month: Num) -> Result<()> {
    sheet.group("energy");
    let pue = sheet.given("pue", request.pue);
    if pue.v < 1.0 {
        let hint = "give 1 or more, 1.3 for a common building";
        return Err(wrong(
            format!("pue is {}: a building cannot take less than its machines", pue.v),
            hint,
        ));
    }
    let power = match sheet.maybe("power", request.power) {
        Some(power) => power,
        None => {
            let gpus = sheet.given("gpus", request.gpus);
            let each = sheet.given("power_per_gpu", request.power_per_gpu);
            let formula = "gpus x power_per_gpu";
            let inputs = [gpus, each];
            sheet.watts("power", gpus.v * each.v, formula, &inputs)?
        }
    };
    let hours = month.v / SECONDS_PER_HOUR;
    let inputs = [power, pue, month];
    let formula = "power x pue x month / 3600";
    let value = power.v * pue.v * hours;
    let energy = sheet.watt_hours("energy", value, formula, &inputs)?;
    let formula = "energy x (1 - goodput)";
    let wasted = energy.v * (1.0 - goodput.v);
    let inputs = [energy, goodput];
    sheet.watt_hours("energy_wasted", wasted, formula, &inputs)?;
    let price = sheet.given("energy_price", request.energy_price);
    let formula = "energy / 1000 x energy_price";
    let cost = energy.v / 1000.0 * price.v;
    sheet.money("energy_cost", cost, formula, &[energy, price])?;
    Ok(())
}

fn storage(sheet: &mut Sheet, request: &Request) -> Result<Num> {
    sheet.group("storage");
    let mut inputs = Vec::new();
    let names = item_names(request.tiers.iter().map(|tier| tier.name.as_str()));
    for (tier, name) in request.tiers.iter().zip(&names) {
        let bytes = Num::of("bytes", tier.bytes);
        let price = Num::of("price", tier.price);
        let cost = bytes.v / BYTES_PER_GB * price.v;
        let formula = "bytes / 1e9 x price";
        inputs.push(sheet.item("tier_cost", name, Unit::Money, cost, formula, &[bytes, price])?);
    }
    let mut terms = Vec::new();
    if !inputs.is_empty() {
        terms.push("sum(tier_cost)");
    }
    for (name, fields, count, price) in [
        ("put_cost", ["puts", "put_price"], request.puts, request.put_price),
        ("get_cost", ["gets", "get_price"], request.gets, request.get_price),
    ] {
        let Some(count) = sheet.maybe(fields[0], count) else {
            continue;
        };
        let price = sheet.given(fields[1], price);
        let cost = count.v / 1000.0 * price.v;
        let formula = format!("{} / 1000 x {}", fields[0], fields[1]);
        inputs.push(sheet.money(name, cost, &formula, &[count, price])?);
        terms.push(name);
    }
    if let Some(egress) = sheet.maybe("egress", request.egress) {
        let price = sheet.given("egress_price", request.egress_price);
        let cost = egress.v / BYTES_PER_GB * price.v;
        let formula = "egress / 1e9 x egress_price";
        let used = [egress, price];
        inputs.push(sheet.money("egress_cost", cost, formula, &used)?);
        terms.push("egress_cost");
    }
    let total = inputs.iter().map(|input| input.v).sum();
    let formula = if terms.is_empty() {
        "0: neither tiers nor requests nor traffic are given".to_owned()
    } else {
        terms.join(" + ")
    };
    sheet.money("storage_cost", total, &formula, &inputs)
}
