//! Shards that do not go together.

use super::*;
use crate::format::mds::{Encoding, Settings};
use crate::format::parquet::{ParquetOptions, ParquetWriter};
use crate::format::{SampleRef, ShardWriter};
use crate::manifest::ManifestWriter;
use crate::schema::{Dtype, Field, Kind};

async fn put_shard(store: &dyn Store, name: &str, mut writer: Box<dyn ShardWriter>, field: &Field) {
    let fields = [(field, &7u64.to_le_bytes()[..])];
    let (key_of_sample, fields) = ("", &fields[..]);
    writer
        .add(SampleRef {
            key: key_of_sample,
            fields,
        })
        .unwrap();
    let bytes = writer.finish().unwrap();
    store
        .put_bytes(&key(name), &bytes, &PutOptions::default())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_shards_that_disagree_about_a_field_are_refused_with_what_each_says() {
    let int = Kind::Array {
        dtype: Dtype::Int64,
        shape: Vec::new(),
    };
    let kinds = [int, Kind::Bytes];
    for format in ["mds", "parquet"] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        for (number, kind) in kinds.iter().enumerate() {
            let field = Field::new("x", kind.clone());
            let writer: Box<dyn ShardWriter> = if format == "mds" {
                let encoding = ["int", "bytes"][number];
                let columns = [("x".to_owned(), Encoding::parse(encoding).unwrap())];
                Box::new(Settings::new(columns).unwrap().writer().unwrap())
            } else {
                let fields = std::slice::from_ref(&field);
                Box::new(ParquetWriter::new(fields, ParquetOptions::default()).unwrap())
            };
            put_shard(&*store, &format!("shard.{number:05}.{format}"), writer, &field).await;
        }
        let opened = Dataset::open(Arc::clone(&store), &context(), &OpenOptions::default()).await;
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let words = format!("{error} {}", error.hint().unwrap_or_default());
        for word in [
            "field 'x' is bytes in this shard",
            "one int64 in the ones before",
            &format!("shard.00001.{format}"),
            "a folder of its own",
        ] {
            assert!(words.contains(word), "no {word:?} in {words}");
        }
        // Each by itself is a data set.
        for number in 0..2 {
            let alone: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let name = key(&format!("shard.{number:05}.{format}"));
            let size = store.head(&name).await.unwrap().size;
            let span = forebay_core::Span::first(size);
            let read = store.read(&name, span, &ReadOptions::default(), &context()).await;
            let (bytes, _) = read.unwrap();
            alone
                .put_bytes(&name, &bytes, &PutOptions::default())
                .await
                .unwrap();
            let opened = Dataset::open(alone, &context(), &OpenOptions::default()).await;
            assert_eq!(opened.unwrap().samples(), 1, "{name}");
        }
    }
}

#[tokio::test]
async fn parameters_that_a_format_does_not_have_are_refused() {
    everywhere(|store, context| async move {
        for (spec, kind, hint) in [
            (
                FormatSpec::new("tfrecord").with("record", "raw"),
                ErrorKind::InvalidInput,
                "lists, records",
            ),
            (
                FormatSpec::new("wds").with("pickle", true),
                ErrorKind::InvalidInput,
                "it has none",
            ),
            (
                FormatSpec::new("zip").with("level", 3),
                ErrorKind::Unsupported,
                "formats are",
            ),
        ] {
            let options = OpenOptions {
                format: Some(spec),
                ..OpenOptions::default()
            };
            let error = Dataset::open(Arc::clone(&store), &context, &options)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.hint().unwrap().contains(hint), "{error:?}");
        }
        let spec = FormatSpec::new("lines").with("reading", "backwards");
        let later = ManifestWriter::in_memory(spec, &store.identity())
            .finish()
            .await
            .unwrap();
        let error = Dataset::open_indexed(Arc::clone(&store), &context, later, &OpenOptions::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("'reading'"), "{error}");
    })
    .await;
}
