//! Sizes: a thousand ranks with a thousand tensors each, found and planned without reading it all.

use std::sync::Arc;

use forebay_io::{AlignedBuf, Buf, Pages};

use super::support::*;
use crate::*;

/// A thousand tensors, each cut into rows over all ranks.
fn rank_items(rank: u64, world: u64, tensors: u64) -> Vec<Item> {
    (0..tensors)
        .map(|number| {
            let spec = SliceSpec::whole(Dtype::F32, &[world, 2]).cut(&[rank, 0], &[1, 2]);
            let bytes = [rank as u32, number as u32].map(u32::to_le_bytes).concat();
            Item {
                name: format!("model.layers.{number:04}.attention.weight"),
                data: ItemData::Slice(spec, Buf::copy_of(&bytes).unwrap()),
            }
        })
        .collect()
}

/// All ranks, committed with an index.
async fn save_ranks(
    store: &Arc<dyn forebay_store::Store>,
    context: &forebay_store::Context,
    world: u32,
    tensors: u64,
) {
    let how = SaveOptions {
        with_index: true,
        ..options(1, 1, world)
    };
    let save = Save::begin(Arc::clone(store), context, how).await.unwrap();
    for rank in 0..world {
        save.rank(rank, rank_items(rank.into(), world.into(), tensors))
            .await
            .unwrap();
    }
    save.commit(metadata(0.0), NO_WAIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tensor_of_many_ranks_takes_kilobytes() {
    let context = context();
    let store = memory();
    // A tenth of the ranks in this test; the bench has all.
    let (world, tensors) = (100, 1000);
    save_ranks(&store, &context, world, tensors).await;
    let checkpoint = open(&store, &context, 1).await;
    let manifest_bytes = checkpoint.ledger().bytes();
    let found = checkpoint
        .find("model.layers.0500.attention.weight")
        .await
        .unwrap();
    assert_eq!(found.len(), world as usize);
    let read = checkpoint.ledger().bytes() - manifest_bytes;
    assert!(read < 256 << 10, "{read} bytes");
    // One rank of it: its part and no other.
    let before = checkpoint.ledger().bytes();
    let memory = AlignedBuf::alloc(8, Pages::Small).unwrap();
    let want = Want {
        name: "model.layers.0500.attention.weight".to_owned(),
        offsets: vec![42, 0],
        lengths: vec![1, 2],
        memory,
    };
    let loaded = checkpoint.load(vec![want]).await.unwrap();
    assert_eq!(
        loaded.memory[0][..],
        [42u32, 500].map(u32::to_le_bytes).concat()[..]
    );
    let read = checkpoint.ledger().bytes() - before;
    assert!(read < 256 << 10, "{read} bytes");
}

/// Boxes of rank `rank` of `world`, of a checkpoint that has `ranks` rows.
fn rank_wants(ranks: u64, rank: u64, world: u64, tensors: u64) -> Vec<Want> {
    let (first, rows) = (rank * ranks / world, ranks / world);
    let wants = (0..tensors).map(|number| Want {
        name: format!("model.layers.{number:04}.attention.weight"),
        offsets: vec![first, 0],
        lengths: vec![rows, 2],
        memory: AlignedBuf::alloc(8 * rows as usize, Pages::Small).unwrap(),
    });
    wants.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_finds_its_tensors_where_it_left_them() {
    let context = context();
    let store = memory();
    let (world, tensors) = (12, 200);
    save_ranks(&store, &context, world, tensors).await;
    let bytes_read = async |hint: Option<(u32, u32)>, wanted: (u64, u64)| {
        let checkpoint = open(&store, &context, 1).await;
        let checkpoint = hint.map_or(checkpoint.clone(), |(rank, world)| {
            checkpoint.for_rank(rank, world)
        });
        let loaded = checkpoint
            .load(rank_wants(12, wanted.0, wanted.1, tensors))
            .await
            .unwrap();
        let rows = 12 / wanted.1;
        for (number, memory) in (0u32..).zip(&loaded.memory) {
            let rows = (0..rows).map(|row| (wanted.0 * rows + row) as u32);
            let expected: Vec<u8> = rows
                .flat_map(|row| [row, number].map(u32::to_le_bytes).concat())
                .collect();
            assert_eq!(memory[..], expected[..]);
        }
        checkpoint.ledger().bytes()
    };
    let by_index = bytes_read(None, (7, 12)).await;
    // As many ranks as before: one part, and no index.
    assert!(bytes_read(Some((7, 12)), (7, 12)).await < by_index / 3);
    // Fewer ranks: the parts of three.
    assert!(bytes_read(Some((2, 4)), (2, 4)).await < by_index);
    // A rank that was elsewhere finds all the same, and so does one of a larger world.
    bytes_read(Some((3, 12)), (7, 12)).await;
    bytes_read(Some((40, 100)), (1, 3)).await;
    bytes_read(Some((7, 3)), (1, 3)).await;
}

/// All of it, on a disk: what a listing, one tensor and the plan of one rank's load take. Prints, since times are of the machine.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it measures"]
async fn a_thousand_ranks_with_a_thousand_tensors() {
    let context = context();
    let dir = tempfile::tempdir().unwrap();
    let location = forebay_core::Location::from_path(dir.path(), dir.path()).unwrap();
    let local = forebay_store::LocalStore::open(&location, &context).unwrap();
    let store: Arc<dyn forebay_store::Store> = Arc::new(local);
    let (world, tensors) = (1000, 1000);
    save_ranks(&store, &context, world, tensors).await;
    let clock = context.clock();
    let begun = clock.now();
    let listed = list(Arc::clone(&store), &context).await.unwrap();
    let list_time = clock.now().saturating_sub(begun);
    assert_eq!(listed.len(), 1);
    let begun = clock.now();
    let checkpoint = open(&store, &context, 1).await;
    let name = "model.layers.0500.attention.weight";
    assert_eq!(checkpoint.find(name).await.unwrap().len(), world as usize);
    let show_time = clock.now().saturating_sub(begun);
    let wants = (0..tensors).map(|number| Want {
        name: format!("model.layers.{number:04}.attention.weight"),
        offsets: vec![7, 0],
        lengths: vec![1, 2],
        memory: AlignedBuf::alloc(8, Pages::Small).unwrap(),
    });
    let wants: Vec<Want> = wants.collect();
    let begun = clock.now();
    let checkpoint = open(&store, &context, 1).await.for_rank(7, world);
    checkpoint.plan_all(&wants).await.unwrap();
    let plan_time = clock.now().saturating_sub(begun);
    // As if nothing were known of where they are: by the index.
    let begun = clock.now();
    let checkpoint = open(&store, &context, 1).await;
    checkpoint.plan_all(&wants).await.unwrap();
    let elsewhere_time = clock.now().saturating_sub(begun);
    let begun = clock.now();
    let checkpoint = open(&store, &context, 1).await;
    assert_eq!(
        checkpoint.entries().await.unwrap().len() as u64,
        u64::from(world) * tensors
    );
    let entries_time = clock.now().saturating_sub(begun);
    println!(
        "1,000 ranks x 1,000 tensors: list {list_time:.3?}, one tensor {show_time:.3?}, plan of one rank {plan_time:.3?}, by the index {elsewhere_time:.3?}, all entries {entries_time:.3?}"
    );
}
