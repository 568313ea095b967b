//! Parquet files that listings set aside, as Spark and pyarrow do: what is read, what is told, and what is refused.

use super::folders::Heard;
use super::*;

async fn of(names: &[&str]) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in names {
        put(&*store, name, "not looked into").await;
    }
    store
}

/// The format, the shards and what is told of them.
async fn found(
    store: &Arc<dyn Store>,
    format: Option<&str>,
    named: Option<&[&str]>,
) -> Result<(String, Vec<String>, Vec<String>)> {
    let format = format.map(FormatSpec::new);
    let named: Option<Vec<Key>> = named.map(|names| names.iter().map(|name| key(name)).collect());
    let found = discover(store, &context(), format.as_ref(), named.as_deref()).await?;
    let shards = found.shards.iter().map(|meta| meta.key.to_string()).collect();
    Ok((found.spec.name, shards, found.notes))
}

#[tokio::test]
async fn files_that_were_named_are_read_wherever_they_lie() {
    let names = ["a/0.parquet", "_b/0.parquet", ".c/0.parquet"];
    let store = of(&names).await;
    for format in [None, Some("parquet")] {
        let (format, shards, told) = found(&store, format, Some(&names)).await.unwrap();
        assert_eq!(
            (format.as_str(), &shards[..]),
            ("parquet", &names.map(str::to_owned)[..])
        );
        assert_eq!(told, Vec::<String>::new());
    }
    let (format, shards, _) = found(&store, None, Some(&names[1..2])).await.unwrap();
    assert_eq!((format.as_str(), shards.len()), ("parquet", 1));
}

#[tokio::test]
async fn files_that_a_listing_leaves_out_are_counted() {
    let store = of(&[
        "a/0.parquet",
        "_b/0.parquet",
        "_b/1.pq",
        "_b/notes.txt",
        "_SUCCESS",
    ])
    .await;
    for format in [None, Some("parquet")] {
        let (_, shards, told) = found(&store, format, None).await.unwrap();
        assert_eq!(shards, ["a/0.parquet"]);
        let [told] = &told[..] else {
            panic!("{told:?}");
        };
        for word in ["2 Parquet files", "'_b/0.parquet'", "left out"] {
            assert!(told.contains(word), "no {word:?} in {told}");
        }
    }
    // Shards of another format are no reason to say nothing.
    let store = of(&["a/0.tar", "_b/0.parquet"]).await;
    let (format, _, told) = found(&store, None, None).await.unwrap();
    assert_eq!((format.as_str(), told.len()), ("wds", 1), "{told:?}");
    let (_, _, told) = found(&store, Some("wds"), None).await.unwrap();
    assert_eq!(told, Vec::<String>::new());
}

#[tokio::test]
async fn files_that_are_all_left_out_are_refused_with_advice() {
    let store = of(&["_train/0.parquet", "_train/1.parquet", "README.md"]).await;
    for format in [None, Some("parquet")] {
        let error = found(&store, format, None).await.unwrap_err();
        let told = format!("{error} {}", error.hint().unwrap_or_default());
        for word in ["2 Parquet files", "'_train/0.parquet'", "name"] {
            assert!(told.contains(word), "no {word:?} in {told}");
        }
    }
    // Nothing else is only said where there is nothing else.
    let alone = of(&["_train/0.parquet", "_train/1.parquet"]).await;
    let names: Vec<String> = (0..5)
        .flat_map(|number| [format!("{number}.h5"), format!("_meta/part-{number}.parquet")])
        .collect();
    let beside = of(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for (store, format, kind, words) in [
        (&alone, None, ErrorKind::NotFound, "nothing else"),
        (&alone, Some("parquet"), ErrorKind::NotFound, "nothing else"),
        (
            &beside,
            None,
            ErrorKind::InvalidInput,
            "at least half of the 10 objects",
        ),
        (
            &beside,
            Some("parquet"),
            ErrorKind::NotFound,
            "no other Parquet file",
        ),
    ] {
        let error = found(store, format, None).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "no {words:?} in {error}");
        let hint = error.hint().unwrap_or_default();
        assert!(
            hint.contains("name their folder") && hint.contains("--format files"),
            "{hint}"
        );
    }
    let (format, shards, _) = found(&beside, Some(FILES), None).await.unwrap();
    assert_eq!((format.as_str(), shards.len()), (FILES, 1));
    // Whoever asks for plain files has them.
    let (format, ..) = found(&store, Some(FILES), None).await.unwrap();
    assert_eq!(format, FILES);
    // Among many plain files they are files like others, which is told.
    let names: Vec<String> = (0..9).map(|number| format!("cat/{number}.jpg")).collect();
    let names: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .chain(["_labels/0.parquet"])
        .collect();
    let (format, _, told) = found(&of(&names).await, None, None).await.unwrap();
    assert_eq!(format, FILES);
    assert!(
        told.iter().any(|note| note.contains("_labels/0.parquet")),
        "{told:?}"
    );
}

#[tokio::test]
async fn an_index_under_its_former_name_is_told_of() {
    let store = of(&["0.parquet", "forebay.fbi"]).await;
    let (_, shards, told) = found(&store, None, None).await.unwrap();
    assert_eq!(shards, ["0.parquet"]);
    let [told] = &told[..] else {
        panic!("{told:?}");
    };
    for word in ["'forebay.fbi'", "'_forebay.fbi'", "rename"] {
        assert!(told.contains(word), "no {word:?} in {told}");
    }
}

#[tokio::test]
async fn an_index_under_its_former_name_is_to_be_renamed_and_not_made_anew() {
    let (store, context): (Arc<dyn Store>, Context) = (Arc::new(MemoryStore::new()), context());
    fill(&*store).await;
    put(&*store, "forebay.fbi", "an index").await;
    let before = names(&*store).await;
    let open = async |options: OpenOptions| Dataset::open(Arc::clone(&store), &context, &options).await;
    let of = |manifest: UseManifest, save: Save| OpenOptions {
        manifest,
        save,
        ..OpenOptions::default()
    };
    for (options, kind) in [
        (of(UseManifest::Always, Save::No), ErrorKind::NotFound),
        (of(UseManifest::IfThere, Save::IfAbsent), ErrorKind::AlreadyExists),
        (of(UseManifest::Never, Save::IfAbsent), ErrorKind::AlreadyExists),
    ] {
        let error = open(options).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let hint = error.hint().unwrap_or_default();
        assert!(hint.contains("rename it to '_forebay.fbi'"), "{error}: {hint}");
    }
    assert_eq!(names(&*store).await, before);
    // One that is kept elsewhere has nothing to do with it, and whoever insists has one made.
    let elsewhere: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let named = saving().with_manifest_at(Some((elsewhere, key("x.fbi"))));
    assert_eq!(open(named).await.unwrap().samples(), 400);
    let made = open(of(UseManifest::Never, Save::Replace)).await.unwrap();
    assert_eq!(made.samples(), 400);
}

#[tokio::test]
async fn an_index_under_its_former_name_is_told_of_where_shards_are_named_too() {
    let (store, context): (Arc<dyn Store>, Context) = (Arc::new(MemoryStore::new()), context());
    fill(&*store).await;
    put(&*store, "forebay.fbi", "an index").await;
    let notes = Arc::new(Heard::default());
    let options = OpenOptions {
        shards: Some(vec![key("000001.lines")]),
        progress: Arc::clone(&notes) as Arc<dyn Progress>,
        ..OpenOptions::default()
    };
    Dataset::open(store, &context, &options).await.unwrap();
    let told = notes.take();
    assert!(told.len() == 1 && told[0].contains("'_forebay.fbi'"), "{told:?}");
}
