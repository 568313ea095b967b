//! Several processes on one cache directory: each block is fetched once between them, and killing them at any moment costs nothing but
//! fetches.
//!
//! The test binary runs itself again as its children: the test `child`, which does nothing unless it is told what to do on standard input.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{Key, Limits, Location, Result, Seed, Span};
use forebay_io::{AlignedBuf, Disk, DiskConfig, Pages};
use forebay_store::cache::{Cache, CacheConfig, Mode};
use forebay_store::{
    Body, Capabilities, Context, ListOptions, Listing, LocalStore, ObjectMeta, PutDone, PutOptions, ReadDone,
    ReadOptions, Store, Upload,
};

const BLOCK: u64 = 64 << 10;
const OBJECTS: u64 = 12;
const PROCESSES: u64 = 4;

/// A directory that writes down every range it is asked for, in a file that all processes append to.
#[derive(Debug)]
struct Logged {
    inner: LocalStore,
    log: PathBuf,
    pause: Duration,
}

impl Logged {
    fn open(dir: &Path, context: &Context, pause: Duration) -> Arc<Self> {
        let location = Location::from_path(&dir.join("origin"), dir).unwrap();
        Arc::new(Self {
            inner: LocalStore::open(&location, context).unwrap(),
            log: dir.join("log"),
            pause,
        })
    }
}

#[async_trait]
impl Store for Logged {
    fn location(&self) -> &Location {
        self.inner.location()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.head(key).await
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let mut log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.log)
            .unwrap();
        // One small write to a file opened for appending is not mixed with others.
        log.write_all(format!("{key} {span}\n").as_bytes()).unwrap();
        tokio::time::sleep(self.pause).await;
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

fn size(object: u64) -> usize {
    ((object % 5 + 1) * BLOCK + object * 997) as usize
}

fn content(object: u64) -> Vec<u8> {
    let mut bytes = vec![0; size(object)];
    Seed(object).rng().fill(&mut bytes);
    bytes
}

fn make_origin(dir: &Path) {
    fs::create_dir(dir.join("origin")).unwrap();
    for object in 0..OBJECTS {
        fs::write(dir.join("origin").join(object.to_string()), content(object)).unwrap();
    }
}

/// What a child is told, in one line.
#[derive(Debug, Clone)]
struct Task {
    dir: PathBuf,
    seed: u64,
    mode: Mode,
    bytes_max: u64,
    pause_ms: u64,
    rounds: u64,
}

impl Task {
    fn line(&self) -> String {
        let whole = u8::from(self.mode == Mode::Whole);
        let (seed, cap, pause, rounds) = (self.seed, self.bytes_max, self.pause_ms, self.rounds);
        format!("{seed} {whole} {cap} {pause} {rounds} {}\n", self.dir.display())
    }

    fn parse(line: &str) -> Self {
        let parts: Vec<&str> = line.trim_end().splitn(6, ' ').collect();
        let number = |index: usize| parts[index].parse::<u64>().unwrap();
        Self {
            seed: number(0),
            mode: if number(1) == 1 { Mode::Whole } else { Mode::Blocks },
            bytes_max: number(2),
            pause_ms: number(3),
            rounds: number(4),
            dir: PathBuf::from(parts[5]),
        }
    }

    fn start(&self) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(self.line().as_bytes()).unwrap();
        child
    }

    async fn open(&self) -> Cache {
        let limits = Limits {
            buffer_bytes_max: 16 << 20,
            ..Limits::default()
        };
        let disk = DiskConfig {
            limits,
            ..DiskConfig::default()
        };
        let context = Context::new(Disk::open(disk).unwrap()).with_state_dir(None);
        let config = CacheConfig {
            block_bytes: BLOCK,
            mode: self.mode,
            ..CacheConfig::new(self.dir.join("cache"), self.bytes_max)
        };
        let origin = Logged::open(&self.dir, &context, Duration::from_millis(self.pause_ms));
        Cache::open(origin, config, &context).await.unwrap()
    }

    /// Read all objects in an order of its own, checking every byte.
    async fn work(&self, cache: &Cache) {
        let mut rng = Seed(self.seed).rng();
        for _ in 0..self.rounds {
            let mut order: Vec<u64> = (0..OBJECTS).collect();
            rng.shuffle(&mut order);
            for object in order {
                read_whole(cache, object).await;
            }
        }
        cache.settle().await;
    }
}

async fn read_whole(cache: &Cache, object: u64) {
    let buf = AlignedBuf::alloc(size(object), Pages::Small).unwrap();
    let (key, span) = (
        Key::parse(&object.to_string()).unwrap(),
        Span::first(size(object) as u64),
    );
    let done = cache
        .read_into(&key, span, buf, &ReadOptions::default())
        .await
        .unwrap();
    assert!(done.buf[..] == content(object), "wrong bytes in object {object}");
}

