//! `_SHA256SUMS` beside a manifest: ours is kept up to date, anybody else's is left alone.

use super::*;
use crate::manifest::{Sums, sha256sums};

fn anew() -> OpenOptions {
    OpenOptions {
        manifest: UseManifest::Never,
        save: Save::Replace,
        ..saving()
    }
}

const THEIRS: &str = "0123  000000.lines\n";

#[tokio::test]
async fn hashes_of_somebody_else_are_left_alone() {
    everywhere(|store, context| async move {
        put(&*store, SUMS_NAME, THEIRS).await;
        for options in [saving(), anew(), anew()] {
            let dataset = Dataset::open(Arc::clone(&store), &context, &options)
                .await
                .unwrap();
            assert!(matches!(dataset.manifest().sums(), Sums::Theirs));
            assert_eq!(sums_of(&store, &context).await, THEIRS.as_bytes());
        }
        // Not even where they are longer than any that could be ours.
        let long = "x".repeat(1 << 20);
        put(&*store, SUMS_NAME, &long).await;
        let dataset = Dataset::open(Arc::clone(&store), &context, &anew())
            .await
            .unwrap();
        assert!(matches!(dataset.manifest().sums(), Sums::Theirs));
        assert_eq!(sums_of(&store, &context).await, long.as_bytes());
        put(&*store, SUMS_NAME, "").await;
        let dataset = Dataset::open(Arc::clone(&store), &context, &anew())
            .await
            .unwrap();
        assert!(matches!(dataset.manifest().sums(), Sums::Theirs));
    })
    .await;
}

#[tokio::test]
async fn our_own_follow_the_shards() {
    everywhere(|store, context| async move {
        let first = Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        assert!(matches!(first.manifest().sums(), Sums::Written));
        put(&*store, "000009.lines", "new one\n").await;
        let second = Dataset::open(Arc::clone(&store), &context, &anew())
            .await
            .unwrap();
        assert!(matches!(second.manifest().sums(), Sums::Written));
        let expected = sha256sums(second.shards());
        assert_eq!(expected.lines().count(), 5);
        assert_eq!(sums_of(&store, &context).await, expected.as_bytes());
        // Somebody else's hashes of the same shards tell that these have changed.
        let theirs = expected.replacen(|digit: char| digit != '0', "0", 1);
        put(&*store, SUMS_NAME, &theirs).await;
        let third = Dataset::open(Arc::clone(&store), &context, &anew())
            .await
            .unwrap();
        assert!(matches!(third.manifest().sums(), Sums::Theirs));
        assert_eq!(sums_of(&store, &context).await, theirs.as_bytes());
    })
    .await;
}

#[tokio::test]
async fn an_index_that_fails_leaves_them_as_they_were() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        let before = sums_of(&store, &context).await;
        put(&*store, "000009.lines", "new one\n").await;
        let plan = FaultPlan::new(Seed(1)).with(Op::Put, When::Nth(1), Fault::Fail(ErrorKind::Io));
        let faulty = Arc::new(Faulty::new(Arc::clone(&store), plan));
        Dataset::open(faulty, &context, &anew()).await.unwrap_err();
        assert_eq!(sums_of(&store, &context).await, before);
    })
    .await;
}

#[tokio::test]
async fn a_manifest_without_its_hashes_is_still_one() {
    everywhere(|store, context| async move {
        let plan = FaultPlan::new(Seed(1)).with(Op::Put, When::Nth(2), Fault::Fail(ErrorKind::OutOfSpace));
        let faulty = Arc::new(Faulty::new(Arc::clone(&store), plan));
        let dataset = Dataset::open(faulty, &context, &saving()).await.unwrap();
        let Sums::Missing(error) = dataset.manifest().sums() else {
            panic!("{:?}", dataset.manifest().sums());
        };
        assert_eq!(error.kind(), ErrorKind::OutOfSpace);
        let dataset = Dataset::open(store, &context, &OpenOptions::default())
            .await
            .unwrap();
        assert!(dataset.is_indexed());
    })
    .await;
}
