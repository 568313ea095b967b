//! What a filter keeps is found out once.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use forebay_store::wrap::{Counted, Op, OpCounts};

use super::*;
use crate::dataset::{Progress, Silent};
use crate::filter::Filter;

/// Together more than what is not worth a file.
const SAMPLES: u32 = 34;
const SAMPLE_BYTES: usize = 1 << 20;

/// What people are told.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn noted(&self, note: &str) {
        self.0.lock().unwrap().push(note.to_owned());
    }
}

/// Two shards of samples with a number, the same as a list, which every fifth sample has twice, and much behind it.
async fn large(samples: u32, context: &Context) -> (Dataset, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut writer = ManifestWriter::in_memory(FormatSpec::new("wds"), &store.identity());
    let shape = Vec::new();
    let dtype = Dtype::Uint32;
    let number = Field::new("number", Kind::Array { dtype, shape });
    let list = Field::new("list", Kind::List { dtype });
    for shard in 0..2 {
        let mut builder = TableBuilder::new(vec![number.clone(), list.clone()]);
        let mut bytes = Vec::new();
        for number in (0..samples).skip(shard).step_by(2) {
            let start = bytes.len() as u64;
            let mut sample = vec![number as u8; SAMPLE_BYTES];
            for place in [0..4, 4..8, 8..12] {
                sample[place].copy_from_slice(&number.to_le_bytes());
            }
            builder.begin(start, Some(&format!("k{number}"))).unwrap();
            builder.absorb(&sample);
            builder.field(0, start, 4).unwrap();
            let list_bytes = if number % 5 == 0 { 8 } else { 4 };
            builder.field(1, start + 4, list_bytes).unwrap();
            builder.end().unwrap();
            bytes.extend(sample);
        }
        add(&mut writer, &store, &format!("{shard:03}"), (&bytes, builder)).await;
    }
    let manifest = writer.finish().await.unwrap();
    let options = OpenOptions::default();
    let opened = Dataset::open_indexed(Arc::clone(&store), context, manifest, &options).await;
    (opened.unwrap(), store)
}

fn remembering(folder: &Path) -> Context {
    context().with_state_dir(Some(folder.to_owned()))
}

/// What another start finds, what it said that it would read, and what it read.
async fn start(
    dataset: &Dataset,
    store: &Arc<dyn Store>,
    context: &Context,
    filter: &str,
) -> (Dataset, u64, OpCounts) {
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    told(dataset, store, context, filter, &silent).await
}

async fn told(
    dataset: &Dataset,
    store: &Arc<dyn Store>,
    context: &Context,
    filter: &str,
    progress: &Arc<dyn Progress>,
) -> (Dataset, u64, OpCounts) {
    let counted = Counted::new(Arc::clone(store));
    let (options, manifest) = (OpenOptions::default(), dataset.manifest().clone());
    let opened = Dataset::open_indexed(Arc::new(counted.clone()), context, manifest, &options).await;
    let filter = Filter::parse(filter).unwrap();
    let sieve = opened.unwrap().sieve(&filter, 2, 64 << 20).await.unwrap();
    let about = sieve.bytes_about();
    let kept = sieve.keep(progress).await.unwrap();
    (kept, about, counted.counts().of(Op::Read))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(files) = std::fs::read_dir(folder.join("selections")) else {
        return Vec::new();
    };
    files.map(|entry| entry.unwrap().path()).collect()
}

