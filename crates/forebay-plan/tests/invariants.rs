//! What must hold between figures and between models, whatever the numbers.

use forebay_plan::{Report, run};
use proptest::prelude::*;
use serde_json::{Value, json};

#[track_caller]
fn ask(model: &str, request: &Value) -> Report {
    run(model, request).unwrap_or_else(|error| panic!("{model} {request}: {error}: {:?}", error.hint()))
}

#[track_caller]
fn get(report: &Report, figure: &str) -> f64 {
    report
        .value(figure)
        .unwrap_or_else(|| panic!("no {figure} in {report:?}"))
}

fn input(report: &Report, name: &str) -> f64 {
    let mut inputs = report.inputs.iter();
    inputs.find(|input| input.name == name).unwrap().value
}

/// The targets that are planned can take what saves were planned with.
#[test]
fn storage_takes_the_rate_that_saves_were_planned_with() {
    let request = |mode: &str| {
        json!({
            "params": "70B", "gpus": 1024, "checkpoint": { "storage": "100GB/s", "mode": mode },
            "storage": { "efficiency": "70%" },
        })
    };
    let report = ask("cluster", &request("sync"));
    let targets = get(&report, "storage.osts_needed");
    assert!(targets * 4e9 * 0.7 >= 100e9, "{targets}");
    assert!((get(&report, "checkpoint.write_needed") - 100e9).abs() < 1.0);
    // In the background a save has until the next one.
    let report = ask("cluster", &request("async"));
    let write = input(&report, "storage.write");
    assert!((write - get(&report, "checkpoint.drain_needed")).abs() < 1e-6);
    assert!(write <= 100e9 * (1.0 + 1e-9));
}

/// What is known of the stall alone says nothing about the storage, so a save may drain until the next.
#[test]
fn a_stall_alone_asks_for_the_rate_of_a_drain() {
    let request = json!({ "size": "2TB", "stall": "1s", "interval": "10s" });
    let report = ask("checkpoint", &request);
    assert_eq!(report.value("write_needed"), report.value("drain_needed"));
}

#[test]
fn retention_counts_as_many_saves_as_are_written() {
    let request = json!({
        "gpus": 1024,
        "checkpoint": { "size": "50TB", "storage": "20GB/s", "interval": "1h" },
        "retention": { "duration": "1d" },
        "storage": { "nodes": 128 },
    });
    let report = ask("cluster", &request);
    let per_day = get(&report, "checkpoint.saves_per_day");
    assert!((get(&report, "retention.saves") - per_day).abs() < 1e-9);
    // 3600 s of training and 2500 s of saving.
    assert!((get(&report, "checkpoint.period") - 6100.0).abs() < 1e-9);
    let written = get(&report, "storage.drive_writes_per_day") * 128.0 * 8.0 * 3.84e12;
    assert!((written / get(&report, "checkpoint.bytes_per_day") - 1.0).abs() < 1e-9);
}

#[test]
fn drives_hold_what_is_kept_and_write_what_is_written() {
    let request = json!({ "gpus": 64, "params": "70B", "checkpoint": { "storage": "30GB/s" } });
    let report = ask("cluster", &request);
    let drives = get(&report, "storage.drives_needed");
    assert!(drives * 3.84e12 >= get(&report, "retention.kept"));
    assert!(drives * 3e9 >= 30e9);
}

#[test]
fn one_replica_is_not_every_rank() {
    let request = |zero: u32| {
        json!({ "params": "7B", "gpus": 64, "zero": zero, "storage": "1TB/s", "node_write": "10GB/s",
                "bounce_rate": "1TB/s", "gpu_memory": "1TB" })
    };
    let report = ask("checkpoint", &request(0));
    assert!((get(&report, "node_bytes") - 98e9).abs() < 1.0);
    assert!((get(&report, "save_time") - 9.8).abs() < 1e-9);
    // The weights of one replica, and 8 of 64 shards of the optimizer.
    let report = ask("checkpoint", &request(1));
    assert!((get(&report, "node_bytes") - (14e9 + 84e9 / 8.0)).abs() < 1.0);
}

/// Stage 1 splits the optimizer only, stage 2 the gradients too.
#[test]
fn gradients_are_split_from_stage_2_on() {
    let rank = |zero: u32| {
        let request =
            json!({ "params": "7B", "gpus": 64, "zero": zero, "gradients": "bf16", "storage": "1TB/s" });
        get(&ask("checkpoint", &request), "rank_bytes")
    };
    assert!((rank(1) - (28e9 + 84e9 / 64.0)).abs() < 1.0);
    assert!((rank(2) - (14e9 + 98e9 / 64.0)).abs() < 1.0);
}

