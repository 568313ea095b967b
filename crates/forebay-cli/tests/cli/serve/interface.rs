//! The JSON interface: what it answers, and what it says when it cannot.

use serde_json::{Value, json};

use super::Served;
use crate::sandbox::Sandbox;

#[test]
fn models_are_listed_with_their_fields() {
    let models = Served::start().get("/api/models").is(200).json();
    let models = models["models"].as_array().unwrap();
    let checkpoint = models.iter().find(|model| model["name"] == "checkpoint").unwrap();
    let fields = checkpoint["fields"].as_array().unwrap();
    let field = |name: &str| fields.iter().find(|field| field["name"] == name).unwrap();
    for key in ["kind", "unit", "default", "choices", "doc"] {
        assert!(field("gpus").get(key).is_some(), "{key}");
    }
    assert_eq!(field("mode")["choices"], json!(["sync", "async"]));
    assert_eq!(field("gpus")["default"], "8");
    let retention = models.iter().find(|model| model["name"] == "retention").unwrap();
    let fields = retention["fields"].as_array().unwrap();
    let tiers = fields.iter().find(|field| field["name"] == "tiers").unwrap();
    let cold = json!({ "name": "cold", "window": "90 d", "every": "1 d", "price": "$0.023/GB-month" });
    assert_eq!(tiers["items"][2], cold);
}

#[test]
fn a_plan_is_what_the_command_line_says() {
    let served = Served::start();
    let request = json!({ "params": "405B", "gpus": 16384, "storage": "1TB/s" });
    let report = served.post("/api/plan/checkpoint", &request).is(200).json();
    let args = "plan checkpoint --params 405B --gpus 16384 --storage 1TB/s --json";
    let printed = Sandbox::new().run(args.split(' ')).exits(0).json();
    assert_eq!(report["figures"], printed["figures"]);
    assert!(report["figures"].as_array().unwrap().len() > 10);
}

#[test]
fn a_bad_plan_is_refused_with_a_hint() {
    let served = Served::start();
    for (body, words) in [
        (json!({ "params": "405B", "storage": "fast" }), "storage"),
        (json!({ "params": "405B", "speed": 1 }), "speed"),
        (json!({ "params": "0", "storage": "1TB/s" }), "params"),
        (json!([]), "table"),
    ] {
        let error = served.post("/api/plan/checkpoint", &body).is(400).error();
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        assert!(error["hint"].is_string(), "{error}");
        assert!(error["field"] == words || words == "table", "{error}");
    }
    let cluster = json!({ "checkpoint": { "params": "x" } });
    let error = served.post("/api/plan/cluster", &cluster).is(400).error();
    assert_eq!(
        (&error["place"], &error["field"]),
        (&json!("checkpoint"), &json!("params")),
        "{error}"
    );
    let tiers = json!({ "size": "1TB", "tiers": [{ "name": "hot", "keep": "many" }] });
    let error = served.post("/api/plan/retention", &tiers).is(400).error();
    assert_eq!(error["field"], "tiers.hot.keep", "{error}");
    let json_header = "Content-Type: application/json\r\n";
    for body in [&b"{"[..], b"", b"\xff\xfe", b"{\"params\": NaN}"] {
        served
            .send("POST", "/api/plan/checkpoint", json_header, body)
            .is(400)
            .error();
    }
    served
        .send(
            "POST",
            "/api/plan/checkpoint",
            "Content-Type: text/plain\r\n",
            b"{}",
        )
        .is(415)
        .error();
}

#[test]
fn json_is_declared_in_any_case_and_with_a_charset() {
    let served = Served::start();
    for kind in [
        "Application/JSON",
        "application/json; charset=UTF-8",
        " application/json ;x=y",
    ] {
        let header = format!("Content-Type: {kind}\r\n");
        served
            .send("POST", "/api/plan/cost", &header, b"{\"gpus\": 8}")
            .is(200);
    }
    served
        .send(
            "POST",
            "/api/plan/cost",
            "Content-Type: application/json5\r\n",
            b"{}",
        )
        .is(415)
        .error();
}

#[test]
fn a_sweep_answers_the_figures_it_was_asked_for() {
    let served = Served::start();
    let sweep = |figures: Value| {
        let request = json!({ "size": "50TB", "gpus": 1024, "storage": "200GB/s", "mode": "async" });
        let body = json!({ "model": "checkpoint", "field": "interval", "range": "1min,1h,2h", "figures": figures, "request": request });
        served.post("/api/sweep", &body)
    };
    let found = sweep(json!(["goodput"])).is(200).json();
    assert_eq!(found["values"].as_array().unwrap().len(), 3, "{found}");
    assert_eq!(found["refusals"][0]["index"], 0, "{found}");
    assert_eq!(found["figures"].as_array().unwrap().len(), 1, "{found}");
    let goodput = &found["figures"][0];
    assert!(
        goodput["values"][0].is_null() && goodput["values"][1].as_f64().unwrap() > 0.5,
        "{found}"
    );
    assert!(goodput["texts"][1].as_str().unwrap().ends_with(" %"), "{found}");
    let error = sweep(json!(["goodput", "godput"])).is(400).error();
    assert!(error["hint"].as_str().unwrap().contains("goodput"), "{error}");
    sweep(json!([])).is(400).error();
    sweep(json!(vec!["goodput"; 100])).is(400).error();
    served
        .post("/api/sweep", &json!({ "model": "checkpoint" }))
        .is(400)
        .error();
}

#[test]
fn a_sweep_that_would_take_minutes_is_refused_at_once() {
    let served = Served::start();
    let body = json!({
        "model": "failures",
        "field": "mtbf",
        "range": "1h..100h:1000",
        "figures": ["goodput"],
        "request": { "events": 20_000_000 },
    });
    // More of them than are computed at a time: none may hold up what follows.
    for _ in 0..8 {
        let error = served.post("/api/sweep", &body).is(400).error();
        assert!(error["hint"].as_str().unwrap().contains("fewer"), "{error}");
    }
    served.post("/api/plan/cost", &json!({ "gpus": 8 })).is(200);
}
