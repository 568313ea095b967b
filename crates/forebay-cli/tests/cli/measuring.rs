//! `demo` and `bench`: they run, their figures hang together, and they clean up. How fast is not a test's business.

use super::sandbox::Sandbox;

#[test]
fn the_demo_writes_copies_streams_checkpoints_loads_and_cleans_up() {
    let sandbox = Sandbox::new();
    let json = sandbox.run(["demo", "--json", "--size", "64MiB"]).exits(0).json();
    let steps = json["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 13);
    for (index, step) in steps.iter().enumerate() {
        let bytes = step["bytes"].as_u64().unwrap();
        if index < 4 {
            assert_eq!(bytes, 64 << 20);
        } else if index >= 8 {
            assert_eq!(bytes, 16 << 20, "two tensors of 8 MiB: {step}");
        } else {
            assert!(
                (33_500_000..36_000_000).contains(&bytes),
                "335 samples of 100 kB: {step}"
            );
        }
        assert!(
            step["bytes_per_s"].as_f64().unwrap() > 0.0 && step["share"].as_f64().unwrap() > 0.0,
            "{step}"
        );
    }
    let paths = json["ledger"]["paths"].as_object().unwrap();
    let bytes: u64 = paths.values().map(|path| path["bytes"].as_u64().unwrap()).sum();
    let tars = steps[4]["bytes"].as_u64().unwrap();
    let state = 16 << 20;
    // Of two tensors, the first changes between the checkpoints.
    let least = 6 * (64 << 20) + 4 * tars + 4 * state + state / 2;
    assert!(
        (least..least + least / 20).contains(&bytes),
        "written, read twice; read, written and read back by the copy; tars written, indexed and streamed twice; a state saved twice, restored, half of it \
         saved again, and loaded: {bytes}"
    );
    let verified = json["ledger"]["verified_bytes"].as_u64().unwrap();
    assert!(
        verified >= 3 * (64 << 20) + 2 * 335 * 100_000 + state,
        "{verified}"
    );
    assert_eq!(sandbox.names("."), [""; 0]);
    let out = sandbox.run(["demo", "--size", "8MiB"]).exits(0).out;
    for words in [
        "plain calls",
        "ratio",
        "CPU s/GB",
        "write, durable",
        "read back, next",
        "copy to a second store",
        "stream shuffled, first",
        "stream shuffled, next",
        "checkpoint, next",
        "restore",
        "load weights",
        "path ",
        "verified",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
}

#[test]
fn the_disk_is_measured_against_other_means() {
    let sandbox = Sandbox::new();
    let json = sandbox
        .run(["bench", "disk", ".", "--json", "--size", "16MiB", "--runs", "2"])
        .exits(0)
        .json();
    let tests = json["tests"].as_array().unwrap();
    let names: Vec<&str> = tests.iter().map(|test| test["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sequential read", "durable write", "random read"]);
    for test in tests {
        let limit = test["limit_bytes_per_s"].as_f64().unwrap();
        let share = test["forebay"]["bytes_per_s"].as_f64().unwrap() / limit;
        assert!((test["share"].as_f64().unwrap() - share).abs() < 1e-9);
        assert!(limit >= test["raw"]["bytes_per_s"].as_f64().unwrap());
    }
    assert_eq!(sandbox.names("."), [""; 0]);
    sandbox
        .run(["bench", "disk", "s3://b/p"])
        .exits(2)
        .says(&["local directory", "bench store"]);
}

#[test]
fn checkpoints_are_measured_against_plain_calls() {
    let sandbox = Sandbox::new();
    let json = sandbox
        .run(["bench", "ckpt", ".", "--json", "--size", "64MiB", "--runs", "2"])
        .exits(0)
        .json();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    assert!(
        rows.iter().all(|row| row["bytes_per_s"].as_f64().unwrap() > 0.0),
        "{json}"
    );
    // One tensor of two has changed; the rest of the payload is its header.
    assert_eq!(json["incremental_bytes"].as_u64().unwrap(), (32 << 20) + 4096);
    assert_eq!(
        json["load_ledger"]["verified_bytes"].as_u64().unwrap(),
        2 * (64 << 20)
    );
    assert_eq!(sandbox.names("."), [""; 0]);
}

#[test]
fn a_store_is_measured_and_left_empty() {
    let sandbox = Sandbox::new();
    sandbox.file("place/mine", 5);
    let args = [
        "bench",
        "store",
        "place",
        "--size",
        "16MiB",
        "--object-size",
        "8MiB",
        "--small-objects",
        "20",
        "--runs",
        "1",
    ];
    let out = sandbox.run(args).exits(0).out;
    for words in [
        "put in parts",
        "get in ranges",
        "put 4 KiB",
        "get 4 KiB",
        "verified",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    assert_eq!(sandbox.names("place"), ["mine"]);
    let json: Vec<&str> = ["--json"].into_iter().chain(args).collect();
    let json = sandbox.run(json).exits(0).json();
    assert_eq!(json["tests"].as_array().unwrap().len(), 4);
    assert!(json["tests"][2]["objects_per_s"].as_f64().unwrap() > 0.0);
}
