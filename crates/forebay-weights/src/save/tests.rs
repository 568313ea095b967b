//! Saves to stores that cut files into small parts, and to stores that do not let everything be done.

use forebay_core::Seed;
use forebay_core::safetensors::Header;
use forebay_io::DiskConfig;
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};
use forebay_store::{MemoryStore, ReadOptions};

use super::*;

const LEN: u64 = 3 << 20;

fn context() -> Context {
    Context::open(DiskConfig::default()).unwrap()
}

fn tensor() -> (Vec<TensorSpec>, Vec<Vec<u8>>) {
    let spec = TensorSpec {
        name: "t".to_owned(),
        dtype: Dtype::U8,
        shape: vec![LEN],
    };
    (vec![spec], vec![(0..LEN).map(|at| (at % 251) as u8).collect()])
}

fn key() -> Key {
    Key::parse("m.safetensors").unwrap()
}

async fn save_to(store: &dyn Store, hashes: KeepHashes, metadata: &[(&str, String)]) -> Result<PutDone> {
    let (specs, bytes) = tensor();
    let metadata = metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    let options = SaveOptions {
        hashes,
        metadata: Some(metadata.collect()),
        ..SaveOptions::default()
    };
    save(store, &key(), &specs, &bytes, &options, &context()).await
}

async fn content(store: &dyn Store) -> Vec<u8> {
    let size = store.head(&key()).await.unwrap().size;
    let (bytes, _) = store
        .read(&key(), Span::first(size), &ReadOptions::default(), &context())
        .await
        .unwrap();
    bytes.to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_may_lie_anywhere_in_a_header_of_several_parts() {
    // Parts of this store have 1 MiB: what stands before the checksums pushes them into the first one, the second one, or across.
    for before in [0, (1 << 20) - 200, 1 << 20, (2 << 20) + 5] {
        let store = MemoryStore::new();
        let metadata = [("a", "x".repeat(before)), ("z", "y".repeat(1000))];
        let done = save_to(&store, KeepHashes::InHeader, &metadata).await.unwrap();
        let bytes = content(&store).await;
        assert_eq!(done.size, bytes.len() as u64);
        let header = Header::parse(&bytes, done.size).unwrap();
        let hashes = Hashes::parse_header(&header, &bytes).unwrap().unwrap();
        let checked = hashes.check(Span::first(done.size), &bytes).unwrap();
        assert_eq!(checked, LEN, "behind {before} bytes");
        assert_eq!(bytes[header.data_start() as usize..], tensor().1[0][..]);
    }
}

fn without_deletes() -> Faulty {
    let plan =
        FaultPlan::new(Seed(1)).with(Op::Delete, When::Always, Fault::Fail(ErrorKind::PermissionDenied));
    Faulty::new(Arc::new(MemoryStore::new()), plan)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_delete_can_save() {
    for hashes in [KeepHashes::No, KeepHashes::InHeader, KeepHashes::Beside] {
        let store = without_deletes();
        save_to(&store, hashes, &[]).await.unwrap();
        assert_eq!(store.hits(), 1, "it was tried");
        let side = store.head(&side_key(&key()).unwrap()).await;
        assert_eq!(side.is_ok(), hashes == KeepHashes::Beside);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_that_fails_otherwise_stops_only_what_is_not_saved_yet() {
    let plan = || FaultPlan::new(Seed(1)).with(Op::Delete, When::Always, Fault::Fail(ErrorKind::Unavailable));
    let store = Faulty::new(Arc::new(MemoryStore::new()), plan());
    save_to(&store, KeepHashes::No, &[]).await.unwrap();
    let store = Faulty::new(Arc::new(MemoryStore::new()), plan());
    let error = save_to(&store, KeepHashes::Beside, &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(store.head(&key()).await.is_err(), "nothing is there");
    // The file is there, its checksums are not, and both is said.
    let plan = FaultPlan::new(Seed(1)).with(Op::Put, When::Always, Fault::Fail(ErrorKind::OutOfSpace));
    let store = Faulty::new(Arc::new(MemoryStore::new()), plan);
    let error = save_to(&store, KeepHashes::Beside, &[]).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::OutOfSpace && error.message().contains("the file is saved"),
        "{error}"
    );
    store.head(&key()).await.unwrap();
}
