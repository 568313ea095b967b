//! The file that a checkpoint is shown as: what any range of it has, what it costs, and what is refused.

use std::sync::Arc;

use forebay_core::safetensors::Header;
use forebay_core::{DataPath, ErrorKind, Key, Ledger, Location, PathPolicy, Seed, Span};
use forebay_io::{AlignedBuf, Buf, Pages};
use forebay_store::{Context, Entry as Row, ListOptions, PutOptions, ReadOptions, Store, StoreExt};
use futures::stream::StreamExt;
use proptest::prelude::*;

use crate::seal::tests::keys;
use crate::tests::support::*;
use crate::*;

async fn view_of(store: &Arc<dyn Store>, context: &Context, step: u64) -> CheckpointView {
    let checkpoint = open(store, context, step).await.with_keys(keys(&[1]));
    CheckpointView::open(&checkpoint).await.unwrap()
}

async fn read(view: &CheckpointView, span: Span) -> (Vec<u8>, Ledger) {
    let buf = AlignedBuf::alloc(span.len() as usize, Pages::Small).unwrap();
    let options = ReadOptions::default();
    let done = view.read_into(view.key(), span, buf, &options).await.unwrap();
    (done.buf.to_vec(), done.ledger)
}

async fn size(view: &CheckpointView) -> u64 {
    view.head(view.key()).await.unwrap().size
}

/// All of the file, compared with what was saved.
async fn whole(view: &CheckpointView, expected: &State) -> Vec<u8> {
    let (file, _) = read(view, Span::first(size(view).await)).await;
    let header = Header::parse(&file, file.len() as u64).unwrap();
    assert_eq!(header.tensors().len(), expected.len());
    for tensor in header.tensors() {
        let there = &expected[&tensor.name];
        assert_eq!(tensor.shape, there.shape, "{}", tensor.name);
        assert_eq!(tensor.dtype.to_string(), there.dtype.name());
        let bytes = &file[tensor.span.start() as usize..tensor.span.end() as usize];
        assert!(bytes == there.bytes, "{} has other bytes", tensor.name);
    }
    file
}

fn how(step: u64, world: u32, compress: Compress, is_sealed: bool) -> SaveOptions {
    SaveOptions {
        compress,
        seal: if is_sealed { keys(&[1, 2]) } else { Keys::default() },
        ..options(step, 1, world)
    }
}

const WAYS: [(Compress, bool); 4] = [
    (Compress::Off, false),
    (Compress::Auto, false),
    (Compress::Off, true),
    (Compress::Auto, true),
];

#[derive(Debug, Clone)]
struct Case {
    tensors: Vec<(Dtype, Vec<u64>)>,
    world: u32,
    dim: usize,
    way: usize,
    ranges: Vec<(prop::sample::Index, prop::sample::Index)>,
}

fn any_case() -> impl Strategy<Value = Case> {
    let dtype = prop::sample::select(
        &[
            Dtype::U8,
            Dtype::Bf16,
            Dtype::F32,
            Dtype::C64,
            Dtype::F4,
            Dtype::F6_E2M3,
        ][..],
    );
    let shape = prop_oneof![
        prop::collection::vec(1u64..9, 0..4),
        (1u64..40, 1u64..200).prop_map(|(rows, columns)| vec![rows, columns]),
        (1u64..9, 1u64..9, 1u64..60).prop_map(|(a, b, c)| vec![a, b, c]),
    ];
    let tensor = (dtype, shape).prop_map(|(dtype, mut shape)| {
        if dtype.bits() < 8 {
            // Rows end with a byte.
            shape.push(shape.len() as u64 * 4 + 4);
        }
        (dtype, shape)
    });
    let ranges = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 8);
    (
        prop::collection::vec(tensor, 1..5),
        1u32..4,
        0usize..3,
        0..WAYS.len(),
        ranges,
    )
        .prop_map(|(tensors, world, dim, way, ranges)| Case {
            tensors,
            world,
            dim,
            way,
            ranges,
        })
}

