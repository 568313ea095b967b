//! Samples that are lent to batches without a whole one, where that shows only when they are decoded.

use std::path::Path;

use super::*;

const SAMPLES: u64 = 10;

/// Samples that do not decode.
const BAD: [u64; 3] = [4, 5, 6];

/// Each sample is its number; the bad ones have it twice.
async fn numbered() -> Dataset {
    let samples = (0..SAMPLES).map(|number| {
        let times = if BAD.contains(&number) { 2 } else { 1 };
        number.to_le_bytes().repeat(times)
    });
    let samples: Vec<Vec<u8>> = samples.collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    lists(Dtype::Int64, &samples).await
}

fn one_by_one(folder: &Path) -> StreamSpec {
    StreamSpec {
        order: OrderSpec {
            batch_size: 1,
            lanes: 1,
            ..OrderSpec::default()
        },
        decode: vec![("ids".to_owned(), "array:int64".parse().unwrap())],
        bad: BadPolicy::Quarantine {
            max: 3,
            folder: folder.to_owned(),
        },
        ..StreamSpec::default()
    }
}

async fn next(loader: &mut Loader) -> Option<Result<u64>> {
    let batch = match loader.next_batch().await? {
        Ok(batch) => batch,
        Err(error) => return Some(Err(error)),
    };
    let value = batch.value(&batch.fields()[0], 0).unwrap();
    Some(Ok(u64::from_le_bytes(value.try_into().unwrap())))
}

/// A run that goes on behind so many batches.
async fn resumed(dataset: &Dataset, done: u64, folder: &Path) -> Loader {
    let elsewhere = tempfile::tempdir().unwrap();
    let mut begun = Loader::new(dataset.clone(), &one_by_one(elsewhere.path())).unwrap();
    for _ in 0..done {
        next(&mut begun).await.unwrap().unwrap();
    }
    Loader::resume(dataset.clone(), &one_by_one(folder), &begun.position()).unwrap()
}

/// Numbers of the samples that were kept, as the list has them.
fn kept(folder: &Path) -> Vec<u64> {
    let list = std::fs::read_to_string(folder.join("bad-00000.jsonl")).unwrap();
    let indexes = list.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["index"].as_u64().unwrap()
    });
    indexes.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_on_keeps_no_bad_samples_of_the_one_before() {
    let dataset = numbered().await;
    let folder = tempfile::tempdir().unwrap();
    let mut loader = resumed(&dataset, 5, folder.path()).await;
    // Sample 4 is what it would lend from.
    let _first = next(&mut loader).await.unwrap();
    drop(next(&mut loader).await);
    let told = loader
        .report()
        .bad
        .iter()
        .map(|bad| bad.index)
        .collect::<Vec<_>>();
    let mut kept = kept(folder.path());
    kept.sort_unstable();
    assert!(
        kept.first() == Some(&5) && told.first() == Some(&5),
        "{kept:?} {told:?}"
    );
    assert!(!kept.contains(&4) && !told.contains(&4), "{kept:?} {told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_on_borrows_what_the_whole_one_did() {
    let dataset = numbered().await;
    for done in 4..8 {
        let folder = tempfile::tempdir().unwrap();
        let mut loader = resumed(&dataset, done, folder.path()).await;
        let mut given = Vec::new();
        while let Some(number) = next(&mut loader).await {
            given.push(number.unwrap());
        }
        let wanted = (done..SAMPLES).map(|number| if BAD.contains(&number) { 3 } else { number });
        assert_eq!(given, wanted.collect::<Vec<_>>(), "after {done}");
    }
}
