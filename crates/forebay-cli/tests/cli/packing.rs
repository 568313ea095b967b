//! `pack`: folders to shards, shards to other shards, and what a killed run leaves.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::sandbox::Sandbox;

/// Three hundred samples of a text, a label and some bytes.
fn folder() -> Sandbox {
    let sandbox = Sandbox::new();
    for index in 0..300 {
        sandbox.file(&format!("raw/d{}/{index:04}.dat", index % 3), 2000);
        let label = sandbox.path(format!("raw/d{}/{index:04}.cls", index % 3));
        std::fs::write(label, (index % 10).to_string()).unwrap();
    }
    sandbox
}

/// Everything in a folder, but for the manifest: it names the versions of files.
fn contents(sandbox: &Sandbox, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let names = sandbox.names(dir).into_iter();
    names
        .filter(|name| name != "_forebay.fbi")
        .map(|name| (name.clone(), sandbox.read(&format!("{dir}/{name}"))))
        .collect()
}

#[test]
fn a_folder_becomes_shards_that_verify_and_stream() {
    let sandbox = folder();
    sandbox
        .run(["pack", "raw", "w", "--to", "wds", "--shard-size", "200KiB"])
        .exits(0)
        .says(&[
            "packed 300 samples into 6 shards of format wds",
            "target: [DIR]/here/w",
        ]);
    let names = sandbox.names("w");
    assert!(names.contains(&"shard-000004.tar".to_owned()) && names.contains(&"_SHA256SUMS".to_owned()));
    sandbox.run(["verify", "w"]).exits(0);
    sandbox
        .run(["pack", "w", "m", "--to", "mds", "--compression", "zstd", "--json"])
        .exits(0);
    sandbox.run(["verify", "m"]).exits(0);
    assert!(sandbox.names("m").contains(&"index.json".to_owned()));
    let report = sandbox
        .run([
            "pack", "m", "p", "--to", "parquet", "--filter", "cls = 3", "--limit", "20", "--json",
        ])
        .exits(0)
        .json();
    assert_eq!(
        (&report["samples"], &report["format"]["name"]),
        (&20.into(), &"parquet".into())
    );
    let streamed = sandbox
        .run(["stream", "w", "--batch-size", "50", "--json"])
        .exits(0)
        .json();
    assert_eq!(streamed["samples"], 300);
}

#[test]
fn stray_files_among_images_are_left_out_and_told() {
    let sandbox = Sandbox::new();
    for name in ["raw/cat/0.jpg", "raw/cat/1.jpg", "raw/dog/0.png"] {
        sandbox.file(name, 100);
    }
    sandbox.file("raw/cat/Thumbs.db", 10);
    sandbox.file("raw/README.txt", 10);
    let told = [
        "left out are 2 files that are no images in directories of classes: 1 .db, 1 .txt, such as 'README.txt'",
        "--layout tree",
    ];
    sandbox
        .run(["pack", "raw", "w", "--to", "wds"])
        .exits(0)
        .says(&told)
        .says(&["packed 3 samples into 1 shard of format wds, 2 files left out;"]);
    let report = sandbox
        .run(["pack", "raw", "m", "--to", "mds", "--json"])
        .exits(0)
        .json();
    assert_eq!(report["files_left_out"], 2);
    sandbox.run(["stream", "raw"]).exits(0).says(&told);
    sandbox
        .run(["pack", "raw", "t", "--to", "wds", "--layout", "tree"])
        .exits(0)
        .says(&["packed 5 samples"]);
    let report = sandbox.run(["index", "raw", "--json"]).exits(0).json();
    assert_eq!(
        (&report["samples"], &report["files_left_out"]),
        (&3.into(), &2.into())
    );
    sandbox
        .run(["stream", "raw", "--layout", "tree", "--format", "wds"])
        .exits(2)
        .says(&["--layout say nothing about format wds"]);
}

