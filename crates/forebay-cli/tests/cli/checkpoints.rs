//! `ckpt`: two steps, the second incremental, listed, shown, verified, compared, damaged and collected.

use std::sync::Arc;
use std::time::Duration;

use forebay_ckpt::{
    Attempt, Compress, Dtype, HashKind, Item, ItemData, KeyWrap, Keys, Save, SaveOptions, SigningKey,
    SliceSpec, Value,
};
use forebay_core::Location;
use forebay_io::{Buf, DiskConfig};
use forebay_store::{Context, LocalStore, Store};

use super::sandbox::Sandbox;

fn items(rank: u64, changed: u8) -> Vec<Item> {
    let spec = SliceSpec::whole(Dtype::F32, &[64, 64]).cut(&[32 * rank, 0], &[32, 64]);
    let mut bytes: Vec<u8> = (0..8192u32).map(|at| (at * 7 + rank as u32) as u8).collect();
    bytes[5000] = changed;
    let mut items = vec![Item {
        name: "model.weight".to_owned(),
        data: ItemData::Slice(spec, Buf::copy_of(&bytes).unwrap()),
    }];
    if rank == 0 {
        items.push(Item {
            name: "lr".to_owned(),
            data: ItemData::Value(Value::Float(0.001)),
        });
    }
    items
}

/// Steps 10 and 20 by two ranks below `run`.
pub(crate) fn saved() -> Sandbox {
    let sandbox = Sandbox::new();
    save_into(&sandbox, |options| options);
    sandbox
}

/// The same in another way.
pub(crate) fn save_into(sandbox: &Sandbox, how: impl Fn(SaveOptions) -> SaveOptions) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let context = Context::open(DiskConfig::default()).unwrap().with_state_dir(None);
        let root = sandbox.path("run");
        let location = Location::from_path(&root, &root).unwrap();
        let store: Arc<dyn Store> = Arc::new(LocalStore::open(&location, &context).unwrap());
        for (step, base_step) in [(10, None), (20, Some(10))] {
            let options = SaveOptions {
                chunk_bytes: 4096,
                base_step,
                ..SaveOptions::new(step, Attempt::derive("test", step, 0), 2)
            };
            let save = Save::begin(Arc::clone(&store), &context, how(options))
                .await
                .unwrap();
            for rank in 0..2 {
                let changed = if rank == 1 { step as u8 } else { 0 };
                save.rank(rank, items(rank.into(), changed)).await.unwrap();
            }
            let metadata = Value::Dict(vec![(Value::text("loss"), Value::Float(30.0 / step as f64))]);
            save.commit(metadata, Duration::ZERO).await.unwrap();
        }
    });
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn other_saves_of_a_step_are_not_taken_for_copies() {
    let sandbox = Sandbox::new();
    save_into(&sandbox, |options| SaveOptions {
        attempt: Attempt::derive("another", options.step, 0),
        ..options
    });
    std::fs::rename(sandbox.path("run"), sandbox.path("other")).unwrap();
    save_into(&sandbox, |options| options);
    let ran = sandbox.run(["ckpt", "ls", "run", "other"]).exits(1);
    let told = ran
        .out
        .lines()
        .filter(|line| line.contains("other (another save of this step)"));
    assert_eq!(told.count(), 2, "{}", ran.out);
    let ran = sandbox.run(["ckpt", "ls", "run", "other", "--json"]).exits(1);
    let row = json(ran.out.lines().next().unwrap());
    assert_eq!(
        (&row["places"][0]["is_other"], &row["places"][1]["is_other"]),
        (&false.into(), &true.into())
    );
}

