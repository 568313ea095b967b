//! Checkpoints that were written once and must be readable for ever: `fixtures/ckpt/format-1`.
//!
//! The writer is held to them, too: the same state gives the same bytes. A change of the format writes a new folder beside the old one, by
//! `cargo test -p forebay-ckpt write_golden -- --ignored`, and the old one stays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Location, ManualClock, Seed};
use forebay_io::{Buf, Disk, DiskConfig};
use forebay_store::{Context, LocalStore, Store};

use super::support::*;
use crate::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/ckpt/format-1")
}

pub(super) fn store_at(root: &Path) -> (Arc<dyn Store>, Context) {
    let config = DiskConfig {
        limits: limits(),
        ..DiskConfig::default()
    };
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(1_700_000_000));
    let context = Context::new(Disk::open(config).unwrap())
        .with_time(Arc::new(clock), Seed(1))
        .with_state_dir(None);
    let location = Location::from_path(root, root).unwrap();
    (Arc::new(LocalStore::open(&location, &context).unwrap()), context)
}

/// A tensor that is cut, one that is not, and one whose dtype safetensors does not know.
fn golden_state(step: u64) -> State {
    let tensor = |dtype: Dtype, shape: &[u64], factor: usize| {
        let len = dtype.bytes_of(shape).unwrap() as usize;
        let bytes = (0..len).map(|at| (at * factor) as u8).collect();
        Tensor {
            dtype,
            shape: shape.to_vec(),
            bytes,
        }
    };
    let mut state = State::from([
        ("model.weight".to_owned(), tensor(Dtype::Bf16, &[64, 96], 7)),
        ("model.bias".to_owned(), tensor(Dtype::F32, &[5], 11)),
        ("phase".to_owned(), tensor(Dtype::C128, &[2, 3], 13)),
    ]);
    state.get_mut("model.bias").unwrap().bytes[0] = step as u8;
    state
}

/// One of each.
fn golden_value() -> Value {
    let array = Array {
        dtype: "<u4".to_owned(),
        shape: vec![2],
        bytes: vec![1, 0, 0, 0, 2, 0, 0, 0],
    };
    let values = vec![
        Value::None,
        Value::Bool(true),
        Value::Int(-5),
        Value::BigInt {
            negative: true,
            magnitude: vec![0, 0, 0, 0, 0, 0, 0, 0, 1],
        },
        Value::Float(0.1),
        Value::Complex(1.0, -2.0),
        Value::Bytes(vec![0, 255]),
        Value::Tuple(vec![Value::text("a"), Value::Tensor("model.bias".to_owned())]),
        Value::Named(Named::RngNumpy, Box::new(Value::Array(array))),
    ];
    Value::Dict(vec![
        (Value::text("values"), Value::List(values)),
        (Value::Int(3), Value::text("three")),
    ])
}

fn golden_options(step: u64) -> SaveOptions {
    let (_, hash, _) = HashKind::ALL[(step as usize + 1) % 4];
    SaveOptions {
        hash: if step <= 2 { HashKind::Xxh3 } else { hash },
        base_step: (step == 2).then_some(1),
        ..options(step, 1, 2)
    }
}

const STEPS: [u64; 5] = [1, 2, 3, 4, 5];

async fn write(root: &Path) {
    let (store, context) = store_at(root);
    for step in STEPS {
        let save = Save::begin(Arc::clone(&store), &context, golden_options(step))
            .await
            .unwrap();
        let state = golden_state(step);
        for rank in 0..2 {
            let mut items = items(&state, 0, rank, 2);
            items.retain(|item| item.name != "extra");
            if rank == 1 {
                items.push(Item {
                    name: "value".to_owned(),
                    data: ItemData::Value(golden_value()),
                });
                items.push(Item {
                    name: "opaque".to_owned(),
                    data: ItemData::Opaque(b"of its writer".to_vec()),
                });
                items.push(Item {
                    name: "tied".to_owned(),
                    data: ItemData::Alias(Alias {
                        target: "model.weight".to_owned(),
                        dtype: Dtype::Bf16,
                        first_element: 0,
                        shape: vec![64, 96],
                        strides: vec![96, 1],
                    }),
                });
                items.push(Item {
                    name: "nothing".to_owned(),
                    data: ItemData::Slice(SliceSpec::whole(Dtype::F16, &[0, 3]), Buf::copy_of(&[]).unwrap()),
                });
            }
            save.rank(rank, items).await.unwrap();
        }
        save.commit(metadata(0.25), NO_WAIT).await.unwrap();
    }
}

fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

#[tokio::test]
async fn format_1_is_read() {
    let (store, context) = store_at(&folder());
    let listed = list(Arc::clone(&store), &context).await.unwrap();
    assert_eq!(listed.iter().map(|listed| listed.step).collect::<Vec<_>>(), STEPS);
    for step in STEPS {
        let checkpoint = open(&store, &context, step).await;
        let manifest = checkpoint.manifest();
        assert_eq!(manifest.hash, golden_options(step).hash);
        assert_eq!(manifest.committed, Duration::from_secs(1_700_000_000));
        assert_eq!(manifest.metadata, metadata(0.25));
        assert_eq!(
            manifest.base.map(|base| base.step),
            golden_options(step).base_step
        );
        load_all(&checkpoint, &golden_state(step)).await.unwrap();
        assert_eq!(checkpoint.value("value").await.unwrap().unwrap(), golden_value());
        assert_eq!(
            checkpoint.opaque("opaque").await.unwrap().unwrap(),
            b"of its writer"
        );
        let tied = checkpoint.find("tied").await.unwrap();
        assert!(matches!(&tied[0].entry.content, Content::Alias(alias) if alias.target == "model.weight"));
        let report = verify(&checkpoint, &|_| {}).await.unwrap();
        assert!(report.is_whole(), "{:?}", report.damages);
    }
}

#[tokio::test]
async fn format_1_is_written_as_before() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path()).await;
    let (written, golden) = (files(dir.path()), files(&folder()));
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&written), names(&golden));
    for (name, bytes) in &written {
        assert!(
            golden[name] == *bytes,
            "{name} is written in another way than it was"
        );
    }
}

#[tokio::test]
#[ignore = "writes the fixture anew"]
async fn write_golden() {
    let root = folder();
    drop(std::fs::remove_dir_all(&root));
    std::fs::create_dir_all(&root).unwrap();
    write(&root).await;
}
