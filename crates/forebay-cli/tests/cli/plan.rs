//! `forebay plan` as an architect types it: the examples of the guide, files, measured rates, forms of output.

mod refused;
mod sweeps;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use super::sandbox::{Ran, Sandbox};
use super::terminal::Terminal;

const CHECKPOINT: &[&str] = &[
    "plan",
    "checkpoint",
    "--params",
    "405B",
    "--gpus",
    "16384",
    "--storage",
    "1TB/s",
];

fn run(args: &[&str]) -> Ran {
    Sandbox::new().run(args)
}

/// A command line with more at its end.
fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

fn figure(report: &Value, name: &str) -> f64 {
    let figures = report["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))["value"]
        .as_f64()
        .unwrap()
}

fn example(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/plan");
    folder.join(name).to_str().unwrap().to_owned()
}

/// Where a line of text has a figure: what stands behind its name.
#[track_caller]
fn shown(out: &str, name: &str) -> String {
    let mut lines = out
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(name));
    let rest = lines.find(|rest| rest.starts_with(' '));
    rest.unwrap_or_else(|| panic!("no {name} in:\n{out}"))
        .trim()
        .to_owned()
}

#[test]
fn checkpoints_of_a_large_model() {
    let json = run(&with(CHECKPOINT, &["--json"])).exits(0).json();
    assert_eq!(json["model"], "checkpoint");
    // 14 bytes per parameter, written at 1 TB/s.
    assert!((figure(&json, "size") - 5.67e12).abs() < 1.0);
    assert!((figure(&json, "save_time") - 5.67).abs() < 1e-9);
    let shares = ["goodput", "loss_save", "loss_rework", "loss_restart"];
    let sum: f64 = shares.iter().map(|name| figure(&json, name)).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let out = run(CHECKPOINT).exits(0).out;
    // People confuse TB and TiB, so both are there.
    let size = shown(&out, "size");
    assert!(size.contains("5.67 TB") && size.contains("5.157 TiB"), "{size}");
    assert!(shown(&out, "goodput").ends_with(" %"));
}

#[test]
fn demand_of_tokens_and_of_images() {
    let args = [
        "plan",
        "ingest",
        "--gpus",
        "512",
        "--tokens-per-gpu",
        "100k",
        "--vocab",
        "128k",
        "--json",
    ];
    let json = run(&args).exits(0).json();
    assert!((figure(&json, "read_rate") - 512.0 * 100e3 * 4.0).abs() < 1e-6);
    let images = [
        "plan",
        "ingest",
        "--gpus",
        "512",
        "--images",
        "50k",
        "--sample-size",
        "110kB",
        "--json",
    ];
    let json = run(&images).exits(0).json();
    assert!((figure(&json, "read_rate") - 5.5e9).abs() < 1e-3);
    let long = images.map(|word| {
        if word == "--images" {
            "--samples-per-second"
        } else {
            word
        }
    });
    assert_eq!(run(&long).exits(0).json()["figures"], json["figures"]);
    let batches = [
        "plan",
        "ingest",
        "--gpus",
        "8",
        "--batch",
        "32",
        "--sample-size",
        "1MB",
        "--step-time",
        "500ms",
        "--json",
    ];
    let json = run(&batches).exits(0).json();
    assert!((figure(&json, "read_rate") - 512e6).abs() < 1e-3);
}

#[test]
fn bytes_of_a_step_over_rails() {
    let args = [
        "plan",
        "network",
        "--params",
        "7B",
        "--strategy",
        "fsdp",
        "--rails",
        "8",
        "--nic",
        "ndr",
    ];
    let out = run(&args).exits(0).out;
    assert!(out.contains("fsdp"), "{out}");
    // Words are words, however they are written.
    let upper = args.map(|word| if word == "ndr" { "NDR" } else { word });
    assert_eq!(run(&upper).exits(0).out, out);
    assert_ne!(
        run(&args.map(|word| if word == "8" { "1" } else { word }))
            .exits(0)
            .out,
        out
    );
}

