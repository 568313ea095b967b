//! Tests of samples and virtual shards from listings, and of reading them.

use std::sync::Arc;

use forebay_core::{ErrorKind, Key, Location, Span, crc32c};
use forebay_io::DiskConfig;
use forebay_store::{Context, LocalStore, MemoryStore, PutOptions, Store, StoreExt};
use proptest::prelude::*;

use super::*;
use crate::block::Block;
use crate::table::Layout;

fn set_of(layout: FileLayout, files: &[(&str, u64)], shard_bytes: u64) -> forebay_core::Result<FileSet> {
    let mut builder = FileSetBuilder::new(&Key::parse("root").unwrap(), layout);
    for (name, size) in files {
        builder.push(&Key::parse(&format!("root/{name}")).unwrap(), *size)?;
    }
    builder.finish(shard_bytes)
}

/// Every sample of a set as its key, the names of its files, and its label.
fn samples(set: &FileSet) -> Vec<(String, Vec<String>, Option<u32>)> {
    let shards = (0..set.shards()).map(|index| set.shard(index).unwrap());
    shards
        .flat_map(|shard| shard.samples)
        .map(|sample| {
            let names = sample.members.iter().map(|member| member.key.to_string());
            (sample.key, names.collect(), sample.label)
        })
        .collect()
}

#[test]
fn files_of_one_stem_are_one_sample() {
    let files = [
        ("b/x.seg.png", 1),
        ("b/x.d/y.jpg", 1),
        ("b/x.JPG", 1),
        ("b/x-1.jpg", 1),
        ("b/x.json", 1),
        ("a.txt", 1),
        ("README", 1),
        (".hidden.jpg", 1),
        ("b/.x.jpg", 1),
        ("b/end.", 1),
        ("__index__/a.jpg", 1),
    ];
    let set = set_of(FileLayout::Tree, &files, 1 << 20).unwrap();
    let expected = [
        ("a", vec!["root/a.txt"]),
        ("b/x-1", vec!["root/b/x-1.jpg"]),
        ("b/x", vec!["root/b/x.JPG", "root/b/x.json", "root/b/x.seg.png"]),
        ("b/x.d/y", vec!["root/b/x.d/y.jpg"]),
    ];
    let found = samples(&set);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((key, names, label), (expected_key, expected_names)) in found.iter().zip(&expected) {
        assert_eq!(
            (key.as_str(), names.as_slice(), *label),
            (
                *expected_key,
                &*expected_names
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect::<Vec<_>>(),
                None
            )
        );
    }
    assert_eq!((set.samples(), set.files(), set.left_out().files()), (4, 6, 5));
    let shard = set.shard(0).unwrap();
    let fields: Vec<_> = shard.fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(fields, ["txt", "jpg", "json", "seg.png"]);
    assert_eq!(shard.fields[1].kind, Kind::Image);
}

#[test]
fn names_that_differ_in_case_only_are_refused() {
    let error = set_of(FileLayout::Tree, &[("a.jpg", 1), ("a.JPG", 1)], 10).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("a.jpg"), "{error}");
    let large = set_of(FileLayout::Tree, &[("a.jpg", u64::from(u32::MAX))], 10).unwrap_err();
    assert_eq!(large.kind(), ErrorKind::LimitExceeded);
    let halves = [("a.jpg", 3 << 30), ("a.png", 3 << 30)];
    let large = set_of(FileLayout::Tree, &halves, 10).unwrap_err();
    assert_eq!(large.kind(), ErrorKind::LimitExceeded);
    let mut builder = FileSetBuilder::new(&Key::parse("root").unwrap(), FileLayout::Tree);
    assert!(builder.push(&Key::parse("other/a.jpg").unwrap(), 1).is_err());
}

