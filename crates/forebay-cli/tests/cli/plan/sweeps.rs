//! One field over a range: the same figures and the same refusals in every form.

use super::{CHECKPOINT, example, run, with};
use crate::sandbox::Sandbox;

const SWEEP: &[&str] = &["--sweep", "storage=100GB/s..1TB/s:4"];

#[test]
fn json_has_a_column_for_each_figure() {
    let sweep = with(CHECKPOINT, SWEEP);
    let args = with(&sweep, &["--json", "--figures", "save-time,stall"]);
    let json = run(&args).exits(0).json();
    assert_eq!(
        (&json["field"], &json["unit"]),
        (&"storage".into(), &"B/s".into())
    );
    assert_eq!(json["values"][3]["text"], "1 TB/s");
    let figures = json["figures"].as_array().unwrap();
    let names: Vec<&str> = figures
        .iter()
        .map(|figure| figure["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["save_time", "stall"]);
    assert_eq!(figures[0]["unit"], "s");
    assert!((figures[0]["values"][0].as_f64().unwrap() - 56.7).abs() < 1e-9);
    assert_eq!(figures[0]["texts"][0], "56.7 s");
    // Without names it has what changes, and not the reports.
    let all = with(CHECKPOINT, &["--sweep", "storage=100GB/s..1TB/s:1000", "--json"]);
    let ran = run(&all).exits(0);
    assert!(ran.out.len() < 2 << 20, "{} bytes", ran.out.len());
    let json = ran.json();
    let figures = json["figures"].as_array().unwrap();
    assert_eq!(figures[0]["name"], "goodput");
    assert!(figures.len() > 3 && figures.iter().all(|figure| figure["name"] != "size"));
}

#[test]
fn every_form_refuses_the_same() {
    for form in [&["--json"][..], &["--format", "csv"], &[]] {
        for (args, words) in [
            (
                &["--sweep", "storage=1TB/s,2TB/s", "--figures", "nonsense"][..],
                "no figure 'nonsense'",
            ),
            (
                &["--sweep", "gpus=0,1.5"],
                "no value of gpus can be computed: gpus is 0",
            ),
        ] {
            let ran = run(&with(&with(CHECKPOINT, args), form)).exits(2);
            assert!(ran.out.is_empty(), "{}", ran.out);
            assert!(ran.err.contains(words), "{}", ran.err);
        }
    }
    let one = with(CHECKPOINT, &["--sweep", "gpus=1.5,16384", "--json"]);
    let json = run(&one).exits(0).json();
    assert_eq!(json["refusals"][0]["index"], 0);
    assert!(
        json["refusals"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("not a whole number")
    );
    assert!(json["figures"][0]["values"][0].is_null());
}

#[test]
fn readings_and_warnings_are_told_once() {
    let ran = run(&["plan", "storage", "--sweep", "read=100GB/s..1TB/s:3"]).exits(0);
    assert_eq!(ran.err.matches("reading: ").count(), 1, "{}", ran.err);
    ran.says(&["reading: read_in_flight, at 100 GB/s: ", "used here"]);
}

#[test]
fn things_are_swept_in_whole_numbers() {
    let args = ["plan", "checkpoint", "--params", "7B", "--storage", "1TB/s"];
    let csv = with(&args, &["--sweep", "gpus=1000..2000:4", "--format", "csv"]);
    let out = run(&csv).exits(0).out;
    let first = |line: &str| line.split(',').next().unwrap().to_owned();
    let points: Vec<String> = out.lines().skip(1).map(first).collect();
    assert_eq!(points, ["1000", "1260", "1587", "2000"]);
    let linear = with(
        &args,
        &[
            "--sweep",
            "mfu=20%..80%:4 linear",
            "--format",
            "csv",
            "--figures",
            "size",
        ],
    );
    let out = run(&linear).exits(0).out;
    let points: Vec<String> = out.lines().skip(1).map(first).collect();
    assert_eq!(points, ["0.2", "0.4", "0.6", "0.8"]);
}

#[test]
fn long_simulations_are_refused() {
    run(&[
        "plan",
        "failures",
        "--events",
        "20M",
        "--sweep",
        "stall=1s..1min:100",
    ])
    .exits(2)
    .says(&["2 B simulated events would take minutes", "events up to 2 M"]);
}

/// What `forebay bench disk` of one node would say.
const BENCH: &str = r#"{"dir": "/nvme", "size": 1073741824, "runs": 3, "tests": [
    {"name": "sequential read", "forebay": {"bytes_per_s": 7e9}},
    {"name": "durable write", "forebay": {"bytes_per_s": 5e9}}]}"#;

#[test]
fn what_was_measured_is_not_swept_and_not_assumed() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("bench.json"), BENCH).unwrap();
    let measured = ["--params", "7B", "--gpus", "16", "--calibrate", "bench.json"];
    for (model, field) in [("checkpoint", "storage"), ("cluster", "checkpoint.storage_read")] {
        let sweep = format!("{field}=1GB/s..1TB/s:3");
        let args = with(&["plan", model], &with(&measured, &["--sweep", &sweep]));
        sandbox
            .run(args)
            .exits(2)
            .says(&[field, "cannot be swept", "--calibrate"]);
    }
    let args = with(&["plan", "checkpoint"], &measured);
    let json = sandbox.run(with(&args, &["--json"])).exits(0).json();
    let origin = |name: &str| {
        let inputs = json["inputs"].as_array().unwrap();
        let input = inputs.iter().find(|input| input["name"] == name).unwrap();
        (
            input["origin"].as_str().unwrap().to_owned(),
            input["given"] == true,
        )
    };
    assert_eq!(origin("storage"), ("measured".to_owned(), false));
    assert_eq!(origin("gpus"), ("given".to_owned(), true));
    assert_eq!(origin("gpus_per_node"), ("default".to_owned(), false));
    let said = sandbox.run(with(&args, &["--verbose"])).exits(0).err;
    let assumed = said.lines().find(|line| line.starts_with("assumed: ")).unwrap();
    assert!(
        assumed.contains("gpus_per_node ") && !assumed.contains("storage "),
        "{assumed}"
    );
    // 16 GPUs are 2 nodes.
    sandbox
        .run(with(&args, &["--calibrate-nodes", "3"]))
        .exits(0)
        .says(&["warning: calibration: --calibrate-nodes is 3, the job has only 2"]);
}

