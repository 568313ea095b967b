//! Inputs that contradict each other are refused or used with a warning that says which; never silently.

use forebay_plan::{Report, run};
use serde_json::{Value, json};

#[track_caller]
fn ask(model: &str, request: &Value) -> Report {
    run(model, request).unwrap_or_else(|error| panic!("{model} {request}: {error}: {:?}", error.hint()))
}

/// The request is answered with a warning about that, in these words.
#[track_caller]
fn warned(model: &str, request: &Value, about: &str, words: &str) {
    let report = ask(model, request);
    let found = report
        .warnings
        .iter()
        .any(|warning| warning.about == about && warning.message.contains(words));
    assert!(found, "{model} {request}: {:?}", report.warnings);
}

#[track_caller]
fn refused(model: &str, request: &Value, words: &str) -> String {
    let error = run(model, request).expect_err("accepted");
    let said = format!("{} | {}", error.message(), error.hint().unwrap_or_default());
    assert!(said.contains(words), "{said}");
    said
}

/// A request for a checkpoint with more fields.
fn checkpoint(more: Value) -> Value {
    let mut request = json!({ "storage": "1TB/s", "gpus": 1024 });
    let Value::Object(more) = more else {
        panic!("{more} is no table")
    };
    request.as_object_mut().unwrap().extend(more);
    request
}

