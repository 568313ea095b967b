//! Bad samples under the policies that go on: counted once, replaced also where a batch has no whole sample, and values that are missing.

use super::*;

/// Damage a byte of a shard, and open what is there then.
async fn damaged(dataset: &Dataset, store: Arc<dyn Store>, bytes_at: &[(&str, usize)]) -> Dataset {
    for (name, at) in bytes_at {
        let key = Key::parse(name).unwrap();
        let size = store.head(&key).await.unwrap().size;
        let options = forebay_store::ReadOptions::default();
        let span = forebay_core::Span::first(size);
        let read = store.read(&key, span, &options, dataset.context()).await;
        let mut bytes = read.unwrap().0.to_vec();
        bytes[*at] ^= 1;
        let put = store.put_bytes(&key, &bytes, &PutOptions::default()).await;
        put.unwrap();
    }
    let (options, manifest) = (OpenOptions::default(), dataset.manifest().clone());
    let opened = Dataset::open_indexed(store, dataset.context(), manifest, &options).await;
    opened.unwrap()
}

/// The first bytes of fifty samples, behind the 100 bytes before all of them.
fn starts() -> Vec<usize> {
    let starts = (0..50u32).scan(100, |end, number| {
        let start = *end;
        *end += 4 + text_of(number).len();
        Some(start)
    });
    starts.collect()
}

