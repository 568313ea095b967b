//! Stores in which nothing may be listed, and which refuse to say that something is missing: buckets that may only be read, and servers of files.

use std::sync::Mutex;

use super::*;

/// The store as those see it who may read what they know the name of.
fn closed(store: &Arc<dyn Store>, list: ErrorKind) -> Arc<dyn Store> {
    let plan = FaultPlan::new(Seed(1))
        .with(Op::List, When::Always, Fault::Fail(list))
        .with(Op::Head, When::Always, Fault::Conceal)
        .with(Op::Read, When::Always, Fault::Conceal);
    Arc::new(Faulty::new(Arc::clone(store), plan))
}

fn shards() -> Vec<Key> {
    (0..4).map(|shard| key(&format!("{shard:06}.lines"))).collect()
}

#[derive(Debug, Default)]
struct Told(Mutex<Vec<String>>);

impl Progress for Told {
    fn noted(&self, note: &str) {
        self.0.lock().unwrap().push(note.to_owned());
    }
}

#[tokio::test]
async fn an_indexed_data_set_is_read_without_listing() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        for list in [
            ErrorKind::PermissionDenied,
            ErrorKind::NotFound,
            ErrorKind::Unsupported,
        ] {
            let opening = Arc::new(Told::default());
            let options = OpenOptions {
                progress: Arc::clone(&opening) as Arc<dyn Progress>,
                ..OpenOptions::default()
            };
            let dataset = Dataset::open(closed(&store, list), &context, &options)
                .await
                .unwrap();
            let notes = opening.0.lock().unwrap().len();
            assert_eq!(notes, usize::from(list != ErrorKind::Unsupported));
            assert_eq!(dataset.samples(), 400);
            let told = Arc::new(Told::default());
            let progress = Arc::clone(&told) as Arc<dyn Progress>;
            let report = verify(&dataset, &progress, |_| ()).await.unwrap();
            assert!(report.is_whole() && !report.unlisted_sought);
            let told = told.0.lock().unwrap().join(" ");
            assert!(told.contains("were not looked for"), "{told}");
        }
        // Anything else that happens to a listing is an error.
        let broken = closed(&store, ErrorKind::Io);
        let error = Dataset::open(broken, &context, &OpenOptions::default()).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Io);
    })
    .await;
}

#[tokio::test]
async fn shards_are_still_compared_with_their_manifest() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        put(&*store, "000002.lines", "shorter").await;
        let closed = closed(&store, ErrorKind::PermissionDenied);
        let error = Dataset::open(closed, &context, &OpenOptions::default()).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Precondition);
    })
    .await;
}

#[tokio::test]
async fn shards_that_are_named_need_no_manifest_that_is_told_of() {
    everywhere(|store, context| async move {
        let closed = closed(&store, ErrorKind::PermissionDenied);
        let told = Arc::new(Told::default());
        let options = OpenOptions {
            shards: Some(shards()),
            progress: Arc::clone(&told) as Arc<dyn Progress>,
            ..OpenOptions::default()
        };
        let dataset = Dataset::open(Arc::clone(&closed), &context, &options)
            .await
            .unwrap();
        assert_eq!(dataset.samples(), 400);
        let notes = told.0.lock().unwrap().join(" ");
        assert!(notes.contains("may not list"), "{notes}");
        // Without names, nothing can be found.
        let error = Dataset::open(closed, &context, &OpenOptions::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.hint().unwrap().contains("name the shards"), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_manifest_that_may_not_be_read_is_not_passed_over() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        let plan =
            FaultPlan::new(Seed(1)).with(Op::Head, When::Nth(1), Fault::Fail(ErrorKind::PermissionDenied));
        let refusing: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&store), plan));
        let error = Dataset::open(refusing, &context, &OpenOptions::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(
            error.hint().unwrap().contains("the manifest is there"),
            "{error:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn what_is_refused_may_be_missing() {
    everywhere(|store, context| async move {
        Dataset::open(Arc::clone(&store), &context, &saving())
            .await
            .unwrap();
        store.delete(&key("000002.lines")).await.unwrap();
        let gone = closed(&store, ErrorKind::PermissionDenied);
        let error = Dataset::open(Arc::clone(&gone), &context, &OpenOptions::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.hint().unwrap().contains("or it is missing"), "{error:?}");
        // Nobody is told to make a manifest of what is there now because of wrong credentials.
        store.delete(&key(MANIFEST_NAME)).await.unwrap();
        let options = OpenOptions {
            manifest: UseManifest::Always,
            ..OpenOptions::default()
        };
        let error = Dataset::open(gone, &context, &options).await.unwrap_err();
        assert!(error.hint().unwrap().contains("or it is missing"), "{error:?}");
    })
    .await;
}
