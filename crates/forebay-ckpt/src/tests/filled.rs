//! States that are larger than the memory for their copy: filled in rounds, within a bound, and saved as if they had been there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Location, Result, Seed};
use forebay_io::{Buf, BufPool, Pages, PoolConfig};
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};
use forebay_store::{Context, LocalStore, Store};

use super::support::*;
use crate::seal::tests::keys;
use crate::*;

/// Room for two chunks, so that a state has many rounds.
const ROUND: usize = 2 * CHUNK as usize;

/// With a tensor that is many rounds long.
fn large_state() -> State {
    let mut state = soft_state(1);
    let large = Tensor::new(Dtype::F32, &[512, 64], &mut Seed(9).rng());
    state.insert("large".to_owned(), large);
    state
}

/// Copies slices into memory for a few rounds, and counts what is in use.
#[derive(Debug)]
struct Source {
    pool: BufPool,
    slices: Vec<Vec<u8>>,
    rounds: Mutex<Vec<Round>>,
    /// The number of the round that cannot be filled.
    bad_round: usize,
}

impl Source {
    /// With memory for so many rounds.
    fn over(items: &mut [Item], rounds: usize, is_later: impl Fn(usize) -> bool) -> Self {
        let mut slices = Vec::new();
        for (number, item) in items.iter_mut().enumerate() {
            if let ItemData::Slice(spec, bytes) = &item.data
                && is_later(number)
            {
                let later = ItemData::Later(spec.clone(), slices.len());
                slices.push(bytes.to_vec());
                item.data = later;
            }
        }
        let config = PoolConfig {
            bytes_max: (rounds * ROUND) as u64,
            pages: Pages::Small,
            ..PoolConfig::default()
        };
        Self {
            pool: BufPool::new(&config).unwrap(),
            slices,
            rounds: Mutex::default(),
            bad_round: usize::MAX,
        }
    }

    fn rounds(&self) -> Vec<Round> {
        self.rounds.lock().unwrap().clone()
    }
}

#[async_trait]
impl Fill for Source {
    fn round_bytes(&self) -> usize {
        ROUND
    }