fn in_order(batch_size: u64, bad: BadPolicy) -> StreamSpec {
    let mut spec = spec(1, 0);
    spec.order.shuffle = false;
    spec.order.batch_size = batch_size;
    spec.bad = bad;
    spec
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_sample_counts_once_however_many_epochs_meet_it() {
    let (dataset, store) = data_set(&SIZES).await;
    let damaged = damaged(&dataset, store, &[("002", 5000)]).await;
    let mut spec = spec(1, 0);
    spec.epochs = Some(5);
    spec.bad = BadPolicy::Skip { max: 1 };
    let mut loader = Loader::new(damaged, &spec).unwrap();
    let batches = drain(&mut loader).await;
    assert_eq!(batches.len(), 5 * loader.batches() as usize);
    let report = loader.report();
    assert_eq!((report.bad_samples, report.bad.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_says_where_bad_samples_lie() {
    let (dataset, store) = data_set(&SIZES).await;
    let damaged = damaged(&dataset, store, &[("002", 5000)]).await;
    let mut loader = Loader::new(damaged.clone(), &in_order(8, BadPolicy::Skip { max: 1 })).unwrap();
    drain(&mut loader).await;
    let bad = loader.report().bad.remove(0);
    assert_eq!((bad.shard.as_str(), bad.shard_number), ("002", 2));
    let table = damaged.table(2).await.unwrap();
    let Layout::Samples(samples) = &table.layout else {
        panic!("samples");
    };
    let extent = samples.extent(bad.index as usize).unwrap();
    assert_eq!(bad.offset, Some(extent.start()));
    assert!((extent.start()..extent.end()).contains(&5000), "{bad:?}");
    // Damage of this kind is somebody else's writing, in a store that knows versions.
    assert!(
        bad.reason
            .ends_with("written again or touched since it was indexed"),
        "{bad:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_before_a_stream_begins_elsewhere_counts() {
    let (dataset, store) = data_set(&[50]).await;
    let damaged = damaged(&dataset, store, &[("000", starts()[3]), ("000", starts()[30])]).await;
    let folder = tempfile::tempdir().unwrap();
    let mut spec = in_order(8, BadPolicy::Skip { max: 1 });
    spec.trace = Some(folder.path().join("trace.json"));
    let sources = Sources::from(damaged);
    let record = Record::new(&sources);
    let start = Outlook::new(&sources, &spec, None).unwrap().position;
    for turn in 1..=3 {
        let mut loader = Loader::go_on(&spec, &start, record.clone()).unwrap();
        loader.next_batch().await.unwrap().unwrap();
        let report = loader.report();
        assert_eq!((report.samples, report.bad_samples), (8 * turn, 1));
        assert!(report.stalls.consumer_s <= 0.0, "one batch of each loader");
        loader.end().unwrap();
    }
    let trace = std::fs::read_to_string(folder.path().join("trace.json")).unwrap();
    let events: Vec<serde_json::Value> = serde_json::from_str(&trace).unwrap();
    let batches = events
        .iter()
        .filter(|event| event["name"] == "batch 0/0" && event["tid"] == 4);
    assert_eq!(batches.count(), 3);
    // Whoever goes on after that is refused again, though all bad samples are known by now; and where it was refused, not at the one that was put up with.
    for _ in 0..3 {
        let mut loader = Loader::go_on(&spec, &start, record.clone()).unwrap();
        let mut batches = 0;
        let error = loop {
            match loader.next_batch().await.unwrap() {
                Ok(_) => batches += 1,
                Err(error) => break error,
            }
        };
        let told = error.to_string();
        assert!(
            told.contains("2 bad samples are more than the 1") && told.contains("the last: sample 30 "),
            "{told}"
        );
        assert_eq!(batches, 3, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_refused_leaves_the_trace_of_the_last_one() {
    let (dataset, _) = data_set(&[50]).await;
    let folder = tempfile::tempdir().unwrap();
    let (trace, kept) = (folder.path().join("trace.json"), folder.path().join("bad"));
    let mut spec = in_order(
        8,
        BadPolicy::Quarantine {
            max: 1,
            folder: kept.clone(),
        },
    );
    spec.trace = Some(trace.clone());
    let start = Outlook::new(&Sources::from(dataset.clone()), &spec, None).unwrap();
    std::fs::write(&trace, "before").unwrap();
    let mut wrong = spec.clone();
    wrong.fields = Some(vec!["nothing".to_owned()]);
    Loader::new(dataset.clone(), &wrong).unwrap_err();
    Loader::resume(dataset.clone(), &wrong, &start.position).unwrap_err();
    let (other, _) = data_set(&[40]).await;
    Loader::resume(other, &spec, &start.position).unwrap_err();
    assert_eq!(std::fs::read(&trace).unwrap(), b"before");
    assert!(!kept.exists());
    Loader::new(dataset, &spec).unwrap().end().unwrap();
    assert_ne!(std::fs::read(&trace).unwrap(), b"before");
    assert!(kept.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn advice_for_missing_numbers_is_given_where_one_is_missing() {
    // The second has two numbers, the place one.
    let (one, two) = (1u64.to_le_bytes(), [2; 16]);
    let undecodable = lists(Dtype::Int64, &[&one, &two]).await;
    let mut spec = in_order(1, BadPolicy::Stop);
    let (lacking, _) = numbered_only(&[48]).await;
    for (dataset, decode, is_advised) in [
        (undecodable, vec![("ids".to_owned(), "array:int64")], false),
        (lacking.clone(), vec![("more".to_owned(), "int")], true),
        (lacking.clone(), vec![("more".to_owned(), "array:int64")], true),
        (lacking.clone(), vec![("more".to_owned(), "array:int64:2")], false),
        (lacking, vec![("more".to_owned(), "image:crop:8")], false),
    ] {
        let decode = decode.into_iter().map(|(name, how)| (name, how.parse().unwrap()));
        spec.decode = decode.collect();
        let mut loader = Loader::new(dataset, &spec).unwrap();
        let error = loop {
            if let Err(error) = loader.next_batch().await.unwrap() {
                break error;
            }
        };
        let hint = error.hint().unwrap();
        assert_eq!(hint.contains("int:-1"), is_advised, "{error}: {hint}");
        assert!(hint.contains("the sample is as it was written"), "{hint}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stopped_stops_again() {
    let (dataset, store) = data_set(&[50]).await;
    let sources = Sources::from(damaged(&dataset, store, &[("000", starts()[12])]).await);
    let spec = in_order(8, BadPolicy::Stop);
    let record = Record::new(&sources);
    let start = Outlook::new(&sources, &spec, None).unwrap().position;
    for _ in 0..3 {
        let mut loader = Loader::go_on(&spec, &start, record.clone()).unwrap();
        loader.next_batch().await.unwrap().unwrap();
        let error = loader.next_batch().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("sample 12"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_a_whole_sample_borrows_one() {
    let (dataset, store) = data_set(&[50]).await;
    let whole = run(&dataset, in_order(1, BadPolicy::Stop)).await.concat();
    let starts = starts();
    let bad = [("000", starts[7]), ("000", starts[8]), ("000", starts[20])];
    let damaged = damaged(&dataset, store, &bad).await;
    for _ in 0..3 {
        let mut loader = Loader::new(damaged.clone(), &in_order(1, BadPolicy::Skip { max: 3 })).unwrap();
        let given = drain(&mut loader).await.concat();
        let mut wanted = whole.clone();
        for epoch in 0..2 {
            for (place, number) in [(7, 6), (8, 6), (20, 19)] {
                wanted[50 * epoch + place] = number;
            }
        }
        assert_eq!(given, wanted);
        for done in [8, 9, 20] {
            let spec = in_order(1, BadPolicy::Skip { max: 3 });
            let mut begun = Loader::new(damaged.clone(), &spec).unwrap();
            for _ in 0..done {
                begun.next_batch().await.unwrap().unwrap();
            }
            let mut resumed = Loader::resume(damaged.clone(), &spec, &begun.position()).unwrap();
            assert_eq!(drain(&mut resumed).await.concat(), wanted[done..], "after {done}");
        }
        assert_eq!(loader.report().bad_samples, 3);
    }
    let mut stopping = Loader::new(damaged, &in_order(1, BadPolicy::Stop)).unwrap();
    let error = loop {
        if let Err(error) = stopping.next_batch().await.unwrap() {
            break error;
        }
    };
    assert!(error.to_string().contains("sample 7"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_batch_without_a_whole_sample_has_nothing_to_borrow() {
    let (dataset, store) = data_set(&[50]).await;
    let damaged = damaged(&dataset, store, &[("000", 100)]).await;
    let mut loader = Loader::new(damaged, &in_order(1, BadPolicy::Skip { max: 3 })).unwrap();
    let error = loader.next_batch().await.unwrap().unwrap_err();
    assert!(
        error.to_string().contains("no sample of a batch is whole"),
        "{error}"
    );
    assert_eq!(loader.report().bad_samples, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_samples_lack_are_counted() {
    let (dataset, _) = numbered_only(&[48]).await;
    let mut spec = spec(1, 0);
    spec.epochs = Some(1);
    let mut loader = Loader::new(dataset, &spec).unwrap();
    while let Some(batch) = loader.next_batch().await {
        let batch = batch.unwrap();
        let more = &batch.fields()[0];
        assert!((0..batch.len()).all(|row| batch.value(more, row) == Some(b"")));
    }
    let missing = loader.report().missing_values;
    assert_eq!(missing, BTreeMap::from([("more".to_owned(), 48)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_streaming_is_told_apart() {
    let context = context();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let text = (0..100)
        .map(|line| format!("k{line} {line}\n"))
        .collect::<Vec<_>>()
        .concat();
    let key = Key::parse("a.lines").unwrap();
    let options = PutOptions::default();
    store.put_bytes(&key, text.as_bytes(), &options).await.unwrap();
    let options = OpenOptions::default();
    let made = Dataset::open(Arc::clone(&store), &context, &options)
        .await
        .unwrap();
    let bytes = text.len() as u64;
    let spec = in_order(10, BadPolicy::Stop);
    let loader = Loader::new(made.clone(), &spec).unwrap();
    assert_eq!(loader.report().opening.bytes(), bytes, "the index was made");
    let filter = crate::filter::Filter::parse("value = '7'").unwrap();
    let progress: Arc<dyn crate::dataset::Progress> = Arc::new(crate::dataset::Silent);
    let kept = made.keep(&filter, 2, 1 << 20, &progress).await.unwrap();
    let mut loader = Loader::new(kept, &in_order(1, BadPolicy::Stop)).unwrap();
    assert_eq!(loader.report().opening.bytes(), 2 * bytes, "and filtered");
    while loader.next_batch().await.is_some() {}
    assert_eq!(loader.report().opening.bytes(), 2 * bytes);
}
