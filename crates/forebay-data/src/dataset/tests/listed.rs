//! Lists of shards (`index.json`) that are damaged: the error names them.

use super::*;

/// A copy of a fixture in memory, whose list is replaced.
async fn with_list(name: &str, text: &str) -> Arc<dyn Store> {
    let context = context();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let from = local_at(&fixtures.join(name), &context);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in names(&from).await {
        let meta = from.head(&key(&name)).await.unwrap();
        let span = forebay_core::Span::first(meta.size);
        let (bytes, _) = from
            .read(&meta.key, span, &ReadOptions::default(), &context)
            .await
            .unwrap();
        store
            .put_bytes(&meta.key, &bytes, &PutOptions::default())
            .await
            .unwrap();
    }
    put(&*store, "index.json", text).await;
    store
}

#[tokio::test]
async fn a_damaged_list_is_named() {
    for (name, format) in [("mds/plain", "mds"), ("litdata/every", "litdata")] {
        for text in [
            "",
            "{\"shards\": [",
            "{\"shards\": 7}",
            "{\"chunks\": [{}]}",
            "\0\0\0\0",
        ] {
            let store = with_list(name, text).await;
            for chosen in [None, Some(FormatSpec::new(format))] {
                let options = OpenOptions {
                    format: chosen.clone(),
                    ..OpenOptions::default()
                };
                let error = Dataset::open(Arc::clone(&store), &context(), &options)
                    .await
                    .unwrap_err();
                let place = error.location().unwrap_or_default();
                assert!(
                    place.ends_with("/index.json"),
                    "{name} {text:?} {chosen:?}: {error}"
                );
                assert_eq!(
                    error.kind(),
                    ErrorKind::Corrupt,
                    "{name} {text:?} {chosen:?}: {error}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_list_that_is_damaged_after_indexing_is_named() {
    for name in ["mds/plain", "litdata/every"] {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let list = std::fs::read_to_string(fixtures.join(name).join("index.json")).unwrap();
        let store = with_list(name, &list).await;
        Dataset::open(Arc::clone(&store), &context(), &saving())
            .await
            .unwrap();
        put(&*store, "index.json", "{").await;
        let opened = Dataset::open(store, &context(), &OpenOptions::default())
            .await
            .unwrap();
        let error = opened.format().await.unwrap_err();
        assert!(error.to_string().contains("/index.json"), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_file_that_happens_to_have_that_name_is_a_file() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    put(&*store, "index.json", "{").await;
    put(&*store, "a.txt", "text").await;
    let opened = Dataset::open(store, &context(), &OpenOptions::default())
        .await
        .unwrap();
    assert_eq!(opened.samples(), 2);
}
