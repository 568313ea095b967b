//! What a run that goes on reads: nothing of what was consumed.

use forebay_store::wrap::{Counted, Op, OpCounts};

use super::*;

/// Many blocks of a size that is hardly rounded up.
const LONG: [u32; 3] = [4000, 4100, 3900];

fn settings(shuffle: bool) -> StreamSpec {
    let mut spec = spec(1, 0);
    spec.order.shuffle = shuffle;
    spec.order.block_bytes = 4096;
    spec.order.window_bytes = 8 * 12_288;
    spec.epochs = Some(1);
    spec
}

/// The batches from a position on, and what was read for them.
async fn read_from(
    dataset: &Dataset,
    store: &Arc<dyn Store>,
    spec: &StreamSpec,
    position: &Position,
) -> (Vec<Numbers>, OpCounts) {
    let counted = Counted::new(Arc::clone(store));
    let (options, manifest) = (OpenOptions::default(), dataset.manifest().clone());
    let from = Arc::new(counted.clone());
    let opened = Dataset::open_indexed(from, dataset.context(), manifest, &options).await;
    let mut loader = Loader::resume(opened.unwrap(), spec, position).unwrap();
    let batches = drain(&mut loader).await;
    (batches, counted.counts().of(Op::Read))
}

/// Blocks of windows that are not behind a position, which is the same in all lanes.
fn blocks_from(dataset: &Dataset, spec: &StreamSpec, position: u64) -> u64 {
    let plan = order_of(dataset, spec.order.clone()).unwrap().epoch(0);
    let lanes = if spec.order.shuffle { spec.order.lanes } else { 1 };
    let windows = (0..lanes).flat_map(|lane| plan.lane(lane).unwrap().windows_from(position));
    windows.map(|window| window.blocks.len() as u64).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_were_consumed_are_not_read_again() {
    let (dataset, store) = data_set(&LONG).await;
    for shuffle in [false, true] {
        let spec = settings(shuffle);
        let mut loader = Loader::new(dataset.clone(), &spec).unwrap();
        let (whole, all) = read_from(&dataset, &store, &spec, &loader.position()).await;
        // A lane gives each batch its part; without shuffling there is only one.
        let per_batch = if shuffle {
            24 / u64::from(spec.order.lanes)
        } else {
            24
        };
        assert!(all.requests <= blocks_from(&dataset, &spec, 0), "{all:?}");
        let batches = loader.batches();
        for done in 0..batches {
            if [batches / 4, batches / 2, batches - 2].contains(&done) {
                let (rest, read) = read_from(&dataset, &store, &spec, &loader.position()).await;
                assert_eq!(rest, whole[done as usize..]);
                let needed = blocks_from(&dataset, &spec, done * per_batch);
                assert!(
                    read.requests <= needed,
                    "{done}: {} reads for {needed} blocks",
                    read.requests
                );
                assert!(needed < all.requests, "{done}: {needed} of {}", all.requests);
                // The share of the bytes is that of the samples, but for the windows that are under way.
                let left = all.bytes * (batches - done) / batches;
                let window_bytes = 2 * spec.order.window_bytes;
                assert!(
                    read.bytes <= left + window_bytes,
                    "{done}: {} of {left}",
                    read.bytes
                );
            }
            loader.next_batch().await.unwrap().unwrap();
        }
    }
}
