//! Bad input, each with its error.

use std::os::unix::fs::PermissionsExt;

use forebay_core::ErrorKind;

use super::*;
use crate::format::parquet::{ParquetOptions, ParquetWriter};
use crate::format::wds::WdsWriter;

#[track_caller]
fn refused(result: Result<PackReport>, kind: ErrorKind, words: &[&str]) {
    let error = result.unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_read_or_have_changed_are_named() {
    let (dir, context) = (tempfile::tempdir().unwrap(), context());
    let root = dir.path().join("from");
    let from = local_at(&root, &context);
    folder(&*from, 10).await;
    let spec = small(PackFormat::Wds);
    let input = Input::open(place(&from), &context, &OpenOptions::default(), &spec)
        .await
        .unwrap();
    let shaper = Arc::new(Shaper::new(input.schema(), input.source(), &spec).unwrap());
    let shares = Shares::new(&spec, input.reads()).unwrap();
    let reading = Reading::new(shaper, &context, &spec, &shares).unwrap();
    let path = root.join("d1/s0001.txt");
    for text in ["longer than before", "short"] {
        std::fs::write(&path, text).unwrap();
        let mut chunks = input.chunks(0..10, &reading);
        let error = chunks.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(error.location().unwrap().contains("s0001.txt"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let mut chunks = input.chunks(0..10, &reading);
    assert_eq!(
        chunks.next().await.unwrap().unwrap_err().kind(),
        ErrorKind::NotFound
    );
    std::fs::write(&path, "text 1").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).unwrap();
    // Nothing is unreadable to root.
    if std::fs::read(&path).is_err() {
        let to = local_at(&dir.path().join("to"), &context);
        let result = run(&from, &to, &spec).await;
        refused(result, ErrorKind::PermissionDenied, &["s0001.txt"]);
        assert!(!dir.path().join("to/_forebay.fbi").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_file_that_changed_is_named() {
    let (dir, context) = (tempfile::tempdir().unwrap(), context());
    let from = local_at(dir.path(), &context);
    put(&*from, "a.dat", &vec![1; 600_000]).await;
    let spec = small(PackFormat::Wds);
    let input = Input::open(place(&from), &context, &OpenOptions::default(), &spec)
        .await
        .unwrap();
    let shaper = Arc::new(Shaper::new(input.schema(), input.source(), &spec).unwrap());
    let shares = Shares::new(&spec, input.reads()).unwrap();
    let reading = Reading::new(shaper, &context, &spec, &shares).unwrap();
    assert_eq!(
        input
            .chunks(0..1, &reading)
            .next()
            .await
            .unwrap()
            .unwrap()
            .0
            .len(),
        1
    );
    put(&*from, "a.dat", &vec![1; 700_000]).await;
    let error = input.chunks(0..1, &reading).next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_must_differ() {
    let from = memory_store();
    for name in ["a.tar", "b.tar"] {
        let samples = [("one", vec![text("txt", name)]), ("two", vec![text("txt", "x")])];
        shard_of(&*from, name, Box::new(WdsWriter::default()), &samples).await;
    }
    for format in [PackFormat::Wds, PackFormat::Parquet] {
        let result = run(&from, &memory_store(), &small(format)).await;
        refused(
            result,
            ErrorKind::InvalidInput,
            &["two samples have the key 'one'"],
        );
        let spec = PackSpec {
            drop_keys: true,
            ..small(format)
        };
        assert_eq!(run(&from, &memory_store(), &spec).await.unwrap().samples, 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_fields_that_a_format_cannot_hold_are_named() {
    let from = memory_store();
    put(&*from, "__x__/a.txt", b"1").await;
    put(&*from, "b.txt", b"1").await;
    put(&*from, "c.seg.PNG", b"1").await;
    // Keys that a tar cannot hold are not taken for samples at all.
    let report = run(&from, &memory_store(), &small(PackFormat::Wds))
        .await
        .unwrap();
    assert_eq!(report.samples, 2);
    let result = run(&from, &memory_store(), &small(PackFormat::Mds)).await;
    refused(result, ErrorKind::InvalidInput, &["'seg.png'", "'b'"]);
    let result = run(&from, &memory_store(), &small(PackFormat::Tokens)).await;
    refused(result, ErrorKind::InvalidInput, &["one field"]);
    let spec = PackSpec {
        fields: Some(vec!["txt".to_owned()]),
        ..small(PackFormat::Tokens)
    };
    refused(
        run(&from, &memory_store(), &spec).await,
        ErrorKind::InvalidInput,
        &["'txt'", "no list of numbers"],
    );
    let keyed = memory_store();
    let samples = [("x", vec![text("__key__", "a.b"), text("txt", "1")])];
    let fields: Vec<Field> = samples[0].1.iter().map(|(field, _)| field.clone()).collect();
    let writer = ParquetWriter::new(&fields, ParquetOptions::default()).unwrap();
    shard_of(&*keyed, "a.parquet", Box::new(writer), &samples).await;
    let result = run(&keyed, &memory_store(), &small(PackFormat::Wds)).await;
    refused(result, ErrorKind::InvalidInput, &["key 'a.b'"]);
}

/// TensorFlow's data sets name features like files in folders, which a tar would make of them.
#[tokio::test(flavor = "multi_thread")]
async fn slashes_in_names_become_dots_in_tars_unless_two_fields_would_be_one() {
    let made = |names: [&str; 2]| {
        let fields = names.map(|name| text(name, name)).to_vec();
        let kinds: Vec<Field> = fields.iter().map(|(field, _)| field.clone()).collect();
        (
            fields,
            ParquetWriter::new(&kinds, ParquetOptions::default()).unwrap(),
        )
    };
    let (from, to) = (memory_store(), memory_store());
    let (fields, writer) = made(["image/class/text", "image/Format"]);
    shard_of(&*from, "a.parquet", Box::new(writer), &[("k", fields)]).await;
    run(&from, &to, &small(PackFormat::Wds)).await.unwrap();
    let (_, found) = &samples(&to).await[0];
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["image.class.text", "image.format.txt"]);
    let (from, to) = (memory_store(), memory_store());
    let (fields, writer) = made(["a/b", "a.B"]);
    shard_of(&*from, "a.parquet", Box::new(writer), &[("k", fields)]).await;
    let result = run(&from, &to, &small(PackFormat::Wds)).await;
    refused(
        result,
        ErrorKind::InvalidInput,
        &["'a.B'", "'a.b.txt'", "another one"],
    );
    assert!(contents(&*to).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_mean_nothing_are_refused() {
    let from = memory_store();
    folder(&*from, 5).await;
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    for (format, filter, field, compression, shard_bytes, word) in [
        (PackFormat::Wds, "cls = ", "", "", 1, ""),
        (PackFormat::Wds, "other = 1", "", "", 1, "other"),
        (PackFormat::Wds, "", "nope", "", 1, "nope"),
        (PackFormat::Wds, "", "", "br", 1, "br"),
        (
            PackFormat::Wds,
            "",
            "",
            "lz4",
            1,
            "format wds cannot be compressed with 'lz4' there are gz:0-9 and zstd:1-22 for it",
        ),
        (PackFormat::Mds, "", "", "lz4", 1, "there are br:0-11"),
        (PackFormat::TfRecord, "", "", "zstd", 1, "zstd"),
        (PackFormat::Parquet, "", "", "gz", 1, "gz"),
        (PackFormat::Wds, "", "", "", 0, "shard_size"),
        (PackFormat::Mds, "", "", "", 5 << 30, "4 GiB"),
        (PackFormat::Wds, "cls = 77", "", "", 1, "no sample is left"),
        (PackFormat::Tokens, "", "cls", "", 1, "'cls'"),
    ] {
        let to = memory_store();
        let spec = PackSpec {
            filter: given(filter),
            fields: given(field).map(|field| vec![field]),
            compression: given(compression),
            shard_bytes,
            ..PackSpec::new(format)
        };
        let error = run(&from, &to, &spec).await.unwrap_err();
        let text = format!("{error} {}", error.hint().unwrap_or_default());
        assert!(
            error.kind() == ErrorKind::InvalidInput && text.contains(word),
            "{text}"
        );
        assert!(contents(&*to).await.is_empty(), "{word}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_inside_the_input_or_around_it_is_refused() {
    let (dir, context) = (tempfile::tempdir().unwrap(), context());
    let outer = local_at(dir.path(), &context);
    folder(&*outer, 3).await;
    let spec = small(PackFormat::Wds);
    let inner = local_at(&dir.path().join("d0/packed"), &context);
    refused(
        run(&outer, &inner, &spec).await,
        ErrorKind::InvalidInput,
        &["overlap"],
    );
    let part = local_at(&dir.path().join("d0"), &context);
    refused(
        run(&part, &outer, &spec).await,
        ErrorKind::InvalidInput,
        &["overlap"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_shards_are_not_packed() {
    let from = memory_store();
    folder(&*from, 20).await;
    let packed = memory_store();
    run(&from, &packed, &small(PackFormat::Wds)).await.unwrap();
    let mut bytes = contents(&*packed).await["shard-000000.tar"].clone();
    // Within the data of the first member.
    bytes[515] ^= 1;
    put(&*packed, "shard-000000.tar", &bytes).await;
    let to = memory_store();
    let result = run(&packed, &to, &small(PackFormat::TfRecord)).await;
    refused(result, ErrorKind::Corrupt, &["'d0/s0000'", "checksum"]);
    assert!(contents(&*to).await.is_empty(), "another command may begin there");
}
