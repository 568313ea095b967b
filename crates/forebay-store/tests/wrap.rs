//! What wrappers and tiers add to a store, beyond passing its suite.

#[path = "wrap/scripted.rs"]
mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{
    Clock, DataPath, Error, ErrorKind, Key, Ledger, Limits, Location, Result, Seed, Span, crc64nvme,
};
use forebay_io::{AlignedBuf, Buf, DiskConfig, EngineChoice, Pages};
use forebay_store::tiers::{Tiers, TiersConfig, WritePolicy};
use forebay_store::wrap::{
    Counted, Fault, FaultPlan, Faulty, Op, Prefixed, Retried, Throttle, Throttled, When,
};
use forebay_store::{
    Body, Capabilities, Context, Entry, ListOptions, Listing, MemoryStore, ObjectMeta, PutDone, PutMode,
    PutOptions, ReadDone, ReadOptions, Store, StoreExt, Upload, conformance,
};
use futures::StreamExt;

fn limits() -> Limits {
    Limits {
        part_bytes: 64 << 10,
        buffer_bytes_max: 64 << 20,
        tries_max: 4,
        retry_pause_ms: 1,
        retry_pause_ms_max: 5,
        ..Limits::default()
    }
}

fn context_with(limits: Limits) -> Context {
    let config = DiskConfig {
        limits,
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

fn context() -> Context {
    context_with(limits())
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

fn absent() -> PutOptions {
    PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    }
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

async fn put(store: &dyn Store, name: &str, bytes: &[u8]) -> PutDone {
    store
        .put_bytes(&key(name), bytes, &PutOptions::default())
        .await
        .unwrap()
}

async fn get(store: &dyn Store, name: &str, context: &Context) -> Result<(Vec<u8>, Ledger)> {
    let size = store.head(&key(name)).await?.size;
    let (buf, ledger) = store
        .read(&key(name), Span::first(size), &ReadOptions::default(), context)
        .await?;
    Ok((buf.to_vec(), ledger))
}

async fn names(store: &dyn Store) -> Vec<String> {
    store
        .list(&Key::ROOT, ListOptions { recursive: true })
        .map(|row| row.unwrap().key().to_string())
        .collect()
        .await
}

fn retries(ledger: &Ledger) -> u64 {
    ledger.paths.values().map(|totals| totals.retries).sum()
}

/// Retries over faults over memory.
fn flaky(plan: FaultPlan, context: &Context) -> (Retried, Faulty, Arc<dyn Store>) {
    let below = memory();
    let faulty = Faulty::new(Arc::clone(&below), plan);
    (Retried::new(Arc::new(faulty.clone()), context), faulty, below)
}

const DOWN: Fault = Fault::Fail(ErrorKind::Unavailable);
const LOST: Fault = Fault::LoseReply(ErrorKind::Timeout);

fn plan(op: Op, when: When, fault: Fault) -> FaultPlan {
    FaultPlan::new(Seed(3)).with(op, when, fault)
}

#[tokio::test]
async fn passing_faults_are_tried_again_and_accounted() {
    let context = context();
    let (store, faulty, _) = flaky(plan(Op::Read, When::First(2), DOWN), &context);
    put(&store, "a", b"content").await;
    let buf = AlignedBuf::alloc(100, Pages::Small).unwrap();
    let done = store
        .read_into(&key("a"), Span::first(7), buf, &ReadOptions::default())
        .await
        .unwrap();
    assert_eq!((&done.buf[..7], done.buf.len()), (&b"content"[..], 100));
    assert_eq!((retries(&done.ledger), store.retries(), faulty.hits()), (2, 2, 2));
}

#[tokio::test]
async fn what_cannot_get_better_is_tried_once() {
    let context = context();
    let (store, faulty, _) = flaky(
        plan(Op::Head, When::Always, Fault::Fail(ErrorKind::PermissionDenied)),
        &context,
    );
    let error = store.head(&key("a")).await.unwrap_err();
    assert_eq!((error.kind(), faulty.hits()), (ErrorKind::PermissionDenied, 1));
}

#[tokio::test]
async fn tries_end_and_the_error_says_how_many() {
    let context = context();
    let (store, faulty, _) = flaky(plan(Op::Delete, When::Always, DOWN), &context);
    let error = store.delete(&key("a")).await.unwrap_err();
    assert_eq!((error.kind(), faulty.hits()), (ErrorKind::Unavailable, 4));
    assert!(error.hint().unwrap().contains("4 times"), "{:?}", error.hint());
}

#[tokio::test]
async fn an_outage_is_not_answered_by_a_storm() {
    let context = context();
    let (store, faulty, _) = flaky(plan(Op::Head, When::Always, DOWN), &context);
    for _ in 0..200 {
        store.head(&key("a")).await.unwrap_err();
    }
    // Ten to begin with, and one for each five requests, retries included.
    assert!(
        (250..=265).contains(&faulty.hits()),
        "{} requests for 200",
        faulty.hits()
    );
}

#[tokio::test]
async fn a_lost_reply_to_put_if_absent_is_not_mistaken_for_somebody_else() {
    let context = context();
    let (store, _, below) = flaky(plan(Op::Put, When::First(1), LOST), &context);
    let bytes = vec![7; 200_000];
    let done = store.put_bytes(&key("a"), &bytes, &absent()).await.unwrap();
    assert_eq!((done.size, done.crc64nvme), (200_000, crc64nvme(&bytes)));
    assert_eq!(done.version, below.head(&key("a")).await.unwrap().version);
    assert_eq!(get(&*below, "a", &context).await.unwrap().0, bytes);
}

#[tokio::test]
async fn somebody_elses_object_is_not_mistaken_for_ours() {
    let context = context();
    let (store, _, below) = flaky(plan(Op::Put, When::First(1), DOWN), &context);
    put(&*below, "a", b"theirs").await;
    let error = store
        .put_bytes(&key("a"), b"ours!!", &absent())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let (store, _, _) = flaky(plan(Op::Put, When::First(0), DOWN), &context);
    put(&store, "a", b"same").await;
    let error = store.put_bytes(&key("a"), b"same", &absent()).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::AlreadyExists,
        "the first try is never taken for ours"
    );
}

/// Workers that write the same bytes, such as a marker, are told apart all the same.
#[tokio::test]
async fn equal_content_after_a_failed_try_makes_no_second_winner() {
    let context = context();
    let (store, _, below) = flaky(plan(Op::Put, When::First(1), DOWN), &context);
    put(&*below, "a", b"marker").await;
    let error = store
        .put_bytes(&key("a"), b"marker", &absent())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let (store, _, below) = flaky(plan(Op::Complete, When::First(1), DOWN), &context);
    let upload = store.upload(&key("a"), &absent()).await.unwrap();
    upload
        .put_part(0, Buf::copy_of(b"marker").unwrap().into())
        .await
        .unwrap();
    put(&*below, "a", b"marker").await;
    let error = upload.complete().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn a_lost_reply_to_a_conditional_completion_is_no_defeat() {
    let context = context();
    let (store, _, below) = flaky(plan(Op::Complete, When::First(1), LOST), &context);
    let upload = store.upload(&key("a"), &absent()).await.unwrap();
    upload
        .put_part(0, Buf::copy_of(b"mine").unwrap().into())
        .await
        .unwrap();
    assert_eq!(upload.complete().await.unwrap().size, 4);
    assert_eq!(get(&*below, "a", &context).await.unwrap().0, b"mine");
}

#[tokio::test]
async fn a_lost_reply_to_complete_is_found_out() {
    let context = context();
    let rules = plan(Op::Complete, When::First(1), LOST).with(Op::Part, When::Nth(2), DOWN);
    let (store, _, below) = flaky(rules, &context);
    let upload = store.upload(&key("a"), &PutOptions::default()).await.unwrap();
    let bytes = vec![5; upload.part_bytes() as usize + 77];
    let mut ledger = Ledger::default();
    for (index, part) in bytes.chunks(upload.part_bytes() as usize).enumerate() {
        ledger.merge(
            &upload
                .put_part(index as u32, Buf::copy_of(part).unwrap().into())
                .await
                .unwrap(),
        );
    }
    let done = upload.complete().await.unwrap();
    assert_eq!(
        (done.size, done.crc64nvme),
        (bytes.len() as u64, crc64nvme(&bytes))
    );
    assert_eq!((retries(&ledger), retries(&done.ledger)), (1, 1));
    assert_eq!(get(&*below, "a", &context).await.unwrap().0, bytes);
}

#[tokio::test]
async fn a_completion_that_never_happened_is_an_error() {
    let context = context();
    let (store, _, below) = flaky(plan(Op::Complete, When::Always, DOWN), &context);
    put(&*below, "a", b"old").await;
    let upload = store.upload(&key("a"), &PutOptions::default()).await.unwrap();
    upload
        .put_part(0, Buf::copy_of(b"new").unwrap().into())
        .await
        .unwrap();
    assert_eq!(
        upload.complete().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    assert_eq!(get(&*below, "a", &context).await.unwrap().0, b"old");
}

#[tokio::test]
async fn a_listing_that_breaks_off_goes_on_without_repeating() {
    let context = context();
    let (store, faulty, _) = flaky(plan(Op::List, When::First(2), LOST), &context);
    for name in ["a", "b/c", "b-", "d"] {
        put(&store, name, b"x").await;
    }
    assert_eq!(names(&store).await, ["a", "b-", "b/c", "d"]);
    assert_eq!(faulty.hits(), 2);
}

#[tokio::test]
async fn a_store_that_asks_for_less_gets_less_and_then_more_again() {
    let context = context();
    let slow = Fault::Fail(ErrorKind::Throttled);
    let limits = Limits {
        store_requests_max: 8,
        ..limits()
    };
    let context = context_with(limits).with_time(Arc::clone(context.clock()), Seed(1));
    let (store, _, _) = flaky(plan(Op::Head, When::First(1), slow), &context);
    put(&store, "a", b"x").await;
    assert_eq!(store.requests_max(), 8);
    store.head(&key("a")).await.unwrap();
    assert_eq!(store.requests_max(), 4);
    for _ in 0..100 {
        store.head(&key("a")).await.unwrap();
    }
    assert_eq!(store.requests_max(), 8);
}

#[tokio::test]
async fn a_parallel_read_survives_pieces_that_were_tried_again() {
    let context = context();
    let (store, _, below) = flaky(plan(Op::Read, When::Nth(3), DOWN), &context);
    let bytes: Vec<u8> = (0..300_000u32).map(|index| (index % 249) as u8).collect();
    put(&*below, "a", &bytes).await;
    let (read, ledger) = get(&store, "a", &context).await.unwrap();
    assert_eq!(read, bytes);
    assert_eq!((ledger.bytes(), retries(&ledger)), (300_000, 1));
    let copied: u64 = ledger.paths.values().map(|totals| totals.copied_bytes).sum();
    assert_eq!(
        copied, 300_000,
        "joining pieces of two buffers is a copy, and is told"
    );
}

/// Under a store that fails now and then, retries make the whole contract hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flaky_store_with_retries_passes_the_suite() {
    let limits = Limits {
        tries_max: 10,
        retry_budget_percent: 100,
        ..limits()
    };
    let context = context_with(limits);
    let mut rules = FaultPlan::new(Seed(11));
    for op in [
        Op::Head,
        Op::Read,
        Op::Put,
        Op::Upload,
        Op::Part,
        Op::Delete,
        Op::Abort,
    ] {
        rules = rules.with(op, When::OneIn(6), DOWN);
    }
    for op in [Op::Put, Op::Part, Op::Delete, Op::Complete] {
        rules = rules.with(op, When::OneIn(9), LOST);
    }
    let (store, faulty, _) = flaky(rules, &context);
    let report = conformance::run_all(Arc::new(store), &context).await;
    assert!(report.is_ok(), "{report}");
    assert!(faulty.hits() > 50, "{}", faulty.hits());
}

#[tokio::test]
async fn counts_are_by_operation() {
    let context = context();
    let store = Counted::new(memory());
    put(&store, "a", &[1; 1000]).await;
    get(&store, "a", &context).await.unwrap();
    store.head(&key("missing")).await.unwrap_err();
    let upload = store.upload(&key("b"), &PutOptions::default()).await.unwrap();
    upload
        .put_part(0, Buf::copy_of(&[2; 10]).unwrap().into())
        .await
        .unwrap();
    upload.complete().await.unwrap();
    names(&store).await;
    let counts = store.counts();
    let of = |op| {
        let counts = counts.of(op);
        (counts.requests, counts.errors, counts.bytes)
    };
    assert_eq!(of(Op::Put), (1, 0, 1000));
    assert_eq!(of(Op::Read), (1, 0, 1000));
    assert_eq!(of(Op::Head), (2, 1, 0));
    assert_eq!(of(Op::Part), (1, 0, 10));
    assert_eq!((of(Op::Complete), of(Op::List)), ((1, 0, 0), (1, 0, 0)));
    assert_eq!((counts.total().requests, counts.total().bytes), (8, 2010));
}

/// The runtime's clock, which tests can stop. It did not begin just now, so there may be something saved up.
#[derive(Debug)]
struct RuntimeClock(tokio::time::Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Duration {
        Duration::from_secs(60) + self.0.elapsed()
    }

    fn unix(&self) -> Duration {
        self.now()
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_come_at_the_rate_that_was_set() {
    let clock = Arc::new(RuntimeClock(tokio::time::Instant::now()));
    let throttle = Throttle {
        requests_max: 4,
        bytes_per_second: Some(1_000_000),
    };
    let store = Throttled::new(memory(), throttle, clock.clone());
    for round in 0..50 {
        put(&store, &format!("{round}"), &vec![0; 100_000]).await;
    }
    // Five seconds' worth, less the tenth that may be saved up. Time is simulated, so this is exact up to the timer's millisecond.
    let millis = clock.0.elapsed().as_millis();
    assert!(
        (4_900..=4_960).contains(&millis),
        "{millis} ms for 5 MB at 1 MB/s"
    );
}

/// Counts what is in flight below.
#[derive(Debug)]
struct Busy {
    inner: Arc<dyn Store>,
    now: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl Store for Busy {
    fn location(&self) -> &Location {
        self.inner.location()
    }
    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.inner.head(key).await
    }
    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.inner.read_into(key, span, buf, options).await
    }
    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        self.inner.put(key, body, options).await
    }
    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        self.inner.upload(key, options).await
    }
    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        self.inner.list(prefix, options)
    }
    async fn delete(&self, key: &Key) -> Result<()> {
        self.inner.delete(key).await
    }
    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
}

#[tokio::test]
async fn requests_in_flight_are_bounded() {
    let busy = Arc::new(Busy {
        inner: memory(),
        now: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let throttle = Throttle {
        requests_max: 3,
        bytes_per_second: None,
    };
    let store = Throttled::new(busy.clone(), throttle, Arc::new(forebay_core::SystemClock));
    put(&store, "a", b"x").await;
    let heads = (0..50).map(|_| async { store.head(&key("a")).await.map(drop) });
    futures::future::try_join_all(heads).await.unwrap();
    assert_eq!(busy.most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_prefix_hides_what_is_beside_it() {
    let below = memory();
    for name in ["p", "p/a", "p/b/c", "pq", "q"] {
        put(&*below, name, b"x").await;
    }
    let store = Prefixed::new(Arc::clone(&below), key("p"));
    assert_eq!(names(&store).await, ["a", "b/c"]);
    assert_eq!(store.location().to_string(), "mem://private/p");
    let long = key(&"x".repeat(1024));
    assert_eq!(
        store.head(&long).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

#[tokio::test]
async fn faults_come_as_planned() {
    let context = context();
    let below = memory();
    put(&*below, "a", &[0; 64]).await;
    let rules = plan(Op::Read, When::Nth(2), Fault::Corrupt).with(Op::Read, When::Nth(3), Fault::Truncate);
    let store = Faulty::new(Arc::clone(&below), rules);
    let ones = |bytes: &[u8]| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
    assert_eq!(ones(&get(&store, "a", &context).await.unwrap().0), 0);
    assert_eq!(
        ones(&get(&store, "a", &context).await.unwrap().0),
        1,
        "one bit is wrong"
    );
    let store = Faulty::new(memory(), plan(Op::Put, When::Nth(1), Fault::Truncate));
    put(&store, "a", &[1; 64]).await;
    assert_eq!(get(&store, "a", &context).await.unwrap().0, [1; 32]);
}

struct TwoTiers {
    tiers: Tiers,
    near: Arc<Faulty>,
    far: Arc<dyn Store>,
    counted: Counted,
}

/// A near tier that may fail and a far one that counts.
fn two_tiers(rules: FaultPlan, config: TiersConfig, context: &Context) -> TwoTiers {
    let near = Arc::new(Faulty::new(memory(), rules));
    let far = memory();
    let counted = Counted::new(Arc::clone(&far));
    let stores: Vec<Arc<dyn Store>> = vec![near.clone(), Arc::new(counted.clone())];
    let tiers = Tiers::new(stores, config, context).unwrap();
    TwoTiers {
        tiers,
        near,
        far,
        counted,
    }
}

const PROMOTE: TiersConfig = TiersConfig {
    write: WritePolicy::First,
    promote_bytes_max: Some(3 << 20),
};

#[tokio::test]
async fn reads_fall_through_and_promote_once() {
    let context = context();
    let two = two_tiers(FaultPlan::new(Seed(1)), PROMOTE, &context);
    let bytes: Vec<u8> = (0..2_500_000u32).map(|index| (index % 241) as u8).collect();
    put(&*two.far, "a", &bytes).await;
    put(&*two.far, "empty", b"").await;
    put(&*two.far, "large", &vec![1; (3 << 20) + 1]).await;
    let readers = (0..8).map(|_| async { get(&two.tiers, "a", &context).await.unwrap().0 });
    for read in futures::future::join_all(readers).await {
        assert_eq!(read, bytes);
    }
    get(&two.tiers, "empty", &context).await.unwrap();
    get(&two.tiers, "large", &context).await.unwrap();
    two.tiers.settled().await;
    assert_eq!(get(&*two.near, "a", &context).await.unwrap().0, bytes);
    assert_eq!(names(&*two.near).await, ["a", "empty"], "too large to promote");
    let reads = two.counted.counts().of(Op::Read).requests;
    get(&two.tiers, "a", &context).await.unwrap();
    assert_eq!(
        two.counted.counts().of(Op::Read).requests,
        reads,
        "the near tier answers now"
    );
}

#[tokio::test]
async fn a_tier_that_fails_is_passed_over_and_the_ledger_says_so() {
    let context = context();
    let rules = plan(Op::Read, When::Always, Fault::Fail(ErrorKind::Io));
    let two = two_tiers(rules, TiersConfig::default(), &context);
    put(&*two.near, "a", b"content").await;
    put(&*two.far, "a", b"content").await;
    let (bytes, ledger) = get(&two.tiers, "a", &context).await.unwrap();
    assert_eq!(bytes, b"content");
    assert_eq!(ledger.downgrades.len(), 1);
    assert_eq!(ledger.downgrades[0].wanted, DataPath::Memory);
    assert!(
        ledger.downgrades[0].reason.contains("nearer tier failed"),
        "{ledger}"
    );
    put(&*two.near, "only-near", b"content").await;
    let error = get(&two.tiers, "only-near", &context).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Io,
        "the fault is told, not 'not found': {error}"
    );
}

#[tokio::test]
async fn a_pinned_version_is_read_from_the_tier_that_has_it() {
    let context = context();
    let two = two_tiers(FaultPlan::new(Seed(1)), TiersConfig::default(), &context);
    // Versions count per store: make them differ.
    put(&*two.far, "other", b"x").await;
    put(&*two.far, "a", b"far").await;
    let pinned = ReadOptions {
        version: two.tiers.head(&key("a")).await.unwrap().version,
        ..ReadOptions::default()
    };
    put(&*two.near, "a", b"new").await;
    let read = async |options: ReadOptions| {
        two.tiers
            .read(&key("a"), Span::first(3), &options, &context)
            .await
            .map(|(buf, _)| buf.to_vec())
    };
    assert_eq!(read(pinned.clone()).await.unwrap(), b"far");
    assert_eq!(read(ReadOptions::default()).await.unwrap(), b"new");
    two.far.delete(&key("a")).await.unwrap();
    assert_eq!(read(pinned).await.unwrap_err().kind(), ErrorKind::Precondition);
}

#[tokio::test]
async fn an_object_in_any_tier_is_not_absent() {
    let context = context();
    for write in [WritePolicy::First, WritePolicy::All] {
        let config = TiersConfig {
            write,
            ..TiersConfig::default()
        };
        let two = two_tiers(FaultPlan::new(Seed(1)), config, &context);
        put(&*two.far, "far", b"x").await;
        put(&*two.near, "near", b"x").await;
        for name in ["far", "near"] {
            let error = two
                .tiers
                .put_bytes(&key(name), b"y", &absent())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{write:?} {name}");
        }
        two.tiers.put_bytes(&key("new"), b"y", &absent()).await.unwrap();
    }
}

#[tokio::test]
async fn writes_go_where_the_policy_says() {
    let context = context();
    let two = two_tiers(FaultPlan::new(Seed(1)), TiersConfig::default(), &context);
    put(&two.tiers, "a", b"x").await;
    assert_eq!(
        (names(&*two.near).await.len(), names(&*two.far).await.len()),
        (1, 0)
    );
    let all = TiersConfig {
        write: WritePolicy::All,
        ..TiersConfig::default()
    };
    let two = two_tiers(
        plan(Op::Put, When::Nth(2), Fault::Fail(ErrorKind::OutOfSpace)),
        all,
        &context,
    );
    put(&two.tiers, "a", b"old").await;
    assert_eq!(
        (names(&*two.near).await.len(), names(&*two.far).await.len()),
        (1, 1)
    );
    let failed = two
        .tiers
        .put_bytes(&key("a"), b"new", &PutOptions::default())
        .await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::OutOfSpace);
    assert_eq!(
        get(&two.tiers, "a", &context).await.unwrap().0,
        b"old",
        "readers still see the old content"
    );
}

#[tokio::test]
async fn listings_are_merged_once_each_in_order() {
    let context = context();
    let two = two_tiers(FaultPlan::new(Seed(1)), TiersConfig::default(), &context);
    for name in ["a", "b/x", "d"] {
        put(&*two.near, name, b"near").await;
    }
    for name in ["a", "b-", "b/x", "b/y", "c"] {
        put(&*two.far, name, b"far!!").await;
    }
    assert_eq!(names(&two.tiers).await, ["a", "b-", "b/x", "b/y", "c", "d"]);
    let rows: Vec<Entry> = two
        .tiers
        .list(&Key::ROOT, ListOptions { recursive: false })
        .map(|row| row.unwrap())
        .collect()
        .await;
    let shown: Vec<String> = rows.iter().map(|row| row.key().to_string()).collect();
    assert_eq!(shown, ["a", "b-", "b", "c", "d"]);
    assert!(
        matches!(&rows[0], Entry::Object(meta) if meta.size == 4),
        "the nearest tier's row counts"
    );
}

#[tokio::test]
async fn what_is_deleted_is_gone_everywhere_even_while_it_is_promoted() {
    let context = context();
    let rules = plan(Op::Part, When::Always, Fault::Delay(Duration::from_millis(30)));
    let two = two_tiers(rules, PROMOTE, &context);
    put(&*two.far, "a", &vec![1; 1_500_000]).await;
    get(&two.tiers, "a", &context).await.unwrap();
    two.tiers.delete(&key("a")).await.unwrap();
    two.tiers.settled().await;
    assert!(names(&two.tiers).await.is_empty() && names(&*two.near).await.is_empty());
    let error = two.tiers.head(&key("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn no_tiers_are_refused() {
    let error: Error = Tiers::new(Vec::new(), TiersConfig::default(), &context()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}