#[test]
fn measured_rates_are_offered_where_they_are_taken() {
    for (model, is_offered) in [("checkpoint", true), ("cluster", true), ("network", false)] {
        let help = run(&["plan", model, "--help"]).exits(0).out;
        assert_eq!(help.contains("--calibrate"), is_offered, "{model}: {help}");
    }
}

#[test]
fn what_is_given_is_a_figure_as_well() {
    let args = with(CHECKPOINT, &["--stall", "1h"]);
    let out = run(&with(&args, &["--figures", "stall,goodput"])).exits(0).out;
    assert_eq!(super::shown(&out, "stall"), "1 h  3600 s");
    let out = run(&with(&args, &["--explain", "stall"])).exits(0).out;
    assert!(
        out.starts_with("stall = 1 h (3600 s)\nformula   as given\n"),
        "{out}"
    );
    let ran = run(&with(CHECKPOINT, &["--figures", "goodputt"])).exits(2);
    assert!(!ran.err.contains("explain"), "{}", ran.err);
    ran.says(&["no figure 'goodputt'", "did you mean goodput?"]);
    let file = example("cluster.toml");
    run(&[
        "plan",
        "cluster",
        "--file",
        &file,
        "--explain",
        "checkpoint.godput",
    ])
    .exits(2)
    .says(&["did you mean checkpoint.goodput?"]);
}

#[test]
fn what_another_model_found_is_not_given() {
    let file = example("cluster.toml");
    let json = run(&["plan", "cluster", "--file", &file, "--json"])
        .exits(0)
        .json();
    let inputs = json["inputs"].as_array().unwrap();
    let origin = |name: &str| {
        let input = inputs.iter().find(|input| input["name"] == name);
        input.unwrap_or_else(|| panic!("no {name}"))["origin"].clone()
    };
    assert_eq!(origin("retention.size"), "found");
    assert_eq!(origin("cost.goodput"), "found");
    assert_eq!(origin("checkpoint.gpus"), "given");
}
