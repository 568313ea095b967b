//! Plain folders that changed since they were indexed: what is new, gone or other is named, and nothing beside it.

use super::*;

/// A folder of these files, each with its own name in it, and its index.
async fn indexed(files: &[&str]) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in files {
        put(&*store, name, name).await;
    }
    let saved = Dataset::open(Arc::clone(&store), &context(), &saving()).await;
    assert_eq!(saved.unwrap().manifest().spec().name, FILES);
    store
}

/// The kind of each damage, and what has it; and the samples that are whole.
async fn found(store: &Arc<dyn Store>) -> (Vec<(DamageKind, String)>, u64) {
    let options = OpenOptions {
        manifest: UseManifest::Always,
        check: Check::WhenRead,
        ..OpenOptions::default()
    };
    let opened = Dataset::open(Arc::clone(store), &context(), &options).await;
    let report = verify(&opened.unwrap(), &options.progress, |_| {}).await.unwrap();
    let damages = report.damages.iter();
    let named = damages.map(|damage| {
        let file = damage.file.as_ref().map(Key::to_string);
        let name = file.or_else(|| damage.key.clone());
        (damage.kind, name.unwrap_or_else(|| damage.shard.to_string()))
    });
    (named.collect(), report.samples_whole)
}

const IMAGES: [&str; 5] = ["cat/0.jpg", "cat/1.jpg", "cat/2.jpg", "dog/0.jpg", "dog/1.jpg"];

fn named(kind: DamageKind, name: &str) -> (DamageKind, String) {
    (kind, name.to_owned())
}

#[tokio::test]
async fn a_folder_as_it_was_is_whole() {
    let store = indexed(&IMAGES).await;
    put(&*store, "README.txt", "no sample").await;
    assert_eq!(found(&store).await, (vec![], 5));
}

#[tokio::test]
async fn images_that_are_new_blame_nobody_behind_them() {
    // Another class moves the labels of those behind it.
    for new in ["cat/0b.jpg", "bird/0.jpg", "zebra/0.jpg"] {
        let store = indexed(&IMAGES).await;
        put(&*store, new, "new").await;
        let expected = vec![named(DamageKind::Unlisted, new)];
        assert_eq!(found(&store).await, (expected, 5), "{new}");
    }
}

#[tokio::test]
async fn images_that_are_gone_or_other_are_named() {
    let store = indexed(&IMAGES).await;
    store.delete(&key("cat/1.jpg")).await.unwrap();
    put(&*store, "cat/2.jpg", "longer than before").await;
    put(&*store, "dog/1.jpg", "DOG/1.jpg").await;
    put(&*store, "cow/0.jpg", "new").await;
    let expected = vec![
        named(DamageKind::Missing, "cat/1"),
        named(DamageKind::Size, "cat/2.jpg"),
        named(DamageKind::SampleCrc, "dog/1.jpg"),
        named(DamageKind::Unlisted, "cow/0.jpg"),
    ];
    assert_eq!(found(&store).await, (expected, 2));
}

#[tokio::test]
async fn a_class_that_is_gone_leaves_the_labels_of_the_others() {
    let store = indexed(&IMAGES).await;
    for name in &IMAGES[..3] {
        store.delete(&key(name)).await.unwrap();
    }
    let gone = (0..3).map(|number| named(DamageKind::Missing, &format!("cat/{number}")));
    assert_eq!(found(&store).await, (gone.collect(), 2));
}

#[tokio::test]
async fn images_of_one_name_are_told_apart() {
    // Where there are two of a name, their keys are others.
    let store = indexed(&IMAGES).await;
    put(&*store, "cat/1.gif.png", "new").await;
    put(&*store, "cat/1.JPG", "new, too").await;
    let expected = vec![
        named(DamageKind::Unlisted, "cat/1.JPG"),
        named(DamageKind::Unlisted, "cat/1.gif.png"),
    ];
    assert_eq!(found(&store).await, (expected, 5));

    let store = indexed(&["cat/1.jpg", "cat/1.jpeg", "cat/2.jpg"]).await;
    store.delete(&key("cat/1.jpg")).await.unwrap();
    let expected = vec![named(DamageKind::Missing, "cat/1_jpg")];
    assert_eq!(found(&store).await, (expected, 2));
}

#[tokio::test]
async fn a_new_image_of_that_name_and_size_is_not_taken_for_the_one_that_there_was() {
    let store = indexed(&["cat/0.jpg", "cat/1.jpg", "cat/2.jpg"]).await;
    // Before the one that was indexed, and behind it.
    put(&*store, "cat/1.bmp", "CAT/1.BMP").await;
    put(&*store, "cat/1.png", "CAT/1.PNG").await;
    let expected = vec![
        named(DamageKind::Unlisted, "cat/1.bmp"),
        named(DamageKind::Unlisted, "cat/1.png"),
    ];
    assert_eq!(found(&store).await, (expected, 3));
    // Where none is what there was, one of them is told.
    put(&*store, "cat/1.jpg", "CAT/1.JPG").await;
    let expected = vec![
        named(DamageKind::SampleCrc, "cat/1.bmp"),
        named(DamageKind::Unlisted, "cat/1.jpg"),
        named(DamageKind::Unlisted, "cat/1.png"),
    ];
    assert_eq!(found(&store).await, (expected, 2));
}

