//! Decoding in the loader, against decoding each sample by itself.

use std::path::PathBuf;

use super::*;
use crate::format::wds::WdsWriter;
use crate::format::{SampleRef, ShardWriter};
use crate::image::{Decoder, ImagePlan};

const SHARDS: usize = 3;
const SAMPLES: usize = 20;
const IMAGES: [&str; 4] = ["rgb.jpg", "gray.jpg", "progressive.jpg", "rgba.png"];
const PLAN: &str = "rrc:24x32,flip,float";

fn image(number: usize) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/image");
    std::fs::read(folder.join(IMAGES[number % IMAGES.len()])).unwrap()
}

/// Tars of images with labels; those `damaged` cannot be decoded.
async fn images(damaged: &[usize]) -> Dataset {
    let context = context();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let fields = ["image", "cls", "txt"].map(|name| Field::new(name, Kind::Bytes));
    for shard in 0..SHARDS {
        let mut writer = WdsWriter::default();
        for index in 0..SAMPLES {
            let number = shard * SAMPLES + index;
            let mut image = image(number);
            if damaged.contains(&number) {
                image.truncate(60);
            }
            let (label, text) = (number.to_string(), "word ".repeat(number % 5));
            let sample = SampleRef {
                key: &format!("s{number:04}"),
                fields: &[
                    (&fields[0], &image),
                    (&fields[1], label.as_bytes()),
                    (&fields[2], text.as_bytes()),
                ],
            };
            writer.add(sample).unwrap();
        }
        let bytes = Box::new(writer).finish().unwrap();
        let key = Key::parse(&format!("{shard:03}.tar")).unwrap();
        store
            .put_bytes(&key, &bytes, &PutOptions::default())
            .await
            .unwrap();
    }
    Dataset::open(store, &context, &OpenOptions::default())
        .await
        .unwrap()
}

fn decoding(threads: usize) -> StreamSpec {
    StreamSpec {
        order: OrderSpec {
            seed: Seed(5),
            shuffle: true,
            lanes: 4,
            batch_size: 12,
            ..OrderSpec::default()
        },
        epochs: Some(2),
        decode: vec![
            ("image".to_owned(), format!("image:{PLAN}").parse().unwrap()),
            ("cls".to_owned(), Decode::Int { missing: None }),
        ],
        memory_bytes_max: 8 << 20,
        // Two batches at a time, so that several threads copy for each.
        ready_bytes_max: 1,
        threads,
        ..StreamSpec::default()
    }
}

/// Epoch, label and pixels of every sample, after everything else in the batches was compared with what it should be.
async fn drain_images(loader: &mut Loader) -> Vec<(u64, usize, Vec<u8>)> {
    let mut seen = Vec::new();
    while let Some(batch) = loader.next_batch().await {
        let batch = batch.unwrap();
        let field = |name: &str| {
            let mut fields = batch.fields().iter();
            fields.find(|field| field.field.name == name).unwrap()
        };
        let (image, label, text) = (field("image"), field("cls"), field("txt"));
        assert!(matches!(&image.field.kind, Kind::Array { shape, .. } if *shape == [3, 24, 32]));
        for row in 0..batch.len() {
            let number = batch.value(label, row).unwrap().try_into().unwrap();
            let number = usize::try_from(i64::from_le_bytes(number)).unwrap();
            assert_eq!(
                batch.value(text, row).unwrap(),
                "word ".repeat(number % 5).as_bytes()
            );
            assert_eq!(
                batch.keys()[row],
                SampleKey::Named(format!("s{number:04}").into())
            );
            seen.push((batch.epoch(), number, batch.value(image, row).unwrap().to_vec()));
        }
    }
    seen
}