#[test]
fn classes_are_the_sorted_directories_at_the_root() {
    let files = [
        ("dog/2.jpeg", 5),
        ("cat-wild/1.PNG", 5),
        ("cat/deep/er/3.webp", 5),
        ("cat/1.jpg", 5),
        ("cat/1.png", 5),
        ("cat/notes.txt", 5),
        ("empty/notes.txt", 5),
        ("top.jpg", 5),
    ];
    let set = set_of(FileLayout::Images(ImageFields::arrays()), &files, 1 << 20).unwrap();
    assert_eq!(set.classes(), ["cat", "cat-wild", "dog"]);
    let keys: Vec<_> = samples(&set)
        .into_iter()
        .map(|(key, _, label)| (key, label.unwrap()))
        .collect();
    let expected = [
        ("cat/1_jpg", 0),
        ("cat/1_png", 0),
        ("cat/deep/er/3", 0),
        ("cat-wild/1", 1),
        ("dog/2", 2),
    ];
    assert_eq!(keys, expected.map(|(key, label)| (key.to_owned(), label)));
    assert_eq!(set.left_out().files(), 3);
    assert_eq!(
        set.note().unwrap(),
        "left out are 3 files that are no images in directories of classes: 2 .txt, 1 .jpg, such as 'cat/notes.txt'; \
         all files are read, without labels, by --layout tree (in Python: format={\"name\": \"files\", \"layout\": \"tree\"})"
    );
    let shard = set.shard(0).unwrap();
    assert_eq!(shard.bytes(), 5 * 5 + 5 * 8);
    let set = set_of(FileLayout::Images(ImageFields::webdataset()), &files, 1 << 20).unwrap();
    let shard = set.shard(0).unwrap();
    assert_eq!(shard.bytes(), 5 * 5 + 5);
    let fields: Vec<_> = shard.fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(fields, ["jpg", "cls"]);
}

#[test]
fn labels_take_the_bytes_that_are_counted() {
    for label in [0, 1, 9, 10, 99, 100, 12345, u32::MAX] {
        for form in [LabelForm::Int64, LabelForm::Decimal] {
            assert_eq!(form.bytes(label).len() as u64, form.bytes_len(label), "{label}");
        }
    }
}

#[test]
fn shards_end_before_the_sample_that_would_be_too_much() {
    let files = [
        ("a.x", 60),
        ("b.x", 30),
        ("b.y", 20),
        ("c.x", 40),
        ("d.x", 500),
        ("e.x", 0),
        ("f.x", 1),
    ];
    let set = set_of(FileLayout::Tree, &files, 100).unwrap();
    let counts: Vec<_> = (0..set.shards())
        .map(|index| set.shard(index).unwrap().samples.len())
        .collect();
    assert_eq!(counts, [1, 2, 1, 2]);
    assert!(set.shard(4).is_none());
    let none = set_of(FileLayout::Tree, &[], 100).unwrap();
    assert_eq!((none.shards(), none.samples()), (0, 0));
    let many: Vec<String> = (0..=discover::SHARD_FILES_MAX)
        .map(|index| format!("{index:06}.x"))
        .collect();
    let many: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 0)).collect();
    let set = set_of(FileLayout::Tree, &many, 100).unwrap();
    assert_eq!((set.shards(), set.shard(1).unwrap().samples.len()), (2, 1));
}

proptest! {
    #[test]
    fn shards_do_not_depend_on_the_order_of_the_listing(
        names in prop::collection::btree_set("[abc]{0,2}/?[ab-]{1,2}\\.[xy]", 0..20),
        swap in any::<prop::sample::Index>(),
        shard_bytes in 0u64..200,
    ) {
        let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| !name.starts_with('/')).collect();
        let mut files: Vec<(&str, u64)> = names.iter().enumerate().map(|(index, name)| (*name, index as u64 * 7)).collect();
        let shards = |set: &FileSet| (0..set.shards()).map(|index| set.shard(index)).collect::<Vec<_>>();
        let one = set_of(FileLayout::Tree, &files, shard_bytes).unwrap();
        files.reverse();
        if !files.is_empty() {
            let at = swap.index(files.len());
            files.swap(0, at);
        }
        let two = set_of(FileLayout::Tree, &files, shard_bytes).unwrap();
        prop_assert_eq!(shards(&one), shards(&two));
        prop_assert_eq!(one.files(), names.len() as u64);
    }
}

fn context() -> Context {
    Context::open(DiskConfig::default()).unwrap().with_state_dir(None)
}

/// Put files whose bytes tell their names and lengths.
async fn fill(store: &dyn Store) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for index in 0..40usize {
        let name = format!(
            "set/{}/{index:02}.{}",
            ["cat", "dog"][index % 2],
            ["jpg", "png"][index % 3 / 2]
        );
        let bytes: Vec<u8> = (0..index * 997).map(|at| (at * index) as u8).collect();
        let key = Key::parse(&name).unwrap();
        store
            .put_bytes(&key, &bytes, &PutOptions::default())
            .await
            .unwrap();
        files.push((name, bytes));
    }
    files
}