    async fn fill(&self, round: Round) -> Result<Buf> {
        // A whole round each time, as an area in equal parts would give it.
        let mut memory = self.pool.lease(ROUND).await??;
        let number = {
            let mut rounds = self.rounds.lock().unwrap();
            rounds.push(round.clone());
            rounds.len() - 1
        };
        if number == self.bad_round {
            return Err(Error::new(ErrorKind::Io, "fill", "the device is gone"));
        }
        // What was there before must not come through.
        memory.fill(0xee);
        for piece in &round.pieces {
            let bytes = &self.slices[piece.number][piece.span.relative_to(0)];
            memory[piece.at..piece.at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(memory.freeze())
    }
}

/// Save over all ranks, with memory for so many rounds each; gives the most that any of them had in use.
async fn save_filled(
    store: &Arc<dyn Store>,
    context: &Context,
    options: SaveOptions,
    state: &State,
    rounds: usize,
) -> (Vec<RankSaved>, u64) {
    let save = Save::begin(Arc::clone(store), context, options).await.unwrap();
    let world = save.options().world;
    let (mut saved, mut peak) = (Vec::new(), 0);
    for rank in 0..world {
        let mut items = items(state, 0, rank, world);
        // Every fourth is in memory.
        let source = Arc::new(Source::over(&mut items, rounds, |number| number % 4 != 3));
        let done = save
            .rank_filled(rank, items, Arc::clone(&source) as _)
            .await
            .unwrap();
        assert_eq!(done.rounds, source.rounds().len() as u64);
        let lasts = source.rounds().iter().filter(|round| round.is_last).count();
        assert!(lasts <= 1 && source.rounds().iter().rev().skip(1).all(|round| !round.is_last));
        let stats = source.pool.stats();
        assert_eq!(stats.leased_bytes, 0, "memory is given back");
        peak = peak.max(stats.leased_bytes_peak);
        saved.push(done);
    }
    save.commit(metadata(2.5), NO_WAIT).await.unwrap();
    (saved, peak)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_filled_is_saved_as_what_is_there_within_its_memory() {
    let context = context();
    let state = large_state();
    for (compress, rounds, world) in [
        (Compress::Off, 2, 1),
        (Compress::Off, 1, 2),
        (Compress::Auto, 2, 2),
        (Compress::Auto, 1, 1),
    ] {
        let (filled, there) = (memory(), memory());
        let how = SaveOptions {
            compress,
            ..options(1, 1, world)
        };
        let (saved, peak) = save_filled(&filled, &context, how.clone(), &state, rounds).await;
        assert_eq!(
            peak,
            (rounds * ROUND) as u64,
            "all of the memory is used, and no more"
        );
        let state_bytes: u64 = saved.iter().map(|saved| saved.raw_bytes).sum();
        assert!(state_bytes > 3 * peak / u64::from(world), "{state_bytes}");
        save_with(&there, &context, how, &state, 0).await.unwrap();
        let (filled_objects, there_objects) = (
            contents(&filled, &context).await,
            contents(&there, &context).await,
        );
        assert!(filled_objects.keys().eq(there_objects.keys()));
        for (key, bytes) in filled_objects {
            // The manifest says when it was made.
            if !key.as_str().contains("manifest") {
                assert_eq!(bytes, there_objects[&key], "{key}");
            }
        }
        let checkpoint = open(&filled, &context, 1).await;
        load_all(&checkpoint, &state).await.unwrap();
        assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_filled_is_compared_with_the_checkpoint_before() {
    let context = context();
    for seal in [Keys::default(), keys(&[1])] {
        let (store, before) = (memory(), large_state());
        let mut after = before.clone();
        after.get_mut("embed").unwrap().bytes[5000] ^= 1;
        let how = |step, base_step| SaveOptions {
            base_step,
            seal: seal.clone(),
            ..options(step, 1, 1)
        };
        save_with(&store, &context, how(1, None), &before, 0)
            .await
            .unwrap();
        let (saved, peak) = save_filled(&store, &context, how(2, Some(1)), &after, 2).await;
        assert_eq!(saved[0].chunks - saved[0].chunks_referenced, 1);
        assert!(peak <= 2 * ROUND as u64);
        let checkpoint = open(&store, &context, 2).await.with_keys(seal.clone());
        load_all(&checkpoint, &after).await.unwrap();
        // Nothing has changed: nothing is written, and everything was asked for all the same.
        let (saved, _) = save_filled(&store, &context, how(3, Some(2)), &after, 2).await;
        assert_eq!(saved[0].written_bytes, 0);
        assert!(saved[0].rounds > 2);
        let checkpoint = open(&store, &context, 3).await.with_keys(seal.clone());
        load_all(&checkpoint, &after).await.unwrap();
        assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_cannot_be_filled_leaves_the_checkpoint_before() {
    let (context, state) = (context(), large_state());
    for compress in [Compress::Off, Compress::Auto] {
        for bad_round in [0, 1, 3] {
            let store = memory();
            save(&store, &context, 1, 1, &state).await;
            let before = contents(&store, &context).await;
            let how = SaveOptions {
                compress,
                ..options(2, 1, 1)
            };
            let save = Save::begin(Arc::clone(&store), &context, how).await.unwrap();
            let mut items = items(&state, 0, 0, 1);
            let source = Source {
                bad_round,
                ..Source::over(&mut items, 2, |_| true)
            };
            let source = Arc::new(source);
            let error = save
                .rank_filled(0, items, Arc::clone(&source) as _)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert!(error.to_string().contains("the device is gone"), "{error}");
            assert!(
                source.rounds().len() <= bad_round + 2,
                "nothing more is asked for"
            );
            assert_eq!(source.pool.stats().leased_bytes, 0);
            assert_eq!(Arc::strong_count(&source), 1);
            save.abandon().await;
            assert_eq!(contents(&store, &context).await, before, "nothing is left behind");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_fails_ends_the_rounds() {
    let (context, mut state) = (context(), large_state());
    // More parts than are in flight at a time.
    let larger = Tensor::new(Dtype::F32, &[4096, 64], &mut Seed(2).rng());
    let rounds_of_larger = larger.bytes.len() / ROUND;
    state.insert("larger".to_owned(), larger);
    let dir = tempfile::tempdir().unwrap();
    let location = Location::from_path(dir.path(), dir.path()).unwrap();
    let local: Arc<dyn Store> = Arc::new(LocalStore::open(&location, &context).unwrap());
    let fault = Fault::Fail(ErrorKind::OutOfSpace);
    let plan = FaultPlan::new(Seed(1)).with(Op::Part, When::Nth(2), fault);
    let store: Arc<dyn Store> = Arc::new(Faulty::new(local, plan));
    let save = Save::begin(Arc::clone(&store), &context, options(1, 1, 1))
        .await
        .unwrap();
    let mut items = items(&state, 0, 0, 1);
    let source = Arc::new(Source::over(&mut items, 2, |_| true));
    let saved = save.rank_filled(0, items, Arc::clone(&source) as _).await;
    assert_eq!(saved.unwrap_err().kind(), ErrorKind::OutOfSpace);
    assert_eq!(source.pool.stats().leased_bytes, 0);
    let asked = source.rounds().len();
    assert!(asked < rounds_of_larger / 2, "{asked} of {rounds_of_larger}");
}

/// Memory that no chunk fits into; counts how often it is asked.
#[derive(Debug, Default)]
struct Narrow(AtomicUsize);

#[async_trait]
impl Fill for Narrow {
    fn round_bytes(&self) -> usize {
        CHUNK as usize - 1
    }

    async fn fill(&self, _round: Round) -> Result<Buf> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Buf::copy_of(&[])
    }
}

#[tokio::test]
async fn what_cannot_be_filled_is_refused() {
    let (context, store, state) = (context(), memory(), large_state());
    let save = Save::begin(Arc::clone(&store), &context, options(1, 1, 1))
        .await
        .unwrap();
    let mut later = items(&state, 0, 0, 1);
    Source::over(&mut later, 1, |_| true);
    let error = save.rank(0, later).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("nobody fills them"), "{error}");
    let mut later = items(&state, 0, 0, 1);
    Source::over(&mut later, 1, |_| true);
    let narrow = Arc::new(Narrow::default());
    let error = save
        .rank_filled(0, later, Arc::clone(&narrow) as _)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert_eq!(narrow.0.load(Ordering::Relaxed), 0);
}
