//! Whatever a model is told, it answers with a report of finite numbers or with an error that says what would be right.

use std::collections::BTreeMap;

use forebay_core::ErrorKind;
use forebay_plan::quantity::Unit;
use forebay_plan::{
    Field, Kind, Report, Scenario, SweepRequest, expand, models, parse_json, parse_toml, run, side_by_side,
    sweep,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

/// The message and the hint of a refusal.
#[track_caller]
fn refused(model: &str, request: &Value) -> String {
    let error = run(model, request).expect_err("accepted");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let hint = error.hint().unwrap_or_else(|| panic!("no hint: {error}"));
    format!("{} | {hint}", error.message())
}

/// Each request is refused with these words.
#[track_caller]
fn all_refused<const N: usize>(requests: [(&str, Value, &str); N]) {
    for (model, request, words) in requests {
        let said = refused(model, &request);
        assert!(said.contains(words), "{model} {request}: {said}");
    }
}

#[test]
fn checkpoint_refuses_zero_negative_absurd_missing_and_unknown_in_words() {
    all_refused([
        ("checkpoint", json!({}), "give params"),
        ("checkpoint", json!({ "params": "70B" }), "give storage"),
        (
            "checkpoint",
            json!({ "params": 0, "storage": "1TB/s" }),
            "params is 0",
        ),
        ("checkpoint", json!({ "params": -1 }), "negative"),
        ("checkpoint", json!({ "params": 1e30 }), "beyond anything"),
        (
            "checkpoint",
            json!({ "params": "70B", "storage": "0GB/s" }),
            "storage is 0",
        ),
        (
            "checkpoint",
            json!({ "params": "70 parsecs" }),
            "params of checkpoint",
        ),
        (
            "checkpoint",
            json!({ "params": "70B", "storage": "1TB" }),
            "a data rate ends in /s",
        ),
        ("checkpoint", json!({ "param": "70B" }), "did you mean params?"),
        (
            "checkpoint",
            json!({ "params": "70B", "mode": "later" }),
            "mode is written as one of sync, async",
        ),
        (
            "checkpoint",
            json!({ "params": "70B", "gpus": 1.5, "storage": "1TB/s" }),
            "not a whole number",
        ),
        (
            "checkpoint",
            json!({ "params": "70B", "gpus": 10, "tensor_parallel": 4, "storage": "1TB/s" }),
            "divisor",
        ),
        (
            "checkpoint",
            json!({ "params": "70B", "zero": 4, "storage": "1TB/s" }),
            "0, 1, 2 or 3",
        ),
        ("checkpoint", json!({ "layers": 4 }), "hidden is missing"),
        (
            "checkpoint",
            json!({ "params": "70B", "mode": "async" }),
            "nowhere to go",
        ),
        (
            "checkpoint",
            json!({ "params": "7B", "weights": "none", "master": "none", "moments": "none" }),
            "no part",
        ),
    ]);
}

#[test]
fn other_models_refuse_in_words_too() {
    all_refused([
        ("ingest", json!({}), "give tokens_per_gpu"),
        ("ingest", json!({ "gpus": 0 }), "gpus is 0"),
        ("network", json!({}), "give params"),
        (
            "network",
            json!({ "params": "7B", "efficiency": 2 }),
            "more than all",
        ),
        ("fabric", json!({ "radix": 1 }), "joins nothing"),
        ("fabric", json!({ "endpoints": "1M" }), "more ports"),
        ("fabric", json!({ "oversubscription": 0.5 }), "below 1"),
        ("burst", json!({ "senders": 1 }), "2 senders"),
        ("retention", json!({}), "give the size"),
        (
            "retention",
            json!({ "size": "1TB", "tiers": [{ "name": "hot" }] }),
            "either keep or window",
        ),
        ("cost", json!({ "goodput": 1.5 }), "more than all"),
        ("cost", json!({ "pue": 0.5 }), "less than its machines"),
        ("storage", json!({ "nodes": 8 }), "give checkpoint_size"),
        ("failures", json!({ "events": 1e12 }), "minutes"),
        ("cluster", json!({}), "asks nothing"),
        (
            "cluster",
            json!({ "checkpoint": { "param": 1 } }),
            "did you mean params?",
        ),
        ("cluster", json!({ "checkpoint": 7 }), "table with the fields"),
        ("checkpoints", json!({}), "did you mean checkpoint?"),
        ("checkpoint", json!([]), "table of names"),
        ("checkpoint", json!(null), "table of names"),
    ]);
}

#[test]
fn a_save_slower_than_its_interval_is_refused_with_a_better_interval() {
    let request = json!({
        "size": "50TB", "gpus": 1024, "storage": "20GB/s", "interval": "10min", "interval_means": "period",
    });
    let said = refused("checkpoint", &request);
    assert!(
        said.contains("a save takes 41.67 min but is due every 10 min"),
        "{said}"
    );
    assert!(said.contains("save every"), "{said}");
    let request = json!({
        "size": "50TB", "gpus": 1024, "storage": "20GB/s", "interval": "10min", "mode": "async",
    });
    assert!(refused("checkpoint", &request).contains("due every"));
}

#[test]
fn storage_smaller_than_its_retention_is_refused_with_what_fits() {
    let tier = json!({ "name": "hot", "keep": 3, "capacity": "2.5TB" });
    let said = refused("retention", &json!({ "size": "1TB", "tiers": [tier] }));
    assert!(
        said.contains("keeps 3 saves, which is 3 TB, but has 2.5 TB"),
        "{said}"
    );
    assert!(said.contains("keep 2 saves"), "{said}");
    let tier = json!({ "name": "hot", "keep": 3, "capacity": "0.5TB" });
    let said = refused("retention", &json!({ "size": "1TB", "tiers": [tier] }));
    assert!(said.contains("not even one"), "{said}");
}

#[test]
fn text_that_is_no_toml_or_json_is_refused() {
    for text in ["gpus = ", "= 3", "[[["] {
        assert!(parse_toml(text).unwrap_err().hint().is_some());
    }
    for text in ["{", "gpus", "{\"gpus\": NaN}"] {
        assert!(parse_json(text).unwrap_err().hint().is_some());
    }
    for text in [
        "gpus = nan",
        "gpus = inf",
        "gpus = -inf",
        "gpus = 1979-05-27",
        "gpus = true",
        "gpus = [1]",
    ] {
        let request = parse_toml(text).unwrap();
        assert!(refused("checkpoint", &request).contains("gpus"), "{text}");
    }
}

#[test]
fn a_file_with_comments_holds_several_scenarios() {
    let file = parse_toml(
        r#"
        # A common base.
        gpus = 1024
        params = "70B"
        [checkpoint]
        storage = "100GB/s"
        [cost]
        gpu_price = "$2/h"
        [[scenario]]
        name = "today"
        [[scenario]]
        name = "faster"
        [scenario.checkpoint]
        storage = "1TB/s"
        "#,
    );
    let run = |(name, request): (String, Value)| Scenario {
        report: run("cluster", &request).unwrap(),
        name,
        request,
    };
    let runs: Vec<Scenario> = expand(&file.unwrap()).unwrap().into_iter().map(run).collect();
    let goodput = |index: usize| runs[index].report.value("checkpoint.goodput").unwrap();
    assert!(goodput(0) < goodput(1));
    let cost = runs[1].report.figure("cost.idle_cost_hour").unwrap();
    assert!((cost.value - 2048.0 * (1.0 - goodput(1))).abs() < 1e-6);
    for name in [
        "storage.osts_needed",
        "retention.kept",
        "cost.tier_cost.hot",
        "network.fsdp_time",
        "fabric.switches",
    ] {
        assert!(runs[0].report.figure(name).is_some(), "{name}");
    }
    let table = side_by_side(&runs);
    assert_eq!(table.columns, ["figure", "today", "faster"]);
    assert!(table.to_markdown().contains("| checkpoint.goodput |"));
    for file in [json!({ "scenario": [] }), json!({ "scenario": 3 }), json!(3)] {
        assert!(expand(&file).unwrap_err().hint().is_some());
    }
}

#[test]
fn every_figure_explains_itself_and_names_are_unique() {
    for request in [
        (
            "checkpoint",
            json!({ "params": "405B", "gpus": 16_384, "storage": "1TB/s", "power": "20MW" }),
        ),
        (
            "cluster",
            json!({ "params": "70B", "gpus": 1024, "checkpoint": { "storage": "1TB/s" } }),
        ),
        (
            "ingest",
            json!({ "tokens_per_gpu": "10k", "dataset_size": "1TB" }),
        ),
    ] {
        let report = run(request.0, &request.1).unwrap();
        let mut names: Vec<&str> = report.figures.iter().map(|figure| figure.name.as_str()).collect();
        for name in &names {
            let text = report.explain(name).unwrap();
            assert!(text.contains("formula") && text.contains("source"), "{text}");
        }
        assert!(report.explain("godput").unwrap_err().hint().is_some());
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
        assert_eq!(report.table().rows.len(), count);
    }
}

#[test]
fn the_report_says_what_was_given_and_what_is_a_default() {
    let report = run("checkpoint", &json!({ "params": "7B", "storage": "1TB/s" })).unwrap();
    let given = |name: &str| {
        report
            .inputs
            .iter()
            .find(|input| input.name == name)
            .unwrap()
            .is_given()
    };
    assert!(given("params") && !given("gpus"));
    let json = serde_json::to_value(&report).unwrap();
    let size = json["figures"]
        .as_array()
        .unwrap()
        .iter()
        .find(|figure| figure["name"] == "size");
    let size = size.unwrap();
    assert_eq!(
        (&size["value"], &size["text"], &size["also"], &size["unit"]),
        (&json!(98e9), &json!("98 GB"), &json!("91.27 GiB"), &json!("B"))
    );
}

/// Defaults are written unchecked in the source.
#[test]
fn every_default_is_a_quantity_and_has_a_doc() {
    for model in models() {
        for field in (model.fields)() {
            assert!(!field.doc.is_empty(), "{}.{}", model.name, field.name);
            if let (Some(unit), Some(default)) = (field.unit(), &field.default) {
                assert!(
                    unit.parse(default).is_ok(),
                    "{}.{}: {default}",
                    model.name,
                    field.name
                );
            }
        }
    }
}

/// A report must hold finite numbers only, in every corner.
fn check(report: &Report) -> Result<(), TestCaseError> {
    for figure in &report.figures {
        prop_assert!(figure.value.is_finite() && figure.value >= 0.0, "{figure:?}");
        for input in &figure.inputs {
            prop_assert!(input.value.is_finite(), "{figure:?}");
        }
    }
    for series in &report.series {
        for point in &series.points {
            prop_assert!(point.iter().all(|value| value.is_finite()), "{series:?}");
        }
    }
    for reading in &report.readings {
        prop_assert!(reading.alternatives.iter().all(|answer| answer.value.is_finite()));
    }
    let text = serde_json::to_string(report).unwrap();
    // JSON has no NaN: serde writes null for it.
    prop_assert!(!text.contains("\"value\":null"));
    prop_assert!(!report.table().to_csv().contains("NaN"));
    Ok(())
}

fn answered(model: &str, request: &Value) -> Result<(), TestCaseError> {
    match run(model, request) {
        Ok(report) => check(&report),
        Err(error) => {
            prop_assert_eq!(error.kind(), ErrorKind::InvalidInput, "{} {}", model, request);
            prop_assert!(error.hint().is_some(), "{model} {request}: {error}");
            prop_assert!(!error.to_string().contains("NaN"), "{}", error);
            Ok(())
        }
    }
}

/// A list, table, text or flag that mostly fits the field.
fn structure_of(field: &Field) -> BoxedStrategy<Value> {
    let fitting = match field.kind {
        Kind::Text => vec![json!("some name"), json!("")],
        Kind::List(_) => vec![
            json!([]),
            json!([{ "name": "a" }]),
            json!([{ "name": "a", "write": "1GB/s" }, { "name": "a", "write": "1B/s" }]),
            json!([{ "name": "a", "keep": 3, "price": "$1/GB-month" }, { "window": "1d", "every": "5min" }]),
            json!([{ "keep": 1, "capacity": "1MB" }]),
            json!([{ "bytes": "1TB", "price": 1e24 }, { "bytes": 1e24, "price": 1e24 }]),
        ],
        _ => vec![
            json!({}),
            json!({ "gpus": 8 }),
            json!({ "params": "7B", "storage": "1TB/s" }),
            json!({ "write": "1GB/s", "read": "1MB/s" }),
        ],
    };
    prop_oneof![
        8 => proptest::sample::select(fitting),
        1 => Just(json!(3)),
        1 => Just(json!([[]])),
    ]
    .boxed()
}

/// A value that fits the field, or nearly.
fn value_of(field: &Field) -> BoxedStrategy<Value> {
    if let Kind::Choice(words) = &field.kind {
        return proptest::sample::select(words.clone())
            .prop_map(|word| json!(word))
            .boxed();
    }
    match field.unit() {
        None => structure_of(field),
        // Simulations of millions of events take their time; models in the middle of the range are interesting enough.
        Some(Unit::Count) if field.name == "events" => (0u32..5000).prop_map(|count| json!(count)).boxed(),
        Some(unit) => prop_oneof![
            6 => (-3i32..16, 1.0f64..10.0).prop_map(|(power, digit)| json!((digit * 10f64.powi(power)).round())),
            4 => (0u32..200).prop_map(|count| json!(count)),
            2 => (0.0f64..1.0).prop_map(|share| json!(share)),
            1 => any::<f64>().prop_map(|value| json!(value)),
            1 => Just(json!(unit.examples().split([',', ' ']).next().unwrap_or_default())),
            1 => Just(json!(0)),
            1 => Just(json!(5e-324)),
            1 => Just(json!(1e24)),
        ]
        .boxed(),
    }
}

/// Fields of a random request.
const FIELDS_MAX: usize = 6;

/// A request to a model with some of its fields.
fn request_of(fields: Vec<Field>) -> BoxedStrategy<Value> {
    // Few fields at a time: each may be refused, and most requests should get past that.
    let count = fields.len().min(FIELDS_MAX);
    proptest::sample::subsequence(fields, 0..=count)
        .prop_flat_map(|fields| {
            let values: Vec<_> = fields
                .iter()
                .map(|field| (Just(field.name.to_owned()), value_of(field)))
                .collect();
            values
        })
        .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<String, Value>>()))
        .boxed()
}

