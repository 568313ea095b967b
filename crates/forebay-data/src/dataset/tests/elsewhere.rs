//! A manifest that is not beside its shards, such as one of a bucket that may only be read.

use forebay_store::PutMode;

use super::*;
use crate::manifest::ManifestWriter;

fn at(store: &Arc<dyn Store>) -> (Arc<dyn Store>, Key) {
    (Arc::clone(store), key("x.fbi"))
}

fn elsewhere() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

#[tokio::test]
async fn shards_are_not_read_to_open_a_data_set_whose_manifest_is_elsewhere() {
    everywhere(|store, context| async move {
        let place = elsewhere();
        let before = names(&*store).await;
        let made = Dataset::open(
            Arc::clone(&store),
            &context,
            &saving().with_manifest_at(Some(at(&place))),
        )
        .await
        .unwrap();
        assert_eq!(names(&*store).await, before, "nothing is written to the data");
        let counted = Counted::new(Arc::clone(&store));
        for options in [OpenOptions::default(), saving()] {
            let options = options.with_manifest_at(Some(at(&place)));
            let data: Arc<dyn Store> = Arc::new(counted.clone());
            let opened = Dataset::open(data, &context, &options).await.unwrap();
            assert_eq!(opened.manifest().fingerprint(), made.manifest().fingerprint());
        }
        assert_eq!(counted.counts().of(Op::Read).requests, 0);
        assert_eq!(counted.counts().of(Op::Head).requests, 0);
    })
    .await;
}

#[tokio::test]
async fn a_manifest_that_is_named_is_there_or_all_shards_are_not_read_instead() {
    everywhere(|store, context| async move {
        let counted = Counted::new(Arc::clone(&store));
        let options = OpenOptions::default().with_manifest_at(Some(at(&elsewhere())));
        let error = Dataset::open(Arc::new(counted.clone()), &context, &options)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("x.fbi"), "{error}");
        assert!(error.hint().unwrap().contains("forebay index -o "), "{error:?}");
        assert_eq!(counted.counts().total().requests, 0);
    })
    .await;
}

