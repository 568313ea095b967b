//! Folders of images among other files: what is read, what is not, and that it is told.

use std::sync::{Mutex, PoisonError};

use super::*;
use crate::table::Layout;

/// Keeps what it is told.
#[derive(Debug, Default)]
pub(super) struct Heard(Mutex<Vec<String>>);

impl Heard {
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Progress for Heard {
    fn noted(&self, note: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(note.to_owned());
    }
}

async fn images() -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in ["cat/0.jpg", "cat/1.jpg", "dog/0.jpg"] {
        put(&*store, name, name).await;
    }
    store
}

/// The layout, the fingerprint and what was told.
async fn open(store: &Arc<dyn Store>, options: OpenOptions) -> (String, [u8; 32], Vec<String>) {
    let heard = Arc::new(Heard::default());
    let options = OpenOptions {
        progress: Arc::clone(&heard) as Arc<dyn Progress>,
        ..options
    };
    let dataset = Dataset::open(Arc::clone(store), &context(), &options)
        .await
        .unwrap();
    let layout = dataset.manifest().spec().params["layout"].to_string();
    (layout, dataset.manifest().fingerprint(), heard.take())
}

#[tokio::test]
async fn stray_files_leave_classes_and_numbers_as_they_are_and_are_told() {
    let store = images().await;
    let (layout, clean, told) = open(&store, OpenOptions::default()).await;
    assert_eq!((layout.as_str(), told.len()), ("\"images\"", 0));
    for name in [
        "README.txt",
        "a/notes.txt",
        "cat/Thumbs.db",
        "labels.csv",
        "preview.png",
    ] {
        put(&*store, name, "no image of a class").await;
        let (layout, fingerprint, told) = open(&store, OpenOptions::default()).await;
        assert_eq!(layout, "\"images\"", "{name}");
        assert_eq!(
            fingerprint, clean,
            "{name}: the same samples, of the same numbers"
        );
        assert_eq!(told.len(), 1, "{name}: {told:?}");
    }
    let (.., told) = open(&store, OpenOptions::default()).await;
    assert_eq!(
        told,
        [
            "left out are 5 files that are no images in directories of classes: 2 .txt, 1 .csv, 1 .db, 1 others, \
          such as 'README.txt'; all files are read, without labels, by --layout tree \
          (in Python: format={\"name\": \"files\", \"layout\": \"tree\"})"
        ]
    );
    // Who saves the manifest is told; who opens it knows.
    assert_eq!(open(&store, saving()).await.2.len(), 1);
    assert_eq!(open(&store, OpenOptions::default()).await.2.len(), 0);
}

#[tokio::test]
async fn the_layout_can_be_chosen() {
    let store = images().await;
    put(&*store, "README.txt", "text").await;
    let chosen = |layout: &str| OpenOptions {
        format: Some(FormatSpec::new(FILES).with("layout", layout)),
        ..OpenOptions::default()
    };
    assert_eq!(open(&store, chosen("tree")).await.0, "\"tree\"");
    put(&*store, "cat/0.txt", "text").await;
    let (layout, _, told) = open(&store, OpenOptions::default()).await;
    assert_eq!(layout, "\"tree\"", "a caption makes a tree");
    assert!(
        told[0].contains("3 images lie in directories, beside 2 other files"),
        "{told:?}"
    );
    assert_eq!(open(&store, chosen("images")).await.0, "\"images\"");
    let wrong = Dataset::open(store, &context(), &chosen("rows"))
        .await
        .unwrap_err();
    assert!(wrong.message().contains("tree or images"), "{wrong}");
}

#[tokio::test]
async fn images_beside_shards_are_told() {
    let store = images().await;
    put(&*store, "archive.lines", &lines(0, 3)).await;
    let heard = Arc::new(Heard::default());
    let options = OpenOptions {
        progress: Arc::clone(&heard) as Arc<dyn Progress>,
        ..OpenOptions::default()
    };
    let dataset = Dataset::open(store, &context(), &options).await.unwrap();
    assert_eq!(dataset.samples(), 3);
    let told = heard.take();
    assert!(told[0].contains("the 3 images in directories"), "{told:?}");
    assert!(told[0].contains("--format files"), "{told:?}");
}

