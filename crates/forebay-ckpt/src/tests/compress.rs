//! Compressed checkpoints: the same states come back, in any shape, from and to raw ones.

use std::sync::Arc;

use forebay_core::Seed;
use forebay_store::{PutOptions, Store, StoreExt};

use super::support::*;
use crate::names::Form;
use crate::*;

const WAYS: [Compress; 3] = [Compress::Lz4, Compress::Zstd { level: 3 }, Compress::Auto];

fn how(step: u64, world: u32, compress: Compress) -> SaveOptions {
    SaveOptions {
        compress,
        ..options(step, 1, world)
    }
}

/// Tensors of every dtype, larger than some chunks, that shrink.
fn all_dtypes() -> State {
    let mut rng = Seed(4).rng();
    let mut state = soft_state(1);
    for (number, dtype) in Dtype::ALL.iter().enumerate() {
        let mut tensor = Tensor::new(*dtype, &[40, 64, 8], &mut rng);
        tensor.bytes.iter_mut().for_each(|byte| *byte &= 0x33);
        state.insert(format!("d{number}"), tensor);
    }
    // Elements of less than a byte cannot be cut by the reference.
    state.retain(|_, tensor| tensor.dtype.bits() >= 8);
    state
}

#[tokio::test]
async fn states_come_back_in_other_shapes() {
    let context = context();
    let state = all_dtypes();
    for compress in WAYS {
        for (_, hash, _) in HashKind::ALL {
            let store = memory();
            let options = SaveOptions {
                hash,
                // Each begins a page, so small ones would save nothing.
                chunk_bytes: 8 * CHUNK,
                ..how(1, 2, compress)
            };
            let (committed, saved) = save_with(&store, &context, options, &state, 0).await.unwrap();
            let manifest = &committed.manifest;
            let shrinks = manifest.written_bytes < manifest.raw_bytes * 19 / 20;
            assert!(shrinks || compress == Compress::Lz4, "{compress}: {manifest:?}");
            assert!(
                manifest
                    .payloads
                    .iter()
                    .all(|row| row.form == Form::Chunks && row.head_bytes == 0)
            );
            assert!(saved.iter().all(|saved| saved.written_bytes > 0));
            let checkpoint = open(&store, &context, 1).await;
            for (dim, world) in [(0, 1), (0, 2), (0, 3), (1, 2), (2, 4)] {
                for rank in 0..world {
                    load_shard(&checkpoint, &state, dim, rank, world).await.unwrap();
                }
            }
            let report = verify(&checkpoint, &|_| {}).await.unwrap();
            assert!(report.is_whole(), "{:?}", report.damages);
        }
    }
}

#[tokio::test]
async fn features_say_what_is_needed() {
    let context = context();
    for (compress, wanted) in [
        (Compress::Auto, &["planes", "zstd"][..]),
        (Compress::Lz4, &["lz4", "planes"]),
        (Compress::Off, &[]),
    ] {
        let store = memory();
        let (committed, _) = save_with(&store, &context, how(1, 1, compress), &soft_state(1), 0)
            .await
            .unwrap();
        assert_eq!(committed.manifest.features, wanted, "{compress}");
    }
    // Noise is stored as it is, and then nobody needs to know anything.
    let (noise, store) = (state(1), memory());
    let (committed, _) = save_with(&store, &context, how(1, 1, Compress::Lz4), &noise, 0)
        .await
        .unwrap();
    assert!(committed.manifest.features.is_empty());
    load_all(&open(&store, &context, 1).await, &noise).await.unwrap();
}

/// The payload is the same however many threads there were: the bytes of one save and of another.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_state_gives_the_same_payload() {
    let context = context();
    let mut payloads = Vec::new();
    for _ in 0..3 {
        let store = memory();
        save_with(&store, &context, how(1, 1, Compress::Auto), &all_dtypes(), 0)
            .await
            .unwrap();
        let key = open(&store, &context, 1).await.manifest().payloads[0].key();
        let (bytes, _) = crate::open::read_small(&store, &context, &key, 1 << 30)
            .await
            .unwrap();
        payloads.push(bytes);
    }
    assert!(payloads.windows(2).all(|pair| pair[0] == pair[1]));
}

async fn changed(store: &Arc<dyn Store>, old: u64, new: u64) -> Vec<(String, Change)> {
    let context = context();
    let (old, new) = (open(store, &context, old).await, open(store, &context, new).await);
    let diff = diff(&old, &new).await.unwrap();
    diff.differences
        .into_iter()
        .map(|difference| (difference.name, difference.change))
        .collect()
}