#[test]
fn a_cluster_from_its_file() {
    let file = example("cluster.toml");
    let args = ["plan", "cluster", "--file", &file];
    let json = run(&with(&args, &["--json"])).exits(0).json();
    let parts = [
        "checkpoint.goodput",
        "ingest.read_rate",
        "storage.osts_needed",
        "network.fsdp_time",
        "cost.total_cost",
    ];
    let names: Vec<&str> = json["figures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|figure| figure["name"].as_str().unwrap())
        .collect();
    for part in parts {
        assert!(names.contains(&part), "no {part} in {names:?}");
    }
    let faster = with(&args, &["--json", "--set", "checkpoint.storage=1TB/s"]);
    let faster = run(&faster).exits(0).json();
    assert!(figure(&faster, "checkpoint.goodput") > figure(&json, "checkpoint.goodput"));
}

#[test]
fn measured_rates_replace_assumed_ones() {
    let sandbox = Sandbox::new();
    let bench = ["bench", "disk", ".", "--json", "--size", "8MiB", "--runs", "1"];
    let measured = sandbox.run(bench).exits(0);
    std::fs::write(sandbox.path("bench.json"), &measured.out).unwrap();
    let rate = measured.json()["tests"][1]["forebay"]["bytes_per_s"]
        .as_f64()
        .unwrap();
    let args = [
        "plan",
        "checkpoint",
        "--params",
        "7B",
        "--gpus",
        "16",
        "--calibrate",
        "bench.json",
    ];
    let ran = sandbox.run(with(&args, &["--json"])).exits(0);
    let time = figure(&ran.json(), "save_time");
    assert!((time * rate / 98e9 - 1.0).abs() < 1e-6, "{time} s at {rate} B/s");
    let explained = sandbox
        .run(with(&args, &["--explain", "save_time,load_time"]))
        .exits(0);
    assert!(
        explained.out.contains("measured by forebay bench disk in "),
        "{}",
        explained.out
    );
    // One node of two was measured, which is told; with both of them saves take half the time.
    sandbox
        .run(args)
        .exits(0)
        .says(&["warning: calibration: ", "--calibrate-nodes 2"]);
    let both = sandbox
        .run(with(&args, &["--calibrate-nodes", "2", "--json"]))
        .exits(0);
    assert!((figure(&both.json(), "save_time") / time - 0.5).abs() < 1e-9);
    assert!(!both.out.contains("calibrate-nodes"), "{}", both.out);
    sandbox
        .run(with(&args, &["--sweep", "restart=1min,10min"]))
        .exits(0)
        .says(&["warning: calibration, at 2 of 2 values: "]);
    sandbox
        .run(with(&args, &["--storage", "1TB/s"]))
        .exits(0)
        .says(&["warning: storage: ", "measured rate is used"]);
    sandbox
        .run([
            "plan",
            "cluster",
            "--gpus",
            "16",
            "--params",
            "7B",
            "--calibrate",
            "bench.json",
        ])
        .exits(0)
        .says(&["warning: checkpoint.calibration: "]);
    sandbox
        .run(["plan", "network", "--params", "7B", "--calibrate", "bench.json"])
        .exits(2)
        .says(&["takes no measured rates"]);
}

#[test]
fn results_of_the_other_benchmarks_are_read_too() {
    let sandbox = Sandbox::new();
    let demo = sandbox.run(["demo", "--json", "--size", "8MiB"]).exits(0).out;
    let store = [
        "bench",
        "store",
        "place",
        "--json",
        "--size",
        "1MiB",
        "--object-size",
        "1MiB",
        "--small-objects",
        "1",
        "--runs",
        "1",
    ];
    let store = sandbox.run(store).exits(0).out;
    for (text, words) in [(demo, "forebay demo in"), (store, "forebay bench store at")] {
        std::fs::write(sandbox.path("measured.json"), text).unwrap();
        let args = [
            "plan",
            "checkpoint",
            "--params",
            "7B",
            "--calibrate",
            "measured.json",
        ];
        let out = sandbox.run(with(&args, &["--explain", "load_time"])).exits(0).out;
        assert!(out.contains(words), "{out}");
    }
}

#[test]
fn every_figure_explains_itself() {
    let out = run(&with(CHECKPOINT, &["--explain", "goodput"])).exits(0).out;
    for words in ["goodput = ", "formula ", "inputs ", "source "] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let json = run(&with(CHECKPOINT, &["--json"])).exits(0).json();
    let all = run(&with(CHECKPOINT, &["--explain", "all"])).exits(0).out;
    for figure in json["figures"].as_array().unwrap() {
        let line = format!("{} = ", figure["name"].as_str().unwrap());
        assert!(all.lines().any(|found| found.starts_with(&line)), "{line}");
    }
    let lines = run(&with(CHECKPOINT, &["--json", "--explain", "goodput,size"])).exits(0);
    let lines = lines.json_lines();
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0]["name"] == "goodput" && lines[0]["formula"].is_string(),
        "{lines:?}"
    );
    run(&with(CHECKPOINT, &["--explain", "goodputt"]))
        .exits(2)
        .says(&["no figure 'goodputt'", "did you mean goodput?"]);
    // In the report of a cluster the end of the name is enough, and the command line writes _ as -.
    let file = example("cluster.toml");
    let out = run(&["plan", "cluster", "--file", &file, "--explain", "interval-used"])
        .exits(0)
        .out;
    assert!(out.starts_with("checkpoint.interval_used = "), "{out}");
}

