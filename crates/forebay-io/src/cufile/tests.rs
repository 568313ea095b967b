//! Tests against a library made of C (`stub/cufile.c`) on top of the stub of the driver.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::ErrorKind;

use super::*;
use crate::device::{Driver, tests::compile};
use crate::file::OpenHow;

fn library(dir: &Path, flags: &[&str]) -> CuFile {
    CuFile::open(&[compile(dir, "cufile.c", "libcufile.so.0", flags)]).unwrap()
}

fn device(dir: &Path) -> Device {
    let driver = Driver::open(&[compile(dir, "cuda.c", "libcuda.so.1", &[])]).unwrap();
    Device::open(&Arc::new(driver), 0).unwrap()
}

fn file(dir: &Path, len: usize) -> (PathBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|index| (index * 7 + index / 251) as u8).collect();
    let path = dir.join("weights");
    std::fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

#[test]
fn a_machine_without_the_library_or_with_half_of_it_says_so() {
    let error = CuFile::open(&["libforebay-nowhere.so".into()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("is not installed"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("libcufile.so.0");
    std::fs::write(&broken, b"\x7fELF").unwrap();
    let error = CuFile::open(&[broken]).unwrap_err();
    assert!(error.message().contains("half installed"), "{error}");
    // A library that is something else.
    let error = CuFile::open(&["libc.so.6".into()]).unwrap_err();
    assert!(error.message().contains("lacks cuFileDriverOpen"), "{error}");
}

#[test]
fn strict_opening_is_refused_where_no_direct_path_exists() {
    let dir = tempfile::tempdir().unwrap();
    let error = library(dir.path(), &[]).open_driver(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.message().contains("no direct path") && error.message().contains("5001"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("forebay gds"));
}

#[test]
fn without_strictness_the_fallback_shows_in_the_flags() {
    let dir = tempfile::tempdir().unwrap();
    let opened = library(dir.path(), &[]).open_driver(false).unwrap();
    assert_eq!((opened.nvfs, opened.is_compat_allowed), (None, Some(true)));
    assert!(opened.has_statistics && !opened.was_open);
    // A library that cannot be told: the flags of its properties say what holds.
    let dir = tempfile::tempdir().unwrap();
    let old = library(
        dir.path(),
        &["-DNVFS", "-DNO_SETTER", "-DNO_STATS", "-DSTATS_VERSION=1080"],
    );
    let opened = old.open_driver(true).unwrap();
    assert_eq!(
        (opened.nvfs, opened.is_compat_allowed),
        (Some((2, 26)), Some(true))
    );
    assert!(!opened.has_statistics);
    assert_eq!(old.counters().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn settings_of_whoever_opened_first_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let library = library(dir.path(), &["-DNVFS"]);
    library.open_driver(false).unwrap();
    let opened = library.open_driver(true).unwrap();
    assert!(opened.was_open);
    assert_eq!(opened.is_compat_allowed, Some(true));
}

#[test]
fn reads_land_on_the_device_and_are_counted_by_their_way() {
    let dir = tempfile::tempdir().unwrap();
    let library = Arc::new(library(dir.path(), &["-DNVFS", "-DSHORT=70000"]));
    assert_eq!(library.open_driver(true).unwrap().is_compat_allowed, Some(false));
    let device = device(dir.path());
    let (path, bytes) = file(dir.path(), 300_000);
    let handle = library
        .register(Arc::new(File::open(&path, OpenHow::READ).unwrap()))
        .unwrap();
    let target = device.alloc(200_000).unwrap();
    let before = library.counters().unwrap();
    assert_eq!(
        handle.read(&target, 1000, (150_000, 150_000), 4096).unwrap(),
        150_000
    );
    let mut got = vec![0; 150_000];
    target.read(1000, &mut got).unwrap();
    assert!(got == bytes[4096..154_096]);
    let counted = library.counters().unwrap().since(&before);
    assert_eq!(
        (counted.reads, counted.reads_nvfs, counted.read_bytes),
        (3, 3, 150_000)
    );
    assert!(counted.proves_direct(3) && counted.reads_unaligned == 3);
    assert_eq!(
        handle.read(&target, 0, (100_000, 100_000), 290_000).unwrap(),
        10_000,
        "the end of the file"
    );
    for (offset, len) in [(100_001, 100_000), (usize::MAX, 2)] {
        assert_eq!(
            handle.read(&target, offset, (len, len), 0).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}

#[test]
fn failures_are_told_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = file(dir.path(), 10_000);
    let open = || Arc::new(File::open(&path, OpenHow::READ).unwrap());
    let refusing = Arc::new(library(dir.path(), &["-DNVFS", "-DREGISTER_CODE=5027"]));
    refusing.open_driver(true).unwrap();
    let error = refusing.register(open()).unwrap_err();
    assert!(
        error.message().contains("udev") && error.hint().unwrap().contains("/run/udev"),
        "{error}"
    );
    let dir = tempfile::tempdir().unwrap();
    let failing = Arc::new(library(dir.path(), &["-DP2P", "-DFAIL_READ=5036"]));
    assert_eq!(failing.open_driver(true).unwrap().is_p2pdma_on, Some(true));
    let target = device(dir.path()).alloc(10_000).unwrap();
    let error = failing
        .register(open())
        .unwrap()
        .read(&target, 0, (4096, 4096), 0)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfSpace);
    assert!(error.hint().unwrap().contains("BAR1"), "{error}");
}
