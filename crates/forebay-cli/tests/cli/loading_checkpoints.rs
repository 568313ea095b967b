//! `load` of checkpoints: as weights are, whatever ranks saved them, compressed or sealed; and what is refused.

use std::sync::Arc;
use std::time::Duration;

use forebay_ckpt::{
    Attempt, CheckpointView, Compress, Dtype, HashKind, Item, ItemData, KeyWrap, Keys, Save, SaveOptions,
    SliceSpec, Value, ViewOptions,
};
use forebay_core::{Ledger, Location};
use forebay_io::{Buf, DiskConfig};
use forebay_store::{Context, LocalStore, Store};
use forebay_weights::{
    CheckedFile, Edges, HostTensor, LoadOptions, LoadReport, Selection, Shard, Source, load_host,
};

use super::checkpoints::{save_into, saved};
use super::devices::with_stubs;
use super::loading::{MODEL, weights};
use super::sandbox::Sandbox;

const BYTES: u64 = 64 * 64 * 4;

#[test]
fn a_checkpoint_is_loaded_and_accounted_for() {
    let sandbox = saved();
    let json = sandbox
        .run(["load", "run", "--verify", "require", "--repeat", "2", "--json"])
        .exits(0)
        .json();
    assert_eq!(
        (&json["tensors"], &json["tensor_bytes"]),
        (&1.into(), &BYTES.into())
    );
    assert_eq!(json["ledger"]["verified_bytes"], 2 * BYTES);
    assert!(json["limit"].is_null() && json["read_bytes"] == BYTES, "{json}");
    let part = ["--select", "model.*", "--shard", "1/4", "--shard-dim", "*=1"];
    let args = ["load", "run", "--json"].iter().chain(&part);
    assert_eq!(sandbox.run(args).exits(0).json()["tensor_bytes"], BYTES / 4);
    let rows = sandbox
        .run(["load", "run", "--step", "10", "--list", "--json"])
        .exits(0)
        .json_lines();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (&rows[0]["name"], &rows[0]["dtype"]),
        (&"model.weight".into(), &"F32".into())
    );
    assert!(rows[0]["file"].as_str().unwrap().ends_with("10.fbm"), "{rows:?}");
    let out = sandbox.run(["load", "run"]).exits(0).out;
    assert!(
        out.contains("forebay") && !out.contains("plain direct read"),
        "{out}"
    );
    sandbox
        .run(["load", "run", "--write-hashes"])
        .exits(2)
        .says(&["hashes of its own"]);
    sandbox
        .run(["load", "run", "--step", "11"])
        .exits(2)
        .says(&["no checkpoint of step 11"]);
    sandbox
        .run(["load", "run", "--select", "lr"])
        .exits(2)
        .says(&["no tensor matches 'lr'"]);
}

#[test]
fn damage_is_named_and_older_steps_are_taken() {
    let sandbox = saved();
    let manifest = sandbox.path("run/manifests").join(format!("{:020}.fbm", 20));
    std::fs::write(&manifest, b"torn").unwrap();
    let ran = sandbox.run(["load", "run", "--list"]).exits(0);
    assert!(ran.err.contains("step 20"), "{}", ran.err);
    let json = sandbox.run(["load", "run", "--json"]).exits(0).json();
    assert!(json["damaged"][0].as_str().unwrap().contains("step 20"), "{json}");
    let steps = std::fs::read_dir(sandbox.path("run/steps").join(format!("{:020}", 10))).unwrap();
    let attempt = steps.flatten().next().unwrap().path();
    let payload = attempt.join("rank-000001.safetensors");
    let mut bytes = std::fs::read(&payload).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&payload, bytes).unwrap();
    sandbox.run(["load", "run"]).exits(2).says(&[
        "model.weight",
        "does not hold its hash",
        "rank-000001.safetensors",
    ]);
}

#[test]
fn weights_beside_checkpoints_are_what_is_meant() {
    let sandbox = saved();
    weights(&sandbox, "run/m.safetensors", MODEL);
    assert_eq!(
        sandbox.run(["load", "run", "--json"]).exits(0).json()["tensors"],
        3
    );
    let json = sandbox
        .run(["load", "run", "--step", "20", "--json"])
        .exits(0)
        .json();
    assert_eq!(json["tensors"], 1);
    sandbox
        .run(["load", "run/m.safetensors", "--step", "20"])
        .exits(2);
}

