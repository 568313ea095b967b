//! What is saved comes back, in whatever pieces it is asked for.

use std::sync::Arc;

use forebay_core::safetensors::Header;
use forebay_core::{ErrorKind, Location, Span};
use forebay_store::{LocalStore, ReadOptions, Store, StoreExt};

use super::support::*;
use crate::*;

#[tokio::test]
async fn states_come_back_on_other_ranks() {
    let context = context();
    let state = state(1);
    for (world, dim) in [(1, 0), (4, 0), (4, 1), (3, 0)] {
        for with_index in [true, false] {
            let store = memory();
            let how = SaveOptions {
                with_index,
                ..options(7, 1, world)
            };
            let (committed, saved) = save_with(&store, &context, how, &state, dim).await.unwrap();
            assert_eq!(committed.manifest.world(), world);
            assert_eq!(committed.manifest.metadata, metadata(2.5));
            let raw: u64 = state.values().map(|tensor| tensor.bytes.len() as u64).sum();
            assert_eq!(saved.iter().map(|saved| saved.raw_bytes).sum::<u64>(), raw);
            let checkpoint = open(&store, &context, 7).await;
            for (other_world, other_dim) in [(1, 0), (2, 0), (8, 0), (2, 1), (8, 1), (5, 2)] {
                for rank in 0..other_world {
                    load_shard(&checkpoint, &state, other_dim, rank, other_world)
                        .await
                        .unwrap();
                }
            }
            let extra = checkpoint.value("extra").await.unwrap().unwrap();
            assert!(matches!(extra, Value::List(values) if values.len() == 3));
            assert!(checkpoint.value("nothing").await.unwrap().is_none());
            assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
        }
    }
}

#[tokio::test]
async fn payloads_are_safetensors_files() {
    let context = context();
    let dir = tempfile::tempdir().unwrap();
    let location = Location::from_path(dir.path(), dir.path()).unwrap();
    let store: Arc<dyn Store> = Arc::new(LocalStore::open(&location, &context).unwrap());
    let state = state(2);
    save(&store, &context, 3, 2, &state).await;
    let checkpoint = open(&store, &context, 3).await;
    let mut rows = 0;
    for payload in &checkpoint.manifest().payloads {
        let path = dir.path().join(payload.key().as_str());
        let file = std::fs::read(path).unwrap();
        let header = Header::parse(&file, file.len() as u64).unwrap();
        assert_eq!(header.data_start() % 4096, 0);
        assert_eq!(
            header.metadata().unwrap()["forebay.rank"],
            payload.rank.to_string()
        );
        for tensor in header.tensors() {
            let model = &state[&tensor.name];
            let (offsets, lengths) = shard(&model.shape, 0, payload.rank, 2).unwrap();
            assert_eq!(tensor.shape, lengths);
            assert_eq!(tensor.dtype.name(), model.dtype.name());
            let bytes = &file[tensor.span.relative_to(0)];
            assert_eq!(bytes, model.cut(&offsets, &lengths), "{}", tensor.name);
            rows += 1;
        }
    }
    assert_eq!(rows, 10);
}

