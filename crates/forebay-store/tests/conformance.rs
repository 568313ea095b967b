//! Every store and every wrapper passes the one suite.

mod support;

use std::path::Path;
use std::sync::Arc;

use forebay_core::{ErrorKind, Key, Limits, Location, Seed, SystemClock};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::tiers::{Tiers, TiersConfig, WritePolicy};
use forebay_store::wrap::{
    Counted, Fault, FaultPlan, Faulty, Op, Prefixed, Retried, Throttle, Throttled, When,
};
use forebay_store::{Context, LocalStore, MemoryStore, Store, conformance};

fn context_with(engine: EngineChoice, part_bytes: u64) -> Context {
    let limits = Limits {
        part_bytes,
        buffer_bytes_max: 64 << 20,
        ..Limits::default()
    };
    let config = DiskConfig {
        limits,
        engine,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

fn context() -> Context {
    context_with(EngineChoice::Psync, 64 << 10)
}

async fn passes(store: impl Store + 'static, context: &Context) {
    let report = conformance::run_all(Arc::new(store), context).await;
    assert!(report.is_ok(), "{report}");
    assert_eq!(report.skips().count(), 0, "{report}");
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn local(path: &Path, context: &Context) -> LocalStore {
    let location = Location::from_path(path, Path::new("/")).unwrap();
    LocalStore::open(&location, context).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_store() {
    passes(MemoryStore::new(), &context()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_store_on_threads() {
    let dir = tempfile::tempdir().unwrap();
    let context = context();
    passes(local(dir.path(), &context), &context).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_store_on_a_ring() {
    let dir = tempfile::tempdir().unwrap();
    let context = match forebay_io::open_engine(EngineChoice::Uring, &Limits::default()) {
        Ok(_) => context_with(EngineChoice::Uring, 64 << 10),
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    passes(local(dir.path(), &context), &context).await;
}

/// A memory file system has no direct I/O: everything goes through the page cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_store_without_direct_io() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let context = context();
    passes(local(dir.path(), &context), &context).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixed() {
    let prefix = Key::parse("some/place").unwrap();
    passes(Prefixed::new(memory(), prefix), &context()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counted() {
    passes(Counted::new(memory()), &context()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttled() {
    let throttle = Throttle {
        requests_max: 2,
        bytes_per_second: Some(1 << 30),
    };
    passes(
        Throttled::new(memory(), throttle, Arc::new(SystemClock)),
        &context(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried() {
    let context = context();
    passes(Retried::new(memory(), &context), &context).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faulty_without_faults() {
    passes(Faulty::new(memory(), FaultPlan::new(Seed(1))), &context()).await;
}

fn tiers(context: &Context, write: WritePolicy) -> Tiers {
    let config = TiersConfig {
        write,
        promote_bytes_max: Some(1 << 20),
    };
    Tiers::new(vec![memory(), memory(), memory()], config, context).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiers_written_first() {
    let context = context();
    passes(tiers(&context, WritePolicy::First), &context).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiers_written_all() {
    let context = context();
    passes(tiers(&context, WritePolicy::All), &context).await;
}

/// A store that breaks one promise, to see that the suite sees it.
async fn fails(plan: FaultPlan, check: &str) {
    let context = context();
    let store = Faulty::new(memory(), plan);
    let report = conformance::run_all(Arc::new(store), &context).await;
    assert!(
        report.failures().any(|failed| failed.name.starts_with(check)),
        "'{check}' did not fail: {report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_stores_do_not_pass() {
    let plan = || FaultPlan::new(Seed(5));
    fails(
        plan().with(Op::Read, When::OneIn(20), Fault::Corrupt),
        "objects::",
    )
    .await;
    fails(
        plan().with(Op::Put, When::Always, Fault::Truncate),
        "objects::put_then_read",
    )
    .await;
    fails(
        plan().with(Op::Part, When::Nth(2), Fault::Corrupt),
        "uploads::any_order",
    )
    .await;
    fails(
        plan().with(Op::List, When::Always, Fault::Truncate),
        "listing::order",
    )
    .await;
    let lost = Fault::LoseReply(ErrorKind::Unavailable);
    fails(plan().with(Op::Delete, When::Always, lost), "objects::delete").await;
}

/// What a store over the wire does not claim is skipped; what it claims holds.
async fn passes_remotely(server: &support::Server) {
    let limits = Limits {
        part_bytes: 5 << 20,
        stall_ms_max: 20_000,
        ..support::limits()
    };
    let context = support::context_with(limits);
    let store = server.store("conformance", &context).await;
    let report = conformance::run_all(store, &context).await;
    assert!(report.is_ok(), "{}: {report}", server.kind);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_store_on_a_small_server_of_our_own() {
    let origin = support::origin::Origin::start(&[]).await;
    passes_remotely(&support::Server::of_origin(&origin)).await;
}

/// The S3 server that the test runner started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_s3_store() {
    if let Some(server) = support::Server::from_env() {
        passes_remotely(&server).await;
    }
}