#[test]
fn three_forms_of_a_table() {
    let csv = run(&with(CHECKPOINT, &["--format", "csv"])).exits(0).out;
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("group,figure,value,unit,text,also,formula,source")
    );
    assert!(csv.contains(",size,5670000000000,B,5.67 TB,5.157 TiB,"), "{csv}");
    let markdown = run(&with(CHECKPOINT, &["--format", "markdown"])).exits(0).out;
    assert!(markdown.starts_with("| figure | value | also | formula |\n|---|---|---|---|\n"));
    let figures = run(&with(CHECKPOINT, &["--figures", "goodput,size"]))
        .exits(0)
        .out;
    assert_eq!(figures.lines().filter(|line| line.starts_with("  ")).count(), 2);
    run(&with(CHECKPOINT, &["--json", "--format", "csv"])).exits(2);
    run(&with(CHECKPOINT, &["--format", "csv", "--plot", "goodput"]))
        .exits(2)
        .says(&["a plot is text"]);
}

#[test]
fn warnings_and_readings_are_talk_or_part_of_the_json() {
    let args = [
        "plan",
        "checkpoint",
        "--size",
        "2TB",
        "--tokens-per-gpu",
        "100k",
        "--storage",
        "1TB/s",
    ];
    let ran = run(&args).exits(0);
    assert!(!ran.out.contains("warning"), "{}", ran.out);
    ran.says(&["warning: params_of_tokens: ", "parameters"]);
    let ran = run(&with(&args, &["--json"])).exits(0);
    assert!(ran.err.is_empty(), "{}", ran.err);
    let json = ran.json();
    let warnings = json["warnings"].as_array().unwrap();
    assert!(
        warnings
            .iter()
            .any(|warning| warning["about"] == "params_of_tokens"),
        "{json}"
    );
    assert!(run(&with(&args, &["--quiet"])).exits(0).err.is_empty());
    run(&["plan", "storage", "--read", "100GB/s"])
        .exits(0)
        .says(&["reading: ", "used here"]);
    run(&with(CHECKPOINT, &["--verbose"]))
        .exits(0)
        .says(&["assumed: ", "gpus_per_node 8"]);
}