/// Does the work of a child process, when it is told some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as a child of the other tests"]
async fn child() {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    if line.is_empty() {
        return;
    }
    let task = Task::parse(&line);
    task.work(&task.open().await).await;
}

fn fetches(dir: &Path) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(dir.join("log")).unwrap_or_default().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

fn finish(children: Vec<Child>) {
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "a child failed: {text}");
        assert!(text.contains("1 passed"), "a child did nothing: {text}");
    }
}

#[test]
fn processes_fetch_each_block_once_between_them() {
    for mode in [Mode::Blocks, Mode::Whole] {
        let dir = tempfile::tempdir().unwrap();
        make_origin(dir.path());
        let children = (0..PROCESSES).map(|seed| {
            let task = Task {
                dir: dir.path().to_owned(),
                seed,
                mode,
                bytes_max: 1 << 30,
                pause_ms: 2,
                rounds: 2,
            };
            task.start()
        });
        finish(children.collect());
        let fetches = fetches(dir.path());
        let blocks: u64 = (0..OBJECTS)
            .map(|object| (size(object) as u64).div_ceil(BLOCK))
            .sum();
        assert_eq!(fetches.len() as u64, blocks);
        let twice: Vec<_> = fetches.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "fetched more than once: {twice:?}");
    }
}

/// Names of entries below `dir` by suffix.
fn stems(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for sub in fs::read_dir(dir.join("cache")).unwrap() {
        let Ok(inside) = fs::read_dir(sub.unwrap().path()) else {
            continue;
        };
        let paths = inside.map(|file| file.unwrap().path());
        found.extend(
            paths
                .filter(|path| path.extension().is_some_and(|found| found == suffix))
                .map(|path| path.with_extension("")),
        );
    }
    found.sort();
    found
}

#[test]
fn killed_processes_leave_nothing_that_harms_or_blocks() {
    let dir = tempfile::tempdir().unwrap();
    make_origin(dir.path());
    let all: u64 = (0..OBJECTS).map(|object| size(object) as u64).sum();
    let mut rng = Seed(11).rng();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for round in 0..12 {
        if round % 4 == 0 {
            // From nothing now and then, so that the first moments of a directory are met, too.
            fs::remove_dir_all(dir.path().join("cache")).ok();
        }
        let task = |seed| Task {
            dir: dir.path().to_owned(),
            seed,
            mode: if round % 2 == 0 { Mode::Whole } else { Mode::Blocks },
            // In odd rounds there is room for half of it: fills and evictions at once.
            bytes_max: if round % 2 == 0 { 1 << 30 } else { all / 2 },
            pause_ms: 1,
            rounds: 1000,
        };
        let mut children: Vec<Child> = (0..PROCESSES).map(|seed| task(seed).start()).collect();
        for child in &mut children {
            std::thread::sleep(Duration::from_millis(20 + rng.below(120)));
            child.kill().unwrap();
        }
        for mut child in children {
            child.wait().unwrap();
        }
        runtime.block_on(async {
            let task = Task {
                rounds: 1,
                ..task(99)
            };
            let cache = task.open().await;
            assert_eq!(
                stems(dir.path(), "data"),
                stems(dir.path(), "index"),
                "leftovers after a sweep"
            );
            task.work(&cache).await;
        });
    }
}

#[test]
fn a_killed_filler_does_not_hold_up_the_others() {
    let dir = tempfile::tempdir().unwrap();
    make_origin(dir.path());
    let task = Task {
        dir: dir.path().to_owned(),
        seed: 0,
        mode: Mode::Blocks,
        bytes_max: 1 << 30,
        // It dies within its first fetch, with the lock held.
        pause_ms: 60_000,
        rounds: 1,
    };
    let mut filler = task.start();
    while fetches(dir.path()).is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let patient = Task {
        pause_ms: 0,
        seed: 0,
        ..task.clone()
    };
    let waiting = patient.start();
    std::thread::sleep(Duration::from_millis(50));
    filler.kill().unwrap();
    filler.wait().unwrap();
    finish(vec![waiting]);
    let blocks: u64 = (0..OBJECTS)
        .map(|object| (size(object) as u64).div_ceil(BLOCK))
        .sum();
    // All blocks are cached now, those the dead process had begun included.
    let before: u64 = fetches(dir.path()).values().sum();
    finish(vec![patient.start()]);
    assert_eq!(fetches(dir.path()).values().sum::<u64>(), before);
    assert!(before >= blocks);
}
