//! Columns that the names of folders say: fields like any other, of which nothing is read.

use forebay_core::Error;
use forebay_data::dataset::{Progress, Silent};
use forebay_data::filter::Filter;
use forebay_data::verify::verify;
use serde_json::{Value as Json, json};

use super::*;

/// Three files of five rows in folders of two columns, without an index.
async fn folders() -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let fields = fields();
    let names = [
        "day=1/lang=de/p.parquet",
        "day=1/lang=__HIVE_DEFAULT_PARTITION__/p.parquet",
        "day=02/lang=de%20at/p.parquet",
    ];
    for (number, name) in (0u32..).zip(names) {
        let mut writer = Box::new(ParquetWriter::new(&fields, ParquetOptions::default()).unwrap());
        for row in 0..5 {
            let (small, large) = ((number * 5 + row).to_le_bytes(), large(row));
            let fields = [(&fields[0], &small[..]), (&fields[1], &large[..])];
            let sample = SampleRef {
                key: "k",
                fields: &fields,
            };
            writer.add(sample).unwrap();
        }
        put(&store, name, &writer.finish().unwrap()).await;
    }
    store
}

/// One of these files.
async fn bytes_of_one() -> Vec<u8> {
    let from = folders().await;
    let key = Key::parse("day=1/lang=de/p.parquet").unwrap();
    let span = Span::first(from.head(&key).await.unwrap().size);
    let read = from
        .read(&key, span, &ReadOptions::default(), &common::context())
        .await;
    read.unwrap().0.to_vec()
}

/// The data set, as somebody asks for it.
async fn opened(store: &Arc<dyn Store>, format: FormatSpec) -> Result<Dataset, Error> {
    let options = OpenOptions {
        format: Some(format),
        ..OpenOptions::default()
    };
    Dataset::open(Arc::clone(store), &common::context(), &options).await
}

/// The number, the day and the language of each row, in order.
async fn streamed(dataset: Dataset, names: &[&str]) -> Vec<Vec<String>> {
    let spec = StreamSpec {
        fields: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..spec(false)
    };
    let rows = drain(&mut Loader::new(dataset, &spec).unwrap()).await;
    rows.into_iter().map(|(_, values)| values).collect()
}