/// Save tensors by ranks; those that the reference cannot cut are the first rank's.
async fn save_case(store: &Arc<dyn Store>, context: &Context, case: &Case, state: &State) {
    let (compress, is_sealed) = WAYS[case.way];
    let (small, other): (State, State) = state
        .clone()
        .into_iter()
        .partition(|(_, tensor)| tensor.dtype.bits() < 8);
    let save = Save::begin(
        Arc::clone(store),
        context,
        how(3, case.world, compress, is_sealed),
    )
    .await
    .unwrap();
    for rank in 0..case.world {
        let mut all = items(&other, case.dim, rank, case.world);
        for (name, tensor) in small.iter().filter(|_| rank == 0) {
            let spec = SliceSpec::whole(tensor.dtype, &tensor.shape);
            all.push(Item {
                name: name.clone(),
                data: ItemData::Slice(spec, Buf::copy_of(&tensor.bytes).unwrap()),
            });
        }
        save.rank(rank, all).await.unwrap();
    }
    save.commit(metadata(1.0), NO_WAIT).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// Whatever the shapes, the ranks and the way they are stored: any range is what the file has there.
    #[test]
    fn any_range_is_what_the_file_has(case in any_case()) {
        let mut rng = Seed(7).rng();
        let state: State = case
            .tensors
            .iter()
            .enumerate()
            .map(|(index, (dtype, shape))| (format!("t{index}"), Tensor::new(*dtype, shape, &mut rng)))
            .collect();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let (context, store) = (context(), memory());
            save_case(&store, &context, &case, &state).await;
            let view = view_of(&store, &context, 3).await;
            let file = whole(&view, &state).await;
            let data = Header::parse(&file, file.len() as u64).unwrap().data_start();
            for (from, len) in &case.ranges {
                // Mostly data, which the header is larger than.
                let start = (data + from.index(file.len() - data as usize + 20) as u64).saturating_sub(20);
                let end = start + len.index((file.len() as u64 - start) as usize + 1) as u64;
                let (found, _) = read(&view, Span::new(start, end).unwrap()).await;
                assert!(found == file[start as usize..end as usize], "{start}..{end}");
            }
        });
    }
}

/// Read the data from one cut to the next; gives bytes that were compared with hashes.
async fn read_by_cuts(view: &CheckpointView, shift: u64) -> u64 {
    let end = size(view).await;
    let (mut at, mut verified) = (view.cuts().first().map_or(end, |(span, _)| span.start()), 0);
    let mut edges: Vec<u64> = Vec::new();
    for (span, step) in view.cuts() {
        assert!(*step > 0);
        edges.extend((span.start()..span.end()).step_by(*step as usize).skip(1));
        edges.push(span.end());
    }
    assert_eq!(edges.last(), Some(&end));
    for edge in edges {
        let until = (edge + shift).min(end);
        if until > at {
            verified += read(view, Span::new(at, until).unwrap()).await.1.verified_bytes;
            at = until;
        }
    }
    verified
}

async fn stored_bytes(checkpoint: &Checkpoint) -> u64 {
    let mut stored = 0;
    for found in checkpoint.entries().await.unwrap() {
        stored += checkpoint.stored(&found).await.unwrap().1;
    }
    stored
}

#[tokio::test]
async fn from_cut_to_cut_no_chunk_is_read_twice() {
    let context = context();
    let state = soft_state(3);
    for (world, dim) in [(1, 0), (3, 0), (2, 1), (3, 1)] {
        for (compress, is_sealed) in WAYS {
            let store = memory();
            let options = how(1, world, compress, is_sealed);
            save_with(&store, &context, options, &state, dim).await.unwrap();
            let view = view_of(&store, &context, 1).await;
            let stored = stored_bytes(view.checkpoint()).await;
            let at_cuts = read_by_cuts(&view, 0).await;
            assert_eq!(at_cuts, stored, "{world} {dim} {compress} {is_sealed}");
            // Elsewhere, chunks are cut.
            let beside = read_by_cuts(&view, 512).await;
            assert!(beside > stored, "{world} {dim} {compress} {is_sealed}");
        }
    }
    let store = memory();
    save_with(&store, &context, how(1, 2, Compress::Off, false), &state, 1)
        .await
        .unwrap();
    // Columns of two ranks: 64 rows of 128 bytes each are two chunks of each, which end at the same rows.
    let view = view_of(&store, &context, 1).await;
    let bands = view.cuts().iter().filter(|(span, step)| span.len() > *step);
    assert!(bands.count() > 0, "{:?}", view.cuts());
}