#[test]
fn scenarios_stand_side_by_side() {
    let file = example("scenarios.toml");
    let args = ["plan", "checkpoint", "--file", &file];
    let out = run(&args).exits(0).out;
    let head = out.lines().next().unwrap();
    for name in ["today", "faster storage", "in the background"] {
        assert!(head.contains(name), "{head}");
    }
    let lines = run(&with(&args, &["--json"])).exits(0).json_lines();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[1]["scenario"], "faster storage");
    assert!(figure(&lines[1], "goodput") > figure(&lines[0], "goodput"));
    // Flags win over the file, in every scenario.
    let lines = run(&with(&args, &["--json", "--storage", "2TB/s"]))
        .exits(0)
        .json_lines();
    for line in &lines[..2] {
        assert!((figure(line, "save_time") - 5.67 / 2.0).abs() < 1e-9);
    }
    let csv = run(&with(&args, &["--format", "csv", "--figures", "goodput"]))
        .exits(0)
        .out;
    assert!(
        csv.starts_with("figure,unit,today,faster storage,in the background\r\ngoodput,,0."),
        "{csv}"
    );
    let one = run(&with(&args, &["--scenario", "today", "--json"]))
        .exits(0)
        .json();
    assert_eq!(one["scenario"], "today");
    run(&with(&args, &["--scenario", "tomorrow"]))
        .exits(2)
        .says(&["no scenario 'tomorrow'", "faster storage"]);
    let out = run(&with(&args, &["--explain", "goodput"])).exits(0).out;
    assert_eq!(out.matches("scenario  ").count(), 3);
}

