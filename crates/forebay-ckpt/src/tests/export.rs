//! Checkpoints in the formats of others: whole tensors, whoever saved their slices.

use std::sync::Arc;

use forebay_core::safetensors::Header;
use forebay_core::{ErrorKind, Key, Span};
use forebay_io::Buf;
use forebay_store::{Context, PutOptions, ReadOptions, Store, StoreExt};

use super::support::*;
use crate::*;

async fn read(store: &Arc<dyn Store>, name: &str, context: &Context) -> Vec<u8> {
    let key = Key::parse(name).unwrap();
    let size = store.head(&key).await.unwrap().size;
    let (buf, _) = store
        .read(&key, Span::first(size), &ReadOptions::default(), context)
        .await
        .unwrap();
    buf.to_vec()
}

/// A state over three ranks, with a value, bytes that only their writer knows, and a turned and a plain view of `layer.0.weight`.
async fn saved(store: &Arc<dyn Store>, context: &Context, state: &State) -> Checkpoint {
    let save = Save::begin(Arc::clone(store), context, options(7, 1, 3))
        .await
        .unwrap();
    for rank in 0..3 {
        let mut all = items(state, 1, rank, 3);
        if rank == 2 {
            let alias = |name: &str, first_element, shape: &[u64], strides: &[u64]| Item {
                name: name.to_owned(),
                data: ItemData::Alias(Alias {
                    target: "layer.0.weight".to_owned(),
                    dtype: Dtype::F32,
                    first_element,
                    shape: shape.to_vec(),
                    strides: strides.to_vec(),
                }),
            };
            all.push(alias("rows", 64, &[2, 64], &[64, 1]));
            all.push(alias("turned", 0, &[64, 64], &[1, 64]));
            all.push(Item {
                name: "secret".to_owned(),
                data: ItemData::Opaque(vec![1, 2, 3]),
            });
        }
        save.rank(rank, all).await.unwrap();
    }
    save.commit(metadata(1.0), NO_WAIT).await.unwrap();
    open(store, context, 7).await
}

/// What views stand for.
fn with_views(state: &State) -> State {
    let mut all = state.clone();
    let weight = &state["layer.0.weight"];
    let mut rows = weight.clone();
    rows.shape = vec![2, 64];
    rows.bytes = weight.bytes[256..768].to_vec();
    all.insert("rows".to_owned(), rows);
    let mut turned = weight.clone();
    for at in 0..64 * 64 {
        let from = (at % 64) * 64 + at / 64;
        turned.bytes[at * 4..][..4].copy_from_slice(&weight.bytes[from * 4..][..4]);
    }
    all.insert("turned".to_owned(), turned);
    all
}

fn compare(file: &[u8], expected: &State) -> usize {
    let header = Header::parse(file, file.len() as u64).unwrap();
    for tensor in header.tensors() {
        let there = &expected[&tensor.name];
        assert_eq!(tensor.shape, there.shape, "{}", tensor.name);
        assert_eq!(tensor.dtype.to_string(), there.dtype.name());
        let bytes = &file[tensor.span.start() as usize..tensor.span.end() as usize];
        assert!(bytes == there.bytes, "{} has other bytes", tensor.name);
    }
    header.tensors().len()
}

fn format(format: ExportFormat) -> ExportOptions {
    ExportOptions {
        format,
        prefix: None,
        file_name: None,
    }
}

