//! Data sets of a format for tests, in memory and on disk.

mod aside;
mod changed;
mod elsewhere;
mod folders;
pub(crate) mod lines;
mod listed;
mod meanwhile;
mod schemas;
mod sums;
mod unlisted;

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Limits, Location, Seed};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::wrap::{Counted, Fault, FaultPlan, Faulty, Op, Prefixed, When};
use forebay_store::{ListOptions, LocalStore, MemoryStore, PutOptions, ReadOptions, StoreExt};
use futures::StreamExt;
use tokio::sync::Notify;

use super::*;
use crate::manifest::SUMS_NAME;
use crate::verify::{Damage, DamageKind, VerifyReport, verify};

fn context() -> Context {
    let config = DiskConfig {
        limits: Limits {
            part_bytes: 64 << 10,
            buffer_bytes_max: 64 << 20,
            ..Limits::default()
        },
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

fn lines(shard: usize, count: usize) -> String {
    let mut rng = Seed(shard as u64).rng();
    let mut text = format!("# shard {shard}\n");
    for line in 0..count {
        let mut bytes = [0; 8];
        rng.fill(&mut bytes);
        writeln!(text, "k{shard}-{line} {:x}", u64::from_le_bytes(bytes)).unwrap();
    }
    text
}

async fn put(store: &dyn Store, name: &str, text: &str) {
    store
        .put_bytes(&key(name), text.as_bytes(), &PutOptions::default())
        .await
        .unwrap();
}

async fn fill(store: &dyn Store) {
    for shard in 0..4 {
        put(store, &format!("{shard:06}.lines"), &lines(shard, 100)).await;
    }
    put(store, "README.md", "not a shard").await;
}

/// The same test in memory and on disk.
async fn everywhere<F: Future<Output = ()>>(test: impl Fn(Arc<dyn Store>, Context) -> F) {
    let context = context();
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    fill(&*memory).await;
    test(memory, context.clone()).await;
    let dir = tempfile::tempdir().unwrap();
    let local: Arc<dyn Store> = Arc::new(local_at(dir.path(), &context));
    fill(&*local).await;
    test(local, context).await;
}

fn local_at(path: &Path, context: &Context) -> LocalStore {
    let location = Location::from_path(path, Path::new("/")).unwrap();
    LocalStore::open(&location, context).unwrap()
}

fn saving() -> OpenOptions {
    OpenOptions {
        save: Save::IfAbsent,
        ..OpenOptions::default()
    }
}

async fn names(store: &dyn Store) -> Vec<String> {
    let rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    rows.map(|row| row.unwrap().key().to_string()).collect().await
}

#[tokio::test]
async fn without_a_manifest_one_is_built_and_with_one_no_shard_is_read() {
    everywhere(|store, context| async move {
        let built = Dataset::open(Arc::clone(&store), &context, &OpenOptions::default())
            .await
            .unwrap();
        assert_eq!(
            (built.shards().len(), built.samples(), built.is_indexed()),
            (4, 400, false)
        );
        assert_eq!(names(&*store).await.len(), 5, "nothing was written");
        let saved = Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        assert!(saved.is_indexed());
        assert_eq!(saved.manifest().fingerprint(), built.manifest().fingerprint());
        let counted = Counted::new(Arc::clone(&store));
        let opened = Dataset::open(Arc::new(counted.clone()), &context, &OpenOptions::default())
            .await
            .unwrap();
        assert!(opened.is_indexed());
        assert_eq!(counted.counts().of(Op::Read).requests, 1, "the manifest alone");
        assert_eq!(*opened.table(2).await.unwrap(), *built.table(2).await.unwrap());
        let (bytes, _) = opened
            .source(2)
            .await
            .unwrap()
            .read(forebay_core::Span::first(9))
            .await
            .unwrap();
        assert_eq!(&bytes[..], b"# shard 2");
        let lazy = OpenOptions {
            check: Check::WhenRead,
            ..OpenOptions::default()
        };
        let counted = Counted::new(store);
        Dataset::open(Arc::new(counted.clone()), &context, &lazy)
            .await
            .unwrap();
        assert_eq!(counted.counts().total().requests, 2, "one look and one read");
    })
    .await;
}

#[tokio::test]
async fn shards_that_do_not_fit_are_named() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        let lazy = OpenOptions {
            check: Check::WhenRead,
            ..OpenOptions::default()
        };
        put(&*store, "000001.lines", "longer or shorter\n").await;
        store.delete(&key("000002.lines")).await.unwrap();
        put(&*store, "000009.lines", "new one\n").await;
        let error = Dataset::open(Arc::clone(&store), &context, &OpenOptions::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition);
        let size = lines(1, 100).len();
        for words in [
            format!("\"000001.lines\" has 18 bytes instead of {size}"),
            "\"000002.lines\" is missing".to_owned(),
            "\"000009.lines\" is not in the manifest".to_owned(),
        ] {
            assert!(error.to_string().contains(&words), "{words}: {error}");
        }
        assert!(error.hint().unwrap().contains("forebay verify"));
        let opened = Dataset::open(Arc::clone(&store), &context, &lazy).await.unwrap();
        assert!(opened.source(0).await.is_ok());
        assert_eq!(
            opened.source(1).await.unwrap_err().kind(),
            ErrorKind::Precondition
        );
        assert!(
            opened
                .source(2)
                .await
                .unwrap_err()
                .to_string()
                .contains("is missing")
        );
        // A part that fits is usable, whatever became of the rest.
        let part = OpenOptions {
            shards: Some(vec![key("000003.lines"), key("000000.lines")]),
            ..OpenOptions::default()
        };
        let opened = Dataset::open(Arc::clone(&store), &context, &part).await.unwrap();
        assert_eq!(opened.shards()[0].key, key("000003.lines"));
        assert_eq!(opened.samples(), 200);
        let unknown = OpenOptions {
            shards: Some(vec![key("000009.lines")]),
            ..OpenOptions::default()
        };
        let error = Dataset::open(store, &context, &unknown).await.unwrap_err();
        assert!(error.to_string().contains("not in the manifest"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_shard_of_the_same_size_but_another_version_is_told() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        let changed = lines(3, 100).replace("k3-7 ", "K3-7 ");
        store.delete(&key("000003.lines")).await.unwrap();
        put(&*store, "000003.lines", &changed).await;
        let opened = Dataset::open(Arc::clone(&store), &context, &OpenOptions::default())
            .await
            .unwrap();
        assert_eq!(opened.touched(), [key("000003.lines")]);
        let strict = OpenOptions {
            touched: Touched::Refuse,
            ..OpenOptions::default()
        };
        let error = Dataset::open(Arc::clone(&store), &context, &strict)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("written again"), "{error}");
        // Elsewhere, where every object has another version, nothing is said.
        let copy: Arc<dyn Store> = Arc::new(MemoryStore::new());
        for name in names(&*store).await {
            let meta = store.head(&key(&name)).await.unwrap();
            let span = forebay_core::Span::first(meta.size);
            let (bytes, _) = store
                .read(&meta.key, span, &ReadOptions::default(), &context)
                .await
                .unwrap();
            copy.put_bytes(&meta.key, &bytes, &PutOptions::default())
                .await
                .unwrap();
        }
        let copied = Dataset::open(copy, &context, &strict).await.unwrap();
        assert!(copied.touched().is_empty());
    })
    .await;
}

