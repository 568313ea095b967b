//! Whatever happens to the files, no wrong byte is ever given out, and no start is blocked.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Rng, Seed};
use forebay_store::ReadOptions;
use forebay_store::cache::Cache;

use crate::support::*;

/// Flips tried in one run: enough to hit every field of every file many times.
const FLIPS: u64 = 3000;

const SIZES: [usize; 3] = [3 * BLOCK as usize + 777, 2 * BLOCK as usize, 5000];

async fn warm(origin: &Arc<Origin>, dir: &Path) -> Cache {
    let cache = open(origin, config(dir)).await;
    read_all(&cache).await;
    cache.settle().await;
    cache
}

async fn read_all(cache: &Cache) {
    for (index, size) in SIZES.iter().enumerate() {
        read_whole(cache, index as u64, *size).await;
    }
}

fn victims(dir: &Path) -> Vec<PathBuf> {
    let mut paths = files(dir, "data");
    paths.extend(files(dir, "index"));
    paths.push(dir.join("cache/forebay-cache"));
    paths
}

fn flip(path: &Path, rng: &mut Rng) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let at = rng.below(file.metadata().unwrap().len().max(1));
    let mut byte = [0];
    if file.read_exact_at(&mut byte, at).is_ok() {
        file.write_all_at(&[byte[0] ^ (1 << rng.below(8))], at).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bits_never_give_wrong_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&SIZES).await;
    let mut cache = warm(&origin, dir.path()).await;
    let mut rng = Seed(42).rng();
    let mut corrupt = 0;
    for round in 0..FLIPS {
        let paths = victims(dir.path());
        for _ in 0..=rng.below(3) {
            flip(&paths[rng.below(paths.len() as u64) as usize], &mut rng);
        }
        if round % 50 == 0 {
            corrupt += cache.stats().corrupt;
            cache = open(&origin, config(dir.path())).await;
        }
        let index = rng.below(SIZES.len() as u64);
        let size = SIZES[index as usize] as u64;
        let start = rng.below(size);
        let part = span(start, start + 1 + rng.below(size - start));
        read_part(&cache, index, size as usize, part).await;
        cache.settle().await;
    }
    corrupt += cache.stats().corrupt;
    assert!(corrupt > 100, "flips in data were met {corrupt} times only");
    read_all(&cache).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_counted_fetched_again_and_mended() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&SIZES).await;
    let cache = warm(&origin, dir.path()).await;
    let data = files(dir.path(), "data");
    let largest = data
        .iter()
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let file = fs::OpenOptions::new().write(true).open(largest).unwrap();
    file.write_all_at(&[content(0, SIZES[0])[100] ^ 4], 100).unwrap();
    let reads = origin.reads();
    let ledger = read_whole(&cache, 0, SIZES[0]).await;
    assert_eq!((cache.stats().corrupt, origin.reads()), (1, reads + 1));
    let reason = &ledger.downgrades[0].reason;
    assert!(reason.contains("checksum"), "{reason}");
    cache.settle().await;
    read_whole(&cache, 0, SIZES[0]).await;
    assert_eq!((cache.stats().corrupt, origin.reads()), (1, reads + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_read_once_for_as_long_as_their_entry_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&SIZES).await;
    drop(warm(&origin, dir.path()).await);
    let cache = open(&origin, config(dir.path())).await;
    read_all(&cache).await;
    for index in files(dir.path(), "index") {
        let bytes = vec![0; fs::metadata(&index).unwrap().len() as usize];
        fs::write(&index, bytes).unwrap();
    }
    let reads = origin.reads();
    read_all(&cache).await;
    assert_eq!(origin.reads(), reads);
    // Whoever opens them now finds nothing.
    read_all(&open(&origin, config(dir.path())).await).await;
    assert!(origin.reads() > reads);
}