#[test]
fn running_out_of_files_has_a_hint_at_the_start_and_in_listings() {
    let sandbox = Sandbox::new();
    sandbox.file("raw/a.txt", 4);
    let mut seen = [false; 2];
    for limit in 4..24 {
        let mut command = Command::new("/bin/sh");
        let packed = command
            .args([
                "-c",
                &format!("ulimit -n {limit}; exec \"$0\" pack raw w{limit} --to wds"),
            ])
            .arg(env!("CARGO_BIN_EXE_forebay"))
            .current_dir(sandbox.work())
            .env("HOME", sandbox.home())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&packed.stderr);
        assert!(!said.contains("panicked"), "{limit}: {said}");
        for (seen, begin) in seen
            .iter_mut()
            .zip(["error: i/o error: start:", "error: i/o error: list "])
        {
            if said.starts_with(begin) {
                *seen = true;
                let hint = "hint: raise the limit of open files (ulimit -n)";
                assert!(said.contains(hint), "{limit}: {said}");
            }
        }
    }
    assert_eq!(
        seen, [true; 2],
        "where files run out has changed: try other limits"
    );
}

#[test]
fn an_index_beside_images_changes_nothing_that_is_packed() {
    let sandbox = Sandbox::new();
    for name in ["cat/0", "cat/1", "dog/0"] {
        sandbox.file(&format!("raw/{name}.jpg"), 500);
    }
    let pack = |to: &str| sandbox.run(["pack", "raw", to, "--to", "wds"]).exits(0);
    pack("before");
    sandbox.run(["index", "raw"]).exits(0);
    pack("after");
    let name = "shard-000000.tar";
    assert_eq!(
        sandbox.read(&format!("before/{name}")),
        sandbox.read(&format!("after/{name}"))
    );
}

#[test]
fn what_was_packed_becomes_files_again() {
    let sandbox = Sandbox::new();
    for name in ["a/0.txt", "a/0.seg.dat", "b/1.txt", "b/1.json"] {
        sandbox.file(&format!("raw/{name}"), 300);
    }
    sandbox.run(["pack", "raw", "tars", "--to", "wds"]).exits(0);
    let done = sandbox
        .run(["pack", "tars", "again", "--to", "files", "--json"])
        .exits(0);
    assert_eq!(done.json()["samples"], 2);
    for name in ["a/0.txt", "a/0.seg.dat", "b/1.txt", "b/1.json"] {
        assert_eq!(
            sandbox.read(&format!("again/{name}")),
            sandbox.read(&format!("raw/{name}")),
            "{name}"
        );
    }
    sandbox.run(["verify", "again"]).exits(0);
    let streamed = sandbox.run(["stream", "again", "--keys"]).exits(0);
    assert_eq!(streamed.out, "a/0\nb/1\n");
    sandbox
        .run(["pack", "tars", "again", "--to", "files"])
        .exits(1)
        .says(&["there is a data set already"]);
}

#[test]
fn few_descriptors_are_enough() {
    let sandbox = Sandbox::new();
    for index in 0..5000 {
        sandbox.file(&format!("raw/{index:04}.dat"), 4);
    }
    // Two waves would have as many: some are left for what is written.
    let mut command = Command::new("/bin/sh");
    let packed = command
        .args([
            "-c",
            "ulimit -n 128; exec \"$0\" pack raw w --to wds --shard-size 300KiB",
        ])
        .arg(env!("CARGO_BIN_EXE_forebay"))
        .current_dir(sandbox.work())
        .env("HOME", sandbox.home())
        .output()
        .unwrap();
    sandbox.ran(&packed).exits(0).says(&["packed 5000 samples"]);
    sandbox.run(["verify", "w"]).exits(0);
}