async fn check_reads(store: &dyn Store) {
    let files = fill(store).await;
    let context = context();
    let layout = FileLayout::Images(ImageFields::arrays());
    let root = Key::parse("set").unwrap();
    let set = FileSet::discover(store, &root, layout, 200_000).await.unwrap();
    assert!(set.shards() > 2);
    let mut seen = 0;
    for index in 0..set.shards() {
        let shard = set.shard(index).unwrap();
        let tabulated = shard.tabulate(store, &context).await.unwrap();
        let table = Arc::new(tabulated.table);
        table.check(shard.bytes()).unwrap();
        let count = shard.samples.len();
        for range in [0..count, count / 2..count, 0..1] {
            let read = shard.read(store, range.clone(), &context).await.unwrap();
            assert_eq!(Some(read.base), shard.extent(range.start).map(Span::start));
            let wide = range.start as u64..range.end as u64;
            let block = Block::from_bytes(Arc::clone(&table), wide, read.data, read.base).unwrap();
            for (at, sample) in shard.samples[range].iter().enumerate() {
                assert!(block.is_whole(at));
                assert_eq!(block.key(at), Some(sample.key.as_str()));
                let name = sample.members[0].key.as_str();
                let (_, bytes) = files.iter().find(|(known, _)| known == name).unwrap();
                assert_eq!(block.field(at, 0), Some(&bytes[..]), "{name}");
                let label = u64::from(name.contains("dog"));
                assert_eq!(block.field(at, 1), Some(&label.to_le_bytes()[..]));
            }
        }
        seen += count;
        let Layout::Samples(samples) = &table.layout else {
            unreachable!()
        };
        let whole = shard.read(store, 0..count, &context).await.unwrap();
        let extent = samples.extent(0).unwrap();
        assert_eq!(crc32c(&whole.data[..extent.len() as usize]), samples.crcs[0]);
        assert!(shard.read(store, 0..count + 1, &context).await.is_err());
    }
    assert_eq!(seen, files.len());
}

#[tokio::test]
async fn a_virtual_shard_is_its_files_one_after_the_other() {
    check_reads(&MemoryStore::new()).await;
}

#[tokio::test]
async fn files_of_a_disk_are_read_the_same_way() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::parse(folder.path().to_str().unwrap(), folder.path()).unwrap();
    let store = LocalStore::open(&location, &context()).unwrap();
    check_reads(&store).await;
}

#[tokio::test]
async fn a_file_that_shrank_or_went_is_named() {
    let store = MemoryStore::new();
    fill(&store).await;
    let root = Key::parse("set").unwrap();
    let set = FileSet::discover(&store, &root, FileLayout::Tree, 1 << 30)
        .await
        .unwrap();
    let shard = set.shard(0).unwrap();
    let key = Key::parse("set/cat/04.jpg").unwrap();
    store
        .put_bytes(&key, b"short", &PutOptions::default())
        .await
        .unwrap();
    let error = shard.tabulate(&store, &context()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
    assert!(error.to_string().contains("set/cat/04.jpg"), "{error}");
    store.delete(&key).await.unwrap();
    let error = shard.tabulate(&store, &context()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// A directory of frames, as renderers name them: all have the same before their first dot, and finding one looks at few of the others.
#[test]
fn images_that_share_what_is_before_the_dot_are_found_by_their_keys() {
    let names: Vec<String> = (0..50_000)
        .map(|number| format!("shot/frame_a.{number:06}.png"))
        .collect();
    let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 7)).collect();
    let images = FileLayout::Images(ImageFields::arrays());
    let set = set_of(images.clone(), &files, 1 << 20).unwrap();
    for (number, (key, ..)) in samples(&set).into_iter().enumerate() {
        let found = set.find(&key);
        let numbers: Vec<usize> = found.iter().map(|file| file.number).collect();
        assert_eq!(numbers, [number], "{key}");
    }
    assert_eq!(set.find("shot/frame_a_000007_jpg"), []);

    // Whatever may be meant is found, by each way to spell it.
    let files = [
        "c/a.b_c.png",
        "c/a_b.c.png",
        "c/a_b_c.png",
        "c/a_b_c_png.png",
        "c/a.b.png",
        "c/a_b",
    ];
    let set = set_of(images, &files.map(|name| (name, 7)), 1 << 20).unwrap();
    let found = |key: &str| -> Vec<String> {
        let found = set.find(key).into_iter();
        let mut names: Vec<String> = found.map(|file| file.key.to_string()).collect();
        names.sort_unstable();
        names
    };
    let named =
        |names: &[&str]| -> Vec<String> { names.iter().map(|name| format!("root/c/{name}")).collect() };
    assert_eq!(
        found("c/a_b_c_png"),
        named(&["a.b_c.png", "a_b.c.png", "a_b_c.png", "a_b_c_png.png"])
    );
    assert_eq!(found("c/a_b"), named(&["a_b.c.png"]));
    assert_eq!(found("c/a"), named(&["a.b.png", "a.b_c.png"]));
    assert!(found("d/a").is_empty() && found("").is_empty());
}