/// A request to any model; most need one or two fields to answer at all, which are filled in half of the time.
fn any_request() -> impl Strategy<Value = (&'static str, Value)> {
    let model = proptest::sample::select(models());
    model.prop_flat_map(|model| {
        let request = request_of((model.fields)());
        (Just(model.name), request, any::<bool>()).prop_map(|(name, mut request, fill)| {
            let needed = match name {
                "checkpoint" => json!({ "params": "70B", "storage": "1TB/s" }),
                "ingest" => json!({ "tokens_per_gpu": "10k" }),
                "network" => json!({ "params": "7B" }),
                "retention" => json!({ "size": "1TB" }),
                "cluster" => json!({ "gpus": 64, "params": "7B", "checkpoint": { "storage": "1TB/s" } }),
                _ => json!({}),
            };
            if name == "failures" && request.get("events").is_none() {
                request["events"] = json!(1000);
            }
            if let (true, Value::Object(request), Value::Object(needed)) = (fill, &mut request, needed) {
                request.extend(needed);
            }
            (name, request)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_request_is_answered_by_finite_numbers_or_a_hint((model, request) in any_request()) {
        answered(model, &request)?;
    }

    #[test]
    fn every_change_of_one_field_is_answered(
        (name, value) in proptest::sample::select(checkpoint_fields())
            .prop_flat_map(|field| (Just(field.name), value_of(&field))),
    ) {
        let mut request = json!({ "params": "70B", "storage": "1TB/s", "gpus": 64 });
        request[name] = value;
        answered("checkpoint", &request)?;
    }

    #[test]
    fn any_range_is_swept_or_refused(range in "[0-9a-zA-Z./:, ]{0,24}") {
        let request = json!({ "params": "70B", "storage": "1TB/s" });
        let asked = SweepRequest {
            model: "checkpoint",
            request: &request,
            field: "interval",
            range: &range,
            figures: &[],
            is_rest_kept: true,
        };
        match sweep(&asked, &|| true, &|_| {}) {
            Ok(sweep) => prop_assert!(!sweep.values.is_empty()),
            Err(error) => prop_assert!(error.hint().is_some()),
        }
    }
}

/// The properties above say little when models refuse nearly everything they are asked.
#[test]
fn random_requests_get_past_the_first_refusal() {
    let mut runner = TestRunner::deterministic();
    let requests = any_request();
    let mut accepted: BTreeMap<&str, u32> = models().iter().map(|model| (model.name, 0)).collect();
    for _ in 0..4000 {
        let (model, request) = requests.new_tree(&mut runner).unwrap().current();
        let count = u32::from(run(model, &request).is_ok());
        accepted.entry(model).and_modify(|sum| *sum += count);
    }
    // About 360 requests for each model.
    assert!(accepted.values().all(|count| *count >= 30), "{accepted:?}");
}

fn checkpoint_fields() -> Vec<Field> {
    let model = models().iter().find(|model| model.name == "checkpoint");
    (model.expect("there is one").fields)()
}