#[test]
fn checkpoints_are_listed_and_shown() {
    let sandbox = saved();
    let ran = sandbox.run(["ckpt", "ls", "run"]).exits(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.out);
    assert!(
        lines[1].contains("10") && lines[1].contains("loss=3.0"),
        "{}",
        lines[1]
    );
    assert!(
        lines[2].contains("on 10") && lines[2].contains("loss=1.5"),
        "{}",
        lines[2]
    );
    let ran = sandbox.run(["ckpt", "ls", "run", "--json"]).exits(0);
    let rows: Vec<_> = ran.out.lines().map(json).collect();
    assert_eq!(
        (rows[1]["step"].as_u64(), rows[1]["base_step"].as_u64()),
        (Some(20), Some(10))
    );
    assert_eq!(rows[1]["metadata"]["loss"], 1.5);
    assert!(rows[1]["bytes_written"].as_u64().unwrap() < rows[0]["bytes_written"].as_u64().unwrap());

    let ran = sandbox.run(["ckpt", "show", "run"]).exits(0);
    assert!(
        ran.out.contains("F32") && ran.out.contains("[64, 64]") && ran.out.contains("2 slices"),
        "{}",
        ran.out
    );
    let ran = sandbox
        .run(["ckpt", "show", "run", "--step", "10", "model.weight", "--json"])
        .exits(0);
    let rows: Vec<_> = ran.out.lines().map(json).collect();
    assert_eq!(rows[1]["offsets"], serde_json::json!([32, 0]));
    let ran = sandbox.run(["ckpt", "show", "run", "lr"]).exits(0);
    assert!(ran.out.contains("0.001"), "{}", ran.out);
    sandbox
        .run(["ckpt", "show", "run", "nothing"])
        .exits(2)
        .says(&["nothing"]);
    sandbox
        .run(["ckpt", "show", "run", "--step", "15"])
        .exits(2)
        .says(&["step 15"]);
    sandbox.run(["ckpt", "ls", "nowhere"]).exits(2).says(&["nowhere"]);
    // A mirror that has one of them, and one that cannot be read.
    sandbox
        .run(["ckpt", "drain", "run", "mirror", "--step", "10"])
        .exits(0);
    let ran = sandbox.run(["ckpt", "ls", "run", "mirror", "--json"]).exits(0);
    let rows: Vec<_> = ran.out.lines().map(json).collect();
    let places = |row: &serde_json::Value| row["places"].as_array().unwrap().len();
    assert_eq!((places(&rows[0]), places(&rows[1])), (2, 1), "{}", ran.out);
    assert!(rows[0]["age_seconds"].as_f64().unwrap() >= 0.0);
    let ran = sandbox
        .run(["ckpt", "ls", "run", "nowhere"])
        .exits(1)
        .says(&["nowhere"]);
    assert_eq!(ran.out.lines().count(), 3, "{}", ran.out);
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    sandbox
        .run(["ckpt", "ls", "empty"])
        .exits(0)
        .says(&["there is no checkpoint here"]);
    sandbox
        .run(["ckpt", "verify", "empty"])
        .exits(2)
        .says(&["there is no checkpoint here"]);
}

#[test]
fn damage_is_named_and_changes_are_shown() {
    let sandbox = saved();
    sandbox
        .run(["ckpt", "verify", "run", "--all"])
        .exits(0)
        .says(&["step 10: whole", "step 20: whole"]);
    let ran = sandbox.run(["ckpt", "diff", "run", "10", "20"]).exits(1);
    assert_eq!(ran.out, "model.weight: 4.0 KiB in chunks that differ\n");
    sandbox.run(["ckpt", "diff", "run", "20", "20"]).exits(0);
    // The payload of rank 0 at step 10, which both steps need.
    let folder = format!("run/steps/{:020}/{}", 10, Attempt::derive("test", 10, 0));
    let path = format!("{folder}/rank-000000.safetensors");
    let mut bytes = sandbox.read(&path);
    let at = bytes.len() - 10;
    bytes[at] ^= 1;
    std::fs::write(sandbox.path(&path), bytes).unwrap();
    let ran = sandbox.run(["ckpt", "verify", "run"]).exits(1);
    assert!(
        ran.out.contains("model.weight bytes 4096..8192") && ran.out.contains("hash does not hold"),
        "{}",
        ran.out
    );
    let ran = sandbox
        .run(["ckpt", "verify", "run", "--step", "10", "--json"])
        .exits(1);
    let row = json(&ran.out);
    assert_eq!(row["damages"][0]["name"], "model.weight");
    assert_eq!(row["whole"], false);
}

#[test]
fn gc_keeps_what_is_asked_and_needed() {
    let sandbox = saved();
    let ran = sandbox
        .run(["ckpt", "gc", "run", "--keep-last", "1", "--dry-run"])
        .exits(0);
    assert_eq!(ran.out, "10\n");
    ran.says(&["would remove 1 checkpoint"]);
    let ran = sandbox
        .run(["ckpt", "gc", "run", "--keep-last", "1", "--json"])
        .exits(0);
    let collected = json(&ran.out);
    assert_eq!(
        (&collected["steps"], &collected["kept"]),
        (&serde_json::json!([10]), &serde_json::json!([20]))
    );
    let ran = sandbox.run(["ckpt", "ls", "run"]).exits(0);
    assert_eq!(ran.out.lines().count(), 2);
    sandbox.run(["ckpt", "verify", "run"]).exits(0).says(&["whole"]);
    sandbox.run(["ckpt", "gc", "run", "--keep-last", "0"]).exits(2);
    sandbox
        .run(["ckpt", "gc", "run", "--remove", "20"])
        .exits(0)
        .says(&["0 checkpoints left"]);
}