/// From raw to compressed, on with another way, and back to raw: what did not change is referenced as it lies.
#[tokio::test]
async fn incremental_saves_mix_ways() {
    let context = context();
    let store = memory();
    let mut state = soft_state(1);
    let ways = [
        Compress::Off,
        Compress::Auto,
        Compress::Lz4,
        Compress::Off,
        Compress::Auto,
    ];
    let mut states = Vec::new();
    for (step, compress) in (1u64..).zip(ways) {
        state.get_mut("layer.0.weight").unwrap().bytes[4096 * step as usize % 16_000] ^= 1;
        let options = SaveOptions {
            base_step: Some(step - 1),
            ..how(step, 2, compress)
        };
        let (_, saved) = save_with(&store, &context, options, &state, 0).await.unwrap();
        states.push(state.clone());
        let checkpoint = open(&store, &context, step).await;
        load_all(&checkpoint, &state).await.unwrap();
        assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
        if step > 1 {
            let written: u64 = saved
                .iter()
                .map(|saved| saved.raw_bytes - saved.referenced_bytes)
                .sum();
            assert_eq!(written, u64::from(CHUNK), "step {step}");
            let change = Change::Content {
                bytes: u64::from(CHUNK),
            };
            assert_eq!(
                changed(&store, step - 1, step).await,
                [("layer.0.weight".to_owned(), change)]
            );
        }
    }
    // Only the last stays: what it references does, too.
    let keep = GcOptions {
        keep_last: Some(1),
        ..GcOptions::default()
    };
    gc(Arc::clone(&store), &context, &keep).await.unwrap();
    let checkpoint = open(&store, &context, 5).await;
    load_all(&checkpoint, states.last().unwrap()).await.unwrap();
    assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
}

/// What lies between chunks is no chunk's, but somebody may hide something there.
#[tokio::test]
async fn what_lies_between_chunks_is_zero() {
    let context = context();
    let store = memory();
    save_with(&store, &context, how(1, 1, Compress::Auto), &soft_state(1), 0)
        .await
        .unwrap();
    let checkpoint = open(&store, &context, 1).await;
    let key = checkpoint.manifest().payloads[0].key();
    let (good, _) = crate::open::read_small(&store, &context, &key, 1 << 30)
        .await
        .unwrap();
    let part = checkpoint.part(0).await.unwrap();
    let chunks = part.chunks(0, part.head.chunks.records).await.unwrap();
    let mut tried = 0;
    for end in chunks.iter().map(|chunk| chunk.span().end()) {
        let next = end.next_multiple_of(4096).min(good.len() as u64);
        for at in [end, next.saturating_sub(1)] {
            if !(end..next).contains(&at) {
                continue;
            }
            let mut bad = good.to_vec();
            bad[at as usize] = 1;
            store.put_bytes(&key, &bad, &PutOptions::default()).await.unwrap();
            let report = verify(&checkpoint, &|_| {}).await.unwrap();
            assert_eq!(report.damages.len(), 1, "byte {at}");
            tried += 1;
        }
    }
    assert!(tried > 10, "{tried}");
}

#[tokio::test]
async fn levels_that_there_are_not_are_refused() {
    let context = context();
    let begun = Save::begin(memory(), &context, how(1, 1, Compress::Zstd { level: 23 })).await;
    assert!(begun.unwrap_err().to_string().contains("level 23"));
}

/// Every other chunk shrinks, and columns are wanted, with memory for a few chunks only: all of it comes, in order.
#[tokio::test(flavor = "multi_thread")]
async fn mixed_chunks_are_loaded_with_little_memory() {
    let mut rng = Seed(5).rng();
    let chunk_bytes: u32 = 512 << 10;
    // As many chunks as are read at once, and as many again; the odd ones are of zeros.
    let mut tensor = Tensor::new(Dtype::F32, &[4 << 10, 1 << 10], &mut rng);
    for chunk in tensor.bytes.chunks_mut(chunk_bytes as usize).skip(1).step_by(2) {
        chunk.fill(0);
    }
    let state = State::from([("mixed".to_owned(), tensor)]);
    let store = memory();
    let how = SaveOptions {
        chunk_bytes,
        ..how(1, 1, Compress::Zstd { level: 1 })
    };
    save_with(&store, &context(), how, &state, 0).await.unwrap();
    let limits = forebay_core::Limits {
        buffer_bytes_max: 1 << 20,
        ..limits()
    };
    let config = forebay_io::DiskConfig {
        limits,
        ..forebay_io::DiskConfig::default()
    };
    let little = forebay_store::Context::new(forebay_io::Disk::open(config).unwrap()).with_state_dir(None);
    let checkpoint = open(&store, &little, 1).await;
    let loads = async {
        load_shard(&checkpoint, &state, 1, 3, 4).await.unwrap();
    };
    // Long enough for any machine; one that waits for itself waits for ever.
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), loads).await;
    assert!(ended.is_ok(), "reads wait for the memory of each other");
}