#[tokio::test]
async fn one_shard_and_some_shards_are_data_sets() {
    let dir = tempfile::tempdir().unwrap();
    let context = context();
    fill(&local_at(dir.path(), &context)).await;
    let open = async |text: &str| {
        let place = Place::find(text, dir.path(), &context).await?;
        let options = OpenOptions {
            shards: place.shards,
            ..OpenOptions::default()
        };
        Dataset::open(place.store, &context, &options).await
    };
    assert_eq!(open("000002.lines").await.unwrap().samples(), 100);
    assert_eq!(open("{000001..000003}.lines").await.unwrap().samples(), 300);
    assert_eq!(
        open("./00000{0,3}.lines").await.unwrap().shards()[1].key,
        key("000003.lines")
    );
    assert_eq!(open(".").await.unwrap().samples(), 400);
    let missing = open("{000003..000004}.lines").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("000004.lines"), "{missing}");
    assert_eq!(open("nowhere").await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn two_data_sets_do_not_meet() {
    let context = context();
    let root: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let part = |name: &str| -> Arc<dyn Store> { Arc::new(Prefixed::new(Arc::clone(&root), key(name))) };
    let (train, same, other) = (part("train"), part("same"), part("other"));
    fill(&*train).await;
    fill(&*same).await;
    fill(&*other).await;
    put(&*other, "000000.lines", &lines(7, 100)).await;
    let mut prints = Vec::new();
    for store in [&train, &same, &other] {
        let dataset = Dataset::open(Arc::clone(store), &context, &saving())
            .await
            .unwrap();
        prints.push(dataset.manifest().fingerprint());
    }
    assert_eq!(prints[0], prints[1], "the same bytes are the same data set");
    assert_ne!(prints[0], prints[2]);
    // The manifest of one beside the shards of another.
    let options = OpenOptions {
        manifest_at: Some((other, key(MANIFEST_NAME))),
        ..OpenOptions::default()
    };
    let mistaken = Dataset::open(train, &context, &options).await.unwrap();
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    let report = verify(&mistaken, &silent, |_| {}).await.unwrap();
    assert_eq!(
        (report.shards_whole, report.samples_whole),
        (3, 300),
        "{:?}",
        report.damages
    );
}

#[tokio::test]
async fn coreutils_agree_with_the_sums() {
    let dir = tempfile::tempdir().unwrap();
    let context = context();
    let store: Arc<dyn Store> = Arc::new(local_at(dir.path(), &context));
    fill(&*store).await;
    for odd in [
        "sub/back\\slash.lines",
        "new\nline.lines",
        "two  blanks.lines",
        "*star.lines",
    ] {
        put(&*store, odd, &lines(5, 3)).await;
    }
    Dataset::open(Arc::clone(&store), &context, &saving())
        .await
        .unwrap();
    let check = || {
        let mut command = std::process::Command::new("sha256sum");
        command
            .args(["--strict", "-c", SUMS_NAME])
            .current_dir(dir.path());
        command.output().unwrap()
    };
    let output = check();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches(": OK").count(), 8, "{text}");
    put(&*store, "new\nline.lines", "changed x\n").await;
    assert!(!check().status.success());
}