#[test]
fn requests_come_from_toml_json_and_stdin() {
    let sandbox = Sandbox::new();
    std::fs::write(
        sandbox.path("request.toml"),
        "params = '405B' # a comment\ngpus = 16384\nstorage = '500GB/s'\n",
    )
    .unwrap();
    let json = r#"{ "params": 405e9, "gpus": 16384, "storage": 500e9 }"#;
    std::fs::write(sandbox.path("request.json"), json).unwrap();
    let toml = sandbox
        .run(["plan", "checkpoint", "--file", "request.toml"])
        .exits(0)
        .out;
    assert_eq!(
        sandbox
            .run(["plan", "checkpoint", "--file", "request.json"])
            .exits(0)
            .out,
        toml
    );
    let mut child = sandbox
        .command(["plan", "checkpoint", "--file", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(json.as_bytes()).unwrap();
    let ran = sandbox.ran(&child.wait_with_output().unwrap()).exits(0);
    assert_eq!(ran.out, toml);
    let flags = sandbox.run([
        "plan",
        "checkpoint",
        "--file",
        "request.toml",
        "--storage",
        "1TB/s",
    ]);
    assert_eq!(flags.exits(0).out, run(CHECKPOINT).out);
}

#[test]
fn a_sweep_has_a_table_and_a_plot() {
    let sweep = with(CHECKPOINT, &["--sweep", "storage=100GB/s..1TB/s:4"]);
    let ran = run(&sweep).exits(0);
    let mut lines = ran.out.lines();
    assert!(
        lines.next().unwrap().starts_with("storage     goodput  "),
        "{}",
        ran.out
    );
    for value in ["100 GB/s", "215.4 GB/s", "464.2 GB/s", "1 TB/s"] {
        assert!(lines.next().unwrap().starts_with(value), "{}", ran.out);
    }
    assert!(ran.out.contains("goodput by storage, in equal factors") && ran.out.is_ascii());
    assert_eq!(ran.out.matches('*').count(), 4, "{}", ran.out);
    let plot = run(&with(&sweep, &["--plot", "save-time"])).exits(0).out;
    assert!(plot.contains("save_time by storage"), "{plot}");
    let csv = run(&with(&sweep, &["--format", "csv", "--figures", "save_time"]))
        .exits(0)
        .out;
    assert!(
        csv.starts_with("storage (B/s),save_time (s),refused\r\n100000000000,56.7,\r\n"),
        "{csv}"
    );
    let json = run(&with(&sweep, &["--json"])).exits(0).json();
    assert_eq!(json["values"].as_array().unwrap().len(), 4);
    // An interval that is shorter than a drain is refused, and does not hide the rest.
    let out = run(&with(
        CHECKPOINT,
        &["--mode", "async", "--sweep", "interval=1s,1h"],
    ))
    .exits(0)
    .out;
    assert!(
        out.contains("refused") && out.lines().nth(1).unwrap().contains("due every"),
        "{out}"
    );
    let words = run(&with(CHECKPOINT, &["--sweep", "mode=sync,async"]))
        .exits(0)
        .out;
    assert_eq!(words.lines().count(), 3, "{words}");
}

#[test]
fn the_curve_of_a_model_is_drawn() {
    let out = run(&with(CHECKPOINT, &["--plot", "goodput"])).exits(0).out;
    assert!(
        out.contains("goodput by interval") && out.contains("  o interval "),
        "{out}"
    );
    run(&["plan", "network", "--params", "7B", "--plot", "goodput"])
        .exits(2)
        .says(&["no curve of 'goodput'", "--sweep"]);
}

#[test]
fn on_a_terminal_curves_are_made_of_finer_dots() {
    let sandbox = Sandbox::new();
    let (terminal, near) = Terminal::open();
    let mut child = sandbox
        .command(with(CHECKPOINT, &["--sweep", "storage=100GB/s..1TB/s"]))
        .stdout(near)
        .spawn()
        .unwrap();
    let shown = terminal.rest();
    assert!(child.wait().unwrap().success());
    let braille = |text: &str| text.chars().any(|dot| ('\u{2801}'..='\u{28ff}').contains(&dot));
    assert!(shown.contains("goodput by storage") && braille(&shown), "{shown}");
}

#[test]
fn help_shows_each_field_with_unit_default_and_doc() {
    let help = run(&["plan", "checkpoint", "--help"]).exits(0).out;
    let plain: Vec<&str> = help.split_whitespace().collect();
    let plain = plain.join(" ");
    for words in [
        "--params <COUNT>",
        "--storage <BYTES/S>",
        "--gpu-memory <BYTES> Memory of a GPU; the default is an H100's [default: 80 GB]",
        "possible values: sync, async",
        "--calibrate <FILE>",
        "Field tiers: Places",
    ] {
        assert!(plain.contains(words), "{words}: {help}");
    }
    let help = run(&["plan", "ingest", "--help"]).exits(0).out;
    assert!(help.contains("images"), "{help}");
    let manual = run(&["man", "plan", "checkpoint"]).exits(0).out;
    assert!(manual.contains(".TH forebay-plan-checkpoint 1") && manual.contains("sync\\-overhead"));
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).exits(0).out;
        assert!(script.contains("tokens-per-gpu"), "{shell}");
    }
}

#[test]
fn lists_and_tables_are_set_as_in_toml() {
    let tiers = "tiers=[{ name = 'nvme', write = '1TB/s' }, { name = 'pfs', write = '100GB/s' }]";
    let args = [
        "plan",
        "checkpoint",
        "--params",
        "70B",
        "--gpus",
        "1024",
        "--mode",
        "async",
    ];
    let out = run(&with(&args, &["--set", tiers])).exits(0).out;
    assert!(out.contains("nvme") && out.contains("pfs"), "{out}");
}

#[test]
fn the_guide_shows_what_the_commands_print() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = std::fs::read_to_string(root.join("docs/guides/plan.md")).unwrap();
    let sandbox = Sandbox::new();
    let mut compared = 0;
    for block in guide.split("```text\n$ forebay ").skip(1) {
        let (command, rest) = block.split_once('\n').unwrap();
        let (kept, _) = rest.split_once("```").unwrap();
        // What was measured differs from run to run.
        if command.starts_with("bench ") {
            continue;
        }
        let mut command = sandbox.command(command.split(' '));
        let ran = sandbox.ran(&command.current_dir(&root).output().unwrap());
        assert_eq!(ran.out + &ran.err, kept, "{command:?}");
        compared += 1;
    }
    assert!(compared > 10, "{compared}");
}
