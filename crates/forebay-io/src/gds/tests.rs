//! Tests of reads by GPUDirect Storage against stubs of both libraries.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{ErrorKind, Span};

use super::*;
use crate::device::Driver;
use crate::device::tests::compile;

fn open(dir: &Path, flags: &[&str]) -> Result<Arc<Gds>> {
    let driver = Driver::open(&[compile(dir, "cuda.c", "libcuda.so.1", &[])]).unwrap();
    let device = Device::open(&Arc::new(driver), 0).unwrap();
    let library = CuFile::open(&[compile(dir, "cufile.c", "libcufile.so.0", flags)]).unwrap();
    Gds::with_library(Arc::new(library), &device).map(Arc::new)
}

fn made_file(dir: &Path, len: usize) -> (std::path::PathBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|index| (index * 11 + index / 253) as u8).collect();
    let path = dir.join("weights");
    std::fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

#[test]
fn pieces_go_straight_to_their_places_and_the_proof_holds() {
    let dir = tempfile::tempdir().unwrap();
    let gds = open(dir.path(), &["-DNVFS"]).unwrap();
    let (path, bytes) = made_file(dir.path(), 50_001);
    let handle = gds.register(&path).unwrap();
    let target = Arc::new(gds.device.alloc(60_000).unwrap());
    let read = |span: Span, strips: Vec<Strips>| gds.read(&handle, span, &target, strips).wait().unwrap();
    read(
        Span::new(4096, 20_480).unwrap(),
        vec![Strips::run(100, 7, 16_000)],
    )
    .unwrap();
    // The last page of the file is not whole.
    read(
        Span::new(49_152, 50_001).unwrap(),
        vec![Strips::run(0, 30_000, 849)],
    )
    .unwrap();
    let mut got = vec![0; 60_000];
    target.read(0, &mut got).unwrap();
    assert!(got[7..16_007] == bytes[4196..20_196]);
    assert!(got[30_000..30_849] == bytes[49_152..]);
    let proof = gds.proof().unwrap();
    assert_eq!(
        (proof.reads_posix, proof.reads_nvfs, proof.reads_unaligned),
        (0, 2, 0)
    );
    let error = read(Span::new(49_152, 60_000).unwrap(), Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    let error = read(Span::new(1, 2).unwrap(), Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[test]
fn one_read_through_host_memory_breaks_the_proof() {
    let dir = tempfile::tempdir().unwrap();
    let gds = open(dir.path(), &["-DP2P", "-DPOSIX_EVERY=5"]).unwrap();
    let (path, _) = made_file(dir.path(), 40_960);
    let handle = gds.register(&path).unwrap();
    let target = Arc::new(gds.device.alloc(4096).unwrap());
    assert_eq!(
        gds.proof().unwrap_err().kind(),
        ErrorKind::Unsupported,
        "no read proves nothing"
    );
    for index in 0..6u64 {
        let span = Span::at(index * 4096, 4096).unwrap();
        gds.read(&handle, span, &target, Vec::new())
            .wait()
            .unwrap()
            .unwrap();
        assert_eq!(gds.proof().is_ok(), index < 4, "after read {index}");
    }
    let error = gds.proof().unwrap_err();
    assert!(
        error
            .message()
            .starts_with("1 of 6 reads went through host memory"),
        "{error}"
    );
}

#[test]
fn a_read_that_was_counted_nowhere_breaks_the_proof() {
    let dir = tempfile::tempdir().unwrap();
    let gds = open(dir.path(), &["-DNVFS", "-DUNCOUNTED=1"]).unwrap();
    let (path, _) = made_file(dir.path(), 40_960);
    let handle = gds.register(&path).unwrap();
    let target = Arc::new(gds.device.alloc(4096).unwrap());
    for index in 0..3u64 {
        let span = Span::at(index * 4096, 4096).unwrap();
        gds.read(&handle, span, &target, Vec::new())
            .wait()
            .unwrap()
            .unwrap();
    }
    let error = gds.proof().unwrap_err();
    assert!(
        error
            .message()
            .ends_with("and 2 straight to the device, where 3 should have"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_direct_or_not_be_shown_is_refused_beforehand() {
    for (flags, words) in [
        (&[][..], "no direct path"),
        (&["-DNVFS", "-DNO_STATS"], "does not tell"),
        (&["-DNVFS", "-DSTATS_VERSION=1190"], "does not tell"),
        (&["-DNVFS", "-DOPEN_CODE=5004"], "does not fit"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let error = open(dir.path(), flags).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains(words), "{error}");
    }
    assert!("always".parse::<GdsPolicy>().is_err());
    assert_eq!("require".parse::<GdsPolicy>().unwrap(), GdsPolicy::Require);
}
