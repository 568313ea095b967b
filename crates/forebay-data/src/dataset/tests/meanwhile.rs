//! What others do to a data set between two looks at it.

use super::*;

#[tokio::test]
async fn a_manifest_that_came_since_the_first_look_is_opened() {
    everywhere(|store, context| async move {
        let theirs = Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        // The first look says that there is none, as it was a moment ago.
        let plan = FaultPlan::new(Seed(1)).with(Op::Head, When::Nth(1), Fault::Fail(ErrorKind::NotFound));
        let counted = Counted::new(Arc::clone(&store));
        let late: Arc<dyn Store> = Arc::new(Faulty::new(Arc::new(counted.clone()), plan));
        let ours = Dataset::open(late, &context, &saving()).await.unwrap();
        assert!(ours.is_indexed());
        assert_eq!(ours.manifest().fingerprint(), theirs.manifest().fingerprint());
        assert!(ours.ledger().bytes() == 0, "no shard was read");
    })
    .await;
}

#[tokio::test]
async fn an_unlisted_shard_is_damage_where_a_stream_would_refuse_it() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        put(&*store, "new.lines", "key value\n").await;
        let refused = Dataset::open(Arc::clone(&store), &context, &OpenOptions::default()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Precondition);
        let options = OpenOptions {
            check: Check::WhenRead,
            ..OpenOptions::default()
        };
        let dataset = Dataset::open(Arc::clone(&store), &context, &options)
            .await
            .unwrap();
        let progress: Arc<dyn Progress> = Arc::new(Silent);
        let report = verify(&dataset, &progress, |_| ()).await.unwrap();
        assert!(!report.is_whole());
        let found: Vec<_> = report
            .damages
            .iter()
            .map(|damage| (damage.shard.to_string(), damage.kind))
            .collect();
        assert_eq!(found, [("new.lines".to_owned(), DamageKind::Unlisted)]);
        let part = OpenOptions {
            shards: Some(vec![dataset.shards()[0].key.clone()]),
            ..options
        };
        let part = Dataset::open(store, &context, &part).await.unwrap();
        assert!(verify(&part, &progress, |_| ()).await.unwrap().is_whole());
    })
    .await;
}
