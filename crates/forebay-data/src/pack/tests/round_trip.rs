//! Samples come back as they were, in every format, in every order, whatever the number of threads.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::codec::Codec;
use crate::dataset::Save;
use crate::format::parquet::{ParquetOptions, ParquetWriter};
use crate::format::tfrecord::TfRecordWriter;
use crate::format::wds::WdsWriter;
use crate::schema::Dtype;

/// Formats that hold any field.
const ANY: [PackFormat; 4] = [
    PackFormat::Wds,
    PackFormat::Mds,
    PackFormat::TfRecord,
    PackFormat::Parquet,
];

/// A field of every sample of [`folder`].
fn always() -> Vec<String> {
    ["txt", "cls", "dat"].map(str::to_owned).to_vec()
}

async fn expected(store: &Arc<dyn Store>) -> Vec<Sample> {
    let mut samples: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for (name, bytes) in contents(&**store).await {
        let (stem, field) = name.split_once('.').unwrap();
        samples
            .entry(stem.to_owned())
            .or_default()
            .insert(field.to_owned(), bytes);
    }
    samples.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_goes_through_every_format_to_every_other() {
    let from = memory_store();
    folder(&*from, 120).await;
    let mut whole = expected(&from).await;
    for (_, fields) in &mut whole {
        fields.remove("json");
    }
    for first in ANY {
        let spec = PackSpec {
            fields: Some(always()),
            samples_per_shard: Some(40),
            ..small(first)
        };
        let between = memory_store();
        let report = run(&from, &between, &spec).await.unwrap();
        assert!(report.shards > 2, "{first:?}: {report:?}");
        assert_eq!((report.samples, report.samples_read), (120, 120));
        assert_eq!(samples(&between).await, whole, "{first:?}");
        for second in ANY {
            let to = memory_store();
            run(&between, &to, &small(second)).await.unwrap();
            let mut back = samples(&to).await;
            if second == PackFormat::Wds {
                // Kinds that a format does not keep are named by their ends here.
                for (_, fields) in &mut back {
                    let short = |name: String| name.split('.').next().unwrap().to_owned();
                    *fields = std::mem::take(fields)
                        .into_iter()
                        .map(|(name, bytes)| (short(name), bytes))
                        .collect();
                }
            }
            assert_eq!(back, whole, "{first:?} to {second:?}");
        }
    }
}

/// As others read it: their files say nothing of how they are compressed but by their bytes.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_records_are_known_by_their_bytes() {
    let from = memory_store();
    folder(&*from, 60).await;
    let plain = memory_store();
    run(&from, &plain, &small(PackFormat::TfRecord)).await.unwrap();
    let whole = samples(&plain).await;
    for (compression, codec) in [
        ("gz", Codec::Gzip),
        ("zlib", Codec::Zlib),
        ("zlib:0", Codec::Zlib),
        ("zlib:9", Codec::Zlib),
    ] {
        let to = memory_store();
        let spec = PackSpec {
            compression: Some(compression.to_owned()),
            ..small(PackFormat::TfRecord)
        };
        run(&from, &to, &spec).await.unwrap();
        assert_eq!(samples(&to).await, whole, "{compression}");
        let name = compression.split(':').next().unwrap();
        let shards = written(&*to).await.into_keys();
        let shards: Vec<String> = shards.filter(|name| name.starts_with("shard-")).collect();
        let ending = format!(".tfrecord.{name}");
        assert!(!shards.is_empty() && shards.iter().all(|name| name.ends_with(&ending)));
        to.delete(&key(crate::manifest::MANIFEST_NAME)).await.unwrap();
        let opened = Dataset::open(Arc::clone(&to), &context(), &OpenOptions::default()).await;
        let opened = opened.unwrap();
        assert!(!opened.is_indexed() && opened.samples() == 60, "{compression}");
        assert!(
            opened.shards().iter().all(|shard| shard.codec == codec),
            "{compression}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_only_some_samples_have_stay_so() {
    let from = memory_store();
    folder(&*from, 40).await;
    let whole = expected(&from).await;
    for format in [PackFormat::Wds, PackFormat::TfRecord, PackFormat::Parquet] {
        let to = memory_store();
        run(&from, &to, &small(format)).await.unwrap();
        assert_eq!(samples(&to).await, whole, "{format:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_do_not_depend_on_threads_nor_on_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let from = local_at(&dir.path().join("from"), &context());
    folder(&*from, 90).await;
    let in_memory = memory_store();
    folder(&*in_memory, 90).await;
    for format in ANY {
        let mut all = Vec::new();
        for (number, threads) in [1, 2, 7].into_iter().enumerate() {
            let spec = PackSpec {
                threads,
                fields: Some(always()),
                samples_per_shard: Some(20),
                compression: (format != PackFormat::TfRecord).then(|| "zstd".to_owned()),
                ..small(format)
            };
            let to = local_at(
                &dir.path().join(format!("{}-{number}", format.name())),
                &context(),
            );
            run(&from, &to, &spec).await.unwrap();
            all.push(written(&*to).await);
            let to = memory_store();
            run(&in_memory, &to, &spec).await.unwrap();
            all.push(written(&*to).await);
        }
        assert!(all[0].len() > 3, "{format:?}");
        assert!(all.iter().all(|other| *other == all[0]), "{format:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shuffles_are_functions_of_the_seed() {
    let from = memory_store();
    folder(&*from, 100).await;
    let indexed = memory_store();
    run(&from, &indexed, &small(PackFormat::Wds)).await.unwrap();
    for source in [&from, &indexed] {
        let mut orders = Vec::new();
        for (seed, threads) in [(1, 1), (1, 5), (2, 5)] {
            let to = memory_store();
            let spec = PackSpec {
                shuffle: Some(seed),
                threads,
                ..small(PackFormat::Wds)
            };
            run(source, &to, &spec).await.unwrap();
            let keys: Vec<String> = samples(&to).await.into_iter().map(|(key, _)| key).collect();
            orders.push((keys, written(&*to).await));
        }
        assert!(orders[0] == orders[1]);
        assert_ne!(orders[0].0, orders[2].0);
        assert!(!orders[0].0.is_sorted());
        let sets: Vec<BTreeSet<&String>> = orders.iter().map(|(keys, _)| keys.iter().collect()).collect();
        assert_eq!((sets[0].len(), &sets[0]), (100, &sets[2]));
        // What lay in the first tenth is spread over the whole.
        let late = orders[0]
            .0
            .iter()
            .skip(50)
            .filter(|key| key.starts_with("d0/s000"))
            .count();
        assert!((1..4).contains(&late), "{late}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_and_limits_choose() {
    let from = memory_store();
    folder(&*from, 60).await;
    let indexed = memory_store();
    run(&from, &indexed, &small(PackFormat::Wds)).await.unwrap();
    for source in [&from, &indexed] {
        for (filter, limit, count) in [
            (None, Some(7), 7),
            (None, Some(600), 60),
            (Some("cls = 3"), None, 6),
            (Some("cls in (3, 4) and json is not null"), None, 6),
            (Some("json.width >= 50 and json.tag = 't0'"), None, 2),
            (Some("cls = 3"), Some(4), 4),
            (Some("__key__ >= 'd2/'"), None, 20),
        ] {
            let to = memory_store();
            let spec = PackSpec {
                filter: filter.map(str::to_owned),
                limit,
                samples_per_shard: Some(3),
                ..small(PackFormat::Wds)
            };
            let report = run(source, &to, &spec).await.unwrap();
            assert_eq!(report.samples, count, "{filter:?} {limit:?}");
            assert_eq!(report.shards, count.div_ceil(3));
            let whole = expected(&from).await;
            let found = samples(&to).await;
            assert_eq!(found.len() as u64, count);
            assert!(found.iter().all(|sample| whole.contains(sample)));
            assert!(found.is_sorted_by_key(|(key, _)| key.clone()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_of_images_get_their_labels() {
    let from = memory_store();
    for (name, index) in [("cat/1.jpg", 1), ("cat/2.png", 2), ("dog/1.jpg", 3)] {
        put(&*from, name, &bytes_of(index, 50)).await;
    }
    let wds = memory_store();
    run(&from, &wds, &small(PackFormat::Wds)).await.unwrap();
    let labels: Vec<(String, Vec<u8>)> = samples(&wds)
        .await
        .into_iter()
        .map(|(key, fields)| (key, fields["cls"].clone()))
        .collect();
    let expected = [("cat/1", "0"), ("cat/2", "0"), ("dog/1", "1")];
    let expected = expected.map(|(key, label)| (key.to_owned(), label.as_bytes().to_vec()));
    assert_eq!(labels, expected);
    let mds = memory_store();
    run(&from, &mds, &small(PackFormat::Mds)).await.unwrap();
    assert_eq!(samples(&mds).await[2].1["label"], 1i64.to_le_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn stray_files_among_images_are_left_out_and_counted() {
    let from = memory_store();
    for (name, index) in [("cat/1.jpg", 1), ("cat/2.png", 2), ("dog/1.jpg", 3)] {
        put(&*from, name, &bytes_of(index, 50)).await;
    }
    let clean = run(&from, &memory_store(), &small(PackFormat::Wds))
        .await
        .unwrap();
    assert_eq!((clean.samples, clean.files_left_out), (3, 0));
    for name in ["README.txt", "cat/Thumbs.db", "annotations/all.csv"] {
        put(&*from, name, b"no image").await;
    }
    let report = run(&from, &memory_store(), &small(PackFormat::Wds))
        .await
        .unwrap();
    assert_eq!((report.samples, report.files_left_out), (3, 3));
    assert_eq!(report.fingerprint, clean.fingerprint);
    // Of a folder with an index, too.
    let saving = OpenOptions {
        save: Save::IfAbsent,
        ..OpenOptions::default()
    };
    Dataset::open(Arc::clone(&from), &context(), &saving)
        .await
        .unwrap();
    let report = run(&from, &memory_store(), &small(PackFormat::Wds))
        .await
        .unwrap();
    assert_eq!((report.samples, report.files_left_out), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_go_to_tokens_and_to_npy() {
    let from = memory_store();
    let field = Field::new("tokens", Kind::List { dtype: Dtype::Uint16 });
    let options = ParquetOptions {
        has_keys: false,
        ..ParquetOptions::default()
    };
    let writer = ParquetWriter::new(std::slice::from_ref(&field), options).unwrap();
    let rows: Vec<Made<'_>> = (0..50u16)
        .map(|row| {
            let tokens = (0..row).flat_map(|token| (token * row).to_le_bytes()).collect();
            ("", vec![(field.clone(), tokens)])
        })
        .collect();
    shard_of(&*from, "a.parquet", Box::new(writer), &rows).await;
    let tokens = memory_store();
    let spec = PackSpec {
        shard_bytes: 500,
        ..small(PackFormat::Tokens)
    };
    run(&from, &tokens, &spec).await.unwrap();
    assert!(contents(&*tokens).await.contains_key("shard-000000.idx"));
    let back: Vec<Vec<u8>> = samples(&tokens)
        .await
        .into_iter()
        .map(|(_, fields)| fields["tokens"].clone())
        .collect();
    let expected: Vec<Vec<u8>> = rows.iter().map(|(_, fields)| fields[0].1.clone()).collect();
    assert_eq!(back, expected);
    let wds = memory_store();
    run(&tokens, &wds, &small(PackFormat::Wds)).await.unwrap();
    let back = samples(&wds).await;
    assert_eq!(back[3].0, "000000003");
    assert_eq!(back[3].1["tokens.npy"][128..], expected[3]);
    let wide = memory_store();
    let spec = PackSpec {
        dtype: Some(Dtype::Int32),
        ..small(PackFormat::Tokens)
    };
    run(&tokens, &wide, &spec).await.unwrap();
    assert_eq!(samples(&wide).await[3].1["tokens"].len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_beside_them_leaves_other_fields_of_tfrecord_as_they_are() {
    let from = memory_store();
    let fields = [
        Field::new("img", Kind::Bytes),
        Field::new("ids", Kind::List { dtype: Dtype::Int32 }),
    ];
    let options = ParquetOptions {
        has_keys: false,
        ..ParquetOptions::default()
    };
    let writer = ParquetWriter::new(&fields, options).unwrap();
    let ids = |ids: &[i32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    let row = |img: &[u8], ids| {
        let values = [img.to_vec(), ids];
        ("", fields.iter().cloned().zip(values).collect())
    };
    let rows: Vec<Made<'_>> = vec![row(b"JPEGDATA", ids(&[1, 2])), row(b"PNG", ids(&[300]))];
    shard_of(&*from, "a.parquet", Box::new(writer), &rows).await;
    let packed = memory_store();
    run(&from, &packed, &small(PackFormat::TfRecord)).await.unwrap();
    // Once more, and with a feature that is a list of values in one record only, so that its message is what is read.
    let many = memory_store();
    let list = Kind::Encoded {
        encoding: "tf:bytes_list".to_owned(),
    };
    let list = Field::new("many", list);
    let row = |img: &[u8], values: &[u8]| {
        let fields = [fields[0].clone(), list.clone()].into_iter();
        ("", fields.zip([img.to_vec(), values.to_vec()]).collect())
    };
    let rows: Vec<Made<'_>> = vec![row(b"JPEGDATA", b"\n\x01a\n\x01b"), row(b"PNGPNGPN", b"\n\x01c")];
    shard_of(&*many, "a.tfrecord", Box::new(TfRecordWriter::new()), &rows).await;
    let again = memory_store();
    let spec = PackSpec {
        shard_bytes: 60,
        ..small(PackFormat::TfRecord)
    };
    run(&many, &again, &spec).await.unwrap();
    let (packed, again) = (samples(&packed).await, samples(&again).await);
    assert_eq!(packed[0].1["img"], b"JPEGDATA");
    assert_eq!(packed[0].1["ids"], [1, 2]);
    assert_eq!(packed[1].1["img"], b"PNG");
    assert_eq!(packed[1].1["ids"], [0xac, 2]);
    assert_eq!(again[0].1["img"], b"JPEGDATA");
    assert_eq!(again[0].1["many"], b"\n\x01a\n\x01b");
    assert_eq!(again[1].1["img"], b"PNGPNGPN");
    assert_eq!(again[1].1["many"], b"\n\x01c");
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_tfrecord_are_lists_in_parquet() {
    let from = memory_store();
    let fields = [
        Field::new("label", Kind::List { dtype: Dtype::Int64 }),
        Field::new(
            "x",
            Kind::List {
                dtype: Dtype::Float32,
            },
        ),
    ];
    let row = |label: i64, x: f32| {
        let values = [label.to_le_bytes().to_vec(), x.to_le_bytes().to_vec()];
        ("", fields.iter().cloned().zip(values).collect())
    };
    let rows: Vec<Made<'_>> = vec![row(-3, 0.5), row(300, 1.5)];
    shard_of(&*from, "a.tfrecord", Box::new(TfRecordWriter::new()), &rows).await;
    let packed = memory_store();
    run(&from, &packed, &small(PackFormat::Parquet)).await.unwrap();
    let dataset = Dataset::open(Arc::clone(&packed), &context(), &OpenOptions::default())
        .await
        .unwrap();
    let kinds: Vec<&Kind> = dataset
        .schema()
        .fields()
        .iter()
        .map(|field| &field.kind)
        .collect();
    assert!(kinds.contains(&&Kind::List { dtype: Dtype::Int64 }), "{kinds:?}");
    let packed = samples(&packed).await;
    assert_eq!(packed[0].1["label"], (-3i64).to_le_bytes());
    assert_eq!(packed[1].1["label"], 300i64.to_le_bytes());
    assert_eq!(packed[1].1["x"], 1.5f32.to_le_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_can_be_left_behind() {
    let from = memory_store();
    folder(&*from, 12).await;
    for format in [PackFormat::Wds, PackFormat::Parquet] {
        let to = memory_store();
        let spec = PackSpec {
            drop_keys: true,
            ..small(format)
        };
        run(&from, &to, &spec).await.unwrap();
        let keys: Vec<String> = samples(&to).await.into_iter().map(|(key, _)| key).collect();
        let last = if format == PackFormat::Wds {
            "000000011"
        } else {
            ""
        };
        assert_eq!((keys.len(), keys[11].as_str()), (12, last));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the samples, the sizes of shards and the threads: they come back.
    #[test]
    fn any_samples_come_back(
        sizes in prop::collection::vec(prop::collection::vec(0usize..3000, 3), 1..60),
        shard_bytes in 1u64..60_000,
        per_shard in prop::option::of(1u64..20),
        threads in 1usize..5,
        seed in prop::option::of(0u64..9),
        format in prop::sample::select(ANY.to_vec()),
        compresses in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let from = memory_store();
            let mut writer = Box::new(WdsWriter::default()) as Box<dyn crate::format::ShardWriter>;
            let mut whole: Vec<Sample> = Vec::new();
            for (index, sizes) in sizes.iter().enumerate() {
                let key = format!("k{index}");
                let names = ["a", "b", "c"].map(|name| Field::new(name, Kind::Bytes));
                let values: Vec<Vec<u8>> = sizes.iter().zip(0..).map(|(len, field)| bytes_of(index as u64 * 3 + field, *len)).collect();
                let fields: Vec<(&Field, &[u8])> = names.iter().zip(&values).map(|(field, value)| (field, &value[..])).collect();
                writer.add(crate::format::SampleRef { key: &key, fields: &fields }).unwrap();
                let fields = names.iter().zip(values).map(|(field, value)| (field.name.clone(), value));
                whole.push((key, fields.collect()));
            }
            put(&*from, "x.tar", &writer.finish().unwrap()).await;
            let compression = match format {
                _ if !compresses => None,
                PackFormat::TfRecord => Some("gz"),
                _ => Some("zstd:1"),
            };
            let spec = PackSpec {
                // A shard of MDS has a header that must fit.
                shard_bytes: shard_bytes.max(2),
                samples_per_shard: per_shard,
                threads,
                shuffle: seed,
                compression: compression.map(str::to_owned),
                ..PackSpec::new(format)
            };
            let to = memory_store();
            run(&from, &to, &spec).await.unwrap();
            let mut back = samples(&to).await;
            if seed.is_some() {
                let number = |sample: &Sample| sample.0[1..].parse::<usize>().unwrap();
                back.sort_by_key(number);
            }
            prop_assert!(back == whole);
            Ok(())
        })?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_that_carry_their_shape_become_npy() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    for (name, arrays) in [("litdata/every", 4), ("mds/every", 2)] {
        let from = local_at(&fixtures.join(name), &context());
        let to = memory_store();
        run(&from, &to, &small(PackFormat::Wds)).await.unwrap();
        let found = samples(&to).await;
        assert!(!found.is_empty(), "{name}");
        for (_, fields) in found {
            let npy: Vec<_> = fields
                .iter()
                .filter(|(name, _)| name.split('.').next_back() == Some("npy"))
                .collect();
            assert!(npy.len() >= arrays, "{name}: {:?}", fields.keys());
            assert!(
                npy.iter().all(|(_, bytes)| bytes.starts_with(b"\x93NUMPY\x01")),
                "{name}"
            );
        }
    }
}
