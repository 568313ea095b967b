//! Packing to a bucket of a real server: what a run that was killed leaves there, and what it takes along when it is gone on with.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{ErrorKind, Key, Location, Seed, env};
use forebay_data::Dataset;
use forebay_data::dataset::{OpenOptions, Place};
use forebay_data::pack::{PackFormat, PackSpec, pack};
use forebay_io::{Buf, DiskConfig};
use forebay_store::remote::{Environment, RemoteConfig, open_with};
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};
use forebay_store::{Context, MemoryStore, PutOptions, Store, StoreExt};

/// A folder of its own in the bucket of the test server; `None` where there is no server.
async fn bucket(context: &Context) -> Option<Arc<dyn Store>> {
    let Some(endpoint) = env::TEST_S3_ENDPOINT.get() else {
        assert!(
            !env::TEST_REQUIRE_SERVERS.is_on(),
            "FOREBAY_TEST_S3_ENDPOINT is not set, but servers are required"
        );
        return None;
    };
    let of = |var: env::EnvVar| var.get().expect("a variable of the test server");
    let (access, secret) = (of(env::TEST_S3_ACCESS_KEY), of(env::TEST_S3_SECRET_KEY));
    let region = env::TEST_S3_REGION
        .get()
        .unwrap_or_else(|| "us-east-1".to_owned());
    let vars = [
        ("FOREBAY_S3_ENDPOINT", endpoint.as_str()),
        ("FOREBAY_S3_REGION", &region),
        ("AWS_ACCESS_KEY_ID", &access),
        ("AWS_SECRET_ACCESS_KEY", &secret),
    ];
    let url = format!("s3://{}/pack-{:016x}", of(env::TEST_S3_BUCKET), Seed::fresh().0);
    let location = Location::parse(&url, Path::new("/")).unwrap();
    let config = RemoteConfig::resolve(&location, Environment::fixed(vars)).await;
    Some(open_with(&location, context, &config.unwrap()).unwrap())
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

async fn folder(samples: u64) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for index in 0..samples {
        let mut bytes = vec![0; 3000];
        Seed(index).rng().fill(&mut bytes);
        let name = key(&format!("s{index:04}.dat"));
        store
            .put_bytes(&name, &bytes, &PutOptions::default())
            .await
            .unwrap();
    }
    store
}

fn place(store: &Arc<dyn Store>) -> Place {
    Place {
        store: Arc::clone(store),
        shards: None,
    }
}

/// Begin an upload that nobody will complete, as one who is killed does.
async fn leave_upload(store: &dyn Store, name: &str) {
    let upload = store.upload(&key(name), &PutOptions::default()).await.unwrap();
    let part = Buf::copy_of(b"part").unwrap();
    upload.put_part(0, part.into()).await.unwrap();
    upload.checkpoint().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn server_what_a_killed_run_was_uploading_is_given_up() {
    let context = Context::open(DiskConfig::default()).unwrap().with_state_dir(None);
    let Some(to) = bucket(&context).await else { return };
    let from = folder(40).await;
    let spec = PackSpec {
        shard_bytes: 20_000,
        threads: 1,
        ..PackSpec::new(PackFormat::Wds)
    };
    let options = OpenOptions::default();
    // The plan, the first shard and its note; then no more.
    let full = FaultPlan::new(Seed(0)).with(Op::Put, When::Nth(4), Fault::Fail(ErrorKind::OutOfSpace));
    let failing: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&to), full));
    let error = pack(place(&from), failing, &context, &options, &spec).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::OutOfSpace);
    for name in ["shard-000003.tar", "shard-000003.tar", "somebody/else.bin"] {
        leave_upload(&*to, name).await;
    }
    let report = pack(place(&from), Arc::clone(&to), &context, &options, &spec).await;
    assert!(report.unwrap().shards_kept > 0);
    let left = to.open_uploads(&Key::ROOT).await.unwrap();
    let names: Vec<&str> = left.iter().map(|upload| upload.key.as_str()).collect();
    assert_eq!(names, ["somebody/else.bin"]);
    let dataset = Dataset::open(Arc::clone(&to), &context, &options).await.unwrap();
    assert_eq!(dataset.samples(), 40);
    to.abort_upload(&left[0]).await.unwrap();
}
