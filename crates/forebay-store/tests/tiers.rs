//! Tiers: what is deleted stays deleted, whatever is read meanwhile.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Key, Seed, Span};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::tiers::{Tiers, TiersConfig, WritePolicy};
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};
use forebay_store::{Context, ListOptions, MemoryStore, PutOptions, ReadOptions, Store, StoreExt};
use futures::StreamExt;

const PROMOTE: TiersConfig = TiersConfig {
    write: WritePolicy::First,
    promote_bytes_max: Some(1 << 20),
};

fn context() -> Context {
    let config = DiskConfig {
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

/// Memory that takes its time for one kind of request.
fn slow(op: Op, ms: u64) -> Arc<dyn Store> {
    let delay = Fault::Delay(Duration::from_millis(ms));
    let plan = FaultPlan::new(Seed(1)).with(op, When::Always, delay);
    Arc::new(Faulty::new(Arc::new(MemoryStore::new()), plan))
}

/// The clock stands still but for the sleeps of the test and the delays, so this is one order of events and no race.
#[tokio::test(start_paused = true)]
async fn an_object_read_while_it_is_deleted_does_not_come_back() {
    let context = context();
    let key = Key::parse("a").unwrap();
    let (near, far) = (slow(Op::Part, 100), slow(Op::Delete, 50));
    far.put_bytes(&key, b"content", &PutOptions::default())
        .await
        .unwrap();
    let stores = vec![Arc::clone(&near), Arc::clone(&far)];
    let tiers = Tiers::new(stores, PROMOTE, &context).unwrap();
    let read = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let options = ReadOptions::default();
        tiers
            .read(&key, Span::first(7), &options, &context)
            .await
            .unwrap();
    };
    let (deleted, ()) = futures::join!(tiers.delete(&key), read);
    deleted.unwrap();
    tiers.settled().await;
    let everything = ListOptions { recursive: true };
    assert_eq!(tiers.list(&Key::ROOT, everything).count().await, 0);

    // Once it is over, the name is as good as any other.
    far.put_bytes(&key, b"again", &PutOptions::default())
        .await
        .unwrap();
    let options = ReadOptions::default();
    tiers
        .read(&key, Span::first(5), &options, &context)
        .await
        .unwrap();
    tiers.settled().await;
    assert_eq!(near.head(&key).await.unwrap().size, 5);
}