#[tokio::test]
async fn a_file_that_goes_meanwhile_does_not_stand_for_the_one_that_there_was() {
    let store = indexed(&["cat/0.jpg", "cat/1.jpg", "cat/2.jpg"]).await;
    put(&*store, "cat/1.bmp", "CAT/1.BMP").await;
    let options = OpenOptions {
        check: Check::WhenRead,
        ..OpenOptions::default()
    };
    let opened = Dataset::open(Arc::clone(&store), &context(), &options).await;
    let opened = opened.unwrap();
    store.delete(&key("cat/1.bmp")).await.unwrap();
    let report = verify(&opened, &options.progress, |_| {}).await.unwrap();
    assert_eq!(report.samples_whole, 3);
    let kinds: Vec<_> = report.damages.iter().map(|damage| damage.kind).collect();
    assert_eq!(kinds, [DamageKind::Unlisted], "as it was listed");
}

#[tokio::test]
async fn of_many_new_files_some_are_named() {
    let store = indexed(&IMAGES).await;
    for number in 0..150 {
        put(&*store, &format!("cat/new{number}.jpg"), "new").await;
    }
    let options = OpenOptions {
        check: Check::WhenRead,
        ..OpenOptions::default()
    };
    let opened = Dataset::open(store, &context(), &options).await;
    let report = verify(&opened.unwrap(), &options.progress, |_| {}).await.unwrap();
    assert_eq!((report.damages_count, report.damages_unnamed()), (150, 50));
    let files = report.damages.iter().map(|damage| damage.file.as_ref());
    assert!(files.clone().all(|file| file.is_some()), "{files:?}");
}

#[tokio::test]
async fn where_nothing_can_be_read_not_everything_is_tried() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for number in 0..1000 {
        put(&*store, &format!("cat/{number}.jpg"), "image").await;
    }
    let options = OpenOptions::default();
    let opened = Dataset::open(Arc::clone(&store), &context(), &options).await;
    let manifest = opened.unwrap().manifest().clone();
    let plan = FaultPlan::new(Seed(1)).with(Op::Read, When::Always, Fault::Fail(ErrorKind::Unavailable));
    let counted = Counted::new(Arc::new(Faulty::new(store, plan)));
    let unread = Arc::new(counted.clone()) as Arc<dyn Store>;
    let opened = Dataset::open_indexed(unread, &context(), manifest, &options).await;
    let moved = Arc::new(FirstDone::default());
    let progress: Arc<dyn Progress> = moved.clone();
    let opened = opened.unwrap();
    let report = verify(&opened, &progress, |_| {}).await.unwrap();
    let kinds: Vec<_> = report.damages.iter().map(|damage| damage.kind).collect();
    assert_eq!(kinds, [DamageKind::Unreadable; 17], "16 files, and their shard");
    assert!(
        report.damages[16].message.contains("984 samples behind them"),
        "{:?}",
        report.damages
    );
    let requests = counted.counts().of(Op::Read).requests;
    assert!(requests < 600, "{requests}");
    // The bar comes to its end all the same.
    assert_eq!(moved.1.load(Ordering::Relaxed), opened.shards()[0].stored_bytes);
}

#[tokio::test]
async fn files_of_a_tree_are_named_one_by_one() {
    let store = indexed(&["a.bin", "a.txt", "b.bin", "b.txt", "c.bin", "c.txt", "d/a.txt"]).await;
    put(&*store, "a.json", "{}").await;
    put(&*store, "a0.bin", "new").await;
    store.delete(&key("b.txt")).await.unwrap();
    put(&*store, "c.bin", "longer than before").await;
    let expected = vec![
        named(DamageKind::Missing, "b.txt"),
        named(DamageKind::Size, "c.bin"),
        named(DamageKind::Unlisted, "a.json"),
        named(DamageKind::Unlisted, "a0.bin"),
    ];
    assert_eq!(found(&store).await, (expected, 2));
}