#[test]
fn mistakes_are_told_before_anything_is_written() {
    let sandbox = folder();
    sandbox
        .run(["pack", "raw", "w", "--to", "wds", "--fields", "nope"])
        .exits(2)
        .says(&["no field 'nope'", "there are: cls, dat"]);
    sandbox
        .run(["pack", "raw", "raw/inside", "--to", "wds"])
        .exits(2)
        .says(&["overlap"]);
    sandbox.run(["pack", "raw", "w", "--to", "zip"]).exits(2);
    sandbox
        .run(["pack", "none", "w", "--to", "wds"])
        .exits(2)
        .says(&["none"]);
    assert!(!sandbox.path("w").exists());
    sandbox.run(["pack", "raw", "w", "--to", "wds"]).exits(0);
    sandbox
        .run(["pack", "raw", "w", "--to", "wds"])
        .exits(1)
        .says(&["there is a data set already", "--overwrite"]);
    sandbox
        .run(["pack", "raw", "w", "--to", "tfrecord", "--overwrite"])
        .exits(0);
    assert_eq!(
        sandbox.names("w"),
        ["_SHA256SUMS", "_forebay.fbi", "shard-000000.tfrecord"]
    );
}

#[test]
fn only_what_was_packed_is_overwritten() {
    let sandbox = folder();
    sandbox.run(["pack", "raw", "w", "--to", "wds"]).exits(0);
    sandbox.run(["index", "--force", "w"]).exits(0);
    let before = contents(&sandbox, "w");
    sandbox
        .run(["pack", "raw", "w", "--to", "mds", "--overwrite"])
        .exits(1)
        .says(&["not packed"]);
    assert_eq!(contents(&sandbox, "w"), before);
    sandbox
        .run(["pack", "raw", "x", "--to", "wds", "--memory", "512MiB"])
        .exits(2)
        .says(&["--memory", "--shard-size"]);
    assert!(!sandbox.path("x").exists());
}

/// Start a pack and wait until some of its shards are there.
fn under_way(sandbox: &Sandbox, args: &[&str]) -> Child {
    let mut child = sandbox
        .command(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    loop {
        let notes = std::fs::read_dir(sandbox.path("w"));
        let notes = notes.into_iter().flatten().flatten();
        let is_note =
            |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".forebay-pack-0");
        if notes.filter(is_note).count() >= 3 || child.try_wait().unwrap().is_some() {
            return child;
        }
        std::thread::yield_now();
    }
}

const SLOW: [&str; 10] = [
    "pack",
    "raw",
    "w",
    "--to",
    "wds",
    "--shard-size",
    "20KiB",
    "--compression",
    "zstd:19",
    "--shuffle",
];

#[test]
fn a_killed_pack_goes_on_and_gives_the_same_bytes() {
    let sandbox = folder();
    let whole: Vec<&str> = SLOW
        .iter()
        .map(|arg| if *arg == "w" { "whole" } else { *arg })
        .collect();
    sandbox.run(whole).exits(0);
    let mut child = under_way(&sandbox, &SLOW);
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    assert_eq!(
        child.wait().unwrap().code(),
        None,
        "it was over before the signal came"
    );
    assert!(!sandbox.path("w/_forebay.fbi").exists());
    let report = sandbox
        .run(SLOW.iter().copied().chain(["--json"]))
        .exits(0)
        .json();
    assert!(report["shards_kept"].as_u64().unwrap() >= 3, "{report}");
    assert_eq!(contents(&sandbox, "w"), contents(&sandbox, "whole"));
    assert!(!sandbox.path("w/.forebay-pack-plan.json").exists());
    sandbox.run(["verify", "w"]).exits(0);
}

#[test]
fn ctrl_c_leaves_what_can_be_gone_on_with() {
    let sandbox = folder();
    let child = under_way(&sandbox, &SLOW);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    sandbox
        .ran(&output)
        .exits(130)
        .says(&["interrupted", "the same command"]);
    assert!(!sandbox.path("w/_forebay.fbi").exists());
    assert!(
        sandbox
            .names("w")
            .iter()
            .all(|name| !name.starts_with(".forebay-tmp-"))
    );
    // Other options would give other bytes.
    sandbox
        .run(["pack", "raw", "w", "--to", "wds"])
        .exits(1)
        .says(&["was begun here", "--overwrite"]);
    sandbox.run(SLOW).exits(0).says(&["from an earlier run"]);
    sandbox.run(["verify", "w"]).exits(0);
}
