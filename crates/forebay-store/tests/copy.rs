//! Copies: what arrives is what was sent, in bounded memory, with no request too many, and interrupted work is not done twice.

#[path = "copy/edges.rs"]
mod edges;
#[path = "copy/odd.rs"]
mod odd;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{ErrorKind, Key, Limits, Location, Seed};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::Body;
use forebay_store::copy::{
    Copied, Copier, CopyOptions, CopyReport, DestinationCheck, Failure, ObjectCopied, Progress, Verify,
};
use forebay_store::{
    Context, ListOptions, LocalStore, MemoryStore, ObjectMeta, PutMode, PutOptions, ReadOptions, Store,
};
use futures::StreamExt;
use odd::{load, odd};
use tokio_util::sync::CancellationToken;

const MIB: u64 = 1 << 20;

/// Surroundings with 16 MiB of buffers, parts of 1 MiB and 8 requests in flight.
fn context(state: &Path) -> Context {
    let limits = Limits {
        buffer_bytes_max: 16 * MIB,
        part_bytes: MIB,
        store_requests_max: 8,
        ..Limits::default()
    };
    let disk = DiskConfig {
        limits,
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(disk)
        .unwrap()
        .with_state_dir(Some(state.to_owned()))
}

/// A store of its own; private ones all have the same location, so that copies between them are taken for copies onto themselves.
fn memory() -> Arc<dyn Store> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let url = format!("mem://copy-{}", COUNT.fetch_add(1, Ordering::SeqCst));
    MemoryStore::named(&Location::parse(&url, Path::new("/")).unwrap())
}