#[tokio::test]
async fn splits_that_are_read_together_and_rows_that_are_not_read_are_told() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in ["train/cat/0.jpg", "train/dog/0.jpg", "val/cat/0.jpg"] {
        put(&*store, name, name).await;
    }
    let (_, _, told) = open(&store, OpenOptions::default()).await;
    assert!(
        told.iter()
            .any(|note| note.contains("several splits are read together")
                && note.contains("train (2), validation (1)")),
        "{told:?}"
    );
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in ["a.jsonl", "b.jsonl", "README.md"] {
        put(&*store, name, "{}\n{}\n").await;
    }
    let (_, _, told) = open(&store, OpenOptions::default()).await;
    assert!(
        told.iter()
            .any(|note| note.contains("2 files such as .jsonl are read whole")),
        "{told:?}"
    );
}

#[tokio::test]
async fn tars_in_a_compression_that_is_not_read_are_no_plain_files() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in ["train-0.TAR.xz", "train-1.tar.xz"] {
        put(&*store, name, "compressed").await;
    }
    let error = Dataset::open(Arc::clone(&store), &context(), &OpenOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains(".xz"), "{error}");
    let options = OpenOptions {
        format: Some(FormatSpec::new("files")),
        ..OpenOptions::default()
    };
    let dataset = Dataset::open(Arc::clone(&store), &context(), &options)
        .await
        .unwrap();
    assert_eq!(dataset.samples(), 2);
    // Beside shards, they are what else lies there.
    put(&*store, "000000.lines", &lines(0, 3)).await;
    let dataset = Dataset::open(store, &context(), &OpenOptions::default()).await;
    assert_eq!(dataset.unwrap().samples(), 3);
}

#[tokio::test]
async fn sums_of_others_and_former_side_files_are_no_samples() {
    let store = images().await;
    put(&*store, "SHA256SUMS", "theirs").await;
    put(&*store, "forebay.fbi", "former").await;
    let (_, _, told) = open(&store, OpenOptions::default()).await;
    assert_eq!(told.len(), 1, "the former index alone: {told:?}");
}

#[tokio::test]
async fn of_a_folder_that_is_listed_only_the_samples_asked_for_are_read() {
    let (store, context) = (images().await, context());
    put(&*store, "cat/2.jpg", "").await;
    let whole = Dataset::open(Arc::clone(&store), &context, &OpenOptions::default())
        .await
        .unwrap();
    let whole = whole.table(0).await.unwrap();
    let Layout::Samples(all) = &whole.layout else {
        panic!("a folder has samples")
    };
    let counted = Counted::new(Arc::clone(&store));
    let counting: Arc<dyn Store> = Arc::new(counted.clone());
    let found = discover(&counting, &context, None, None).await.unwrap();
    let set = found.files().unwrap();
    assert_eq!((set.samples(), set.files(), set.classes().len()), (4, 4, 2));
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    for (samples, reads) in [(0..0, 0), (0..2, 2), (2..3, 0), (2..4, 1), (3..4, 1)] {
        let before = counted.counts().of(Op::Read).requests;
        let table = found.peek(0, samples.clone(), &context, &silent).await.unwrap();
        assert_eq!(
            counted.counts().of(Op::Read).requests - before,
            reads,
            "{samples:?}"
        );
        let Layout::Samples(some) = &table.layout else {
            panic!("a folder has samples")
        };
        assert_eq!(some.len(), samples.len());
        for (row, sample) in samples.enumerate() {
            let of = |samples: &crate::Samples, at: usize| {
                (
                    samples.keys.get(at).map(str::to_owned),
                    samples.extent(at),
                    samples.crcs[at],
                )
            };
            assert_eq!(of(some, row), of(all, sample));
        }
    }
}