#[tokio::test]
async fn it_keeps_the_contract_of_stores_that_are_read() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 12, 2, &state).await;
    let view = view_of(&store, &context, 12).await;
    let file = whole(&view, &state).await;
    let key = view.key().clone();
    assert_eq!(key.as_str(), "step-12.safetensors");
    let meta = view.head(&key).await.unwrap();
    assert_eq!(meta.size, file.len() as u64);
    for (prefix, count) in [
        (Key::ROOT, 1),
        (key.clone(), 1),
        (Key::parse("other").unwrap(), 0),
    ] {
        let rows: Vec<_> = view
            .list(&prefix, ListOptions { recursive: true })
            .collect()
            .await;
        assert_eq!(rows.len(), count);
        let is_it = |row: &forebay_core::Result<Row>| matches!(row, Ok(Row::Object(found)) if *found == meta);
        assert!(rows.iter().all(is_it));
    }
}

#[tokio::test]
async fn reads_that_cannot_be_are_refused_in_words() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 12, 2, &state).await;
    let view = view_of(&store, &context, 12).await;
    let key = view.key().clone();
    let meta = view.head(&key).await.unwrap();
    let read_kind = async |key: &Key, span: Span, len: usize, options: ReadOptions| {
        let buf = AlignedBuf::alloc(len, Pages::Small).unwrap();
        view.read_into(key, span, buf, &options)
            .await
            .map_err(|error| error.kind())
    };
    let plain = ReadOptions::default;
    let other = Key::parse("step-13.safetensors").unwrap();
    let versioned = |version: &str| ReadOptions {
        version: Some(version.to_owned()),
        ..ReadOptions::default()
    };
    let required = ReadOptions {
        policy: PathPolicy::Require(DataPath::DirectUring),
        ..ReadOptions::default()
    };
    let beyond = Span::at(meta.size - 1, 2).unwrap();
    for (key, span, len, options, kind) in [
        (&other, Span::first(1), 1, plain(), ErrorKind::NotFound),
        (&Key::ROOT, Span::first(1), 1, plain(), ErrorKind::InvalidInput),
        (&key, beyond, 2, plain(), ErrorKind::InvalidInput),
        (&key, Span::first(9), 8, plain(), ErrorKind::InvalidInput),
        (
            &key,
            Span::first(1),
            1,
            versioned("12-0"),
            ErrorKind::Precondition,
        ),
        (&key, Span::first(1), 1, required.clone(), ErrorKind::Unsupported),
        (
            &key,
            Span::at(meta.size - 1, 1).unwrap(),
            1,
            required,
            ErrorKind::Unsupported,
        ),
    ] {
        assert_eq!(
            read_kind(key, span, len, options).await.unwrap_err(),
            kind,
            "{key} {span}"
        );
    }
}

#[tokio::test]
async fn a_longer_buffer_comes_back_as_long() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 12, 2, &state).await;
    let view = view_of(&store, &context, 12).await;
    let file = whole(&view, &state).await;
    let options = ReadOptions {
        version: view.head(view.key()).await.unwrap().version,
        ..ReadOptions::default()
    };
    for (span, len) in [
        (Span::at(file.len() as u64 - 9, 9).unwrap(), 5000),
        (Span::first(0), 0),
    ] {
        let buf = AlignedBuf::alloc(len, Pages::Small).unwrap();
        let done = view.read_into(view.key(), span, buf, &options).await.unwrap();
        assert_eq!(done.buf.len(), len);
        assert_eq!(done.buf[..span.len() as usize], file[span.relative_to(0)]);
    }
}

