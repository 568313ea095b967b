//! `kill -9` of a real process that saves, drains and collects, at random moments, on a real file system and on a real S3 server.
//!
//! The child saves step after step and tells on stdout what was committed and what was drained. The parent kills it and looks at both places: everything
//! visible is whole and has the bytes of its step, and what the child told is there, or something newer. The next child goes on from there.

use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_ckpt::{
    Attempt, Checkpoint, Compress, DrainOptions, Dtype, GcOptions, Item, ItemData, Save, SaveOptions,
    SliceSpec, Value, Want, drain, gc, list, verify,
};
use forebay_core::{ErrorKind, Limits, Location, Rng, Seed, env};
use forebay_io::{AlignedBuf, Buf, DiskConfig, Pages};
use forebay_store::remote::Environment;
use forebay_store::{Context, Store};

/// Kills in every run of the tests, and in the long one.
const KILLS: u64 = 5;
const KILLS_MANY: u64 = 50;

/// What never changes between steps, so that saves reference it.
const STILL_BYTES: usize = 512 << 10;

/// Where a child works.
#[derive(Debug, Clone)]
struct Place {
    near: String,
    far: String,
    /// What changes with each step.
    moving_bytes: usize,
    part_bytes: u64,
    state_dir: PathBuf,
}

impl Place {
    fn local(dir: &Path) -> Self {
        Self {
            near: dir.join("near").display().to_string(),
            far: dir.join("far").display().to_string(),
            moving_bytes: 1 << 20,
            part_bytes: 256 << 10,
            state_dir: dir.join("state"),
        }
    }

    /// Saves on the local disk would hide what an S3 server does with them: both places are there.
    fn remote(dir: &Path, bucket: &str) -> Self {
        let unique = Seed::fresh().0;
        Self {
            near: format!("s3://{bucket}/kill-{unique:016x}/near"),
            far: format!("s3://{bucket}/kill-{unique:016x}/far"),
            // Parts of an upload have at least 5 MiB there.
            moving_bytes: 6 << 20,
            part_bytes: 5 << 20,
            state_dir: dir.join("state"),
        }
    }

    fn line(&self, first_step: u64) -> String {
        let Self {
            near,
            far,
            moving_bytes,
            part_bytes,
            state_dir,
        } = self;
        format!(
            "{near}|{far}|{moving_bytes}|{part_bytes}|{}|{first_step}\n",
            state_dir.display()
        )
    }

    fn parse(line: &str) -> (Self, u64) {
        let mut parts = line.trim().split('|');
        let mut next = || parts.next().unwrap().to_owned();
        let place = Self {
            near: next(),
            far: next(),
            moving_bytes: next().parse().unwrap(),
            part_bytes: next().parse().unwrap(),
            state_dir: next().into(),
        };
        (place, next().parse().unwrap())
    }

    fn context(&self) -> Context {
        let config = DiskConfig {
            limits: Limits {
                part_bytes: self.part_bytes,
                buffer_bytes_max: 64 << 20,
                ..Limits::default()
            },
            ..DiskConfig::default()
        };
        let context = Context::open(config)
            .unwrap()
            .with_state_dir(Some(self.state_dir.clone()));
        let get = |var: env::EnvVar| var.get().unwrap_or_default();
        let endpoint = get(env::TEST_S3_ENDPOINT);
        if endpoint.is_empty() {
            return context;
        }
        let (key, secret) = (get(env::TEST_S3_ACCESS_KEY), get(env::TEST_S3_SECRET_KEY));
        let region = env::TEST_S3_REGION
            .get()
            .unwrap_or_else(|| "us-east-1".to_owned());
        context.with_environment(Environment::fixed([
            ("FOREBAY_S3_ENDPOINT", endpoint.as_str()),
            ("FOREBAY_S3_REGION", region.as_str()),
            ("AWS_ACCESS_KEY_ID", key.as_str()),
            ("AWS_SECRET_ACCESS_KEY", secret.as_str()),
        ]))
    }

    fn moving(&self, step: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.moving_bytes];
        Seed(step).rng().fill(&mut bytes);
        bytes
    }

    fn start(&self, first_step: u64) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(self.line(first_step).as_bytes()).unwrap();
        child
    }
}

async fn open(url: &str, context: &Context) -> Arc<dyn Store> {
    let location = Location::parse(url, Path::new("/")).unwrap();
    forebay_store::open(&location, context).await.unwrap()
}

fn still() -> Vec<u8> {
    let mut bytes = vec![0; STILL_BYTES];
    Seed(u64::MAX).rng().fill(&mut bytes);
    bytes
}

fn item(name: &str, bytes: &[u8]) -> Item {
    let spec = SliceSpec::whole(Dtype::U8, &[bytes.len() as u64]);
    Item {
        name: name.to_owned(),
        data: ItemData::Slice(spec, Buf::copy_of(bytes).unwrap()),
    }
}

fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

