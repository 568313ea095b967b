//! Every formula of every figure, evaluated over exactly the inputs it lists, gives the figure's value.

mod evaluate;

use evaluate::evaluate;
use forebay_plan::{Figure, Report, models, run};
use serde_json::{Value, json};

/// Figures whose formula is no expression: the root of an equation, and counts of a simulation.
const IN_WORDS: [(&str, &str); 5] = [
    ("checkpoint", "interval_exact"),
    ("failures", "goodput"),
    ("failures", "loss_save"),
    ("failures", "loss_rework"),
    ("failures", "loss_restart"),
];

/// Differences of numbers close to one lose digits.
const SLACK: f64 = 1e-9;

fn check(model: &str, figure: &Figure) {
    let name = figure.name.as_str();
    let inputs: Vec<(&str, f64)> = figure
        .inputs
        .iter()
        .map(|input| (input.name.as_str(), input.value))
        .collect();
    let words = |text: &str| -> Vec<String> {
        let split = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        split.map(str::to_owned).collect()
    };
    if IN_WORDS.contains(&(model, name)) {
        assert!(
            evaluate(&figure.formula, &inputs).is_err(),
            "{name} is no exception"
        );
        return;
    }
    let named = words(&figure.formula);
    for (input, _) in &inputs {
        let input = input.split('.').next().unwrap_or_default();
        let known = named.iter().any(|word| word == input);
        assert!(known, "{model}.{name} = {}: does not use {input}", figure.formula);
    }
    let found = evaluate(&figure.formula, &inputs)
        .unwrap_or_else(|error| panic!("{model}.{name} = {}: {error}", figure.formula));
    let close = (found - figure.value).abs() <= SLACK * figure.value.abs().max(SLACK);
    assert!(
        close,
        "{model}.{name} = {}: {found} is not {} of {inputs:?}",
        figure.formula, figure.value
    );
}

fn ask(model: &str, request: &Value) -> Report {
    run(model, request).unwrap_or_else(|error| panic!("{model} {request}: {error}: {:?}", error.hint()))
}

fn checkpoints() -> Vec<Value> {
    vec![
        json!({ "params": "405B", "gpus": 16_384, "storage": "1TB/s", "power": "20MW", "loss_budget": "5%" }),
        json!({ "preset": "1t", "gpus": 1024, "tensor_parallel": 8, "pipeline_parallel": 64, "zero": 1,
                "storage": "1TB/s", "gradients": "fp32", "interval": "30min" }),
        json!({ "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14_336, "gpus": 64, "zero": 2,
                "storage": "10GB/s", "node_write": "1GB/s", "gradients": "bf16", "sync_overhead": "3s" }),
        json!({ "params": "7B", "gpus": 64, "zero": 0, "storage": "100GB/s", "node_write": "2GB/s", "path": "gds" }),
        json!({ "size": "2TB", "gpus": 512, "stall": "45s", "interval": "10min", "interval_means": "period",
                "save_time_target": "1min", "tokens_per_gpu": "1k", "power": "5MW" }),
        json!({ "size": "10TB", "gpus": 1024, "mode": "async", "failures": "opt175b", "storage_read": "1TB/s",
                "tiers": [{ "name": "nvme", "write": "1TB/s" }, { "name": "lustre", "write": "50GB/s" }] }),
        json!({ "size": "10TB", "gpus": 1024, "mode": "async", "storage": "200GB/s", "restart_from": "cold",
                "pcie": "gen4", "tiers": [{ "name": "cold", "write": "20GB/s" }], "interval": "2h" }),
        json!({ "size": "10TB", "gpus": 100_000, "stall": "3h", "mtbf": "1h" }),
        json!({ "params": "70B", "gpus": 64, "storage": "1GB/s", "gpu_hours_per_failure": 1000,
                "interval_rule": "availability" }),
    ]
}

fn workloads() -> Vec<(&'static str, Value)> {
    vec![
        (
            "ingest",
            json!({ "tokens_per_gpu": "10k", "params": "7B", "dataset_size": "1TB" }),
        ),
        (
            "ingest",
            json!({ "tokens_total": "1T", "params": "70B", "gpus": 4, "vocab": 50_000 }),
        ),
        (
            "ingest",
            json!({ "tokens_total": "1T", "duration": "30d", "batch_size": "64MB" }),
        ),
        ("ingest", json!({ "workload": "unet3d-h100", "gpus": 3 })),
        (
            "ingest",
            json!({ "samples_per_second": "50k", "sample_size": "110kB", "batch": 256, "gpus": 4,
                           "shuffle_samples": "10k", "dataset_samples": "1M", "samples_per_shard": 7000 }),
        ),
        (
            "ingest",
            json!({ "batch": 32, "sample_size": "1MB", "step_time": "100ms", "load_time": "20ms",
                           "dataset_samples": "50M", "dataset_size": "10TB" }),
        ),
        (
            "ingest",
            json!({ "samples_per_second": 5, "sample_size": "1MB", "dataset_samples": 77,
                           "dataset_size": "10GB" }),
        ),
        (
            "storage",
            json!({ "read": "12.5GB/s", "write": "3GB/s", "clients": 7, "file_rate": "1GB/s",
                            "objects": "5M", "nvme_tcp": "100Gb/s", "capacity": "100TB" }),
        ),
        (
            "storage",
            json!({ "read": "1GB/s", "osts": 3, "clients": 7, "file_rate": "90GB/s", "nodes": 8,
                            "checkpoint_size": "980GB", "checkpoint_interval": "30min", "efficiency": "70%" }),
        ),
        (
            "network",
            json!({ "params": "7B", "compute_time": "1s", "overlap": "50%", "strategy": "moe" }),
        ),
        (
            "network",
            json!({ "preset": "405b", "rails": 16, "tensor_parallel": 16, "expert_parallel": 64 }),
        ),
        (
            "network",
            json!({ "params": "70B", "layers": 80, "microbatches": 1, "nic_rate": "25GB/s" }),
        ),
        (
            "network",
            json!({ "params": "70B", "hidden": 8192, "compute_time": "1ms", "overlap": 1 }),
        ),
    ]
}

