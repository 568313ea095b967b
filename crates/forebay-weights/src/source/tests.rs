//! Opening files in stores that do not let everything be seen.

use forebay_core::Seed;
use forebay_core::safetensors::Dtype;
use forebay_io::DiskConfig;
use forebay_store::MemoryStore;
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};

use super::*;
use crate::save::{KeepHashes, SaveOptions, TensorSpec, save};

/// A file in a store that refuses the second question, which is the one for checksums beside it.
async fn found(hashes: KeepHashes) -> Found {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let key = Key::parse("m.safetensors").unwrap();
    let spec = TensorSpec {
        name: "t".to_owned(),
        dtype: Dtype::F32,
        shape: vec![1000],
    };
    let options = SaveOptions {
        hashes,
        ..SaveOptions::default()
    };
    let context = Context::open(DiskConfig::default()).unwrap();
    save(&*store, &key, &[spec], &vec![vec![7u8; 4000]], &options, &context)
        .await
        .unwrap();
    let plan = FaultPlan::new(Seed(1)).with(Op::Head, When::Nth(2), Fault::Fail(ErrorKind::PermissionDenied));
    Found {
        location: store.location().join(&key),
        store: Arc::new(Faulty::new(store, plan)),
        key,
        index: None,
        edges: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_list_can_load_and_is_told_that_checksums_were_not_seen() {
    let file = found(KeepHashes::No).await;
    let (opened, _, denied) = open_file(&file, Verify::Prefer).await.unwrap();
    assert!(opened.hashes.is_none());
    assert_eq!(denied.unwrap().kind(), ErrorKind::PermissionDenied);
    // Those of the header are as good.
    for verify in [Verify::Prefer, Verify::Require] {
        let file = found(KeepHashes::InHeader).await;
        let (opened, _, denied) = open_file(&file, verify).await.unwrap();
        assert!(opened.hashes.is_some() && denied.is_none());
    }
    let error = open_file(&found(KeepHashes::No).await, Verify::Require)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}