#[test]
fn a_model_that_is_described_twice() {
    for (more, about, words) in [
        (
            json!({ "params": "70B", "preset": "405b" }),
            "params",
            "params are used",
        ),
        (
            json!({ "preset": "405b", "layers": 3 }),
            "preset",
            "what layers would say",
        ),
        (
            json!({ "preset": "405b", "vocab": 3 }),
            "preset",
            "what vocab would say",
        ),
        (
            json!({ "params": "7B", "hidden": 4096, "heads": 32 }),
            "layers",
            "hidden, heads is left aside",
        ),
        (
            json!({ "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 8, "ffn": 256 }),
            "kv_heads",
            "at most as many",
        ),
        (
            json!({ "params": "7B", "layers": 2, "hidden": 64, "heads": 4, "ffn": 256 }),
            "params",
            "the architecture has its own",
        ),
    ] {
        warned("checkpoint", &checkpoint(more), about, words);
    }
    let none = checkpoint(json!({ "layers": 2, "hidden": 64, "heads": 128, "ffn": 256 }));
    refused("checkpoint", &none, "128 heads share a width of 64");
    for quiet in [json!({ "params": "7B" }), json!({ "preset": "405b" })] {
        assert_eq!(ask("checkpoint", &checkpoint(quiet)).warnings, []);
    }
}

#[test]
fn fields_that_change_nothing() {
    for (more, about, words) in [
        (
            json!({ "mtbf": "1h", "failures": "opt175b" }),
            "mtbf",
            "failures is left aside",
        ),
        (
            json!({ "mtbf": "1h", "failures": "rsc1", "gpu_hours_per_failure": 7 }),
            "mtbf",
            "mtbf is used, gpu_hours_per_failure and failures",
        ),
        (
            json!({ "gpu_hours_per_failure": 7, "failures": "rsc1" }),
            "mtbf",
            "gpu_hours_per_failure is used",
        ),
        (
            json!({ "tiers": [{ "name": "a", "write": "1GB/s" }] }),
            "tiers",
            "asynchronous",
        ),
        (json!({ "restart_from": "a" }), "restart_from", "asynchronous"),
        (json!({ "load_replicas": 8 }), "load_replicas", "storage_read"),
        (
            json!({ "stall": "1h" }),
            "stall",
            "a stall of 1 h is given and used",
        ),
    ] {
        let mut more = more;
        more["params"] = json!("7B");
        warned("checkpoint", &checkpoint(more), about, words);
    }
}

#[test]
fn reading_that_is_described_twice() {
    for (request, about, words) in [
        (
            json!({ "tokens_per_gpu": "1k", "samples_per_second": 100, "sample_size": "1MB" }),
            "read_rate",
            "tokens_per_gpu is used, samples_per_second is left aside",
        ),
        (
            json!({ "workload": "unet3d-h100", "samples_per_second": 100 }),
            "read_rate",
            "workload is used, samples_per_second",
        ),
        (
            json!({ "tokens_per_gpu": "1k", "tokens_total": "1T", "duration": "30d" }),
            "read_rate",
            "tokens_total over duration is left aside",
        ),
        (
            json!({ "workload": "unet3d-h100", "sample_size": "1MB" }),
            "workload",
            "its own",
        ),
        (
            json!({ "samples_per_second": 100, "sample_size": "1MB", "batch": 4, "step_time": "1s" }),
            "read_rate",
            "batch, sample_size and step_time is left aside",
        ),
    ] {
        warned("ingest", &request, about, words);
    }
    let request = json!({ "tokens_per_gpu": "1k", "load_time": "200ms", "step_time": "100ms" });
    refused("ingest", &request, "cannot wait 200 ms");
    let request = json!({ "samples_per_second": 100, "sample_size": 0 });
    refused("ingest", &request, "sample_size is 0");
    // A number of tokens beside their rate is the size of the data set.
    let request = json!({ "tokens_per_gpu": "1k", "tokens_total": "1T" });
    assert_eq!(ask("ingest", &request).warnings, []);
}

#[test]
fn a_table_of_a_model_wins_over_shared_values() {
    let request = json!({
        "gpus": 1024, "params": "70B", "checkpoint": { "preset": "405b", "storage": "1TB/s" },
    });
    let report = ask("cluster", &request);
    assert!((report.value("checkpoint.params").unwrap() - 405.85e9).abs() < 1e8);
    assert!((report.value("network.model_bytes").unwrap() - 811.7e9).abs() < 1e8);
    let [warning] = &report.warnings[..] else {
        panic!("{:?}", report.warnings)
    };
    assert_eq!(warning.about, "params");
    assert!(warning.message.contains("the table is used"), "{warning:?}");
    let request = json!({ "gpus": 8, "tokens_per_gpu": "1k", "ingest": { "workload": "unet3d-h100" } });
    let report = ask("cluster", &request);
    assert!(report.value("ingest.read_rate").unwrap() > 25e9);
    assert_eq!(report.warnings, []);
}

#[test]
fn a_preset_is_enough_for_the_network() {
    let request = json!({ "gpus": 1024, "checkpoint": { "preset": "405b", "storage": "1TB/s" } });
    let report = ask("cluster", &request);
    // 8192 tokens of a width of 16384 in 2 bytes.
    assert!((report.value("network.activation_bytes").unwrap() - 8192.0 * 16_384.0 * 2.0).abs() < 1.0);
    assert_eq!(report.warnings, []);
}

#[test]
fn a_shape_of_another_model() {
    let request = json!({ "params": "405B", "layers": 32, "hidden": 4096 });
    warned(
        "network",
        &request,
        "activation_bytes",
        "hold about 6.442 B parameters, but 405 B",
    );
    let request = json!({ "params": "405B", "layers": 32, "hidden": 4096, "strategy": "moe" });
    assert_eq!(ask("network", &request).warnings, []);
    // Without a shape, one that fits is assumed: 127 layers, where the model has 126.
    let report = ask("network", &json!({ "params": "405B" }));
    assert_eq!(report.value("layers"), Some(127.0));
    assert_eq!(report.value("hidden"), Some(16_256.0));
    for preset in ["8b", "70b", "405b", "1t"] {
        assert_eq!(ask("network", &json!({ "preset": preset })).warnings, []);
    }
}

#[test]
fn micro_batches_gather_weights_again() {
    let bytes = |micro: u32| {
        let request = json!({ "params": "7B", "ranks": "1M", "microbatches": micro });
        ask("network", &request).value("fsdp_bytes").unwrap()
    };
    assert!((bytes(8) / bytes(1) - 8.0).abs() < 1e-9);
    let report = ask("network", &json!({ "params": "7B", "microbatches": 8 }));
    let [reading] = &report.readings[..] else {
        panic!("{:?}", report.readings)
    };
    let [each, once] = &reading.alternatives[..] else {
        panic!("{reading:?}")
    };
    assert!(each.used && (each.value / once.value - 8.0).abs() < 1e-9);
}

#[test]
fn rails_of_the_node_are_shared_by_its_ranks() {
    let times = |rails: u32| {
        let request = json!({ "params": "7B", "rails": rails, "expert_parallel": 64 });
        let report = ask("network", &request);
        ["dp_time", "moe_time", "pp_time"].map(|name| report.value(name).unwrap())
    };
    let (one, eight) = (times(1), times(8));
    assert!((one[0] / eight[0] - 8.0).abs() < 1e-9);
    assert_eq!(one[1..], eight[1..]);
    let request = json!({ "params": "7B", "rails": 16 });
    warned("network", &request, "rails", "16 rails for nodes of 8 GPUs");
}

#[test]
fn networks_that_are_not_full() {
    let counts = |request: Value| {
        let report = ask("fabric", &request);
        ["leaves", "uplinks", "spines"].map(|name| report.value(name).unwrap() as u64)
    };
    // A node of 8 adapters, one on each rail.
    assert_eq!(counts(json!({ "endpoints": 8, "topology": "rail" })), [8, 8, 1]);
    warned(
        "fabric",
        &json!({ "endpoints": 8, "topology": "rail" }),
        "leaves",
        "one switch with 64 ports",
    );
    // 100 nodes: 4 leaves of each rail, the last with 4 adapters.
    assert_eq!(
        counts(json!({ "endpoints": 800, "topology": "rail" })),
        [32, 800, 13]
    );
    assert_eq!(counts(json!({ "endpoints": 70 })), [3, 70, 2]);
}

#[test]
fn oversubscription_is_honoured_or_refused() {
    let rail = |over: u32| {
        let request = json!({ "endpoints": 8192, "topology": "rail-only", "oversubscription": over });
        ask("fabric", &request)
    };
    assert!(rail(3).value("spines") < rail(1).value("spines"));
    assert_eq!(rail(3).value("oversubscription_real"), Some(3.0));
    let request = json!({ "topology": "dragonfly", "oversubscription": 2 });
    refused("fabric", &request, "leave oversubscription at 1");
}

#[test]
fn bisection_of_a_dragonfly_counts_links() {
    let rate = |endpoints: u32, radix: u32, link: &str| {
        let request =
            json!({ "topology": "dragonfly", "endpoints": endpoints, "radix": radix, "link": link });
        ask("fabric", &request).value("bisection").unwrap()
    };
    assert!((rate(72, 7, "1GB/s") - 20e9).abs() < 1.0);
    assert!((rate(65_536, 64, "50GB/s") / 826e12 - 1.0).abs() < 1e-3);
    // Few adapters cannot send more than they have.
    assert!((rate(8, 7, "1GB/s") - 4e9).abs() < 1.0);
}

/// The tool takes its own advice.
#[test]
fn advised_intervals_are_accepted() {
    for request in [
        json!({ "size": "50TB", "gpus": 1024, "storage": "20GB/s", "interval": "10min", "mode": "async" }),
        json!({ "size": "50TB", "gpus": 1024, "storage": "20GB/s", "interval": "10min", "interval_means": "period" }),
        json!({ "size": "50TB", "gpus": 1024, "storage": "1GB/s", "interval": "1h", "mode": "async",
                "interval_means": "period", "host_copy": "1MB/s" }),
        json!({ "size": "50TB", "gpus": 1024, "storage": "20GB/s", "interval": "10min", "interval_means": "period",
                "interval_rule": "exact" }),
    ] {
        let said = refused("checkpoint", &request, "save every");
        let (_, hint) = said.split_once("save every ").unwrap();
        let advised: Vec<&str> = hint.split([' ', ',']).take(2).collect();
        let mut better = request.clone();
        better["interval"] = json!(advised.concat());
        ask("checkpoint", &better);
    }
}

/// Saves that take longer than the training between them are slow, not impossible; the rule itself may ask for them.
#[test]
fn short_intervals_between_long_saves() {
    let request = json!({ "size": "50TB", "gpus": 1024, "storage": "20GB/s", "interval": "10min" });
    warned(
        "checkpoint",
        &request,
        "interval_used",
        "a save takes 41.67 min, longer than the 10 min",
    );
    let by_rule = json!({ "size": "10TB", "gpus": 1024, "stall": "3h", "mtbf": "2h" });
    let report = ask("checkpoint", &by_rule);
    let mut given = by_rule;
    given["interval"] = json!(report.value("interval_used").unwrap());
    let again = ask("checkpoint", &given);
    assert_eq!(again.value("goodput"), report.value("goodput"));
}

#[test]
fn published_rates_of_failure_are_named_as_readings() {
    let request = checkpoint(json!({ "params": "70B" }));
    let report = ask("checkpoint", &request);
    let reading = report
        .readings
        .iter()
        .find(|reading| reading.about == "mtbf")
        .unwrap();
    let hours: Vec<u64> = reading
        .alternatives
        .iter()
        .map(|answer| (answer.value / 360.0) as u64)
        .collect();
    assert_eq!(hours, [494, 488, 288, 73]);
    assert!(reading.alternatives[0].used);
    // A known mean time has one answer.
    let request = checkpoint(json!({ "params": "70B", "mtbf": "12h" }));
    assert!(ask("checkpoint", &request).readings.is_empty());
}

#[test]
fn requests_cost_when_they_are_counted() {
    let report = ask("cost", &json!({ "gpus": 8 }));
    assert!(report.figure("put_cost").is_none() && report.figure("get_cost").is_none());
    let report = ask("cost", &json!({ "gpus": 8, "puts": "1M" }));
    assert_eq!(report.value("put_cost"), Some(5.0));
    assert_eq!(report.value("storage_cost"), Some(5.0));
}