fn prints(kept: &Dataset) -> Vec<u64> {
    let shards = 0..kept.shards().len();
    let selections = shards.map(|shard| kept.selection(shard).unwrap());
    selections.map(|selection| selection.fingerprint()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_reads_no_samples_for_a_filter() {
    let folder = tempfile::tempdir().unwrap();
    let context = remembering(folder.path());
    let (dataset, store) = large(SAMPLES, &context).await;
    let all = u64::from(SAMPLES) * SAMPLE_BYTES as u64;
    let filter = "number >= 7 and number < 20";
    let (first, about, read) = start(&dataset, &store, &context, filter).await;
    assert_eq!((about, read.bytes, first.samples_kept()), (all, all, 13));
    let (second, about, read) = start(&dataset, &store, &context, filter).await;
    assert_eq!((about, read.bytes, read.requests), (0, 0, 0));
    assert_eq!(prints(&second), prints(&first));
    assert_eq!(second.filter_ledger().unwrap().bytes(), 0);
    // A part of what is kept is not looked up as if it were all of it.
    let (options, manifest) = (OpenOptions::default(), dataset.manifest().clone());
    let opened = Dataset::open_indexed(Arc::clone(&store), &context, manifest, &options).await;
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    let part = Filter::parse("number < 10").unwrap();
    let part = opened.unwrap().keep(&part, 2, 64 << 20, &progress).await.unwrap();
    let again = Filter::parse(filter).unwrap();
    let both = part.keep(&again, 2, 64 << 20, &progress).await.unwrap();
    assert_eq!(both.samples_kept(), 3);
    // Other filters, and other data sets.
    let (other, _, read) = start(&dataset, &store, &context, "number >= 8 and number < 20").await;
    assert_eq!((other.samples_kept(), read.bytes), (12, all));
    let (larger, store) = large(SAMPLES + 1, &context).await;
    let (other, _, read) = start(&larger, &store, &context, filter).await;
    assert_eq!(
        (other.samples_kept(), read.bytes),
        (13, all + SAMPLE_BYTES as u64)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_of_a_filter_is_told_at_every_start() {
    let folder = tempfile::tempdir().unwrap();
    let context = remembering(folder.path());
    let (dataset, store) = large(SAMPLES, &context).await;
    let notes = Arc::new(Notes::default());
    let progress: Arc<dyn Progress> = notes.clone();
    let mut kept = Vec::new();
    for is_first in [true, false] {
        let (found, about, read) = told(&dataset, &store, &context, "list > 20", &progress).await;
        assert_eq!((about > 0, read.bytes > 0), (is_first, is_first));
        assert_eq!(found.samples_kept(), 11, "21 to 33 without 25 and 30");
        kept.push(prints(&found));
    }
    assert_eq!(kept[0], kept[1]);
    let notes = notes.0.lock().unwrap();
    assert!(notes[0].contains("several numbers in 'list'"), "{notes:?}");
    assert_eq!(*notes, [notes[0].clone(), notes[0].clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_do_not_fit_are_misses() {
    let folder = tempfile::tempdir().unwrap();
    let context = remembering(folder.path());
    let (dataset, store) = large(SAMPLES, &context).await;
    let filter = "number < 9";
    let (first, ..) = start(&dataset, &store, &context, filter).await;
    let file = files(folder.path()).remove(0);
    let whole = std::fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[100] ^= 1;
    for damaged in [Vec::new(), whole[..50].to_vec(), flipped] {
        std::fs::write(&file, &damaged).unwrap();
        let (again, about, _) = start(&dataset, &store, &context, filter).await;
        assert!(about > 0);
        assert_eq!(prints(&again), prints(&first));
        assert_eq!(std::fs::read(&file).unwrap(), whole, "written anew");
    }
    // That of another filter under this name.
    start(&dataset, &store, &context, "number < 3").await;
    let other = files(folder.path()).into_iter().find(|other| *other != file);
    std::fs::copy(other.unwrap(), &file).unwrap();
    let (again, ..) = start(&dataset, &store, &context, filter).await;
    assert_eq!(prints(&again), prints(&first));
    // And something that is no file.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let (again, ..) = start(&dataset, &store, &context, filter).await;
    assert_eq!(prints(&again), prints(&first));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_change_is_not_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let context = remembering(folder.path());
    let (small, store) = large(4, &context).await;
    start(&small, &store, &context, "number < 3").await;
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new(), "a trifle");
    let (dataset, store) = large(SAMPLES, &context).await;
    let key = Key::parse("000").unwrap();
    let mut bytes = vec![0; SAMPLES as usize / 2 * SAMPLE_BYTES];
    for (index, sample) in bytes.chunks_mut(SAMPLE_BYTES).enumerate() {
        let number = 2 * index as u32;
        sample.fill(number as u8);
        for place in [0..4, 4..8, 8..12] {
            sample[place].copy_from_slice(&number.to_le_bytes());
        }
    }
    bytes[5] ^= 1;
    let put = store.put_bytes(&key, &bytes, &PutOptions::default()).await;
    put.unwrap();
    let (kept, ..) = start(&dataset, &store, &context, "number > 30").await;
    assert_eq!(kept.samples_kept(), 4, "the damaged one, too");
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new(), "it may be mended");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_only_so_many_files() {
    let folder = tempfile::tempdir().unwrap();
    let context = remembering(folder.path());
    let (dataset, store) = large(SAMPLES, &context).await;
    let selections = folder.path().join("selections");
    std::fs::create_dir(&selections).unwrap();
    for number in 0..70 {
        std::fs::write(selections.join(format!("{number:032}.sel")), "old").unwrap();
    }
    std::fs::write(selections.join("README"), "not ours").unwrap();
    let (first, ..) = start(&dataset, &store, &context, "number < 3").await;
    assert_eq!(files(folder.path()).len(), 65);
    assert!(selections.join("README").exists());
    let (second, about, _) = start(&dataset, &store, &context, "number < 3").await;
    assert_eq!((about, prints(&second)), (0, prints(&first)));
}