#[test]
fn checkpoints_are_drained_and_restored() {
    let sandbox = saved();
    let ran = sandbox.run(["ckpt", "drain", "run", "far", "--json"]).exits(0);
    let report = json(&ran.out);
    assert_eq!(report["drained"].as_array().unwrap().len(), 2, "{report}");
    let ran = sandbox.run(["ckpt", "drain", "run", "far"]).exits(0);
    assert!(ran.out.is_empty() && ran.err.contains("brought 0"), "{}", ran.err);
    sandbox.run(["ckpt", "verify", "far", "--all"]).exits(0);

    // What is damaged is named, and does not arrive.
    let payload = format!(
        "run/steps/{:020}/{}/rank-000001.safetensors",
        10,
        Attempt::derive("test", 10, 0)
    );
    let mut bytes = std::fs::read(sandbox.path(&payload)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(sandbox.path(&payload), bytes).unwrap();
    let ran = sandbox
        .run(["ckpt", "drain", "run", "other", "--step", "10"])
        .exits(1);
    assert!(ran.err.contains("damaged"), "{}", ran.err);
    assert!(!sandbox.path("other/manifests").exists());

    let ran = sandbox.run(["ckpt", "restore", "far", "near", "--json"]).exits(0);
    assert_eq!(json(&ran.out)["drained"][0]["step"], 20);
    sandbox.run(["ckpt", "verify", "near"]).exits(0);
    sandbox
        .run(["ckpt", "restore", "far", "near", "--step", "11"])
        .exits(2);
    sandbox.run(["ckpt", "drain", "far", "far"]).exits(2);
}

#[test]
fn drains_compress_when_they_are_told_to() {
    let sandbox = saved();
    sandbox
        .run(["ckpt", "drain", "run", "far", "--compress", "auto"])
        .exits(0)
        .says(&["compressed on the way"]);
    sandbox.run(["ckpt", "verify", "far", "--all"]).exits(0);
    let ran = sandbox
        .run(["ckpt", "drain", "run", "far", "--compress", "zstd:3", "--json"])
        .exits(0);
    let report = json(&ran.out);
    assert_eq!(report["there"], serde_json::json!([10, 20]), "{report}");
    let ran = sandbox
        .run(["ckpt", "drain", "run", "other", "--compress", "best"])
        .exits(2);
    assert!(ran.err.contains("no way to compress"), "{}", ran.err);
}

#[test]
fn checkpoints_are_kept_by_age() {
    let sandbox = saved();
    let none = sandbox.run(["ckpt", "gc", "run", "--older-than", "1d"]).exits(0);
    assert!(none.out.is_empty(), "{}", none.out);
    let ran = sandbox.run(["ckpt", "gc", "run", "--older-than", "0s"]).exits(0);
    assert_eq!(ran.out.trim(), "10", "the newest stays, however old");
    sandbox.run(["ckpt", "verify", "run"]).exits(0);
    let ran = sandbox
        .run(["ckpt", "gc", "run", "--older-than", "soon"])
        .exits(2);
    assert!(ran.err.contains("12h"), "{}", ran.err);
}

#[test]
fn keys_seal_sign_and_turn() {
    let sandbox = Sandbox::new();
    for name in ["one", "two"] {
        sandbox.run(["ckpt", "key", name]).exits(0).says(&["keep a copy"]);
    }
    let ran = sandbox.run(["ckpt", "key", "--sign", "pair"]).exits(0);
    let public = ran.out.trim().to_owned();
    sandbox.run(["ckpt", "key", "--sign", "other"]).exits(0);
    // One that is there stays.
    let before = std::fs::read(sandbox.path("one")).unwrap();
    sandbox.run(["ckpt", "key", "one"]).exits(1);
    assert_eq!(std::fs::read(sandbox.path("one")).unwrap(), before);
    let signing = SigningKey::file(&sandbox.path("pair")).unwrap();
    assert_eq!(signing.public().to_string(), public);
    save_into(&sandbox, |options| SaveOptions {
        hash: HashKind::Blake3,
        compress: Compress::Auto,
        seal: Keys::new([KeyWrap::file(&sandbox.path("one")).unwrap()]),
        sign: Some(signing.clone()),
        ..options
    });
    sandbox
        .run(["ckpt", "show", "run", "--step", "10"])
        .exits(0)
        .says(&["aes-256-gcm", "signed by", &public]);
    sandbox.run(["ckpt", "verify", "run", "--all"]).exits(0);
    let verify = |key: &str| sandbox.run(["ckpt", "verify", "run", "--key", key]);
    verify("one").exits(0);
    verify("two").exits(2).says(&["sealed", "file "]);
    let trust = |key: &str| sandbox.run(["ckpt", "verify", "run", "--all", "--require-signature", key]);
    trust("pair.pub").exits(0);
    trust(&public).exits(0);
    trust("other.pub").exits(1);
    let rewrap =
        |key: &str| sandbox.run(["ckpt", "rewrap", "run", "--key", key, "--new-key", "two", "--all"]);
    rewrap("two").exits(2).says(&["sealed"]);
    let ran = rewrap("one").exits(0);
    assert_eq!(ran.out.lines().count(), 2, "{}", ran.out);
    verify("two").exits(0);
    verify("one").exits(2);
    trust("pair.pub").exits(0);
    // Unsigned: nothing is shown to who requires a signature.
    let plain = saved();
    std::fs::copy(sandbox.path("pair.pub"), plain.path("pair.pub")).unwrap();
    plain
        .run(["ckpt", "show", "run", "--require-signature", "pair.pub"])
        .exits(2)
        .says(&["tampering"]);
    plain
        .run([
            "ckpt",
            "rewrap",
            "run",
            "--key",
            "pair.pub",
            "--new-key",
            "pair.pub",
        ])
        .exits(2);
}

#[test]
fn what_gc_and_rewrap_do_is_noted() {
    let sandbox = Sandbox::new();
    sandbox.run(["ckpt", "key", "one"]).exits(0);
    save_into(&sandbox, |options| SaveOptions {
        seal: Keys::new([KeyWrap::file(&sandbox.path("one")).unwrap()]),
        ..options
    });
    sandbox
        .run(["ckpt", "gc", "run", "--keep-last", "1", "--access-log", "log"])
        .exits(0);
    sandbox
        .run([
            "ckpt",
            "rewrap",
            "run",
            "--key",
            "one",
            "--new-key",
            "one",
            "--access-log",
            "log",
        ])
        .exits(0);
    sandbox.run(["ckpt", "log", "log"]).exits(0).says(&["2 lines"]);
    let log = std::fs::read_to_string(sandbox.path("log")).unwrap();
    assert!(
        log.contains("\"op\":\"gc\"") && log.contains("\"step\":10"),
        "{log}"
    );
    std::fs::write(sandbox.path("log"), log.replace("\"step\":10", "\"step\":11")).unwrap();
    sandbox.run(["ckpt", "log", "log"]).exits(1).says(&["line 2"]);
}

#[test]
fn checkpoints_are_exported() {
    let sandbox = saved();
    let ran = sandbox
        .run(["ckpt", "export", "run", "--to", "safetensors", "out", "--json"])
        .exits(0);
    let report = json(&ran.out);
    assert_eq!(report["tensors"], 1, "{report}");
    assert_eq!(report["left_out"][0], "lr");
    // Two slices come out as one tensor, which other commands read.
    let ran = sandbox.run(["load", "out/model.safetensors", "--json"]).exits(0);
    assert!(ran.out.contains("16384"), "{}", ran.out);
    let ran = sandbox
        .run([
            "ckpt", "export", "run", "--step", "10", "--to", "hf", "--prefix", "model.", "out",
        ])
        .exits(0);
    assert_eq!(
        ran.out.lines().collect::<Vec<_>>(),
        ["model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    );
    let ran = sandbox
        .run(["ckpt", "export", "run", "--to", "torch", "out"])
        .exits(0);
    assert_eq!(ran.out.trim(), "model.pt");
    assert!(ran.err.contains("1 tensor and 1 value"), "{}", ran.err);
    // A name that ends like a file of the format is one.
    let ran = sandbox
        .run([
            "ckpt",
            "export",
            "run",
            "--to",
            "safetensors",
            "some/w.safetensors",
        ])
        .exits(0);
    assert_eq!(ran.out.trim(), "w.safetensors");
    assert!(sandbox.path("some/w.safetensors").is_file());
    sandbox
        .run(["ckpt", "export", "run", "--to", "torch", "w.pt"])
        .exits(0);
    assert!(sandbox.path("w.pt").is_file());
    std::fs::create_dir(sandbox.path("dir.pt")).unwrap();
    sandbox
        .run(["ckpt", "export", "run", "--to", "torch", "dir.pt"])
        .exits(0);
    assert!(sandbox.path("dir.pt/model.pt").is_file());
    sandbox
        .run(["ckpt", "export", "run", "--to", "pickle", "out"])
        .exits(2);
}