#[tokio::test]
async fn loads_read_only_what_they_need() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 1, &state).await;
    let checkpoint = open(&store, &context, 1).await;
    let tensor = &state["layer.0.weight"];
    let loaded = checkpoint
        .load(vec![want("layer.0.weight", tensor, &[16, 0], &[16, 64])])
        .await
        .unwrap();
    assert_eq!(loaded.memory[0][..], tensor.cut(&[16, 0], &[16, 64])[..]);
    // One chunk, read straight to its place.
    assert_eq!(loaded.ledger.bytes(), u64::from(CHUNK));
    assert_eq!(loaded.ledger.verified_bytes, u64::from(CHUNK));
    let copied = |loaded: &Loaded| {
        loaded
            .ledger
            .paths
            .values()
            .map(|path| path.copied_bytes)
            .sum::<u64>()
    };
    assert_eq!(copied(&loaded), 0);
    // A column takes parts of all chunks, which are copied.
    let column = want("layer.0.weight", tensor, &[0, 5], &[64, 1]);
    let loaded = checkpoint.load(vec![column]).await.unwrap();
    assert_eq!((loaded.ledger.bytes(), copied(&loaded)), (64 * 64 * 4, 64 * 4));
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 1, &state).await;
    let checkpoint = open(&store, &context, 1).await;
    let tensor = &state["embed"];
    let error = |want: Want| {
        let checkpoint = checkpoint.clone();
        async move { checkpoint.load(vec![want]).await.unwrap_err() }
    };
    let missing = error(want("embad", tensor, &[0, 0], &[1, 1])).await;
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("\"embad\""), "{missing}");
    assert_eq!(
        error(want("extra", tensor, &[0], &[1])).await.kind(),
        ErrorKind::NotFound
    );
    for (offsets, lengths) in [
        (vec![95, 0], vec![2, 64]),
        (vec![0], vec![96]),
        (vec![u64::MAX, 0], vec![1, 1]),
    ] {
        let wrong = error(want("embed", tensor, &offsets, &lengths)).await;
        assert_eq!(wrong.kind(), ErrorKind::InvalidInput, "{wrong}");
    }
    let mut short = want("embed", tensor, &[0, 0], &[96, 64]);
    short.memory.set_len(5);
    assert_eq!(error(short).await.kind(), ErrorKind::InvalidInput);
    let none = Checkpoint::open(Arc::clone(&store), &context, 2)
        .await
        .unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn tensors_with_holes_and_overlaps_are_refused() {
    let context = context();
    let state = state(1);
    let tensor = &state["embed"];
    let slice = |rows: std::ops::Range<u64>| {
        let spec =
            SliceSpec::whole(tensor.dtype, &tensor.shape).cut(&[rows.start, 0], &[rows.end - rows.start, 64]);
        let bytes = tensor.cut(&spec.offsets, &spec.lengths);
        Item {
            name: "embed".to_owned(),
            data: ItemData::Slice(spec, forebay_io::Buf::copy_of(&bytes).unwrap()),
        }
    };
    for (rows, is_good) in [
        (vec![0..48, 48..96], true),
        (vec![0..48, 49..96], false),
        (vec![0..48, 40..96], false),
        // An overlap as large as the hole.
        (vec![0..48, 40..88], false),
        (vec![0..96, 10..20], true),
    ] {
        let store = memory();
        let save = Save::begin(Arc::clone(&store), &context, options(1, 1, 1))
            .await
            .unwrap();
        save.rank(0, rows.iter().cloned().map(slice).collect())
            .await
            .unwrap();
        save.commit(metadata(0.0), NO_WAIT).await.unwrap();
        let checkpoint = open(&store, &context, 1).await;
        let loaded = checkpoint
            .load(vec![want("embed", tensor, &[0, 0], &[96, 64])])
            .await;
        assert_eq!(loaded.is_ok(), is_good, "{rows:?}: {loaded:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_saved_is_refused_by_name() {
    let context = context();
    let store = memory();
    let save = Save::begin(Arc::clone(&store), &context, options(1, 1, 1))
        .await
        .unwrap();
    let buf = |len: usize| forebay_io::Buf::copy_of(&vec![0; len]).unwrap();
    let slice = |shape: &[u64], len| ItemData::Slice(SliceSpec::whole(Dtype::F32, shape), buf(len));
    let item = |name: &str, data| Item {
        name: name.to_owned(),
        data,
    };
    for (items, word) in [
        (vec![item("short", slice(&[3], 8))], "short"),
        (
            vec![item("twice", slice(&[2], 8)), item("twice", slice(&[2], 8))],
            "twice",
        ),
        (
            vec![
                item("odd", slice(&[2], 8)),
                item(
                    "odd",
                    ItemData::Slice(SliceSpec::whole(Dtype::F32, &[3]).cut(&[1], &[2]), buf(8)),
                ),
            ],
            "odd",
        ),
        (vec![item("", slice(&[2], 8))], "1 to 4096"),
        (vec![item(&"x".repeat(5000), slice(&[2], 8))], "1 to 4096"),
        (
            vec![item(
                "deep",
                ItemData::Value((0..80).fold(Value::None, |value, _| Value::List(vec![value]))),
            )],
            "deep",
        ),
    ] {
        let error = save.rank(0, items).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let wrong = save.rank(1, vec![]).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidInput);
    // Nothing of it was written, so the same attempt may still be saved.
    save.rank(0, vec![item("good", slice(&[2], 8))]).await.unwrap();
    save.commit(metadata(0.0), NO_WAIT).await.unwrap();
}

/// A rank without tensors, or without anything, is a rank all the same.
#[tokio::test]
async fn ranks_may_have_nothing() {
    let context = context();
    let store = memory();
    let save = Save::begin(Arc::clone(&store), &context, options(1, 1, 3))
        .await
        .unwrap();
    let state = state(1);
    save.rank(0, vec![]).await.unwrap();
    save.rank(1, items(&state, 0, 0, 1)).await.unwrap();
    let value = Item {
        name: "only".to_owned(),
        data: ItemData::Opaque(b"pickle".to_vec()),
    };
    save.rank(2, vec![value]).await.unwrap();
    let committed = save.commit(metadata(0.0), NO_WAIT).await.unwrap();
    assert_eq!(committed.manifest.payloads.len(), 1);
    assert_eq!(committed.manifest.features, ["opaque"]);
    let checkpoint = open(&store, &context, 1).await;
    load_all(&checkpoint, &state).await.unwrap();
    assert_eq!(checkpoint.opaque("only").await.unwrap().unwrap(), b"pickle");
    assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
    let key = checkpoint.manifest().payloads[0].key();
    let (first, _) = store
        .read(&key, Span::first(8), &ReadOptions::default(), &context)
        .await
        .unwrap();
    assert_eq!(first.len(), 8);
}

#[tokio::test]
async fn every_hash_saves_and_verifies() {
    let context = context();
    let state = state(4);
    for (_, hash, name) in HashKind::ALL {
        let store = memory();
        let how = SaveOptions {
            hash,
            ..options(1, 1, 2)
        };
        save_with(&store, &context, how, &state, 0).await.unwrap();
        let checkpoint = open(&store, &context, 1).await;
        assert_eq!(checkpoint.manifest().hash.name(), name);
        load_all(&checkpoint, &state).await.unwrap();
    }
}

/// Ranks that meet at the store alone cannot know what the others have; the commit does.
#[tokio::test]
async fn slices_of_one_name_that_are_of_two_tensors_are_not_committed() {
    let context = context();
    for (dtype, elements) in [(Dtype::F32, 3), (Dtype::I32, 2)] {
        let store = memory();
        let save = Save::begin(Arc::clone(&store), &context, options(1, 1, 2))
            .await
            .unwrap();
        for (rank, (dtype, elements)) in [(0, (Dtype::F32, 2)), (1, (dtype, elements))] {
            let buf = forebay_io::Buf::copy_of(&vec![0; elements * 4]).unwrap();
            let spec = SliceSpec::whole(dtype, &[elements as u64]);
            let item = Item {
                name: "x".to_owned(),
                data: ItemData::Slice(spec, buf),
            };
            save.rank(rank, vec![item]).await.unwrap();
        }
        let error = save.commit(metadata(1.0), NO_WAIT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.message().contains("on rank 0 and"), "{error}");
        assert!(list(Arc::clone(&store), &context).await.unwrap().is_empty());
    }
}