fn local(dir: &Path, context: &Context) -> Arc<dyn Store> {
    let location = Location::from_path(dir, Path::new("/")).unwrap();
    Arc::new(LocalStore::open(&location, context).unwrap())
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

fn content(name: &str, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Seed(forebay_core::crc64nvme(name.as_bytes()))
        .rng()
        .fill(&mut bytes);
    bytes
}

async fn put(store: &Arc<dyn Store>, name: &str, len: usize) {
    let body = Body::from(forebay_io::Buf::copy_of(&content(name, len)).unwrap());
    store.put(&key(name), body, &PutOptions::default()).await.unwrap();
}

async fn get(store: &Arc<dyn Store>, name: &str) -> Vec<u8> {
    let meta = store.head(&key(name)).await.unwrap();
    let buf = forebay_io::AlignedBuf::alloc(meta.size.max(1) as usize, forebay_io::Pages::Small).unwrap();
    let span = forebay_core::Span::first(meta.size);
    let done = store
        .read_into(&key(name), span, buf, &ReadOptions::default())
        .await
        .unwrap();
    done.buf[..meta.size as usize].to_vec()
}

async fn names(store: &Arc<dyn Store>) -> Vec<String> {
    let rows: Vec<_> = store
        .list(&Key::ROOT, ListOptions { recursive: true })
        .collect()
        .await;
    rows.into_iter()
        .map(|row| row.unwrap().key().to_string())
        .collect()
}

/// Objects of all kinds: empty, tiny, odd, exactly a part, several parts with a short last one.
const TREE: [(&str, usize); 7] = [
    ("a/empty", 0),
    ("a/tiny", 1),
    ("a/odd name \u{e9}", 4097),
    ("b/part", 1 << 20),
    ("b/part-and-one", (1 << 20) + 1),
    ("b/large", 5_300_000),
    ("z", 65_537),
];

async fn fill(store: &Arc<dyn Store>) {
    for (name, len) in TREE {
        put(store, name, len).await;
    }
}

async fn assert_tree(store: &Arc<dyn Store>) {
    for (name, len) in TREE {
        assert_eq!(get(store, name).await, content(name, len), "{name}");
    }
}

fn no_failures(report: &CopyReport) {
    assert!(
        report.failures.is_empty() && report.is_complete(),
        "{:?}",
        report.failures
    );
}

fn journals(state: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(state.join("transfers")) else {
        return Vec::new();
    };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn trees_arrive_whole_between_all_kinds_of_stores() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(&dir.path().join("state"));
    let here = memory();
    fill(&here).await;
    let disk = local(&dir.path().join("disk"), &context);
    let report = Copier::new(Arc::clone(&here), Arc::clone(&disk), &context)
        .tree(&Key::ROOT, &Key::ROOT)
        .await
        .unwrap();
    no_failures(&report);
    assert_eq!(
        (report.objects_copied, report.source_matched),
        (7, 7),
        "memory keeps checksums"
    );
    assert_eq!(
        report.checked_by_read_back, 7,
        "a disk compares nothing by itself"
    );
    assert_tree(&disk).await;

    let back = memory();
    let report = Copier::new(disk, Arc::clone(&back), &context)
        .tree(&Key::ROOT, &Key::ROOT)
        .await
        .unwrap();
    no_failures(&report);
    assert_eq!(
        (report.objects_copied, report.source_matched),
        (7, 0),
        "a disk keeps no checksums"
    );
    let bytes: u64 = TREE.iter().map(|(_, len)| *len as u64).sum();
    assert_eq!(
        (report.bytes_copied, report.ledger.bytes()),
        (bytes, 3 * bytes),
        "read, written, read back"
    );
    assert_eq!(report.ledger.verified_bytes, bytes);
    assert_tree(&back).await;
    assert_eq!(journals(&dir.path().join("state")), [""; 0]);
    assert_eq!(context.pool().stats().leased_bytes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_are_replaced_and_neighbours_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let (from, to) = (memory(), memory());
    for name in ["a/x", "a/b/y", "ab", "a"] {
        put(&from, name, 10).await;
    }
    let report = Copier::new(from, Arc::clone(&to), &context)
        .tree(&key("a"), &key("n/m"))
        .await
        .unwrap();
    no_failures(&report);
    assert_eq!(names(&to).await, ["n/m/b/y", "n/m/x"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_object_costs_one_read_and_one_write() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let inner = memory();
    for index in 0..300 {
        put(&inner, &format!("k{index:03}"), 4096).await;
    }
    let (from, asked) = odd(inner);
    let (to, told) = odd(memory());
    told.claims_check.store(true, Ordering::SeqCst);
    let report = Copier::new(from, to, &context)
        .tree(&Key::ROOT, &Key::ROOT)
        .await
        .unwrap();
    no_failures(&report);
    assert_eq!((load(&asked.heads), load(&asked.reads)), (0, 300));
    assert_eq!(
        (load(&told.heads), load(&told.puts), load(&told.reads)),
        (0, 300, 0)
    );
    assert_eq!(report.checked_by_store, 300);
    assert!(
        load(&told.writes_in_flight_peak) <= 8,
        "{}",
        load(&told.writes_in_flight_peak)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_below_its_ceiling_when_the_destination_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let from = memory();
    for index in 0..6 {
        put(&from, &format!("large{index}"), 12 << 20).await;
    }
    for index in 0..40 {
        put(&from, &format!("small{index}"), 900_000).await;
    }
    let (to, told) = odd(memory());
    let hold = Arc::new(tokio::sync::Semaphore::new(0));
    *told.hold.lock().unwrap() = Some(Arc::clone(&hold));
    let copier = Copier::new(Arc::clone(&from), to, &context);
    let copy = tokio::spawn(async move { copier.tree(&Key::ROOT, &Key::ROOT).await });
    // Everything that may wait does so before the first write is let through.
    while load(&told.writes_in_flight) < 8 {
        tokio::task::yield_now().await;
    }
    hold.add_permits(10_000);
    let report = copy.await.unwrap().unwrap();
    no_failures(&report);
    assert_eq!(report.objects_copied, 46);
    let stats = context.pool().stats();
    assert!(
        stats.leased_bytes_peak <= 8 * MIB,
        "one lease per request: {stats:?}"
    );
    assert_eq!(
        load(&told.writes_in_flight_peak),
        8,
        "parts and objects share one bound"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_damages_bytes_is_found_out_and_cleaned() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let from = memory();
    put(&from, "small", 5000).await;
    put(&from, "large", 3_000_000).await;
    let inner = memory();
    let (to, told) = odd(Arc::clone(&inner));
    told.tamper_puts.store(true, Ordering::SeqCst);
    let copier = Copier::new(Arc::clone(&from), to, &context);
    let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
    assert_eq!((report.objects_copied, report.objects_failed), (0, 2));
    for failure in &report.failures {
        assert_eq!(failure.error.kind(), ErrorKind::Corrupt, "{}", failure.error);
    }
    assert_eq!(names(&inner).await, [""; 0], "what is wrong does not stay");

    // Whoever waives the check gets what the store made of it, and the report says so.
    let options = CopyOptions {
        verify: Verify::None,
        ..CopyOptions::default()
    };
    let report = copier
        .with_options(options)
        .objects(vec![(key("small"), key("small"))])
        .await
        .unwrap();
    no_failures(&report);
    assert_eq!((report.checked_by_read_back, report.checked_by_store), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_source_never_becomes_visible() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let inner = memory();
    put(&inner, "small", 5000).await;
    put(&inner, "large", 3_000_000).await;
    let (from, asked) = odd(inner);
    asked.tamper_reads.store(true, Ordering::SeqCst);
    let to = memory();
    put(&to, "small", 77).await;
    let report = Copier::new(from, Arc::clone(&to), &context)
        .tree(&Key::ROOT, &Key::ROOT)
        .await
        .unwrap();
    assert_eq!((report.objects_copied, report.objects_failed), (0, 2));
    assert!(
        report
            .failures
            .iter()
            .all(|failure| failure.error.kind() == ErrorKind::Corrupt)
    );
    assert_eq!(names(&to).await, ["small"]);
    assert_eq!(
        get(&to, "small").await,
        content("small", 77),
        "the old content is still there"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_object_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let inner = memory();
    put(&inner, "large", 10 << 20).await;
    let (from, asked) = odd(Arc::clone(&inner));
    let there = memory();
    let (to, told) = odd(Arc::clone(&there));
    told.writes_left.store(6, Ordering::SeqCst);
    let copier = Copier::new(from, to, &context);
    let pair = || vec![(key("large"), key("copy"))];
    let report = copier.objects(pair()).await.unwrap();
    assert_eq!(report.failures[0].error.kind(), ErrorKind::Unavailable);
    assert_eq!(load(&told.aborts), 0, "what can be resumed is kept");
    assert_eq!(names(&there).await, [""; 0]);
    assert_eq!(journals(dir.path()).len(), 1);

    told.writes_left.store(-1, Ordering::SeqCst);
    let before = (load(&told.parts), load(&asked.reads));
    let report = copier.objects(pair()).await.unwrap();
    no_failures(&report);
    let parts = load(&told.parts) - before.0;
    assert_eq!(before.0 + parts, 10, "no part is sent twice");
    assert!(
        parts >= 4 && load(&asked.reads) - before.1 == parts,
        "nor read twice"
    );
    assert_eq!(report.bytes_resumed, before.0 * MIB);
    assert_eq!(get(&there, "copy").await, content("large", 10 << 20));
    assert_eq!(journals(dir.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changed_is_copied_from_the_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let from = memory();
    put(&from, "large", 6 << 20).await;
    let there = memory();
    let (to, told) = odd(Arc::clone(&there));
    told.writes_left.store(3, Ordering::SeqCst);
    let copier = Copier::new(Arc::clone(&from), to, &context);
    let pair = || vec![(key("large"), key("copy"))];
    assert!(!copier.objects(pair()).await.unwrap().is_complete());
    put(&from, "large", 6 << 20).await;
    told.writes_left.store(-1, Ordering::SeqCst);
    told.parts.store(0, Ordering::SeqCst);
    let report = copier.objects(pair()).await.unwrap();
    no_failures(&report);
    assert_eq!((load(&told.parts), report.bytes_resumed), (6, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_resuming_nothing_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let from = memory();
    put(&from, "large", 6 << 20).await;
    let (to, told) = odd(memory());
    told.writes_left.store(3, Ordering::SeqCst);
    let options = CopyOptions {
        resume: false,
        ..CopyOptions::default()
    };
    let copier = Copier::new(from, to, &context).with_options(options);
    let report = copier.objects(vec![(key("large"), key("copy"))]).await.unwrap();
    assert_eq!(report.objects_failed, 1);
    assert_eq!(load(&told.aborts), 1);
    assert_eq!(journals(dir.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_objects_of_a_tree_are_not_copied_again() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(&dir.path().join("state"));
    let inner = local(&dir.path().join("from"), &context);
    for index in 0..60 {
        put(&inner, &format!("d{}/k{index:02}", index % 3), 3000).await;
    }
    let (from, asked) = odd(inner);
    let there = local(&dir.path().join("to"), &context);
    let (to, told) = odd(Arc::clone(&there));
    told.writes_left.store(25, Ordering::SeqCst);
    let copier = Copier::new(Arc::clone(&from), to, &context);
    let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
    assert_eq!((report.objects_copied, report.objects_failed), (25, 35));
    told.writes_left.store(-1, Ordering::SeqCst);
    asked.reads.store(0, Ordering::SeqCst);
    let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
    no_failures(&report);
    assert_eq!((report.objects_copied, report.objects_skipped), (35, 25));
    assert_eq!(load(&asked.reads), 35);
    assert_eq!(journals(&dir.path().join("state")), [""; 0]);

    // Somebody replaced an object at the destination meanwhile: that one is copied again, by its version.
    told.writes_left.store(40, Ordering::SeqCst);
    assert_eq!(
        copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap().objects_copied,
        40
    );
    told.writes_left.store(-1, Ordering::SeqCst);
    put(&there, "d0/k00", 3000).await;
    let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
    assert_eq!((report.objects_copied, report.objects_skipped), (21, 39));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_object_stops_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let inner = memory();
    for index in 0..150 {
        put(&inner, &format!("k{index}"), 100).await;
    }
    let (from, asked) = odd(inner);
    *asked.bad_key.lock().unwrap() = Some("k1".to_owned());
    let report = Copier::new(from, memory(), &context)
        .tree(&Key::ROOT, &Key::ROOT)
        .await
        .unwrap();
    let bad = (0..150)
        .filter(|index| format!("k{index}").contains("k1"))
        .count();
    assert_eq!(report.objects_failed as usize, bad);
    assert_eq!(report.objects_copied as usize, 150 - bad);
    assert!(
        report
            .failures
            .iter()
            .all(|failure| failure.key.as_ref().unwrap().as_str().contains("k1"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_is_not_asked_ten_thousand_times() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let from = memory();
    for index in 0..2000 {
        put(&from, &format!("k{index:04}"), 10).await;
    }
    let (to, told) = odd(memory());
    *told.bad_key.lock().unwrap() = Some("k".to_owned());
    let copier = Copier::new(Arc::clone(&from), to, &context);
    let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
    assert_eq!(
        report.objects_failed, 2000,
        "an i/o error may concern one object only"
    );
    assert_eq!(report.failures.len(), forebay_store::copy::FAILURES_KEPT_MAX);
    *told.bad_kind.lock().unwrap() = Some(ErrorKind::OutOfSpace);
    let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
    assert!(
        (1..100).contains(&report.objects_failed),
        "{}",
        report.objects_failed
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_objects_are_left_alone_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let (from, to) = (memory(), memory());
    put(&from, "a", 10).await;
    put(&from, "b", 10).await;
    put(&to, "a", 99).await;
    let options = CopyOptions {
        mode: PutMode::IfAbsent,
        ..CopyOptions::default()
    };
    let copier = Copier::new(from, Arc::clone(&to), &context).with_options(options);
    let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
    assert_eq!((report.objects_copied, report.objects_failed), (1, 1));
    assert_eq!(report.failures[0].error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(get(&to, "a").await.len(), 99);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_into_themselves_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let store = local(&dir.path().join("d"), &context);
    put(&store, "a/x", 10).await;
    let copier = Copier::new(Arc::clone(&store), Arc::clone(&store), &context);
    for (from, to) in [("", "a"), ("a", "a"), ("a", "a/b")] {
        let error = copier.tree(&key(from), &key(to)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{from} {to}");
    }
    assert!(
        copier.tree(&key("a"), &key("ab")).await.unwrap().is_complete(),
        "a neighbour is fine"
    );
    let error = copier.objects(vec![(key("a/x"), key("a/x"))]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(get(&store, "a/x").await, content("a/x", 10));
}

/// Cancels after so many bytes, and remembers what was told.
#[derive(Debug)]
struct CancelAfter {
    token: CancellationToken,
    bytes: std::sync::atomic::AtomicI64,
}

impl Progress for CancelAfter {
    fn planned(&self, _: u64, _: u64) {}
    fn moved(&self, bytes: u64) {
        if self.bytes.fetch_sub(bytes as i64, Ordering::SeqCst) <= bytes as i64 {
            self.token.cancel();
        }
    }
    fn object_done(&self, _: &ObjectCopied) {}
    fn object_skipped(&self, _: &ObjectMeta) {}
    fn object_failed(&self, _: &Failure) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_leaves_nothing_half_made_and_what_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(&dir.path().join("state"));
    let from = memory();
    put(&from, "large", 40 << 20).await;
    let disk = local(&dir.path().join("disk"), &context);
    put(&disk, "large", 123).await;
    let there = memory();
    let (remote, told) = odd(Arc::clone(&there));
    for (to, parts_kept) in [(Arc::clone(&disk), false), (remote, true)] {
        let token = CancellationToken::new();
        let progress = Arc::new(CancelAfter {
            token: token.clone(),
            bytes: (8 << 20).into(),
        });
        let copier = Copier::new(Arc::clone(&from), to, &context)
            .with_cancel(token)
            .with_progress(progress);
        let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
        assert!(report.cancelled && !report.is_complete());
        assert_eq!((report.objects_copied, report.objects_failed), (0, 0));
        // What was with the engine already goes its way and gives its memory back after that.
        while context.pool().stats().leased_bytes > 0 {
            tokio::task::yield_now().await;
        }
        let journals = journals(&dir.path().join("state"));
        assert_eq!(
            journals
                .iter()
                .any(|name| Path::new(name).extension().is_some_and(|end| end == "json")),
            parts_kept,
            "{journals:?}"
        );
    }
    assert_eq!(
        get(&disk, "large").await,
        content("large", 123),
        "the old content"
    );
    assert_eq!(names(&disk).await, ["large"]);
    let hidden = std::fs::read_dir(dir.path().join("disk")).unwrap().count();
    assert_eq!(hidden, 1, "no file in the making stays");
    assert_eq!(names(&there).await, [""; 0]);
    let before = load(&told.parts);
    let to: Arc<dyn Store> = Arc::new(odd::Odd::around(there, Arc::clone(&told)));
    let report = Copier::new(from, Arc::clone(&to), &context)
        .tree(&Key::ROOT, &Key::ROOT)
        .await
        .unwrap();
    no_failures(&report);
    assert!(report.bytes_resumed > 0 && load(&told.parts) - before < 40);
    assert_eq!(get(&to, "large").await, content("large", 40 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_copy_stops_it() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(&dir.path().join("state"));
    let from = memory();
    put(&from, "large", 40 << 20).await;
    let there = memory();
    let (to, told) = odd(Arc::clone(&there));
    *told.hold.lock().unwrap() = Some(Arc::new(tokio::sync::Semaphore::new(3)));
    let copier = Copier::new(from, to, &context);
    let copy = tokio::spawn(async move { copier.tree(&Key::ROOT, &Key::ROOT).await });
    while load(&told.parts) < 3 {
        tokio::task::yield_now().await;
    }
    copy.abort();
    assert!(copy.await.unwrap_err().is_cancelled());
    while context.pool().stats().leased_bytes > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(names(&there).await, [""; 0]);
}

/// Keeps what is done.
#[derive(Debug, Default)]
struct Keep(std::sync::Mutex<Vec<ObjectCopied>>);

impl Progress for Keep {
    fn planned(&self, _: u64, _: u64) {}
    fn moved(&self, _: u64) {}
    fn object_done(&self, object: &ObjectCopied) {
        self.0.lock().unwrap().push(object.clone());
    }
    fn object_skipped(&self, _: &ObjectMeta) {}
    fn object_failed(&self, _: &Failure) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn results_say_how_they_were_checked() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let from = memory();
    put(&from, "k", 100).await;
    let (to, told) = odd(memory());
    let mut checks = Vec::new();
    for (claims, verify) in [
        (true, Verify::Auto),
        (true, Verify::ReadBack),
        (false, Verify::Auto),
        (false, Verify::None),
    ] {
        told.claims_check.store(claims, Ordering::SeqCst);
        let keep = Arc::new(Keep::default());
        let options = CopyOptions {
            verify,
            resume: false,
            ..CopyOptions::default()
        };
        let copier = Copier::new(Arc::clone(&from), Arc::clone(&to), &context)
            .with_options(options)
            .with_progress(Arc::clone(&keep) as Arc<dyn Progress>);
        no_failures(&copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap());
        let objects = keep.0.lock().unwrap();
        assert_eq!(objects[0].crc64nvme, forebay_core::crc64nvme(&content("k", 100)));
        assert_eq!(objects[0].copied, Copied::Whole);
        checks.push(objects[0].destination);
    }
    let expected = [
        DestinationCheck::ByStore,
        DestinationCheck::ReadBack,
        DestinationCheck::ReadBack,
        DestinationCheck::NotCompared,
    ];
    assert_eq!(checks, expected);
}