/// A save that is on its way when a failure comes is lost.
#[test]
fn a_slow_drain_costs_work() {
    let request =
        |storage: &str| json!({ "params": "405B", "gpus": 16_384, "mode": "async", "storage": storage });
    let goodput = |storage: &str| get(&ask("checkpoint", &request(storage)), "goodput");
    // 1 hour to drain, and 19 minutes.
    assert!((goodput("1.575GB/s") - 0.581).abs() < 1e-3);
    assert!((goodput("5GB/s") - 0.813).abs() < 1e-3);
    let report = ask("checkpoint", &request("5GB/s"));
    let text = report.explain("commit_delay").unwrap();
    assert!(text.contains("once storage has it"), "{text}");
}

#[test]
fn the_place_of_a_restart_is_named() {
    let tiers = json!([{ "name": "NVMe", "write": "1TB/s" }, { "name": "Lustre", "write": "50GB/s" }]);
    let delay = |more: Value| {
        let mut request = json!({ "size": "10TB", "gpus": 1024, "mode": "async", "tiers": tiers });
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        get(&ask("checkpoint", &request), "commit_delay")
    };
    assert!((delay(json!({})) - 210.0).abs() < 1e-9);
    assert!((delay(json!({ "restart_from": "nvme" })) - 10.0).abs() < 1e-9);
    // Tiers stand behind the storage.
    assert!((delay(json!({ "storage": "100GB/s" })) - 100.0).abs() < 1e-9);
    let request = json!({ "size": "10TB", "mode": "async", "tiers": tiers, "restart_from": "tape" });
    let error = run("checkpoint", &request).unwrap_err();
    assert!(error.hint().unwrap().contains("nvme, lustre"), "{error:?}");
}

fn async_request() -> impl Strategy<Value = Value> {
    let numbers = (
        1e9..1e13f64,
        1.0..4096.0f64,
        1e8..1e13f64,
        1e9..1e12f64,
        600.0..1e6f64,
    );
    numbers.prop_map(|(size, gpus, storage, host_copy, mtbf)| {
        json!({
            "size": size, "gpus": gpus.round(), "storage": storage, "host_copy": host_copy, "mtbf": mtbf, "mode": "async",
        })
    })
}

proptest! {
    #[test]
    fn a_node_never_writes_more_than_there_is(
        zero in 0u32..4, tensor in 0u32..5, pipeline in 0u32..5, data in 0u32..7, node in 1u32..33,
    ) {
        let (tensor, pipeline) = (1u32 << tensor, 1u32 << pipeline);
        let gpus = (tensor * pipeline) << data;
        let request = json!({
            "params": "7B", "gpus": gpus, "tensor_parallel": tensor, "pipeline_parallel": pipeline, "zero": zero,
            "gpus_per_node": node, "gradients": "bf16", "storage": "1TB/s",
        });
        let report = ask("checkpoint", &request);
        let [size, node_bytes, rank] = ["size", "node_bytes", "rank_bytes"].map(|name| get(&report, name));
        prop_assert!(node_bytes <= size * (1.0 + 1e-9) && rank <= node_bytes * (1.0 + 1e-9), "{report:?}");
        // All nodes together write everything: none can write less than its share.
        let nodes = (f64::from(gpus) / f64::from(node)).ceil();
        prop_assert!(node_bytes * nodes >= size * (1.0 - 1e-9));
    }

    /// No interval is shorter than the drain, neither the one that is used, nor the best, nor one that is drawn.
    #[test]
    fn saves_in_the_background_are_drained_until_the_next(request in async_request()) {
        let report = ask("checkpoint", &request);
        let drain = get(&report, "save_time");
        let least = drain * (1.0 - 1e-9);
        prop_assert!(get(&report, "interval_used") >= least);
        prop_assert!(get(&report, "interval_exact") >= least);
        let series = &report.series[0];
        prop_assert!(series.points.iter().all(|[x, _]| *x >= least), "{series:?}");
        let best = series.points.iter().map(|[_, y]| *y).fold(0.0, f64::max);
        prop_assert!(best >= get(&report, "goodput") * (1.0 - 1e-9));
        let storage = request["storage"].as_f64().unwrap();
        prop_assert!(get(&report, "drain_needed") <= storage * (1.0 + 1e-9), "{report:?}");
        let stretched = drain > get(&report, "interval_daly");
        let warned = report.warnings.iter().any(|warning| warning.about == "interval_used");
        prop_assert_eq!(stretched, warned);
    }
}