fn clusters() -> Vec<(&'static str, Value)> {
    vec![
        ("fabric", json!({})),
        ("fabric", json!({ "endpoints": 40 })),
        ("fabric", json!({ "endpoints": 50_000, "oversubscription": 3 })),
        (
            "fabric",
            json!({ "endpoints": 1000, "topology": "rail", "radix": 63 }),
        ),
        ("fabric", json!({ "endpoints": 30_000, "topology": "rail" })),
        ("fabric", json!({ "endpoints": 100, "topology": "rail-only" })),
        (
            "fabric",
            json!({ "endpoints": 30_001, "topology": "rail-only", "oversubscription": 2 }),
        ),
        ("fabric", json!({ "endpoints": 300_000, "topology": "rail-only" })),
        ("fabric", json!({ "endpoints": 65_536, "topology": "dragonfly" })),
        ("fabric", json!({ "endpoints": 100, "topology": "dragonfly" })),
        ("burst", json!({ "paused_rate": "10Gb/s" })),
        ("retention", json!({ "size": "1TB", "duration": "30d" })),
        (
            "retention",
            json!({ "size": "1TB", "tiers": [{ "keep": 3, "copies": 1.5, "reduction": 2 }] }),
        ),
        (
            "cost",
            json!({ "gpus": 1024, "goodput": "90%", "pue": 1.3, "puts": "1M", "gets": "2M", "egress": "1TB",
                         "tiers": [{ "name": "a", "bytes": "1TB" }, { "name": "b", "bytes": "1PB" }] }),
        ),
        ("cost", json!({ "power": "5MW", "goodput": "80%" })),
        ("tracking", json!({ "checkpoints_kept": 3 })),
        ("failures", json!({ "events": 1000, "commit_delay": "5min" })),
        (
            "cluster",
            json!({ "params": "70B", "gpus": 1024, "tokens_per_gpu": "1k", "checkpoint": { "storage": "1TB/s" } }),
        ),
    ]
}

#[test]
fn every_formula_gives_its_value() {
    let mut requests = workloads();
    requests.extend(clusters());
    requests.extend(checkpoints().into_iter().map(|request| ("checkpoint", request)));
    for model in models() {
        assert!(
            requests.iter().any(|(name, _)| *name == model.name),
            "{}",
            model.name
        );
    }
    let mut checked = 0;
    for (model, request) in &requests {
        let report = ask(model, request);
        for figure in &report.figures {
            // In a cluster the name of the part stands before that of the figure.
            let (part, name) = match figure.name.split_once('.') {
                Some((part, name)) if *model == "cluster" => (part, name),
                _ => (*model, figure.name.as_str()),
            };
            let figure = Figure {
                name: name.to_owned(),
                ..figure.clone()
            };
            check(part, &figure);
            checked += 1;
        }
    }
    assert!(checked > 500, "{checked}");
}

#[test]
fn the_evaluator_knows_arithmetic() {
    let inputs = [("a", 3.0), ("b_c", 4.0), ("tier", 1.0), ("tier", 2.0)];
    for (formula, expected) in [
        ("a + b_c x 2", 11.0),
        ("(a + b_c) x 2: seven twice", 14.0),
        ("2^3^1 - -a", 11.0),
        ("a / b_c / 2; left first", 0.375),
        ("sqrt(a x 3) + exp(0) - abs(0 - 2)", 2.0),
        ("max(1, min(a, b_c), 2)", 3.0),
        ("ceil(2.1) + floor(2.9) + round(2.5)", 8.0),
        ("ceil(0.1 + 0.2 + 50.7)", 51.0),
        ("sum(tier) x 1e3", 3000.0),
        ("-a^2", -9.0),
    ] {
        let found = evaluate(formula, &inputs).unwrap();
        assert!((found - expected).abs() < 1e-9, "{formula}: {found}");
    }
    for formula in [
        "", "a +", "a b_c", "(a", "d", "a: b ^", "log(a)", "sum(d)", "tier", "1..2",
    ] {
        let found = evaluate(formula, &inputs);
        assert_eq!(found.is_ok(), formula == "a: b ^", "{formula}: {found:?}");
    }
}