#[tokio::test]
async fn a_manifest_elsewhere_that_does_not_fit_is_written_anew_elsewhere() {
    everywhere(|store, context| async move {
        let place = elsewhere();
        let options = saving().with_manifest_at(Some(at(&place)));
        Dataset::open(Arc::clone(&store), &context, &options)
            .await
            .unwrap();
        let command = format!(
            "forebay index -o {} --force {}",
            place.location().join(&key("x.fbi")),
            store.location()
        );
        let hint_of = async |options: OpenOptions| {
            let options = options.with_manifest_at(Some(at(&place)));
            let error = Dataset::open(Arc::clone(&store), &context, &options)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
            error.hint().unwrap().to_owned()
        };
        let told = hint_of(OpenOptions {
            format: Some(FormatSpec::new("wds")),
            ..OpenOptions::default()
        })
        .await;
        assert!(told.contains(&command), "{told}");

        put(&*store, "000004.lines", "k x\n").await;
        let unlisted = hint_of(OpenOptions::default()).await;
        let named = hint_of(OpenOptions {
            shards: Some(vec![key("000004.lines")]),
            ..OpenOptions::default()
        })
        .await;
        put(&*store, "000001.lines", "shorter\n").await;
        let shorter = hint_of(OpenOptions::default()).await;
        let when_read = Dataset::open(
            Arc::clone(&store),
            &context,
            &OpenOptions {
                check: Check::WhenRead,
                ..OpenOptions::default()
            }
            .with_manifest_at(Some(at(&place))),
        )
        .await
        .unwrap();
        let read = when_read.source(1).await.unwrap_err();
        let read = read.hint().unwrap().to_owned();
        store.delete(&key("000001.lines")).await.unwrap();
        let missing = hint_of(OpenOptions::default()).await;
        for told in [unlisted, named, shorter, read, missing] {
            assert!(told.contains(&command), "{told}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_to_be_done_is_told_with_the_names_that_were_given() {
    everywhere(|store, context| async move {
        let place = elsewhere();
        let manifest = place.location().join(&key("x.fbi"));
        let refused = async |options: OpenOptions| {
            let options = options.with_manifest_at(Some(at(&place)));
            Dataset::open(Arc::clone(&store), &context, &options)
                .await
                .unwrap_err()
        };
        let one = OpenOptions {
            shards: Some(vec![key("000001.lines")]),
            ..OpenOptions::default()
        };
        let told = refused(one).await;
        let shard = store.location().join(&key("000001.lines"));
        let command = format!("forebay index -o {manifest} {shard}");
        assert!(told.hint().unwrap().ends_with(&command), "{told:?}");
        // The directory of a manifest is none.
        put(&*place, "x.fbi/_forebay.fbi", "one").await;
        let told = refused(OpenOptions::default()).await;
        let inside = manifest.join(&key(MANIFEST_NAME));
        assert!(told.hint().unwrap().contains(&inside.to_string()), "{told:?}");

        Dataset::open(
            Arc::clone(&store),
            &context,
            &saving().with_manifest_at(Some(at(&place))),
        )
        .await
        .unwrap();
        put(&*store, "000001.lines", &lines(1, 90)).await;
        let told = refused(OpenOptions::default()).await;
        let command = format!("forebay verify --manifest {manifest} {}", store.location());
        assert!(told.hint().unwrap().contains(&command), "{told:?}");
        let other = OpenOptions {
            format: Some(FormatSpec::new("wds")),
            ..OpenOptions::default()
        };
        let told = refused(other).await;
        assert!(told.to_string().contains(&manifest.to_string()), "{told}");
    })
    .await;
}

#[tokio::test]
async fn a_manifest_of_a_later_version_is_named_itself() {
    let (store, place, context) = (elsewhere(), elsewhere(), context());
    let spec = FormatSpec::new("wds").with("later", 1);
    let (to, at_key) = at(&place);
    let mode = PutMode::Replace;
    let writer = ManifestWriter::to_object(spec, &store.identity(), to, at_key, mode, &context);
    writer.finish().await.unwrap();
    let options = OpenOptions::default().with_manifest_at(Some(at(&place)));
    let error = Dataset::open(Arc::clone(&store), &context, &options).await;
    let error = error.unwrap_err();
    let manifest = place.location().join(&key("x.fbi"));
    assert!(error.to_string().contains(&manifest.to_string()), "{error}");
    let command = format!("forebay index -o {manifest} --force {}", store.location());
    assert!(error.hint().unwrap().contains(&command), "{error:?}");
}

#[tokio::test]
async fn hashes_beside_a_manifest_elsewhere_are_called_as_it_is() {
    everywhere(|store, context| async move {
        let place = elsewhere();
        let other: Arc<dyn Store> = Arc::new(MemoryStore::new());
        put(&*other, "a.lines", "k x\n").await;
        for (data, name) in [(&store, "web.fbi"), (&other, "code.fbi"), (&other, "plain")] {
            let options = saving().with_manifest_at(Some((Arc::clone(&place), key(name))));
            let made = Dataset::open(Arc::clone(data), &context, &options).await.unwrap();
            assert!(matches!(made.manifest().sums(), crate::manifest::Sums::Written));
        }
        let mut there = names(&*place).await;
        there.sort();
        assert_eq!(
            there,
            [
                "code.fbi",
                "code.sha256",
                "plain",
                "plain.sha256",
                "web.fbi",
                "web.sha256"
            ]
        );
    })
    .await;
}

#[tokio::test]
async fn whoever_may_not_write_beside_the_shards_is_told_of_elsewhere() {
    everywhere(|store, context| async move {
        let plan =
            FaultPlan::new(Seed(1)).with(Op::Put, When::Always, Fault::Fail(ErrorKind::PermissionDenied));
        let closed: Arc<dyn Store> = Arc::new(Faulty::new(store, plan));
        let error = Dataset::open(closed, &context, &saving()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(
            error.hint().unwrap().contains("forebay index -o URL"),
            "{error:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_index_of_some_shards_is_kept_elsewhere() {
    everywhere(|store, context| async move {
        let some = OpenOptions {
            shards: Some(vec![key("000001.lines")]),
            ..saving()
        };
        let error = Dataset::open(Arc::clone(&store), &context, &some)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("000000.lines"), "{error}");
        assert!(error.hint().unwrap().contains("-o URL"), "{error:?}");
        let place = elsewhere();
        let made = Dataset::open(
            Arc::clone(&store),
            &context,
            &some.clone().with_manifest_at(Some(at(&place))),
        )
        .await;
        assert_eq!(made.unwrap().samples(), 100);
        let all = OpenOptions {
            shards: Some((0..4).map(|shard| key(&format!("{shard:06}.lines"))).collect()),
            ..saving()
        };
        Dataset::open(Arc::clone(&store), &context, &all).await.unwrap();
    })
    .await;
}