#[tokio::test]
async fn a_file_that_goes_meanwhile_stops_nothing() {
    let store = indexed(&IMAGES).await;
    let options = OpenOptions {
        check: Check::WhenRead,
        ..OpenOptions::default()
    };
    let opened = Dataset::open(Arc::clone(&store), &context(), &options).await;
    let opened = opened.unwrap();
    // Gone since the folder was listed.
    store.delete(&key("cat/1.jpg")).await.unwrap();
    let report = verify(&opened, &options.progress, |_| {}).await.unwrap();
    let kinds: Vec<_> = report.damages.iter().map(|damage| damage.kind).collect();
    assert_eq!((kinds, report.samples_whole), (vec![DamageKind::Missing], 4));
    assert_eq!(report.damages[0].key.as_deref(), Some("cat/1"));
}

/// A folder of 60 images, opened, and what is found when it is verified after that.
async fn found_after(change: impl AsyncFn(&dyn Store)) -> VerifyReport {
    let names: Vec<String> = (0..60).map(|number| format!("cat/{number:02}.jpg")).collect();
    let store = indexed(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let options = OpenOptions {
        check: Check::WhenRead,
        ..OpenOptions::default()
    };
    let opened = Dataset::open(Arc::clone(&store), &context(), &options).await;
    let opened = opened.unwrap();
    change(&*store).await;
    verify(&opened, &options.progress, |_| {}).await.unwrap()
}

#[tokio::test]
async fn many_files_that_cannot_be_read_end_nothing_where_others_can() {
    let report = found_after(async |store| {
        for number in (0..60).step_by(2) {
            put(store, &format!("cat/{number:02}.jpg"), "").await;
        }
    })
    .await;
    assert_eq!(report.samples_whole, 30);
    let damages = report.damages.iter().zip((0..60).step_by(2));
    assert_eq!(report.damages_count, 30);
    for (damage, number) in damages {
        assert_eq!(damage.kind, DamageKind::Unreadable);
        let file = damage.file.as_ref().map(Key::as_str);
        assert_eq!(file, Some(&*format!("cat/{number:02}.jpg")));
    }
}

#[tokio::test]
async fn files_that_are_gone_end_nothing_however_many_follow_each_other() {
    let report = found_after(async |store| {
        for number in 20..40 {
            let gone = key(&format!("cat/{number:02}.jpg"));
            store.delete(&gone).await.unwrap();
        }
    })
    .await;
    assert_eq!(report.samples_whole, 40);
    let kinds: Vec<_> = report.damages.iter().map(|damage| damage.kind).collect();
    assert_eq!(kinds, [DamageKind::Missing; 20]);
    let first = report.damages[0].file.as_ref().map(Key::as_str);
    assert_eq!(first, Some("cat/20.jpg"));
}

#[tokio::test]
async fn what_is_read_in_vain_is_counted() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for number in 0..4 {
        put(&*store, &format!("cat/{number}.jpg"), &"image".repeat(20_000)).await;
    }
    let opened = Dataset::open(Arc::clone(&store), &context(), &saving()).await;
    let opened = opened.unwrap();
    // Several pieces are read before the last file fails, and its neighbours again without it.
    put(&*store, "cat/3.jpg", "").await;
    let report = verify(&opened, &saving().progress, |_| {}).await.unwrap();
    assert_eq!((report.samples_whole, report.damages_count), (3, 1));
    assert!(report.bytes > 3 * 100_000 + 64_000, "{}", report.bytes);
    assert_eq!(report.bytes, report.ledger.bytes());
}

#[tokio::test]
async fn files_of_another_order_are_named() {
    // Capitals come first, so `a.PNG` lay before `a.json`.
    let files = ["a.PNG", "a.json", "b.json", "b.png", "c.json"];
    let store = indexed(&files).await;
    assert_eq!(found(&store).await, (vec![], 3));
    store.delete(&key("a.PNG")).await.unwrap();
    put(&*store, "a.png", "a.PNG").await;
    let expected = vec![named(DamageKind::SampleCrc, "a.png")];
    assert_eq!(found(&store).await, (expected, 3));
}

#[tokio::test]
async fn files_without_bytes_lie_before_those_that_begin_at_their_place() {
    // The first sample makes png the first column; in the second one, what has no bytes comes before it.
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for (name, text) in [
        ("0.png", "0"),
        ("1.json", ""),
        ("1.png", "1"),
        ("2.json", "{}"),
        ("2.png", ""),
    ] {
        put(&*store, name, text).await;
    }
    let saved = Dataset::open(Arc::clone(&store), &context(), &saving()).await;
    assert_eq!(saved.unwrap().manifest().spec().name, FILES);
    assert_eq!(found(&store).await, (vec![], 3));
}

#[tokio::test]
async fn of_several_images_of_a_name_and_other_sizes_all_are_told() {
    let store = indexed(&["cat/0.jpg", "cat/1.jpg"]).await;
    put(&*store, "cat/1.jpg", "longer than before").await;
    put(&*store, "cat/1.bmp", "longer than that").await;
    let expected = vec![named(DamageKind::Size, "cat/1")];
    assert_eq!(found(&store).await, (expected, 1));
}