fn day(day: i64) -> String {
    hex(&day.to_le_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_say_fields_that_are_streamed_with_and_without_an_index() {
    let store = folders().await;
    for is_indexed in [false, true] {
        if is_indexed {
            index(&store).await;
        }
        let dataset = open(&store, None).await;
        let names: Vec<&str> = dataset
            .schema()
            .fields()
            .iter()
            .map(|field| field.name.as_str())
            .collect();
        assert_eq!(names, ["__key__", "number", "large", "day", "lang"]);
        let rows = streamed(dataset.clone(), &["number", "day", "lang"]).await;
        assert_eq!(rows.len(), 15);
        // Folders come in the order of their names.
        let first = [hex(&10u32.to_le_bytes()), day(2), hex(b"de at")];
        assert_eq!((&rows[0][..], &rows[4][1..]), (&first[..], &first[1..]));
        assert_eq!(rows[5], [hex(&5u32.to_le_bytes()), day(1), String::new()]);
        assert_eq!(rows[10], [hex(&0u32.to_le_bytes()), day(1), hex(b"de")]);
        // Nothing is read for what stands in names alone.
        let mut loader = Loader::new(
            dataset,
            &StreamSpec {
                fields: Some(vec!["day".to_owned()]),
                ..spec(false)
            },
        )
        .unwrap();
        let rows = drain(&mut loader).await;
        assert_eq!(rows[14].1, [day(1)]);
        assert_eq!(loader.report().ledger.bytes(), 0);
    }
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    let verified = verify(&open(&store, None).await, &progress, |_| {})
        .await
        .unwrap();
    assert!(
        verified.is_whole() && verified.samples_whole == 15,
        "{verified:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_format_that_is_named_means_the_one_that_was_found_out() {
    let store = folders().await;
    index(&store).await;
    for spec in [
        FormatSpec::new("parquet"),
        open(&store, None).await.manifest().spec().clone(),
    ] {
        assert_eq!(open(&store, Some(spec)).await.samples(), 15);
    }
    let chosen = FormatSpec::new("parquet").with("columns", vec!["day"]);
    let error = opened(&store, chosen).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
}

fn asking_for(partitions: Json) -> FormatSpec {
    FormatSpec::new("parquet").with("partitions", partitions)
}

fn names(dataset: &Dataset) -> Vec<&str> {
    let fields = dataset.schema().fields().iter();
    fields.map(|field| field.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_folders_can_be_asked_for_as_text_or_not_at_all() {
    let (none, text) = (json!([]), json!([["day", "text"]]));
    let store = folders().await;
    let dataset = open(&store, Some(asking_for(none.clone()))).await;
    assert_eq!(names(&dataset), ["__key__", "number", "large"]);
    let dataset = open(&store, Some(asking_for(text.clone()))).await;
    assert_eq!(names(&dataset), ["__key__", "number", "large", "day"]);
    let rows = streamed(dataset, &["day"]).await;
    assert_eq!((&rows[0], &rows[5]), (&vec![hex(b"02")], &vec![hex(b"1")]));

    // An index knows what was found out, which is not what is asked for here.
    index(&store).await;
    for partitions in [none.clone(), text.clone()] {
        let error = opened(&store, asking_for(partitions)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition);
    }
    // Where folders say nothing, to ask for nothing is to ask for that.
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    put(&store, "a.parquet", &bytes_of_one().await).await;
    index(&store).await;
    assert_eq!(opened(&store, asking_for(none)).await.unwrap().samples(), 5);
    let error = opened(&store, asking_for(text)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_folders_do_not_say_are_not_made_of_nulls() {
    let store = folders().await;
    for (partitions, words) in [
        (
            json!([["dya", "text"]]),
            ["no folder says 'dya'", "'day', 'lang'"],
        ),
        (
            json!([["day", "int64"], ["lnag", "text"]]),
            ["no folder says 'lnag'", "'lang'"],
        ),
        (json!([["lang", "int64"]]), ["/lang=de", "[\"lang\", \"text\"]"]),
        (json!([["day", "int32"]]), ["cannot have partitions", "int32"]),
    ] {
        let error = opened(&store, asking_for(partitions)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let told = format!("{error} {}", error.hint().unwrap_or_default());
        for word in words {
            assert!(told.contains(word), "no {word:?} in {told}");
        }
    }
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    put(&store, "a.parquet", &bytes_of_one().await).await;
    let error = opened(&store, asking_for(json!([["day", "text"]])))
        .await
        .unwrap_err();
    assert!(
        error.hint().is_some_and(|hint| hint.contains("name=value")),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_folders_can_be_chosen_and_filtered() {
    let store = folders().await;
    let dataset = open(
        &store,
        Some(FormatSpec::new("parquet").with("columns", vec!["number", "lang"])),
    )
    .await;
    let names: Vec<&str> = dataset
        .schema()
        .fields()
        .iter()
        .map(|field| field.name.as_str())
        .collect();
    assert_eq!(names, ["number", "lang"]);

    let dataset = open(&store, None).await;
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    for (text, kept) in [
        ("day = 1", 10),
        ("day = 2 and lang = 'de at'", 5),
        ("lang = 'de' and number > 2", 2),
        ("lang is null", 5),
        ("lang is not null and day < 2", 5),
    ] {
        let found = dataset
            .keep(&Filter::parse(text).unwrap(), 2, 64 << 20, &progress)
            .await;
        assert_eq!(found.unwrap().samples_kept(), kept, "{text}");
    }
    // Rows that cannot be read are left to the policy for such, but not those of files that folders leave out.
    index(&store).await;
    let dataset = open(&store, None).await;
    let file = File::from_bytes(&bytes_of(&dataset, &store, 0).await.into(), None).unwrap();
    let chunk = file.span(0, column_of(&file, "number")).unwrap();
    let damaged = with_flip(&dataset, &store, 0, chunk.end() - 1).await;
    for (text, kept) in [("day = 1 and number >= 0", 10), ("day = 2 and number = 11", 5)] {
        let found = damaged
            .keep(&Filter::parse(text).unwrap(), 2, 64 << 20, &progress)
            .await;
        assert_eq!(found.unwrap().samples_kept(), kept, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_the_file_has_is_the_files() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    put(&store, "number=77/p.parquet", &bytes_of_one().await).await;
    let rows = streamed(open(&store, None).await, &["number"]).await;
    assert_eq!(rows[3], [hex(&3u32.to_le_bytes())]);
}

#[tokio::test]
async fn tables_whose_log_says_which_files_count_are_refused_unless_files_are_named() {
    let logs = [
        ("Delta Lake", "_delta_log/00000000000000000000.json"),
        ("Delta Lake", "day=1/_delta_log/00000000000000000000.json"),
        ("Iceberg", "metadata/v1.metadata.json"),
        ("Iceberg", "day=1/metadata/v1.metadata.json"),
        ("Hudi", ".hoodie/hoodie.properties"),
        ("Hudi", "day=1/.hoodie/hoodie.properties"),
    ];
    for (keeper, log) in logs {
        let store = folders().await;
        put(&store, log, b"{}").await;
        let open = async |only: Option<Vec<Key>>| {
            let options = OpenOptions {
                shards: only,
                ..OpenOptions::default()
            };
            Dataset::open(Arc::clone(&store), &common::context(), &options).await
        };
        let error = open(None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{keeper}");
        assert!(error.to_string().contains(keeper), "{error}");
        let named = Key::parse("day=1/lang=de/p.parquet").unwrap();
        assert_eq!(open(Some(vec![named])).await.unwrap().samples(), 5, "{keeper}");
    }
}

#[tokio::test]
async fn names_that_only_end_as_a_log_does_are_no_log_and_a_format_that_is_named_overrides() {
    let store = folders().await;
    for name in [
        "metadata/train.metadata.json",
        "metadata/2024-05.metadata.json",
        "metadata/v.metadata.json",
    ] {
        put(&store, name, b"{}").await;
        assert_eq!(open(&store, None).await.samples(), 15, "{name}");
    }
    let log = "metadata/00003-9c12d441-03fe-4693-9a96-a0705ddf69c1.gz.metadata.json";
    put(&store, log, b"{}").await;
    let options = OpenOptions::default();
    let error = Dataset::open(Arc::clone(&store), &common::context(), &options)
        .await
        .unwrap_err();
    let told = format!("{error} {}", error.hint().unwrap_or_default());
    assert!(
        told.contains("Iceberg") && told.contains("--format parquet"),
        "{told}"
    );
    assert_eq!(open(&store, Some(FormatSpec::new("parquet"))).await.samples(), 15);
}

#[tokio::test]
async fn logs_of_tables_elsewhere_are_no_reason_to_refuse() {
    let store = folders().await;
    put(&store, "other/_delta_log/00000000000000000000.json", b"{}").await;
    put(&store, "other/.hoodie/hoodie.properties", b"{}").await;
    assert_eq!(open(&store, None).await.samples(), 15);
}

#[tokio::test]
async fn what_spark_leaves_out_of_a_folder_is_left_out() {
    let store = folders().await;
    for name in [
        "_SUCCESS",
        "_metadata",
        "_temporary/0/part-00000.parquet",
        "_x.parquet",
    ] {
        put(&store, name, b"no Parquet").await;
    }
    assert_eq!(open(&store, None).await.samples(), 15);
}