#[tokio::test]
async fn what_is_there_already_is_not_replaced_unasked() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        let again = OpenOptions {
            manifest: UseManifest::Never,
            ..saving()
        };
        let counted = Counted::new(Arc::clone(&store));
        let error = Dataset::open(Arc::new(counted.clone()), &context, &again)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(
            counted.counts().of(Op::Read).requests,
            0,
            "known before anything is read"
        );
        let force = OpenOptions {
            save: Save::Replace,
            ..again
        };
        put(&*store, "000009.lines", "new one\n").await;
        assert_eq!(
            Dataset::open(Arc::clone(&store), &context, &force)
                .await
                .unwrap()
                .shards()
                .len(),
            5
        );
        assert_eq!(
            Dataset::open(store, &context, &OpenOptions::default())
                .await
                .unwrap()
                .samples(),
            401
        );
    })
    .await;
}

/// Tells when the first shard is done.
#[derive(Debug, Default)]
struct FirstDone(Notify, AtomicU64);

impl Progress for FirstDone {
    fn moved(&self, bytes: u64) {
        self.1.fetch_add(bytes, Ordering::Relaxed);
    }

    fn shard_done(&self, _key: &Key, _samples: u64) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn indexing_that_is_stopped_or_fails_leaves_no_manifest() {
    everywhere(|store, context| async move {
        let before = names(&*store).await;
        // The last shard never arrives.
        let plan = FaultPlan::new(Seed(1)).with(
            Op::Read,
            When::Nth(4),
            Fault::Delay(std::time::Duration::from_secs(3600)),
        );
        let faulty = Arc::new(Faulty::new(Arc::clone(&store), plan));
        let progress = Arc::new(FirstDone::default());
        let options = OpenOptions {
            progress: Arc::clone(&progress) as Arc<dyn Progress>,
            ..saving()
        };
        tokio::select! {
            _ = Dataset::open(faulty, &context, &options) => unreachable!("it waits for ever"),
            () = progress.0.notified() => {}
        }
        assert_eq!(names(&*store).await, before);
        for (op, nth) in [(Op::Read, 2), (Op::Put, 1)] {
            let plan = FaultPlan::new(Seed(1)).with(op, When::Nth(nth), Fault::Fail(ErrorKind::Io));
            let faulty = Arc::new(Faulty::new(Arc::clone(&store), plan));
            Dataset::open(faulty, &context, &saving()).await.unwrap_err();
            assert_eq!(names(&*store).await, before, "{op:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_large_manifest_goes_out_in_parts_and_is_all_or_nothing() {
    everywhere(|store, context| async move {
        for shard in 0..4 {
            put(&*store, &format!("{shard:06}.lines"), &lines(shard, 60_000)).await;
        }
        let before = names(&*store).await;
        let counted = Counted::new(Arc::clone(&store));
        let plan = FaultPlan::new(Seed(1)).with(Op::Complete, When::Nth(1), Fault::Fail(ErrorKind::Io));
        let faulty = Arc::new(Faulty::new(Arc::new(counted.clone()), plan));
        Dataset::open(faulty, &context, &saving()).await.unwrap_err();
        assert!(counted.counts().of(Op::Part).requests > 1);
        assert_eq!(names(&*store).await, before);
        let progress = Arc::new(FirstDone::default());
        let options = OpenOptions {
            progress: Arc::clone(&progress) as Arc<dyn Progress>,
            ..saving()
        };
        let saved = Dataset::open(Arc::clone(&store), &context, &options)
            .await
            .unwrap();
        let bytes: u64 = saved.shards().iter().map(|shard| shard.stored_bytes).sum();
        assert_eq!(progress.1.load(Ordering::Relaxed), bytes);
        let opened = Dataset::open(Arc::clone(&store), &context, &OpenOptions::default())
            .await
            .unwrap();
        assert_eq!(opened.samples(), 240_000);
        assert_eq!(opened.table(3).await.unwrap().samples(), 60_000);
        let report = verify(&opened, &options.progress, |_| {}).await.unwrap();
        assert!(report.is_whole() && report.samples_whole == 240_000);
    })
    .await;
}

/// Where and what a damage is.
fn place_of(damage: &Damage) -> (&str, DamageKind, Option<u64>, Option<&str>, Option<u64>) {
    let key = damage.key.as_deref();
    (
        damage.shard.as_str(),
        damage.kind,
        damage.sample,
        key,
        damage.offset,
    )
}

/// Damage a value, a comment that no sample holds, a whole shard, and one by cutting it in a line; where the first is, and the text that was cut.
async fn damage(store: &dyn Store) -> (u64, String) {
    let text = lines(0, 100);
    let at = text.find("k0-42 ").unwrap();
    let mut bytes = text.clone().into_bytes();
    bytes[at + 7] ^= 1;
    store
        .put_bytes(&key("000000.lines"), &bytes, &PutOptions::default())
        .await
        .unwrap();
    put(
        store,
        "000001.lines",
        &lines(1, 100).replace("# shard 1", "no_blank!"),
    )
    .await;
    store.delete(&key("000002.lines")).await.unwrap();
    let cut = lines(3, 100);
    put(store, "000003.lines", &cut[..cut.find("k3-98 ").unwrap() + 3]).await;
    (at as u64, cut)
}

#[tokio::test]
async fn every_damage_is_named_and_stops_nothing() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        let lazy = OpenOptions {
            check: Check::WhenRead,
            manifest: UseManifest::Always,
            ..OpenOptions::default()
        };
        let dataset = Dataset::open(Arc::clone(&store), &context, &lazy).await.unwrap();
        let silent: Arc<dyn Progress> = Arc::new(Silent);
        assert!(verify(&dataset, &silent, |_| {}).await.unwrap().is_whole());
        let (at, cut) = damage(&*store).await;
        let mut told = 0;
        let report = verify(&dataset, &silent, |_| told += 1).await.unwrap();
        let found: Vec<_> = report.damages.iter().map(place_of).collect();
        let offset = |line: &str| Some(cut.find(line).unwrap() as u64);
        assert_eq!(
            found,
            [
                (
                    "000000.lines",
                    DamageKind::SampleCrc,
                    Some(42),
                    Some("k0-42"),
                    Some(at)
                ),
                ("000000.lines", DamageKind::Sha256, None, None, None),
                ("000001.lines", DamageKind::Sha256, None, None, None),
                ("000001.lines", DamageKind::Format, None, None, None),
                ("000002.lines", DamageKind::Missing, None, None, None),
                ("000003.lines", DamageKind::Size, None, None, None),
                (
                    "000003.lines",
                    DamageKind::SampleCrc,
                    Some(98),
                    Some("k3-98"),
                    offset("k3-98 ")
                ),
                (
                    "000003.lines",
                    DamageKind::SampleCrc,
                    Some(99),
                    Some("k3-99"),
                    offset("k3-99 ")
                ),
                ("000003.lines", DamageKind::Sha256, None, None, None),
                ("000003.lines", DamageKind::Format, None, None, None),
            ]
        );
        assert_eq!((told, report.damages_count, report.shards_whole), (10, 10, 0));
        assert_eq!(report.samples_whole, 99 + 100 + 98);
    })
    .await;
}

#[tokio::test]
async fn what_is_not_a_data_set_is_told() {
    let context = context();
    let store = || -> Arc<dyn Store> { Arc::new(MemoryStore::new()) };
    let open = async |store: Arc<dyn Store>| {
        Dataset::open(store, &context, &OpenOptions::default())
            .await
            .unwrap_err()
    };
    assert_eq!(open(store()).await.kind(), ErrorKind::NotFound);
    let mixed = store();
    put(&*mixed, "a.tar", "").await;
    put(&*mixed, "b.parquet", "").await;
    let error = open(mixed).await;
    assert!(error.to_string().contains("wds, parquet"), "{error}");
    let tokens = store();
    put(&*tokens, "train.bin", "12").await;
    put(&*tokens, "meta.pkl", "").await;
    assert!(open(tokens).await.hint().unwrap().contains("--tokens"));
    let broken = store();
    fill(&*broken).await;
    put(&*broken, "000002.lines", "noblank\n").await;
    let error = open(broken).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("000002.lines"), "{error}");
    let garbage = store();
    fill(&*garbage).await;
    put(&*garbage, MANIFEST_NAME, "not a manifest").await;
    let error = open(garbage).await;
    assert!(
        error.to_string().contains(MANIFEST_NAME),
        "a broken manifest is not passed over: {error}"
    );
}

#[tokio::test]
async fn files_that_go_with_others_are_not_tokens() {
    let context = context();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for number in 0..3 {
        put(&*store, &format!("a.b/{number}.bin"), "12").await;
        put(&*store, &format!("a.b/{number}.seg.txt"), "text").await;
    }
    let dataset = Dataset::open(Arc::clone(&store), &context, &OpenOptions::default())
        .await
        .unwrap();
    assert_eq!(dataset.manifest().samples(), 3);
    put(&*store, "a.b/lonely.bin", "12").await;
    let error = Dataset::open(store, &context, &OpenOptions::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("raw tokens"), "{error}");
}

#[tokio::test]
async fn a_plain_folder_is_a_data_set() {
    let context = context();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for (class, count) in [("cat", 3), ("dog", 2)] {
        for number in 0..count {
            put(
                &*store,
                &format!("{class}/{number}.jpg"),
                &format!("{class} {number}"),
            )
            .await;
        }
    }
    put(&*store, "cat/empty.png", "").await;
    let dataset = Dataset::open(Arc::clone(&store), &context, &saving())
        .await
        .unwrap();
    assert_eq!((dataset.samples(), dataset.shards().len()), (6, 1));
    assert_eq!(names(&*store).await.len(), 7, "the manifest, and no sums");
    let opened = Dataset::open(Arc::clone(&store), &context, &OpenOptions::default())
        .await
        .unwrap();
    assert_eq!(opened.manifest().fingerprint(), dataset.manifest().fingerprint());
    let table = opened.table(0).await.unwrap();
    let bytes = opened.shards()[0].raw_bytes;
    assert_eq!(bytes, 5 * 5 + 6 * 8, "images and their labels");
    let data = opened.read(0, forebay_core::Span::first(bytes)).await.unwrap();
    let block = crate::Block::from_bytes(Arc::clone(&table), 0..6, data, 0).unwrap();
    assert!((0..6).all(|sample| block.is_whole(sample)));
    assert_eq!(block.key(4), Some("dog/0"));
    assert_eq!(block.field(4, 0), Some(&b"dog 0"[..]));
    assert_eq!(block.field(4, 1), Some(&1u64.to_le_bytes()[..]));
    assert_eq!(block.field(3, 0), Some(&b""[..]), "an empty file");
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    assert!(verify(&opened, &silent, |_| {}).await.unwrap().is_whole());
    put(&*store, "dog/1.jpg", "DOG 1").await;
    let report = verify(&opened, &silent, |_| {}).await.unwrap();
    assert_eq!(report.damages[0].key.as_deref(), Some("dog/1"));
    // A file more is another folder.
    put(&*store, "dog/2.jpg", "dog 2").await;
    let error = Dataset::open(store, &context, &OpenOptions::default())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("files-00000000"), "{error}");
}

