//! Plain files and raw tokens: what was packed becomes what it was.

use forebay_core::ErrorKind;
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};

use super::*;
use crate::format::parquet::{ParquetOptions, ParquetWriter};
use crate::format::wds::WdsWriter;
use crate::manifest::MANIFEST_NAME;
use crate::schema::Dtype;

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_the_same_after_a_tar() {
    let (from, tar, to) = (memory_store(), memory_store(), memory_store());
    folder(&*from, 60).await;
    run(&from, &tar, &small(PackFormat::Wds)).await.unwrap();
    let report = run(&tar, &to, &small(PackFormat::Files)).await.unwrap();
    assert_eq!((report.samples, report.shards_kept), (60, 0));
    assert!(report.written.bytes() > 0);
    assert!(written(&*to).await == contents(&*from).await);
    assert_eq!(samples(&to).await, samples_by_key(&tar).await);
    // What is complete is not written again, nor over.
    let error = run(&tar, &to, &small(PackFormat::Files)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
}

async fn samples_by_key(store: &Arc<dyn Store>) -> Vec<Sample> {
    let mut samples = samples(store).await;
    samples.sort();
    samples
}

/// Fail at every write in turn, and go on.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_gone_on_with_from_wherever_a_run_ended() {
    let (from, tar) = (memory_store(), memory_store());
    folder(&*from, 8).await;
    run(&from, &tar, &small(PackFormat::Wds)).await.unwrap();
    let mut ended = 0;
    for nth in 1..40 {
        let to = memory_store();
        let plan = FaultPlan::new(Seed(0)).with(Op::Put, When::Nth(nth), Fault::Fail(ErrorKind::OutOfSpace));
        let faulty: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&to), plan));
        if let Err(error) = run(&tar, &faulty, &small(PackFormat::Files)).await {
            ended += 1;
            assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
            assert!(!contents(&*to).await.contains_key(MANIFEST_NAME), "{nth}");
            run(&tar, &to, &small(PackFormat::Files)).await.unwrap();
        }
        assert!(written(&*to).await == contents(&*from).await, "{nth}");
    }
    assert!(ended > 25, "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_and_limits_hold_for_files() {
    let (from, to) = (memory_store(), memory_store());
    folder(&*from, 30).await;
    let spec = PackSpec {
        filter: Some("cls < 5".to_owned()),
        limit: Some(7),
        fields: Some(vec!["txt".to_owned()]),
        ..small(PackFormat::Files)
    };
    assert_eq!(run(&from, &to, &spec).await.unwrap().samples, 7);
    let names: Vec<String> = written(&*to).await.into_keys().collect();
    assert_eq!(names.len(), 7);
    assert!(names.iter().all(|name| name.contains(".txt")), "{names:?}");
    let spec = PackSpec {
        filter: Some("cls > 50".to_owned()),
        ..small(PackFormat::Files)
    };
    let to = memory_store();
    let error = run(&from, &to, &spec).await.unwrap_err();
    assert!(error.message().contains("no sample is left"), "{error}");
    assert!(contents(&*to).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_of_one_key_are_not_made_one_file() {
    for (other, part) in [("b", "with another content"), ("a", "2 samples were written")] {
        let (from, to) = (memory_store(), memory_store());
        for (name, value) in [("0.tar", "a"), ("1.tar", other)] {
            let samples = [("one", vec![text("txt", value)])];
            shard_of(&*from, name, Box::new(WdsWriter::default()), &samples).await;
        }
        let error = run(&from, &to, &small(PackFormat::Files)).await.unwrap_err();
        assert!(error.message().contains(part), "{error}");
        assert!(error.hint().unwrap().contains("--drop-keys"), "{error}");
        assert!(!contents(&*to).await.contains_key(MANIFEST_NAME));
        let (to, spec) = (memory_store(), small(PackFormat::Files));
        let spec = PackSpec {
            drop_keys: true,
            ..spec
        };
        assert_eq!(run(&from, &to, &spec).await.unwrap().samples, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_plain_files_cannot_be_is_refused() {
    let from = memory_store();
    folder(&*from, 3).await;
    let files = small(PackFormat::Files);
    let shuffled = PackSpec {
        shuffle: Some(1),
        ..files.clone()
    };
    let compressed = PackSpec {
        compression: Some("gz".to_owned()),
        ..files.clone()
    };
    for (spec, part) in [
        (shuffled, "no order"),
        (compressed, "format files cannot be compressed"),
    ] {
        let to = memory_store();
        let error = run(&from, &to, &spec).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.message().contains(part), "{error}");
        assert!(contents(&*to).await.is_empty());
    }
    // A name that leads elsewhere is that of nobody's file.
    let (from, to) = (memory_store(), memory_store());
    let made = [("x", vec![text("__key__", "../up"), text("txt", "1")])];
    let fields: Vec<Field> = made[0].1.iter().map(|(field, _)| field.clone()).collect();
    let writer = ParquetWriter::new(&fields, ParquetOptions::default()).unwrap();
    shard_of(&*from, "a.parquet", Box::new(writer), &made).await;
    let error = run(&from, &to, &files).await.unwrap_err();
    assert!(error.message().contains("leads out of the folder"), "{error}");
    assert!(contents(&*to).await.is_empty(), "the corrected command can begin");
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_of_one_length_go_to_raw_tokens() {
    let shape = vec![6];
    let field = Field::new(
        "ids",
        Kind::Array {
            dtype: Dtype::Uint16,
            shape,
        },
    );
    let made: Vec<Made<'_>> = (0..50u16)
        .map(|row| {
            let tokens = (0..6).flat_map(|token| (token * 7 + row).to_le_bytes()).collect();
            ("", vec![(field.clone(), tokens)])
        })
        .collect();
    let from = memory_store();
    let options = ParquetOptions {
        has_keys: false,
        ..ParquetOptions::default()
    };
    let writer = ParquetWriter::new(std::slice::from_ref(&field), options).unwrap();
    shard_of(&*from, "a.parquet", Box::new(writer), &made).await;
    let to = memory_store();
    let spec = PackSpec {
        dtype: Some(Dtype::Uint32),
        samples_per_shard: Some(20),
        ..small(PackFormat::Raw)
    };
    assert_eq!(run(&from, &to, &spec).await.unwrap().shards, 3);
    let expected = |rows: std::ops::Range<u32>| -> Vec<u8> {
        let tokens = rows.flat_map(|row| (0..6).map(move |token| token * 7 + row));
        tokens.flat_map(u32::to_le_bytes).collect()
    };
    let found = contents(&*to).await;
    assert!(
        found["shard-000002.bin"] == expected(40..50),
        "tokens and nothing else"
    );
    assert!(!found.keys().any(|name| name.contains(".idx")));
    let back = samples(&to).await;
    assert_eq!(back.len(), 50);
    assert_eq!(back[33].1["tokens"], expected(33..34));
    // Where samples end must be known without an index.
    let list = Field::new("ids", Kind::List { dtype: Dtype::Uint16 });
    let from = memory_store();
    let writer = ParquetWriter::new(std::slice::from_ref(&list), options).unwrap();
    let made = [("", vec![(list.clone(), vec![1, 0])])];
    shard_of(&*from, "a.parquet", Box::new(writer), &made).await;
    let error = run(&from, &memory_store(), &small(PackFormat::Raw))
        .await
        .unwrap_err();
    assert!(error.message().contains("no fixed number of tokens"), "{error}");
    assert!(error.hint().unwrap().contains("--to tokens"));
}
