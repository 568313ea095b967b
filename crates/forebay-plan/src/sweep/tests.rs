//! Tests of sweeps.

use std::cell::Cell;

use serde_json::json;

use super::*;

fn swept(model: &str, request: &Value, field: &str, range: &str, figures: &[&str]) -> Result<Sweep> {
    let figures: Vec<String> = figures.iter().map(|name| (*name).to_owned()).collect();
    let asked = SweepRequest {
        model,
        request,
        field,
        range,
        figures: &figures,
        is_rest_kept: figures.is_empty(),
    };
    sweep(&asked, &|| true, &|_| {})
}

#[test]
fn ranges_and_lists_give_points() {
    let request = json!({ "size": "50TB", "gpus": 1024 });
    let found = swept("checkpoint", &request, "storage", "100GB/s..1TB/s:4", &[]).unwrap();
    let texts: Vec<&str> = found.values.iter().map(|value| value.text.as_str()).collect();
    assert_eq!(texts, ["100 GB/s", "215.4 GB/s", "464.2 GB/s", "1 TB/s"]);
    let curve = found.series("goodput").unwrap();
    assert_eq!(curve.points.len(), 4);
    assert!(curve.points.windows(2).all(|pair| pair[0][1] < pair[1][1]));
    let is_changing = |name: &str| found.figure(name).unwrap().is_changing(&found);
    assert!(is_changing("goodput") && !is_changing("rank_bytes"));
    assert_eq!(found.only(&["goodput".to_owned()]).table().rows[0].len(), 3);
    let request = json!({ "size": "50TB", "storage": "1TB/s" });
    let found = swept("checkpoint", &request, "mode", "sync,async", &[]).unwrap();
    assert_eq!(found.values.len(), 2);
}

#[test]
fn only_what_was_asked_for_is_kept() {
    let request = json!({ "size": "50TB", "gpus": 1024, "storage": "1TB/s" });
    let found = swept(
        "checkpoint",
        &request,
        "stall",
        "1min,2min",
        &["stall", "goodput"],
    )
    .unwrap();
    let names: Vec<&str> = found.figures.iter().map(|figure| figure.name.as_str()).collect();
    // What is given is found as well.
    assert_eq!(names, ["stall", "goodput"]);
    assert_eq!(found.figures[0].values, [Some(60.0), Some(120.0)]);
    let error = swept("checkpoint", &request, "stall", "1min,2min", &["nonsense"]).unwrap_err();
    assert!(error.message().contains("no figure 'nonsense'"), "{error}");
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["figures"][0]["texts"], json!(["1 min", "2 min"]));
    assert_eq!(json["values"][0], json!({ "value": 60.0, "text": "1 min" }));
    assert_eq!(json["unit"], "s");
}

#[test]
fn an_impossible_corner_keeps_its_reason() {
    let request = json!({ "size": "50TB", "gpus": 1024, "storage": "200GB/s" });
    let found = swept("checkpoint", &request, "gpus", "1.5, 1024", &[]).unwrap();
    assert_eq!(found.refusals.len(), 1);
    assert!(found.refusals[0].index == 0 && found.refusals[0].reason.contains("not a whole number"));
    let goodput = found.figure("goodput").unwrap();
    assert!(goodput.values[0].is_none() && goodput.values[1].is_some());
    // What is refused is no change.
    assert!(!goodput.is_changing(&found));
    let error = swept("checkpoint", &request, "gpus", "0,1.5", &[]).unwrap_err();
    assert!(
        error
            .message()
            .contains("no value of gpus can be computed: gpus is 0"),
        "{error}"
    );
}

#[test]
fn warnings_are_counted_and_readings_told_once() {
    let request = json!({ "size": "2TB", "tokens_per_gpu": "100k" });
    let found = swept("checkpoint", &request, "storage", "100GB/s..1TB/s:5", &[]).unwrap();
    let about: Vec<(&str, usize)> = found
        .warnings
        .iter()
        .map(|warning| (warning.warning.about.as_str(), warning.count))
        .collect();
    assert!(about.contains(&("params_of_tokens", 5)), "{about:?}");
    let found = swept("storage", &json!({}), "read", "100GB/s..1TB/s:5", &[]).unwrap();
    let readings: Vec<&str> = found
        .readings
        .iter()
        .map(|reading| reading.reading.about.as_str())
        .collect();
    assert_eq!(readings, ["read_in_flight"]);
    assert_eq!(found.readings[0].at, "100 GB/s");
}

#[test]
fn bad_ranges_are_refused() {
    let request = json!({});
    for (field, range) in [
        ("storage", "1TB/s..1GB/s:3"),
        ("storage", "0..1GB/s:3"),
        ("storage", "1GB/s..2GB/s:1"),
        ("storage", "1GB/s..2GB/s:x"),
        ("storage", "1GB/s..2GB/s:1001"),
        ("storage", ""),
        ("colour", "1..2"),
        ("mode", ""),
        ("tiers", "a,b"),
        ("calibration", "a,b"),
    ] {
        let error = swept("checkpoint", &request, field, range, &[]).unwrap_err();
        assert!(error.hint().is_some(), "{field}={range}");
    }
    let many = vec!["1s"; SWEEP_POINTS_MAX + 1].join(",");
    let error = swept("checkpoint", &request, "interval", &many, &[]).unwrap_err();
    assert!(error.message().contains("1001 values"), "{error}");
}

#[test]
fn a_field_of_a_part_is_swept_in_the_cluster_model() {
    let request = json!({ "gpus": 1024, "params": "70B", "checkpoint": { "storage": "100GB/s" } });
    let figures = ["checkpoint.goodput"];
    let found = swept(
        "cluster",
        &request,
        "checkpoint.storage",
        "10GB/s,1TB/s",
        &figures,
    )
    .unwrap();
    let goodput = &found.figures[0].values;
    assert!(goodput[0] < goodput[1]);
    // A table is not made where a value stands.
    let request = json!({ "checkpoint": 7 });
    assert!(
        swept(
            "cluster",
            &request,
            "checkpoint.storage",
            "10GB/s,1TB/s",
            &figures
        )
        .is_err()
    );
}

#[test]
fn long_simulations_are_refused_before_they_start() {
    let over = json!({ "events": 20_000_000 });
    for (model, request, field, range) in [
        ("failures", over.clone(), "stall", "1s..1min:11"),
        ("failures", json!({}), "events", "1M..20M:100"),
        (
            "cluster",
            json!({ "failures": over }),
            "failures.stall",
            "1s..1min:11",
        ),
    ] {
        let error = swept(model, &request, field, range, &[]).unwrap_err();
        assert!(error.message().contains("would take minutes"), "{error}");
    }
    let request = json!({ "events": 1000 });
    assert!(swept("failures", &request, "stall", "1s..1min:1000", &["goodput"]).is_ok());
    assert!(SWEEP_EVENTS_MAX >= SWEEP_POINTS_MAX as f64 * failures::Request::default().events.get());
}

#[test]
fn a_sweep_stops_when_it_is_told() {
    let request = json!({ "size": "50TB" });
    let asked = SweepRequest {
        model: "checkpoint",
        request: &request,
        field: "storage",
        range: "1TB/s..2TB/s:1000",
        figures: &[],
        is_rest_kept: true,
    };
    let made = Cell::new(0);
    let error = sweep(&asked, &|| made.get() < 3, &|_| made.set(made.get() + 1)).unwrap_err();
    assert_eq!((error.kind(), made.get()), (ErrorKind::Cancelled, 3));
}