/// Every data set that peers wrote is found to be what it is, indexed and whole.
#[tokio::test]
async fn data_sets_of_peers_are_found_and_verified() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let context = context();
    for (name, format) in [
        ("mds/plain", "mds"),
        ("mds/compressed", "mds"),
        ("litdata/every", "litdata"),
        ("litdata/frames", "litdata"),
        ("litdata/whole", "litdata"),
        ("litdata/sample", "litdata"),
        ("litdata/arrow", "litdata"),
        ("litdata/arrow-zstd", "litdata"),
        ("petastorm", "petastorm"),
    ] {
        let (from, copy) = (fixtures.join(name), tempfile::tempdir().unwrap());
        let store: Arc<dyn Store> = Arc::new(local_at(&from, &context));
        let to: Arc<dyn Store> = Arc::new(local_at(copy.path(), &context));
        for name in names(&*store).await {
            let meta = store.head(&key(&name)).await.unwrap();
            let span = forebay_core::Span::first(meta.size);
            let (bytes, _) = store
                .read(&meta.key, span, &ReadOptions::default(), &context)
                .await
                .unwrap();
            to.put_bytes(&meta.key, &bytes, &PutOptions::default())
                .await
                .unwrap();
        }
        let found = discover(&to, &context, None, None)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.spec.name, format, "{name}");
        let dataset = Dataset::open(Arc::clone(&to), &context, &saving()).await;
        let dataset = dataset.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(dataset.samples() > 0, "{name}");
        let opened = Dataset::open(to, &context, &OpenOptions::default())
            .await
            .unwrap();
        let silent: Arc<dyn Progress> = Arc::new(Silent);
        let report = verify(&opened, &silent, |_| {}).await.unwrap();
        assert!(
            report.is_whole() && report.samples_whole == dataset.samples(),
            "{name}: {:?}",
            report.damages
        );
    }
}