#[test]
fn sealed_ones_need_a_key() {
    let sandbox = Sandbox::new();
    for file in ["key", "other"] {
        sandbox.run(["ckpt", "key", file]).exits(0);
    }
    let keys = Keys::new([KeyWrap::file(&sandbox.path("key")).unwrap()]);
    save_into(&sandbox, |options| SaveOptions {
        seal: keys.clone(),
        hash: HashKind::Blake3,
        compress: Compress::Auto,
        base_step: None,
        ..options
    });
    let json = sandbox
        .run(["load", "run", "--key", "key", "--json"])
        .exits(0)
        .json();
    assert_eq!(json["tensor_bytes"], BYTES);
    assert!(json["ledger"]["verified_bytes"].as_u64().unwrap() > 0);
    sandbox.run(["load", "run", "--list"]).exits(0);
    sandbox.run(["load", "run"]).exits(2).says(&["no key was given"]);
    sandbox
        .run(["load", "run", "--key", "other"])
        .exits(2)
        .says(&["none of the keys"]);
    sandbox.run(["ckpt", "key", "--sign", "signer"]).exits(0);
    let args = ["load", "run", "--key", "key", "--require-signature", "signer.pub"];
    sandbox.run(args).exits(2).says(&["sign"]);
}

#[test]
fn they_go_to_devices_through_host_memory() {
    let sandbox = with_stubs(&["-DMEMORY=2000000000"], &["-DNVFS"]);
    save_into(&sandbox, |options| options);
    let args = |gds| {
        [
            "load", "run", "--device", "cuda", "--pinned", "32MiB", "--gds", gds, "--json",
        ]
    };
    let json = sandbox.run(args("prefer")).exits(0).json();
    assert_eq!(json["device"]["copied_bytes"], BYTES);
    assert_eq!(json["ledger"]["verified_bytes"], BYTES);
    let downgrades = json["ledger"]["downgrades"].to_string();
    assert!(downgrades.contains(r#""wanted":"gds""#), "{downgrades}");
    sandbox.run(args("require")).exits(2).says(&[
        "every byte must go by GPUDirect Storage",
        "verified in host memory",
    ]);
}

/// A tensor of more bytes than one piece, by rows or columns of three ranks, beside small ones.
const ROWS: u64 = 4801;
const COLUMNS: u64 = 8192;

fn big() -> Vec<u8> {
    (0..ROWS * COLUMNS)
        .map(|at| ((at * 2_654_435_761) >> 20) as u8 & 0x3b)
        .collect()
}

fn shares(dim: usize, rank: u64) -> (Vec<u64>, Vec<u64>) {
    let size = [ROWS, COLUMNS][dim];
    let step = size.div_ceil(3);
    let start = step * rank;
    let (mut offsets, mut lengths) = (vec![0, 0], vec![ROWS, COLUMNS]);
    (offsets[dim], lengths[dim]) = (start, step.min(size - start));
    (offsets, lengths)
}

fn cut(bytes: &[u8], offsets: &[u64], lengths: &[u64]) -> Vec<u8> {
    let rows = (offsets[0]..offsets[0] + lengths[0]).map(|row| (row * COLUMNS + offsets[1]) as usize);
    rows.flat_map(|start| bytes[start..start + lengths[1] as usize].to_vec())
        .collect()
}

struct Place {
    context: Context,
    location: Location,
    keys: Keys,
}

impl Place {
    async fn save(&self, dim: usize, how: SaveOptions) {
        let store: Arc<dyn Store> = Arc::new(LocalStore::open(&self.location, &self.context).unwrap());
        let save = Save::begin(store, &self.context, how).await.unwrap();
        let bytes = big();
        for rank in 0..3 {
            let (offsets, lengths) = shares(dim, rank.into());
            let spec = SliceSpec::whole(Dtype::U8, &[ROWS, COLUMNS]).cut(&offsets, &lengths);
            let data = Buf::copy_of(&cut(&bytes, &offsets, &lengths)).unwrap();
            let small = SliceSpec::whole(Dtype::F32, &[7]);
            let items = [
                ("big".to_owned(), spec, data),
                (
                    format!("small.{rank}"),
                    small,
                    Buf::copy_of(&[rank as u8; 28]).unwrap(),
                ),
            ];
            let items = items.map(|(name, spec, data)| Item {
                name,
                data: ItemData::Slice(spec, data),
            });
            save.rank(rank, items.into()).await.unwrap();
        }
        save.commit(Value::Dict(Vec::new()), Duration::ZERO)
            .await
            .unwrap();
    }

    async fn load(&self, selection: Selection) -> (Vec<HostTensor>, LoadReport, Ledger) {
        let options = ViewOptions {
            keys: self.keys.clone(),
            ..ViewOptions::default()
        };
        let viewed = CheckpointView::find(&self.location, &options, &self.context)
            .await
            .unwrap()
            .unwrap();
        let file = CheckedFile {
            location: viewed.view.origin(),
            key: viewed.view.key().clone(),
            edges: Edges::new(viewed.view.cuts()).unwrap(),
            store: Arc::new(viewed.view),
        };
        let source = Source::of_checked(file).await.unwrap();
        let options = LoadOptions {
            selection,
            ..LoadOptions::default()
        };
        let (tensors, report) = load_host(&source, &options, &self.context).await.unwrap();
        (tensors, report, source.ledger().clone())
    }
}

fn named<'a>(tensors: &'a [HostTensor], name: &str) -> &'a HostTensor {
    tensors.iter().find(|tensor| tensor.name == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_saved_is_loaded_and_no_chunk_is_read_twice() {
    let sandbox = Sandbox::new();
    sandbox.run(["ckpt", "key", "key"]).exits(0);
    let keys = Keys::new([KeyWrap::file(&sandbox.path("key")).unwrap()]);
    let expected = big();
    for (number, dim, compress, is_sealed) in [
        (0, 0, Compress::Off, false),
        (1, 1, Compress::Off, false),
        (2, 0, Compress::Auto, true),
    ] {
        let root = sandbox.path(format!("run{number}"));
        std::fs::create_dir(&root).unwrap();
        let place = Place {
            context: Context::open(DiskConfig::default()).unwrap().with_state_dir(None),
            location: Location::from_path(&root, &root).unwrap(),
            keys: keys.clone(),
        };
        let seal = if is_sealed { keys.clone() } else { Keys::default() };
        let how = SaveOptions {
            compress,
            seal,
            chunk_bytes: 1 << 20,
            ..SaveOptions::new(1, Attempt::derive("test", 1, 0), 3)
        };
        place.save(dim, how).await;
        let (tensors, report, opened) = place.load(Selection::default()).await;
        assert_eq!(tensors.len(), 4);
        assert!(
            named(&tensors, "big").bytes[..] == expected[..],
            "{dim} {compress}"
        );
        assert_eq!(named(&tensors, "small.2").bytes[..], [2; 28]);
        assert!(report.pieces > 1);
        let mut ledger = report.ledger.clone();
        ledger.merge(&opened);
        // Some pages of manifest, index and parts are read besides.
        let (read, verified) = (ledger.bytes(), ledger.verified_bytes);
        assert!(read - verified < 1 << 20, "{ledger}");
        if !is_sealed {
            assert_eq!(verified, expected.len() as u64 + 3 * 28, "{dim}");
        }
        for of in [0, 1] {
            let shard = Shard::new(1, 4, &[("big".to_owned(), of)]).unwrap();
            let selection = Selection::new(&["b*".to_owned()], Some(shard)).unwrap();
            let (tensors, _, _) = place.load(selection).await;
            let step = [ROWS, COLUMNS][of as usize].div_ceil(4);
            let (mut offsets, mut lengths) = ([0, 0], [ROWS, COLUMNS]);
            (offsets[of as usize], lengths[of as usize]) = (step, step);
            assert!(
                tensors[0].bytes[..] == cut(&expected, &offsets, &lengths)[..],
                "{dim} {of}"
            );
        }
    }
}
