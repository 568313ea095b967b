//! `load --device` and `gds`, with drivers made of C (`crates/forebay-io/stub`) and without any.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::loading::{MODEL, weights};
use super::sandbox::Sandbox;

fn compile(dir: &Path, source: &str, flags: &[&str]) -> String {
    let library: PathBuf = dir.join(source).with_extension("so");
    let stubs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../forebay-io/stub");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .arg(&library)
        .arg(stubs.join(source))
        .args(flags)
        .status()
        .unwrap();
    assert!(compiled.success());
    library.display().to_string()
}

/// A sandbox with both libraries.
pub(crate) fn with_stubs(cuda: &[&str], cufile: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    let (cuda, cufile) = (
        compile(&sandbox.home(), "cuda.c", cuda),
        compile(&sandbox.home(), "cufile.c", cufile),
    );
    let sandbox = sandbox
        .var("FOREBAY_CUDA_LIBRARY", cuda)
        .var("FOREBAY_CUFILE_LIBRARY", cufile);
    weights(&sandbox, "m.safetensors", MODEL);
    sandbox
}

#[test]
fn weights_go_to_devices_and_the_account_says_how() {
    let sandbox = with_stubs(&["-DDEVICES=2", "-DMEMORY=2000000000"], &[]);
    let args = [
        "load",
        "m.safetensors",
        "--device",
        "cuda:0",
        "--device",
        "cuda:1",
    ];
    let more = ["--repeat", "2", "--pinned", "32MiB", "--gds", "prefer", "--json"];
    let json = sandbox.run(args.iter().chain(&more)).exits(0).json();
    assert_eq!(json["tensors"], 3);
    let bytes = json["tensor_bytes"].as_u64().unwrap();
    assert_eq!(
        json["device"]["copied_bytes"],
        2 * bytes,
        "one read, two copies: {json}"
    );
    assert_eq!(json["device"]["ring"]["bytes_max"], 32 << 20);
    assert!(json["bus"]["bytes_per_s"].as_f64().unwrap() > 0.0);
    let downgrades = json["ledger"]["downgrades"].to_string();
    assert!(downgrades.contains("one read feeds 2 devices"), "{downgrades}");
    let out = sandbox.run(&args[..4]).exits(0).out;
    for words in ["pinned copy", "pinned: ", "first piece there"] {
        assert!(out.contains(words), "{words}: {out}");
    }
}

#[test]
fn required_gds_is_proved_or_refused() {
    let args = [
        "load",
        "m.safetensors",
        "--device",
        "cuda",
        "--gds",
        "require",
        "--json",
    ];
    let json = with_stubs(&["-DMEMORY=2000000000"], &["-DNVFS"])
        .run(args)
        .exits(0)
        .json();
    assert_eq!(json["device"]["gds"]["reads_posix"], 0);
    let gds = json["ledger"]["paths"]["gds"]["bytes"].as_u64();
    assert_eq!(gds, json["read_bytes"].as_u64(), "{json}");
    with_stubs(&[], &[])
        .run(args)
        .exits(2)
        .says(&["no direct path exists on this machine", "forebay gds"]);
    with_stubs(&[], &["-DNVFS", "-DPOSIX_EVERY=1"])
        .run(args)
        .exits(2)
        .says(&["went through host memory"]);
    // What only GPUs can do is not passed over where none is loaded to.
    with_stubs(&[], &["-DNVFS"])
        .run(["load", "m.safetensors", "--gds", "require"])
        .exits(2)
        .says(&["--gds require is for GPUs", "--device cuda:0"]);
}

#[test]
fn what_devices_lack_is_said() {
    let args = ["load", "m.safetensors", "--device", "cuda:0"];
    with_stubs(&["-DMEMORY=18000000"], &[])
        .run(args)
        .exits(2)
        .says(&["bytes) are needed on cuda:0", "select or shard"]);
    with_stubs(&[], &[])
        .run(args.iter().chain(&["--memory", "1KiB"]))
        .exits(2)
        .says(&["at most 1.0 KiB may be used"]);
    with_stubs(&["-DVERSION=10020"], &[])
        .run(args)
        .exits(2)
        .says(&["too old", "CUDA 10.2"]);
    with_stubs(&[], &[])
        .run(["load", "m.safetensors", "--device", "cuda:7"])
        .exits(2)
        .says(&["no device cuda:7", "CUDA_VISIBLE_DEVICES"]);
    with_stubs(&[], &[])
        .run(["load", "m.safetensors", "--device", "cuda", "--device", "cpu"])
        .exits(2)
        .says(&["cannot be loaded to at once"]);
    let bare = Sandbox::new().var("FOREBAY_CUDA_LIBRARY", "libforebay-nowhere.so");
    weights(&bare, "m.safetensors", MODEL);
    bare.run(args)
        .exits(2)
        .says(&["there is no CUDA driver here", "load to cpu"]);
}

#[test]
fn preconditions_of_gds_are_listed_with_and_without_a_gpu() {
    let bare = Sandbox::new()
        .var("FOREBAY_CUDA_LIBRARY", "libforebay-nowhere.so")
        .var("FOREBAY_CUFILE_LIBRARY", "libforebay-nowhere.so");
    let out = bare.run(["gds"]).exits(1).out;
    for words in [
        "there is no CUDA driver here",
        "libcufile",
        "->",
        "cannot go straight",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let json = bare.run(["gds", "--json"]).exits(1).json();
    assert_eq!(json["is_possible"], false);
    bare.run(["gds", "missing"]).exits(2).says(&["missing"]);
    bare.run(["gds", "--device", "cpu"]).exits(2).says(&["for GPUs"]);
    // A library that reads directly, on a machine that has nothing else of it: the trial shows it, the rows say the rest.
    let sandbox = with_stubs(&[], &["-DNVFS"]);
    let json = sandbox.run(["gds", "m.safetensors", "--json"]).exits(1).json();
    let rows = json["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap().clone();
    assert_eq!(row("trial")["state"], "yes", "{json}");
    assert!(row("gpu")["found"].as_str().unwrap().starts_with("Stub GPU 0"));
    assert!(rows.iter().any(|row| row["name"] == "file system"));
    let refused = with_stubs(&[], &[]).run(["gds", "m.safetensors"]).exits(1).out;
    assert!(refused.contains("no direct path exists"), "{refused}");
}