#[tokio::test]
async fn nothing_is_written() {
    let context = context();
    let store = memory();
    save(&store, &context, 12, 1, &state(1)).await;
    let view = view_of(&store, &context, 12).await;
    let key = view.key().clone();
    let body = Buf::copy_of(b"x").unwrap();
    let put = view.put(&key, body.into(), &PutOptions::default()).await;
    assert_eq!(put.unwrap_err().kind(), ErrorKind::Unsupported);
    let upload = view.upload(&key, &PutOptions::default()).await;
    assert_eq!(upload.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(
        view.delete(&key).await.unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(
        view.delete(&Key::ROOT).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

#[tokio::test]
async fn the_account_has_every_byte_once() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 2, &state).await;
    let view = view_of(&store, &context, 1).await;
    let (_, first) = read(&view, Span::first(8)).await;
    // What opening read of manifest and entries comes with the first read.
    assert!(first.bytes() > 8 && first.verified_bytes == 0, "{first}");
    let (_, again) = read(&view, Span::first(8)).await;
    assert_eq!(again.bytes(), 8);
    let data = Span::new(view.cuts()[0].0.start(), size(&view).await).unwrap();
    let (_, all) = read(&view, data).await;
    assert_eq!(all.verified_bytes, data.len());
    let (_, all) = read(&view, data).await;
    assert_eq!((all.verified_bytes, all.bytes()), (data.len(), data.len()));
}

fn alias(name: &str, first_element: u64, shape: &[u64], strides: &[u64]) -> Item {
    Item {
        name: name.to_owned(),
        data: ItemData::Alias(Alias {
            target: "layer.0.weight".to_owned(),
            dtype: Dtype::F32,
            first_element,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
        }),
    }
}

#[tokio::test]
async fn other_names_have_bytes_of_their_own_and_what_has_no_place_is_named() {
    let context = context();
    let store = memory();
    let mut state = state(3);
    let mut rng = Seed(1).rng();
    let wide = Tensor::new(Dtype::C128, &[5], &mut rng);
    let save = Save::begin(Arc::clone(&store), &context, options(7, 1, 2))
        .await
        .unwrap();
    for rank in 0..2 {
        let mut all = items(&state, 1, rank, 2);
        if rank == 1 {
            all.push(alias("tied", 0, &[64, 64], &[64, 1]));
            all.push(alias("rows", 64, &[2, 64], &[64, 1]));
            all.push(alias("flat", 7, &[100], &[1]));
            all.push(alias("turned", 0, &[64, 64], &[1, 64]));
            let spec = SliceSpec::whole(Dtype::C128, &[5]);
            all.push(Item {
                name: "wide".to_owned(),
                data: ItemData::Slice(spec, Buf::copy_of(&wide.bytes).unwrap()),
            });
        }
        save.rank(rank, all).await.unwrap();
    }
    save.commit(metadata(1.0), NO_WAIT).await.unwrap();
    let checkpoint = open(&store, &context, 7).await;
    let view = CheckpointView::open(&checkpoint).await.unwrap();
    assert_eq!(view.left_out(), ["wide"]);
    let weight = state["layer.0.weight"].clone();
    let part = |shape: &[u64], bytes: &[u8]| Tensor {
        shape: shape.to_vec(),
        bytes: bytes.to_vec(),
        ..weight.clone()
    };
    state.insert("tied".to_owned(), weight.clone());
    state.insert("rows".to_owned(), part(&[2, 64], &weight.bytes[256..768]));
    state.insert("flat".to_owned(), part(&[100], &weight.bytes[28..428]));
    let turned: Vec<u8> = (0..64 * 64)
        .flat_map(|at| weight.bytes[((at % 64) * 64 + at / 64) * 4..][..4].to_vec())
        .collect();
    state.insert("turned".to_owned(), part(&[64, 64], &turned));
    let file = whole(&view, &state).await;
    // In pieces that cut everything, twice: what is turned is turned again.
    for _ in 0..2 {
        for span in Span::first(file.len() as u64).pieces(1000) {
            let (found, _) = read(&view, span).await;
            assert!(
                found == file[span.start() as usize..span.end() as usize],
                "{span}"
            );
        }
    }
    compare_with_export(&checkpoint, &file, &context).await;
}

/// The same as is exported, but for the dtype that is told in another way there.
async fn compare_with_export(checkpoint: &Checkpoint, file: &[u8], context: &Context) {
    let to = memory();
    let how = ExportOptions {
        format: ExportFormat::Safetensors,
        prefix: None,
        file_name: None,
    };
    export(checkpoint, &to, &how, &|_| {}).await.unwrap();
    let key = Key::parse("model.safetensors").unwrap();
    let len = to.head(&key).await.unwrap().size;
    let (exported, _) = to
        .read(&key, Span::first(len), &ReadOptions::default(), context)
        .await
        .unwrap();
    let (ours, theirs) = (
        Header::parse(file, file.len() as u64).unwrap(),
        Header::parse(&exported, len).unwrap(),
    );
    assert_eq!(ours.metadata(), theirs.metadata());
    for tensor in ours.tensors() {
        let other = theirs.get(&tensor.name).unwrap();
        let bytes = &file[tensor.span.start() as usize..tensor.span.end() as usize];
        assert!(*bytes == exported[other.span.start() as usize..other.span.end() as usize]);
    }
}

#[tokio::test]
async fn damage_names_the_tensor_and_keys_are_needed() {
    let context = context();
    let store = memory();
    let state = state(3);
    save(&store, &context, 1, 1, &state).await;
    let view = view_of(&store, &context, 1).await;
    let manifest = view.checkpoint().manifest().clone();
    let key = manifest.payloads[0].key();
    let (bytes, _) = crate::open::read_small(&store, &context, &key, 1 << 30)
        .await
        .unwrap();
    let header = Header::parse(&bytes, bytes.len() as u64).unwrap();
    let place = header.get("layer.0.weight").unwrap().span;
    let mut bytes = bytes.to_vec();
    bytes[place.start() as usize + 5000] ^= 1;
    store
        .put_bytes(&key, &bytes, &PutOptions::default())
        .await
        .unwrap();
    let all = Span::first(size(&view).await);
    let buf = AlignedBuf::alloc(all.len() as usize, Pages::Small).unwrap();
    let error = view
        .read_into(view.key(), all, buf, &ReadOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("layer.0.weight"), "{error}");

    let store = memory();
    save_with(&store, &context, how(1, 2, Compress::Auto, true), &state, 0)
        .await
        .unwrap();
    let checkpoint = open(&store, &context, 1).await;
    for wrong in [Keys::default(), keys(&[9])] {
        let view = CheckpointView::open(&checkpoint.with_keys(wrong)).await.unwrap();
        // Names and shapes are no secret.
        read(&view, Span::first(100)).await;
        let all = Span::first(size(&view).await);
        let buf = AlignedBuf::alloc(all.len() as usize, Pages::Small).unwrap();
        let error = view
            .read_into(view.key(), all, buf, &ReadOptions::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
}

#[tokio::test]
async fn a_folder_of_checkpoints_is_known() {
    let context = context();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("run");
    std::fs::create_dir(&root).unwrap();
    let location = Location::from_path(&root, &root).unwrap();
    let find = async |options: &ViewOptions| CheckpointView::find(&location, options, &context).await;
    let newest = ViewOptions::default();
    let of_step = |step: u64| ViewOptions {
        step: Some(step),
        ..ViewOptions::default()
    };
    assert!(find(&newest).await.unwrap().is_none());
    assert_eq!(find(&of_step(1)).await.unwrap_err().kind(), ErrorKind::NotFound);
    let store = forebay_store::open(&location, &context).await.unwrap();
    let state = state(1);
    let (signer, _) = SigningKey::generate().unwrap();
    for step in [1, 2] {
        let options = SaveOptions {
            hash: HashKind::Blake3,
            sign: (step == 2).then(|| signer.clone()),
            ..options(step, 1, 2)
        };
        save_with(&store, &context, options, &state, 0).await.unwrap();
    }
    for (options, step) in [(newest.clone(), 2), (of_step(1), 1)] {
        let found = find(&options).await.unwrap().unwrap();
        assert_eq!((found.view.checkpoint().step(), found.damaged.len()), (step, 0));
        whole(&found.view, &state).await;
    }
    let signed = |step: u64, key: PublicKey| ViewOptions {
        trusted: Some(vec![key]),
        ..of_step(step)
    };
    assert!(find(&signed(2, signer.public())).await.unwrap().is_some());
    let unsigned = find(&signed(1, signer.public())).await.unwrap_err();
    assert_eq!(unsigned.kind(), ErrorKind::PermissionDenied);
    // The newest that can be read, and what cannot.
    let manifest = root.join("manifests").join(format!("{:020}.fbm", 2));
    let good = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, b"torn").unwrap();
    let found = find(&newest).await.unwrap().unwrap();
    assert_eq!((found.view.checkpoint().step(), found.damaged[0].0), (1, 2));
    std::fs::write(&manifest, good).unwrap();
    // Weights beside checkpoints are what is meant, unless a step is named.
    std::fs::write(root.join("model.safetensors"), b"").unwrap();
    assert!(find(&newest).await.unwrap().is_none());
    assert!(find(&of_step(2)).await.unwrap().is_some());
    let file = Location::from_path(&root.join("model.safetensors"), &root).unwrap();
    let found = CheckpointView::find(&file, &newest, &context).await;
    assert!(found.unwrap().is_none());
}
