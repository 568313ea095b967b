//! Input that makes no sense: refused with status 2, in words that say what is wrong and what would be right.

use super::{CHECKPOINT, example, run, with};
use crate::sandbox::Sandbox;

#[test]
fn what_is_no_result_of_a_benchmark_is_refused() {
    let sandbox = Sandbox::new();
    let zero = r#"{"dir": "/x", "size": 1, "steps": [{"name": "write, durable", "bytes_per_s": 0}, {"name": "read back, next", "bytes_per_s": 1}]}"#;
    for (text, words) in [
        ("", "not the JSON of forebay bench"),
        ("{}", "not the JSON of forebay bench"),
        ("gpus = 8", "not the JSON of forebay bench"),
        (
            r#"{"tests": [], "dir": "/x", "size": 1, "runs": 1}"#,
            "not the JSON of",
        ),
        (zero, "not above zero"),
    ] {
        std::fs::write(sandbox.path("bench.json"), text).unwrap();
        let ran = sandbox
            .run(with(CHECKPOINT, &["--calibrate", "bench.json"]))
            .exits(2);
        assert!(ran.out.is_empty());
        ran.says(&["bench.json", words, "hint: "]);
    }
    sandbox
        .run(with(CHECKPOINT, &["--calibrate", "nowhere.json"]))
        .exits(2)
        .says(&["nowhere.json"]);
    sandbox
        .run(with(CHECKPOINT, &["--calibrate-nodes", "2"]))
        .exits(2);
}

#[test]
fn bad_sweeps_are_refused() {
    for (sweep, words) in [
        ("storage", "is no sweep"),
        ("storage=1TB/s..1GB/s", "not a rising range"),
        ("storage=fast", "fast"),
        ("colour=1..2", "no field 'colour'"),
        ("storage=0..1TB/s", "not a rising range"),
        ("gpus=0,1.5", "no value of gpus can be computed"),
    ] {
        run(&with(CHECKPOINT, &["--sweep", sweep]))
            .exits(2)
            .says(&[words, "hint: "]);
    }
    let file = example("scenarios.toml");
    run(&[
        "plan",
        "checkpoint",
        "--file",
        &file,
        "--sweep",
        "storage=1GB/s..1TB/s",
    ])
    .exits(2)
    .says(&["a sweep is of one scenario", "--scenario: today"]);
    run(&with(
        CHECKPOINT,
        &["--sweep", "mode=sync,async", "--plot", "goodput"],
    ))
    .exits(2)
    .says(&["no two points to draw"]);
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    for (args, words) in [
        (
            &["--gpus", "0", "--params", "7B", "--storage", "1GB/s"][..],
            "gpus",
        ),
        (&["--gpus", "-5", "--params", "7B", "--storage", "1GB/s"], "gpus"),
        (&["--params", "7B", "--storage", "-1TB/s"], "storage"),
        (&["--params", "7B", "--storage", "0"], "storage"),
        (&["--params", "7e30", "--storage", "1GB/s"], "params"),
        (&["--params", "7B", "--storage", "1TB/fortnight"], "storage"),
        (&["--params", "7B", "--storage", "nan"], "storage"),
        (&["--params", "7B", "--storage", ""], "storage"),
        (&["--params", "7B"], "storage"),
        (&["--storage", "1TB/s"], "params"),
        (&[], "params"),
        (
            &[
                "--params",
                "7B",
                "--storage",
                "1GB/s",
                "--mode",
                "async",
                "--interval",
                "1s",
            ],
            "due every",
        ),
        (
            &["--params", "7B", "--storage", "1GB/s", "--interval", "5m"],
            "interval",
        ),
        (&["--params", "7B", "--set", "colour=red"], "no field 'colour'"),
        (&["--params", "7B", "--set", "colour"], "sets nothing"),
        (&["--params", "7B", "--set", "params.more=1"], "params"),
        (&["--params", "7B", "--set", "tiers=[1"], "not TOML"),
        (&["--file", "nowhere.toml"], "nowhere.toml"),
    ] {
        let ran = run(&with(&["plan", "checkpoint"], args)).exits(2);
        assert!(ran.out.is_empty(), "{}", ran.out);
        ran.says(&["error: ", words]);
    }
    for (args, words) in [
        (&["--colour", "red"][..], "unexpected argument '--colour'"),
        (&["--mode", "sometimes"], "sync, async"),
        (&["--mfu", "--json"], "a value is required for '--mfu'"),
        (&["--mfu"], "a value is required for '--mfu <SHARE>'"),
        (&["--format", "yaml"], "csv"),
    ] {
        run(&with(CHECKPOINT, args)).exits(2).says(&[words]);
    }
    run(&["plan", "checkpoints"]).exits(2).says(&["checkpoint"]);
    run(&["plan"]).exits(2);
    let error = run(&["plan", "checkpoint", "--json"]).exits(2).json_error();
    assert_eq!(error["kind"], "invalid_input");
    assert!(error["hint"].is_string(), "{error}");
}

#[test]
fn files_that_make_no_sense_are_named() {
    let sandbox = Sandbox::new();
    for (text, words) in [
        ("gpus = = 8", "not TOML"),
        ("{ \"gpus\": }", "not JSON"),
        ("colour = 'red'", "no field 'colour'"),
        (
            "params = '7B'\nstorage = '1GB/s'\nscenario = 3",
            "scenario is not a list",
        ),
        (
            "params = '7B'\n[[scenario]]\nname = 'a'\nstorage = '0'",
            "storage",
        ),
        (
            "params = '7B'\nstorage = '1GB/s'\nmtbf = inf",
            "mtbf of checkpoint",
        ),
        (
            "params = '7B'\nstorage = '1GB/s'\ngpus = nan",
            "gpus of checkpoint",
        ),
        (
            "[[scenario]]\nname = 'a'\n[[scenario]]\nname = 'a'",
            "two scenarios are called 'a'",
        ),
    ] {
        std::fs::write(sandbox.path("request.toml"), text).unwrap();
        sandbox
            .run(["plan", "checkpoint", "--file", "request.toml"])
            .exits(2)
            .says(&[words]);
    }
    std::fs::write(sandbox.path("request.toml"), [0xff, 0xfe]).unwrap();
    sandbox
        .run(["plan", "checkpoint", "--file", "request.toml"])
        .exits(2)
        .says(&["not a text"]);
    std::fs::write(sandbox.path("request.toml"), vec![b'#'; 2 << 20]).unwrap();
    sandbox
        .run(["plan", "checkpoint", "--file", "request.toml"])
        .exits(2)
        .says(&["larger than 1 MiB"]);
}