#[tokio::test]
async fn one_file_has_all_tensors_whole() {
    let context = context();
    let (store, to) = (memory(), memory());
    let state = state(3);
    let checkpoint = saved(&store, &context, &state).await;
    let exported = export(&checkpoint, &to, &format(ExportFormat::Safetensors), &|_| {})
        .await
        .unwrap();
    let expected = with_views(&state);
    let file = read(&to, "model.safetensors", &context).await;
    assert_eq!(compare(&file, &expected), expected.len());
    assert_eq!(exported.tensors, expected.len() as u64);
    assert_eq!(exported.left_out, ["extra", "secret"]);
    assert!(exported.ledger.verified_bytes > 0);
    let some = ExportOptions {
        prefix: Some("layer.0.".to_owned()),
        ..format(ExportFormat::Safetensors)
    };
    export(&checkpoint, &to, &some, &|_| {}).await.unwrap();
    let file = read(&to, "model.safetensors", &context).await;
    let header = Header::parse(&file, file.len() as u64).unwrap();
    assert_eq!(header.names_sorted().collect::<Vec<_>>(), ["bias", "weight"]);
    let none = ExportOptions {
        prefix: Some("nothing".to_owned()),
        ..some
    };
    let error = export(&checkpoint, &to, &none, &|_| {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn shards_have_an_index() {
    let context = context();
    let (store, to) = (memory(), memory());
    let state = state(3);
    let checkpoint = saved(&store, &context, &state).await;
    let shard_bytes_max = 20 << 10;
    let how = format(ExportFormat::Hf { shard_bytes_max });
    let exported = export(&checkpoint, &to, &how, &|_| {}).await.unwrap();
    assert!(exported.files.len() > 3, "{:?}", exported.files);
    let index = read(&to, "model.safetensors.index.json", &context).await;
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let expected = with_views(&state);
    let bytes: usize = expected.values().map(|tensor| tensor.bytes.len()).sum();
    assert_eq!(index["metadata"]["total_size"], bytes);
    let mut tensors = 0;
    for file in exported
        .files
        .iter()
        .filter(|file| file.name.ends_with(".safetensors"))
    {
        tensors += compare(&read(&to, &file.name, &context).await, &expected);
    }
    assert_eq!(tensors, expected.len());
    for name in expected.keys() {
        let file = index["weight_map"][name].as_str().unwrap();
        assert!(exported.files.iter().any(|there| there.name == file));
    }
}

/// The bytes of every storage, found by hand in the archive; that torch reads it is tested where there is torch.
#[tokio::test]
async fn what_torch_reads_is_a_plain_archive() {
    let context = context();
    let (store, to) = (memory(), memory());
    let state = state(3);
    let checkpoint = saved(&store, &context, &state).await;
    let exported = export(&checkpoint, &to, &format(ExportFormat::Torch), &|_| {})
        .await
        .unwrap();
    assert_eq!((exported.tensors, exported.values), (8, 1));
    assert_eq!(exported.left_out, ["secret"]);
    let file = read(&to, "model.pt", &context).await;
    for (name, tensor) in state.iter().filter(|(_, tensor)| tensor.bytes.len() > 64) {
        let found = file
            .windows(tensor.bytes.len())
            .enumerate()
            .filter(|(_, window)| *window == tensor.bytes);
        let at: Vec<usize> = found.map(|(at, _)| at).collect();
        assert_eq!(at.len(), 1, "{name} is stored once");
        assert!(at[0].is_multiple_of(64), "{name} lies at {}", at[0]);
    }
}

/// The structure that the Python package saves beside the tensors: keys come once, in their dicts, and what has no plain form is named by its place.
#[tokio::test]
async fn what_torch_reads_is_nested_as_it_was_saved() {
    let context = context();
    let (store, to) = (memory(), memory());
    let state = state(3);
    let text = |text: &str| Value::text(text);
    let tensor = |name: &str| Value::Tensor(name.to_owned());
    let layer = vec![(text("inner-weight"), tensor("layer.0.weight"))];
    let structure = Value::Dict(vec![
        (
            text("outer-model"),
            Value::Named(Named::OrderedDict, Box::new(Value::Dict(layer))),
        ),
        (text("count"), Value::Int(5)),
        (text("pair"), Value::Tuple(vec![Value::Int(1), Value::Float(2.0)])),
        (text("gone"), tensor("nowhere")),
        (
            text("mixed"),
            Value::Dict(vec![
                (text("bytes"), Value::Bytes(vec![1])),
                (Value::Int(7), Value::Bool(true)),
                (
                    text("list"),
                    Value::List(vec![Value::None, Value::Bytes(vec![2])]),
                ),
            ]),
        ),
    ]);
    let save = Save::begin(Arc::clone(&store), &context, options(7, 1, 1))
        .await
        .unwrap();
    let mut all = items(&state, 1, 0, 1);
    all.push(Item {
        name: "forebay.state".to_owned(),
        data: ItemData::Value(structure),
    });
    save.rank(0, all).await.unwrap();
    save.commit(metadata(1.0), NO_WAIT).await.unwrap();
    let checkpoint = open(&store, &context, 7).await;
    let exported = export(&checkpoint, &to, &format(ExportFormat::Torch), &|_| {})
        .await
        .unwrap();
    assert_eq!(exported.left_out, ["gone", "mixed.bytes", "mixed.list[1]"]);
    let file = read(&to, "model.pt", &context).await;
    let count = |word: &str| {
        let windows = file.windows(word.len());
        windows.filter(|window| *window == word.as_bytes()).count()
    };
    for word in ["outer-model", "inner-weight", "mixed", "pair"] {
        assert_eq!(count(word), 1, "{word}");
    }
    // Under its name in the checkpoint it is not there once more; others, which the structure does not have, are.
    assert_eq!(
        (count("layer.0.weight"), count("gone"), count("bytes")),
        (0, 0, 0)
    );
    let others = state.keys().filter(|name| *name != "layer.0.weight");
    for name in others {
        assert!(count(name) >= 1, "{name}");
    }
}

#[tokio::test]
async fn damage_leaves_no_file() {
    let context = context();
    let (store, to) = (memory(), memory());
    let state = state(3);
    let checkpoint = saved(&store, &context, &state).await;
    let payload = checkpoint.manifest().payloads[1].key();
    let mut bytes = read(&store, payload.as_str(), &context).await;
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let body = Buf::copy_of(&bytes).unwrap();
    store
        .put(&payload, body.into(), &PutOptions::default())
        .await
        .unwrap();
    for how in [ExportFormat::Safetensors, ExportFormat::Torch] {
        let error = export(&checkpoint, &to, &format(how), &|_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    for name in ["model.safetensors", "model.pt"] {
        assert!(
            to.head(&Key::parse(name).unwrap()).await.is_err(),
            "{name} is there"
        );
    }
}
