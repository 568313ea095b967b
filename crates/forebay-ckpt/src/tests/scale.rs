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

#[tokio::test(flavor = "multi_thread")]
async fn one_tensor_of_many_ranks_takes_kilobytes() {
    let context = context();
    let store = memory();
    // A tenth of the ranks in this test; the bench has all.
    let (world, tensors) = (100, 1000);
    let how = SaveOptions {
        with_index: true,
        ..options(1, 1, world)
    };
    let save = Save::begin(Arc::clone(&store), &context, how).await.unwrap();
    for rank in 0..world {
        save.rank(rank, rank_items(rank.into(), world.into(), tensors))
            .await
            .unwrap();
    }
    save.commit(metadata(0.0), NO_WAIT).await.unwrap();
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
    let save = Save::begin(Arc::clone(&store), &context, options(1, 1, world))
        .await
        .unwrap();
    for rank in 0..world {
        save.rank(rank, rank_items(rank.into(), world.into(), tensors))
            .await
            .unwrap();
    }
    save.commit(metadata(0.0), std::time::Duration::from_secs(60))
        .await
        .unwrap();
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
    let begun = clock.now();
    let checkpoint = open(&store, &context, 1).await;
    let wants: Vec<Want> = wants.collect();
    checkpoint.plan_all(&wants).await.unwrap();
    let plan_time = clock.now().saturating_sub(begun);
    println!(
        "1,000 ranks x 1,000 tensors: list {list_time:.3?}, one tensor {show_time:.3?}, plan of one rank {plan_time:.3?}"
    );
}
