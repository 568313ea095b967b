//! Streaming what a filter keeps: exact, resumable, and without reading what it does not look at.

use forebay_core::{Error, ErrorKind};
use forebay_data::dataset::{Progress, Silent};
use forebay_data::filter::Filter;
use forebay_data::format::wds::WdsWriter;

use super::*;

async fn keep(dataset: &Dataset, text: &str) -> Result<Dataset, Error> {
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    dataset
        .keep(&Filter::parse(text).unwrap(), 2, 64 << 20, &progress)
        .await
}

/// What filtering says that it will read, and what it reads then.
async fn told_and_read(dataset: &Dataset, text: &str) -> (u64, u64) {
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    let filter = Filter::parse(text).unwrap();
    let sieve = dataset.sieve(&filter, 2, 64 << 20).await.unwrap();
    let told = sieve.bytes_about();
    let kept = sieve.keep(&progress).await.unwrap();
    (told, kept.filter_ledger().unwrap().bytes())
}

/// Numbers that `text` should keep.
fn wanted() -> Vec<u32> {
    let total = SIZES.iter().sum();
    (0..total)
        .filter(|number| (50..100).contains(number) || [0, 57, 200].contains(number))
        .collect()
}

const TEXT: &str = "number >= 50 and number < 100 or number in (0, 57, 200)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_rows_come_once_and_in_order_or_shuffled() {
    let (dataset, _) = written(&SIZES).await;
    let kept = keep(&dataset, TEXT).await.unwrap();
    assert_eq!(kept.samples_kept(), wanted().len() as u64);
    assert_eq!(dataset.samples_kept(), dataset.samples());
    let mut lined = spec(false);
    lined.order.batch_size = 5;
    let all = numbers(&mut Loader::new(kept.clone(), &lined).unwrap()).await;
    assert_eq!(all.concat(), wanted());
    let mut shuffled = numbers(&mut Loader::new(kept.clone(), &spec(true)).unwrap())
        .await
        .concat();
    assert_ne!(shuffled, wanted());
    shuffled.sort_unstable();
    assert_eq!(shuffled, wanted());
    let again = keep(&keep(&dataset, "number < 100").await.unwrap(), "number >= 50").await;
    let all = numbers(&mut Loader::new(again.unwrap(), &spec(false)).unwrap()).await;
    assert_eq!(all.concat(), (50..100).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_run_needs_the_same_filter() {
    let (dataset, _) = written(&SIZES).await;
    let kept = keep(&dataset, TEXT).await.unwrap();
    let whole = numbers(&mut Loader::new(kept.clone(), &several()).unwrap()).await;
    let mut loader = Loader::new(kept, &several()).unwrap();
    let start = loader.position();
    for _ in 0..3 {
        loader.next_batch().await.unwrap().unwrap();
    }
    let position = loader.position();
    // The same samples by other words are the same.
    let words = "not (number < 50 or number > 99) or number = 0 or number = 200";
    let same = keep(&dataset, words).await.unwrap();
    let mut again = Loader::resume(same.clone(), &several(), &position).unwrap();
    assert_eq!(numbers(&mut again).await, whole[3..]);
    let mut half = several();
    (half.order.world, half.order.rank, half.order.batch_size) = (2, 0, 4);
    let mut half = Loader::resume(same.clone(), &half, &position).unwrap();
    for (half, all) in numbers(&mut half).await.iter().zip(&whole[3..]) {
        assert!(all.starts_with(half));
    }
    let other = keep(&dataset, "number != 7").await.unwrap();
    let refused = |dataset: &Dataset, position| {
        let error = Loader::resume(dataset.clone(), &several(), position).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition);
        error.to_string()
    };
    assert!(refused(&other, &position).contains("filter keeps other samples"));
    assert!(refused(&dataset, &start).contains("a filter kept some samples"));
    let plain = Loader::new(dataset, &several()).unwrap().position();
    assert!(refused(&same, &plain).contains("now a filter keeps some"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_columns_and_groups_that_matter_are_read() {
    let (dataset, _) = written(&SIZES).await;
    let stored: u64 = dataset.shards().iter().map(|shard| shard.stored_bytes).sum();
    let read = |dataset: &Dataset| dataset.filter_ledger().unwrap().bytes();
    // Not to be ruled out by any minimum or maximum.
    let wide = read(&keep(&dataset, "number != 7").await.unwrap());
    assert!(wide < stored / 2, "{wide} of {stored}");
    let narrow = read(&keep(&dataset, "number = 7").await.unwrap());
    assert!(narrow * 5 < wide, "{narrow} against {wide}");
    let error = keep(&dataset, "number > 1000").await.unwrap_err();
    assert!(error.to_string().contains("keeps none of 221 samples"), "{error}");
    let error = keep(&dataset, "sizes > 1000").await.unwrap_err();
    assert!(error.hint().unwrap().contains("number"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_will_be_read_is_known_before() {
    let (rows, store) = written(&SIZES).await;
    // Reads are wider than what is asked for: they begin and end at multiples of 4 KiB.
    let (told, read) = told_and_read(&rows, "number != 7").await;
    assert_eq!(told, chunk_bytes(&rows, &store, "number").await);
    assert!(told <= read, "{told} and {read}");
    let (narrow, _) = told_and_read(&rows, "number = 7").await;
    assert!(0 < narrow && narrow * 5 < told, "{narrow} of {told}");
    let (samples, _) = tars(20).await;
    let stored: u64 = samples.shards().iter().map(|shard| shard.stored_bytes).sum();
    let (told, read) = told_and_read(&samples, "cls >= 7").await;
    assert_eq!(told, stored, "samples are checked whole");
    assert!(told - read < 20_000, "{told} and {read}");
    assert_eq!(told_and_read(&samples, "__key__ > 'k003'").await, (0, 0));
}

/// A tar with samples of JSON, a class and many bytes.
async fn tars(samples: u32) -> (Dataset, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let json = Field::new("json", Kind::Json);
    let (cls, bin) = (Field::new("cls", Kind::Decimal), Field::new("bin", Kind::Bytes));
    let mut writer = Box::new(WdsWriter::default());
    for number in 0..samples {
        let text = match number % 3 {
            0 => format!(r#"{{"size": {{"width": {number}}}, "name": "a\u0062{number}"}}"#),
            1 => format!(r#"{{"size": {{"width": "{number}"}}}}"#),
            _ => "no json".to_owned(),
        };
        let (class, bytes) = (number.to_string(), vec![number as u8; 300_000]);
        let fields = [
            (&json, text.as_bytes()),
            (&cls, class.as_bytes()),
            (&bin, &bytes[..]),
        ];
        let sample = SampleRef {
            key: &format!("k{number:03}"),
            fields: &fields,
        };
        writer.add(sample).unwrap();
    }
    put(&store, "x.tar", &writer.finish().unwrap()).await;
    (open(&store, None).await, store)
}

async fn keys(dataset: &Dataset) -> Vec<String> {
    let mut loader = Loader::new(dataset.clone(), &spec(false)).unwrap();
    let mut keys = Vec::new();
    while let Some(batch) = loader.next_batch().await {
        keys.extend(batch.unwrap().keys().iter().map(|key| key.text(|_| None)));
    }
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_of_tars_are_kept_by_key_class_and_json() {
    let (dataset, _) = tars(60).await;
    for (text, expected) in [
        ("__key__ in ('k003', 'k059', 'x')", vec![3, 59]),
        ("cls >= 7 and cls < 9", vec![7, 8]),
        ("json.size.width >= 50", vec![51, 54, 57]),
        ("json.size.width = '4' or json.name = 'ab9'", vec![4, 9]),
        ("json.size.width not in (0, 3) and cls < 10", vec![6, 9]),
        ("json.name is not null and cls < 4", vec![0, 3]),
        ("json.name is null and cls < 4", vec![1, 2]),
        ("__key__ < 'k030' and not json.size.width < 21", vec![21, 24, 27]),
    ] {
        let kept = keep(&dataset, text).await.unwrap();
        let expected: Vec<String> = expected.iter().map(|number| format!("k{number:03}")).collect();
        assert_eq!(keys(&kept).await, expected, "{text}");
    }
    let by_key = keep(&dataset, "__key__ in ('k003', 'k059')").await.unwrap();
    assert_eq!(
        by_key.filter_ledger().unwrap().bytes(),
        0,
        "keys are in the manifest"
    );
    let mut loader = Loader::new(by_key, &spec(false)).unwrap();
    while let Some(batch) = loader.next_batch().await {
        batch.unwrap();
    }
    let bytes = loader.report().ledger.bytes();
    assert!(bytes < 3 * 310_000, "what lies between is not read: {bytes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_stays_for_the_policy_to_meet() {
    let (dataset, store) = tars(20).await;
    let key = Key::parse("x.tar").unwrap();
    let size = store.head(&key).await.unwrap().size;
    let options = ReadOptions::default();
    let span = forebay_core::Span::first(size);
    let read = store.read(&key, span, &options, dataset.context()).await;
    let mut bytes = read.unwrap().0.to_vec();
    bytes[size as usize / 2] ^= 1;
    put(&store, "x.tar", &bytes).await;
    let manifest = dataset.manifest().clone();
    let options = OpenOptions::default();
    let damaged = Dataset::open_indexed(store, dataset.context(), manifest, &options).await;
    let kept = keep(&damaged.unwrap(), "cls < 3").await.unwrap();
    assert_eq!(kept.samples_kept(), 4, "three, and the one that cannot be judged");
    let error = Loader::new(kept.clone(), &spec(false))
        .unwrap()
        .next_batch()
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    let mut going_on = spec(false);
    going_on.bad = BadPolicy::Skip { max: 1 };
    let mut loader = Loader::new(kept, &going_on).unwrap();
    assert_eq!(loader.next_batch().await.unwrap().unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_several_numbers_are_told_where_they_are_compared() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let list = Kind::List { dtype: Dtype::Int32 };
    let fields = [Field::new("one", list.clone()), Field::new("several", list)];
    let mut writer = Box::new(ParquetWriter::new(&fields, ParquetOptions::default()).unwrap());
    for number in 0..20i32 {
        let one = number.to_le_bytes();
        let several = [one, one].concat();
        let fields = [(&fields[0], &one[..]), (&fields[1], &several[..])];
        writer
            .add(SampleRef {
                key: "",
                fields: &fields,
            })
            .unwrap();
    }
    put(&store, "0.parquet", &writer.finish().unwrap()).await;
    let dataset = open(&store, None).await;
    let error = keep(&dataset, "several = 7").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let told = error.hint().unwrap_or_default();
    assert!(
        told.contains("'several'") && told.contains("20 of 20 samples"),
        "{error:?}"
    );
    let told = Arc::new(Told::default());
    let progress = Arc::clone(&told) as Arc<dyn Progress>;
    let filter = Filter::parse("one < 5 or several = 7").unwrap();
    let kept = dataset.keep(&filter, 2, 64 << 20, &progress).await.unwrap();
    assert_eq!(kept.samples_kept(), 5);
    let notes = std::mem::take(&mut *told.0.lock().unwrap());
    assert!(notes.iter().any(|note| note.contains("'several'")), "{notes:?}");
}

#[derive(Debug, Default)]
struct Told(std::sync::Mutex<Vec<String>>);

impl Progress for Told {
    fn noted(&self, note: &str) {
        self.0.lock().unwrap().push(note.to_owned());
    }
}