fn expected(epoch: u64, number: usize) -> Vec<u8> {
    let plan = Arc::new(ImagePlan::parse(PLAN).unwrap());
    let mut out = vec![0; plan.output_bytes()];
    let identity = ((number / SAMPLES) as u64) << 40 | (number % SAMPLES) as u64;
    let mut decoder = Decoder::new(plan, Seed(5), epoch);
    decoder.decode_into(&image(number), identity, &mut out).unwrap();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_hold_what_each_image_gives_by_itself() {
    let dataset = images(&[]).await;
    let mut runs = Vec::new();
    for threads in [1, 3, 16] {
        let seen = drain_images(&mut Loader::new(dataset.clone(), &decoding(threads)).unwrap()).await;
        assert_eq!(seen.len(), 2 * SHARDS * SAMPLES);
        runs.push(seen);
    }
    for (epoch, number, pixels) in &runs[0] {
        assert_eq!(*pixels, expected(*epoch, *number), "sample {number}");
    }
    let of_epoch = |wanted: u64| {
        let seen = runs[0].iter().filter(move |(epoch, ..)| *epoch == wanted);
        seen.map(|(_, number, pixels)| (*number, pixels))
            .collect::<BTreeMap<_, _>>()
    };
    assert_ne!(of_epoch(0), of_epoch(1), "other choices in another epoch");
    assert!(runs.iter().all(|run| *run == runs[0]), "whoever decodes");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_decoded_is_a_bad_sample() {
    let damaged = [3, 4, 41];
    let dataset = images(&damaged).await;
    let mut loader = Loader::new(dataset.clone(), &decoding(2)).unwrap();
    let error = loop {
        match loader.next_batch().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("field 'image'"), "{error}");

    for threads in [2, 6, 16] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("bad");
        let mut keeping = decoding(threads);
        keeping.bad = BadPolicy::Quarantine {
            max: 3,
            folder: folder.clone(),
        };
        let mut loader = Loader::new(dataset.clone(), &keeping).unwrap();
        let seen = drain_images(&mut loader).await;
        assert_eq!(seen.len(), 2 * SHARDS * SAMPLES, "batches stay full");
        for (epoch, number, pixels) in &seen {
            assert!(!damaged.contains(number));
            assert_eq!(*pixels, expected(*epoch, *number), "sample {number}");
        }
        assert_eq!(loader.report().bad_samples, 3, "in both epochs");
        let list = std::fs::read_to_string(folder.join("bad-00000.jsonl")).unwrap();
        let mut keys = Vec::new();
        for line in list.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            keys.push(line["key"].as_str().unwrap().to_owned());
            let files = line["files"].as_array().unwrap();
            let image = files
                .iter()
                .filter_map(|file| file.as_str())
                .find(|file| file.contains(".image"));
            assert_eq!(std::fs::read(folder.join(image.unwrap())).unwrap().len(), 60);
        }
        keys.sort();
        assert_eq!(keys, ["s0003", "s0004", "s0041"], "each once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_number_is_a_bad_sample_too() {
    let dataset = images(&[]).await;
    let mut wrong = decoding(2);
    wrong.decode = vec![("txt".to_owned(), "float".parse().unwrap())];
    let mut loader = Loader::new(dataset.clone(), &wrong).unwrap();
    let error = loader.next_batch().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("is no such number"), "{error}");
    wrong.bad = BadPolicy::Skip { max: 1000 };
    let mut loader = Loader::new(dataset.clone(), &wrong).unwrap();
    let error = loader.next_batch().await.unwrap().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("no sample of a batch is whole; sample ") && text.contains("field 'txt'"),
        "{text}"
    );
    wrong.decode = vec![("nothing".to_owned(), Decode::Int { missing: None })];
    let error = Loader::new(dataset, &wrong).unwrap_err();
    assert!(error.hint().unwrap().contains("cls"), "{error:?}");
}

#[test]
fn ways_to_decode_are_read_as_they_are_written() {
    assert_eq!("int".parse::<Decode>().unwrap(), Decode::Int { missing: None });
    assert_eq!(
        "int:-1".parse::<Decode>().unwrap(),
        Decode::Int { missing: Some(-1) }
    );
    assert_eq!(
        "float:0.5".parse::<Decode>().unwrap(),
        Decode::Float { missing: Some(0.5) }
    );
    assert!(matches!(
        "image:crop:8".parse::<Decode>().unwrap(),
        Decode::Image(_)
    ));
    for text in [
        "",
        "image",
        "image:",
        "image:what",
        "int:3.5",
        "int:x",
        "float:x",
        "json",
    ] {
        assert!(text.parse::<Decode>().is_err(), "{text}");
    }
}
