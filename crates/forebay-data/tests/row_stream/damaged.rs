//! Damage in one column chunk, or in a footer: nobody uses it, whoever does not need it goes on, and `verify` names it.

use std::collections::BTreeSet;

use forebay_core::Error;
use forebay_data::dataset::{Progress, Silent};
use forebay_data::filter::Filter;
use forebay_data::verify::{Damage, DamageKind, VerifyReport, verify};

use super::*;

/// The file of a shard, opened beside the data set.
async fn file_of(dataset: &Dataset, store: &Arc<dyn Store>, shard: usize) -> File {
    let bytes = bytes_of(dataset, store, shard).await.into();
    File::from_bytes(&bytes, None).unwrap()
}

fn reading(fields: &[&str]) -> StreamSpec {
    let mut reading = several();
    reading.epochs = Some(1);
    reading.fields = Some(fields.iter().map(|field| (*field).to_owned()).collect());
    reading
}

/// What stops a stream.
async fn stopped(dataset: &Dataset, fields: &[&str]) -> Error {
    let mut loader = Loader::new(dataset.clone(), &reading(fields)).unwrap();
    loop {
        if let Err(error) = loader.next_batch().await.unwrap() {
            return error;
        }
    }
}

/// How many rows a stream gives until its end, and how many bytes of them were verified.
async fn drained(dataset: &Dataset, fields: &[&str]) -> (usize, u64) {
    let mut reading = reading(fields);
    // Lanes share a group that one of them still holds, and else read it again: one lane reads each exactly once.
    reading.order.lanes = 1;
    let mut loader = Loader::new(dataset.clone(), &reading).unwrap();
    let mut rows = 0;
    while let Some(batch) = loader.next_batch().await {
        rows += batch.unwrap().len();
    }
    let report = loader.report();
    assert_eq!(report.bad_samples, 0);
    (rows, report.ledger.verified_bytes)
}

async fn verified(dataset: &Dataset) -> VerifyReport {
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    verify(dataset, &silent, |_| {}).await.unwrap()
}

fn total() -> usize {
    SIZES.iter().sum::<u32>() as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_chunk_stops_those_who_read_it_and_nobody_else() {
    let (dataset, store) = written(&SIZES).await;
    let file = file_of(&dataset, &store, 2).await;
    for (name, other) in [("number", "large"), ("large", "number")] {
        let span = file.span(3, column_of(&file, name)).unwrap();
        let damaged = with_flip(&dataset, &store, 2, span.start() + span.len() / 2).await;
        for fields in [&[name][..], &[name, other]] {
            let error = stopped(&damaged, fields).await;
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let text = error.to_string();
            let place = format!(
                "row group 3, column '{name}': its chunk at byte {} does not have the checksum of the manifest",
                span.start()
            );
            assert!(text.contains("002.parquet") && text.contains(&place), "{text}");
        }
        // The bytes of the damaged chunk may even be read, where they lie between two that are wanted.
        let (mut bytes, mut fields) = (0, Vec::new());
        for name in [other, "__key__"] {
            fields.push(name);
            bytes += chunk_bytes(&dataset, &store, name).await;
            assert_eq!(drained(&damaged, &fields).await, (total(), bytes));
        }

        let report = verified(&damaged).await;
        assert_eq!(report.damages_count, 2, "{:?}", report.damages);
        let expected = Damage {
            file: None,
            shard: Key::parse("002.parquet").unwrap(),
            kind: DamageKind::ChunkCrc,
            sample: None,
            key: None,
            group: Some(3),
            column: Some(name.to_owned()),
            offset: Some(span.start()),
            message: format!(
                "column '{name}' of group 3 at byte {} does not have its checksum",
                span.start()
            ),
        };
        assert_eq!(report.damages[0], expected);
        assert_eq!(report.damages[1].kind, DamageKind::Sha256);
        let lost = file.groups()[3].rows;
        assert_eq!(report.samples_whole, total() as u64 - lost);
        assert_eq!((report.shards, report.shards_whole), (4, 3));
    }
    assert!(verified(&dataset).await.is_whole());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_of_a_chunk_is_under_its_checksum() {
    let (dataset, store) = written(&[12]).await;
    let file = file_of(&dataset, &store, 0).await;
    let (number, other) = (column_of(&file, "number"), column_of(&file, "large"));
    let span = file.span(0, number).unwrap();
    // Headers of pages too, of which Parquet itself has no checksum.
    for at in span.start()..span.end() {
        let damaged = with_flip(&dataset, &store, 0, at).await;
        let error = damaged.group(0, 0, Some(&[number])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
        assert!(error.message().contains("checksum of the manifest"), "{error}");
        let block = damaged.group(0, 0, Some(&[other])).await.unwrap();
        assert_eq!(block.field(1, other), Some(&large(1)[..]));
        assert_eq!(block.field(1, number), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_filter_reads_is_verified() {
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    let filter = Filter::parse("number >= 60 and number < 62").unwrap();
    let (dataset, store) = written(&SIZES).await;
    let kept = dataset.keep(&filter, 2, 64 << 20, &progress).await.unwrap();
    let file = file_of(&dataset, &store, 2).await;
    // Only the first group of the third file may have them, by what the footer says.
    let span = file.span(0, column_of(&file, "number")).unwrap();
    assert_eq!(kept.samples_kept(), 2);
    assert_eq!(kept.filter_ledger().unwrap().verified_bytes, span.len());

    // Rows that cannot be judged are kept, and meet the policy for bad samples.
    let damaged = with_flip(&dataset, &store, 2, span.start() + 1).await;
    let kept = damaged.keep(&filter, 2, 64 << 20, &progress).await.unwrap();
    assert_eq!(kept.samples_kept(), file.groups()[0].rows);
    assert_eq!(kept.filter_ledger().unwrap().verified_bytes, 0);
    let text = stopped(&kept, &["number"]).await.to_string();
    assert!(
        text.contains("row group 0, column 'number': its chunk at byte"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_footer_that_is_another_is_not_believed() {
    let (dataset, store) = written(&[12, 5]).await;
    let table = dataset.table(0).await.unwrap();
    let Layout::Groups(groups) = &table.layout else {
        panic!("{table:?}")
    };
    let extent = groups.footer.extent;
    let mut kinds = BTreeSet::new();
    for at in (extent.start()..extent.end()).step_by(3) {
        let damaged = with_flip(&dataset, &store, 0, at).await;
        let error = damaged.group(0, 0, Some(&[0])).await.unwrap_err();
        kinds.insert(format!("{:?}", error.kind()));
        let expected = format!(
            "its footer at byte {} does not have the checksum of the manifest",
            extent.start()
        );
        assert_eq!(error.message(), expected);
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["Corrupt"]);

    let damaged = with_flip(&dataset, &store, 0, extent.end() - 1).await;
    let text = stopped(&damaged, &["number"]).await.to_string();
    assert!(text.contains("000.parquet") && text.contains("footer"), "{text}");
    let report = verified(&damaged).await;
    let kinds: Vec<_> = report.damages.iter().map(|damage| damage.kind).collect();
    assert_eq!(kinds, [DamageKind::Format, DamageKind::Sha256]);
    assert!(report.damages[0].message.contains("its footer at byte"));
    assert_eq!(report.samples_whole, 5, "those of the other file");

    // The end of the file says where the footer is. Nobody asks it who has a manifest.
    let damaged = with_flip(&dataset, &store, 0, extent.end() + 7).await;
    assert_eq!(drained(&damaged, &["number"]).await.0, 17);
    assert!(!verified(&damaged).await.is_whole());
}