/// Ways to spoil a directory.
fn spoil(dir: &Path, how: u64, rng: &mut Rng) {
    let mut data = files(dir, "data");
    let mut index = files(dir, "index");
    rng.shuffle(&mut data);
    rng.shuffle(&mut index);
    let swap = |paths: &[PathBuf]| {
        let aside = dir.join("aside");
        fs::rename(&paths[0], &aside).unwrap();
        fs::rename(&paths[1], &paths[0]).unwrap();
        fs::rename(&aside, &paths[1]).unwrap();
    };
    let cut = |path: &Path, rng: &mut Rng| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(rng.below(file.metadata().unwrap().len() + 1))
            .unwrap();
    };
    match how {
        0 => swap(&data),
        1 => swap(&index),
        2 => cut(&data[0], rng),
        3 => cut(&index[0], rng),
        4 => fs::remove_file(&data[0]).unwrap(),
        5 => fs::remove_file(&index[0]).unwrap(),
        6 => fs::write(&index[0], b"garbage").unwrap(),
        7 => fs::write(&data[0], vec![9; 1 << 20]).unwrap(),
        8 => fs::write(dir.join("cache/forebay-cache"), b"").unwrap(),
        9 => fs::remove_file(dir.join("cache/forebay-cache")).unwrap(),
        10 => {
            // A hole where data were.
            let file = fs::OpenOptions::new().write(true).open(&data[0]).unwrap();
            let len = file.metadata().unwrap().len();
            file.set_len(4096.min(len / 2)).unwrap();
            file.set_len(len).unwrap();
        }
        11 => {
            // A record in the place of its neighbour, and the neighbour's data moved along: misdirected writes.
            let bytes = fs::read(&index[0]).unwrap();
            let mut moved = bytes.clone();
            let end = moved.len();
            if end >= 160 {
                moved.copy_within(end - 32..end - 16, end - 16);
            }
            fs::write(&index[0], moved).unwrap();
        }
        12 => {
            // Another entry's content under this entry's names, both files.
            let stem = |path: &Path| path.with_extension("");
            let (to, from) = (stem(&data[0]), stem(&data[1]));
            for extension in ["data", "index"] {
                let (to, from) = (to.with_extension(extension), from.with_extension(extension));
                if from.exists() {
                    fs::copy(from, to).unwrap();
                }
            }
        }
        _ => {
            let file = fs::OpenOptions::new().append(true).open(&index[0]).unwrap();
            std::io::Write::write_all(&mut &file, &content(rng.next_u64(), 5000)).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spoilt_files_never_give_wrong_bytes_and_never_block_a_start() {
    let mut rng = Seed(7).rng();
    for round in 0..140 {
        let dir = tempfile::tempdir().unwrap();
        let origin = Origin::with(&SIZES).await;
        let cache = warm(&origin, dir.path()).await;
        spoil(dir.path(), round % 14, &mut rng);
        if round % 2 == 0 {
            // While it is open, and then again after a restart.
            read_all(&cache).await;
            cache.settle().await;
        }
        drop(cache);
        let cache = warm(&origin, dir.path()).await;
        let reads = origin.reads();
        read_all(&cache).await;
        cache.settle().await;
        assert_eq!(
            origin.reads(),
            reads,
            "everything is cached again after round {round}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_are_swept_and_strangers_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&SIZES).await;
    drop(warm(&origin, dir.path()).await);
    let data = files(dir.path(), "data");
    fs::remove_file(data[0].with_extension("index")).unwrap();
    fs::remove_file(&data[1]).unwrap();
    fs::write(data[2].with_extension("index"), b"short").unwrap();
    let sub = data[0].parent().unwrap();
    let strangers = [
        dir.path().join("cache/notes.txt"),
        dir.path().join("cache/ab.data"),
        sub.join("README"),
        sub.join("00112233445566778899aabbccddeeff.data"),
        sub.join("not-ours.index"),
    ];
    for path in &strangers {
        fs::write(path, b"mine").unwrap();
    }
    fs::create_dir(dir.path().join("cache/zz")).unwrap();
    let outside = dir.path().join("outside.data");
    fs::write(&outside, b"mine").unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("cache/00")).ok();
    let cache = open(&origin, config(dir.path())).await;
    assert!(
        files(dir.path(), "index")
            .iter()
            .all(|path| path.ends_with("not-ours.index"))
    );
    assert!(cache.stats().bytes == 0);
    for path in strangers.iter().chain([&outside]) {
        assert_eq!(fs::read(path).unwrap(), b"mine", "{}", path.display());
    }
    read_all(&cache).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_a_later_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&SIZES).await;
    drop(warm(&origin, dir.path()).await);
    let marker = dir.path().join("cache/forebay-cache");
    let mut bytes = fs::read(&marker).unwrap();
    bytes[8] = 2;
    let crc = forebay_core::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    fs::write(&marker, bytes).unwrap();
    let error = Cache::open(origin, config(dir.path()), &context())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), forebay_core::ErrorKind::Unsupported);
    assert!(error.to_string().contains("format 2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_check_get_what_is_there_and_a_checked_read_mends_it() {
    let dir = tempfile::tempdir().unwrap();
    let size = SIZES[0];
    let origin = Origin::with(&[size]).await;
    let cache = open(&origin, config(dir.path())).await;
    read_whole(&cache, 0, size).await;
    cache.settle().await;
    let trusting = ReadOptions {
        caller_checks: true,
        ..ReadOptions::default()
    };
    let want = span(BLOCK - 4096, BLOCK + 8192);
    let expected = content(0, size)[want.start() as usize..want.end() as usize].to_vec();
    let done = try_read(&cache, "0", want, &trusting).await.unwrap();
    assert!(done.buf[..want.len() as usize] == expected);
    assert_eq!(
        done.ledger.bytes(),
        want.len(),
        "nothing is read but what is wanted"
    );
    assert_eq!(done.ledger.verified_bytes, 0, "it is the caller who verifies");

    let data = files(dir.path(), "data").remove(0);
    let file = fs::OpenOptions::new().read(true).write(true).open(data).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, BLOCK).unwrap();
    file.write_all_at(&[!byte[0]], BLOCK).unwrap();
    let reads = origin.reads();
    let done = try_read(&cache, "0", want, &trusting).await.unwrap();
    assert!(done.buf[..want.len() as usize] != expected, "as it is there");
    let done = try_read(&cache, "0", want, &ReadOptions::default())
        .await
        .unwrap();
    assert!(done.buf[..want.len() as usize] == expected);
    cache.settle().await;
    assert_eq!(origin.reads(), reads + 1, "fetched again");
    let done = try_read(&cache, "0", want, &trusting).await.unwrap();
    assert!(done.buf[..want.len() as usize] == expected, "and mended");
}