#[test]
fn opening_may_move_between_threads() {
    fn moves<F: Future + Send>(future: F) -> F {
        future
    }
    let context = context();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    drop(moves(async move {
        Dataset::open(store, &context, &OpenOptions::default()).await
    }));
}

#[tokio::test]
async fn of_two_who_index_at_once_the_first_stays() {
    everywhere(|store, context| async move {
        let options = saving();
        let (one, two) = tokio::join!(
            Dataset::open(Arc::clone(&store), &context, &options),
            Dataset::open(Arc::clone(&store), &context, &options),
        );
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one.manifest().fingerprint(), two.manifest().fingerprint());
        // Each holds to the version it opened: neither was replaced.
        for dataset in [&one, &two] {
            for shard in 0..4 {
                dataset.table(shard).await.unwrap();
            }
        }
    })
    .await;
}

async fn sums_of(store: &Arc<dyn Store>, context: &Context) -> Vec<u8> {
    let meta = store.head(&key(SUMS_NAME)).await.unwrap();
    let span = forebay_core::Span::first(meta.size);
    let (key, options) = (key(SUMS_NAME), ReadOptions::default());
    let read = store.read(&key, span, &options, context).await;
    read.unwrap().0.to_vec()
}

#[tokio::test]
async fn whoever_indexes_other_data_meanwhile_is_told() {
    let (store, context): (Arc<dyn Store>, Context) = (Arc::new(MemoryStore::new()), context());
    fill(&*store).await;
    let found = discover(&store, &context, None, None).await.unwrap();
    let slow = index::sink(&store, &found, &context, &saving()).await.unwrap();
    put(&*store, "000009.lines", &lines(9, 3)).await;
    let theirs = Dataset::open(Arc::clone(&store), &context, &saving())
        .await
        .unwrap();
    let before = sums_of(&store, &context).await;
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    let error = index::build(&context, &found, slow.unwrap(), &progress)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert_eq!(sums_of(&store, &context).await, before);
    theirs.table(4).await.unwrap();
}