/// Save, drain and collect until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as a child of the other tests"]
async fn child() {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    if line.is_empty() {
        return;
    }
    let (place, first_step) = Place::parse(&line);
    let context = place.context();
    let near = open(&place.near, &context).await;
    let far = open(&place.far, &context).await;
    for step in first_step.. {
        let options = SaveOptions {
            base_step: step.checked_sub(1).filter(|_| !step.is_multiple_of(4)),
            chunk_bytes: 64 << 10,
            ..SaveOptions::new(step, Attempt::draw(&context), 2)
        };
        let save = Save::begin(Arc::clone(&near), &context, options).await.unwrap();
        save.rank(0, vec![item("moving", &place.moving(step))])
            .await
            .unwrap();
        save.rank(1, vec![item("still", &still())]).await.unwrap();
        save.commit(Value::Dict(vec![]), Duration::from_secs(60))
            .await
            .unwrap();
        tell(&format!("committed {step}"));
        let (from, to) = (Arc::clone(&near), Arc::clone(&far));
        let options = DrainOptions {
            // What a killed one left is found by the next, whichever way that stores things.
            compress: [Compress::Off, Compress::Auto, Compress::Auto][step as usize % 3],
            ..DrainOptions::default()
        };
        drain(from, to, &context, &options, &|_| {}).await.unwrap();
        tell(&format!("drained {step}"));
        for store in [&near, &far] {
            let keep = GcOptions {
                keep_last: Some(2),
                ..GcOptions::default()
            };
            gc(Arc::clone(store), &context, &keep).await.unwrap();
        }
    }
}

/// What a child told.
#[derive(Debug, Default, Clone, Copy)]
struct Told {
    committed: u64,
    drained: u64,
}

impl Told {
    /// True when the line was about a step.
    fn note(&mut self, line: &str) -> bool {
        let mut words = line.split_whitespace();
        match (words.next(), words.next().and_then(|word| word.parse().ok())) {
            (Some("committed"), Some(step)) => self.committed = step,
            (Some("drained"), Some(step)) => self.drained = step,
            _ => return false,
        }
        true
    }
}

/// Let a child work for a while, kill it, and give what it told until then.
fn kill_one(place: &Place, first_step: u64, rng: &mut Rng) -> Told {
    let mut child = place.start(first_step);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = Told::default();
    let mut left = rng.below(5);
    while left > 0 {
        let line = lines.next().expect("a child died by itself").unwrap();
        left -= u64::from(told.note(&line));
    }
    std::thread::sleep(Duration::from_micros(rng.below(120_000)));
    // SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();
    while let Some(Ok(line)) = lines.next() {
        told.note(&line);
    }
    told
}

/// Look at one place; gives its newest step.
async fn look(place: &Place, url: &str, context: &Context) -> u64 {
    let store = open(url, context).await;
    let mut newest = 0;
    for listed in list(Arc::clone(&store), context).await.unwrap() {
        let step = listed.step;
        listed
            .manifest
            .unwrap_or_else(|error| panic!("step {step} is visible and damaged: {error}"));
        let checkpoint = match Checkpoint::open(Arc::clone(&store), context, step).await {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.unwrap(),
        };
        let report = verify(&checkpoint, &|_| {}).await.unwrap();
        assert!(report.is_whole(), "step {step} is torn: {:?}", report.damages);
        for (name, bytes) in [("moving", place.moving(step)), ("still", still())] {
            let want = Want {
                name: name.to_owned(),
                offsets: vec![0],
                lengths: vec![bytes.len() as u64],
                memory: AlignedBuf::alloc(bytes.len(), Pages::Small).unwrap(),
            };
            let loaded = checkpoint.load(vec![want]).await.unwrap();
            assert!(
                loaded.memory[0][..] == bytes[..],
                "step {step}: {name} has other bytes"
            );
        }
        newest = newest.max(step);
    }
    newest
}

fn kill_many(place: &Place, kills: u64) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _guard = runtime.enter();
    let context = place.context();
    let mut rng = Seed(kills).rng();
    let (mut step, mut behind) = (1, 0);
    for kill in 0..kills {
        let told = kill_one(place, step, &mut rng);
        let near = runtime.block_on(look(place, &place.near, &context));
        let far = runtime.block_on(look(place, &place.far, &context));
        assert!(
            near >= told.committed,
            "kill {kill}: {told:?}, but {near} is the newest"
        );
        assert!(
            far >= told.drained,
            "kill {kill}: {told:?}, but {far} is the newest there"
        );
        behind += u64::from(far < near);
        step = near.max(step - 1) + 1;
    }
    tell(&format!(
        "{kills} kills, {step} steps, {behind} of the kills before a drain had ended, 0 torn, 0 lost"
    ));
    assert!(step > kills / 3, "children hardly got anywhere");
}

fn bucket() -> Option<String> {
    if env::TEST_S3_ENDPOINT.get().is_none() {
        assert!(
            !env::TEST_REQUIRE_SERVERS.is_on(),
            "FOREBAY_TEST_S3_ENDPOINT is not set, but servers are required"
        );
        tell("skipped: no S3 server (FOREBAY_TEST_S3_ENDPOINT is not set)");
        return None;
    }
    Some(env::TEST_S3_BUCKET.get().expect("FOREBAY_TEST_S3_BUCKET"))
}

#[test]
fn a_killed_writer_leaves_what_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    kill_many(&Place::local(dir.path()), KILLS);
}

#[test]
fn server_a_killed_writer_leaves_what_is_whole() {
    let Some(bucket) = bucket() else { return };
    let dir = tempfile::tempdir().unwrap();
    kill_many(&Place::remote(dir.path(), &bucket), KILLS);
}

#[test]
#[ignore = "fifty kills: --run-ignored only"]
fn many_killed_writers_leave_what_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    kill_many(&Place::local(dir.path()), KILLS_MANY);
}

#[test]
#[ignore = "fifty kills: --run-ignored only"]
fn server_many_killed_writers_leave_what_is_whole() {
    let Some(bucket) = bucket() else { return };
    let dir = tempfile::tempdir().unwrap();
    kill_many(&Place::remote(dir.path(), &bucket), KILLS_MANY);
}
