//! Loads to devices made of C (`crates/forebay-io/stub`): everything but the hardware, with copies as late as the driver may make them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_core::{Ledger, SystemClock};
use forebay_io::cufile::CuFile;
use forebay_io::device::Driver;

use super::super::tests::{context, open, save_large, save_model};
use super::*;
use crate::hashes::{SIDE_SUFFIX, Verify};
use crate::save::SaveOptions;
use crate::select::{Selection, Shard};
use crate::source::write_hashes;

/// Pinned memory of a test: smaller than what is loaded, so that slots are used again.
const RING_BYTES: u64 = 16 << 20;

fn compile(dir: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let library = dir.join(name);
    let stubs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../forebay-io/stub");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .arg(&library)
        .arg(stubs.join(source))
        .args(flags)
        .status()
        .unwrap();
    assert!(compiled.success());
    library
}

fn devices(dir: &Path, count: u32, flags: &[&str]) -> Vec<Device> {
    let count_flag = format!("-DDEVICES={count}");
    let mut flags = flags.to_vec();
    flags.push(&count_flag);
    let driver = Driver::open(&[compile(dir, "cuda.c", "libcuda.so.1", &flags)]).unwrap();
    let driver = Arc::new(driver);
    (0..count)
        .map(|ordinal| Device::open(&driver, ordinal).unwrap())
        .collect()
}

fn gds(dir: &Path, device: &Device, flags: &[&str]) -> Result<Arc<Gds>> {
    let library = CuFile::open(&[compile(dir, "cufile.c", "libcufile.so.0", flags)])?;
    Gds::with_library(Arc::new(library), device).map(Arc::new)
}

fn ring(devices: &[Device], bytes_max: u64) -> Ring {
    Ring::new(&devices[0], RingConfig { bytes_max }, Arc::new(SystemClock)).unwrap()
}

fn sink(devices: &[Device], direct: Direct) -> DeviceSink {
    DeviceSink::new(devices.to_vec(), ring(devices, RING_BYTES), direct).unwrap()
}

fn content(tensor: &DeviceTensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.place.len() as usize];
    tensor
        .memory
        .read(tensor.place.start() as usize, &mut bytes)
        .unwrap();
    bytes
}

/// The tensors of a device by name, with their bytes.
fn contents(tensors: &[DeviceTensor]) -> Vec<(String, Vec<u8>)> {
    let mut contents: Vec<(String, Vec<u8>)> = tensors
        .iter()
        .map(|tensor| (tensor.name.clone(), content(tensor)))
        .collect();
    contents.sort();
    contents
}

type Loaded = (Vec<Vec<DeviceTensor>>, LoadReport, DeviceReport);

async fn load(path: &Path, verify: Verify, options: &LoadOptions, sink: DeviceSink) -> Result<Loaded> {
    let context = context();
    let source = open(path, verify, &context).await?;
    load_sink(&source, options, sink, &context).await
}

async fn load_host_contents(path: &Path, options: &LoadOptions) -> Vec<(String, Vec<u8>)> {
    let context = context();
    let source = open(path, Verify::Off, &context).await.unwrap();
    let (tensors, _) = crate::load_host(&source, options, &context).await.unwrap();
    let mut contents: Vec<_> = tensors
        .into_iter()
        .map(|tensor| (tensor.name, tensor.bytes.to_vec()))
        .collect();
    contents.sort();
    contents
}

async fn model(dir: &Path) -> PathBuf {
    let path = dir.join("model.safetensors");
    save_model(&path, &SaveOptions::default(), &context()).await;
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_is_on_every_device_after_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 2, &[]);
    let options = LoadOptions::default();
    let (tensors, report, device) = load(&path, Verify::Prefer, &options, sink(&devices, Direct::No))
        .await
        .unwrap();
    let expected = load_host_contents(&path, &options).await;
    assert_eq!(tensors.len(), 2);
    for on_device in &tensors {
        assert!(contents(on_device) == expected);
        assert!(
            on_device
                .iter()
                .all(|tensor| tensor.place.start().is_multiple_of(256))
        );
    }
    assert_eq!(
        device.copied_bytes,
        2 * report.tensor_bytes,
        "one read, two copies"
    );
    assert_eq!(report.ledger.bytes(), report.read_bytes);
    assert!(
        report
            .ledger
            .downgrades
            .iter()
            .all(|step| step.wanted != DataPath::Gds)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_arrive_as_in_host_memory_hot_or_cold() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 1, &[]);
    for dim in [0, 1] {
        let dims = [("*.weight".to_owned(), dim)];
        let options = LoadOptions {
            selection: Selection::new(&[], Some(Shard::new(1, 4, &dims).unwrap())).unwrap(),
            ..LoadOptions::default()
        };
        let expected = load_host_contents(&path, &options).await;
        // Into the page cache.
        fs::read(&path).unwrap();
        let (tensors, report, _) = load(&path, Verify::Off, &options, sink(&devices, Direct::No))
            .await
            .unwrap();
        assert!(contents(&tensors[0]) == expected, "dimension {dim}");
        assert_eq!(report.tensors, 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_in_the_page_cache_are_fed_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 2, &[]);
    let options = LoadOptions::default();
    let expected = load_host_contents(&path, &options).await;
    // Into the page cache.
    fs::read(&path).unwrap();
    let (tensors, report, device) = load(&path, Verify::Off, &options, sink(&devices, Direct::No))
        .await
        .unwrap();
    assert!(tensors.iter().all(|tensors| contents(tensors) == expected));
    assert_eq!(report.files_hot, 1);
    assert_eq!(report.ledger.path(DataPath::Buffered).bytes, report.read_bytes);
    assert_eq!(device.copied_bytes, 2 * report.tensor_bytes);
    let told = report.ledger.to_string();
    assert!(told.contains("in the page cache"), "{told}");
    // Such reads are not pinned to a version, so the file is looked at once more.
    let context = context();
    let source = open(&path, Verify::Off, &context).await.unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = load_sink(&source, &options, sink(&devices, Direct::No), &context)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_little_device_memory_is_told_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 1, &["-DMEMORY=18874368"]);
    let context = context();
    let source = open(&path, Verify::Off, &context).await.unwrap();
    fs::remove_file(&path).unwrap();
    let error = load_sink(
        &source,
        &LoadOptions::default(),
        sink(&devices, Direct::No),
        &context,
    )
    .await
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
    assert!(
        error
            .message()
            .contains("bytes) are needed on cuda:0, and 18.0 MiB of 18.0 MiB are free"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_lost_fails_the_load_and_leaves_no_slot_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 1, &["-DFAIL_AT=2"]);
    let ring = ring(&devices, RING_BYTES);
    let sink = DeviceSink::new(devices.clone(), ring.clone(), Direct::No).unwrap();
    let error = load(&path, Verify::Off, &LoadOptions::default(), sink)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.message().starts_with("the device was lost"), "{error}");
    // Comes only when every slot is back.
    let whole = ring.lease(RING_BYTES as usize).await.unwrap().unwrap();
    assert_eq!(whole.len() as u64, RING_BYTES);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_failure_that_came_first_is_told_and_not_that_there_was_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    save_large(&path, &context()).await;
    // The first copy fails while others go on, and there is one slot: the next piece is sent after that is known.
    let devices = devices(dir.path(), 1, &["-DFAIL_WAIT=1"]);
    let sink = DeviceSink::new(devices.clone(), ring(&devices, 8 << 20), Direct::No).unwrap();
    let error = load(&path, Verify::Off, &LoadOptions::default(), sink)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.message().starts_with("the device was lost"), "{error}");
    assert!(error.hint().is_some(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tensors_that_need_more_memory_than_allowed_are_refused_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 1, &[]);
    for (memory_bytes_max, fits) in [(Some(1 << 20), false), (Some(64 << 20), true)] {
        let options = LoadOptions {
            memory_bytes_max,
            ..LoadOptions::default()
        };
        let loaded = load(&path, Verify::Off, &options, sink(&devices, Direct::No)).await;
        let kind = loaded.map(drop).map_err(|error| error.kind());
        assert_eq!(
            kind,
            if fits {
                Ok(())
            } else {
                Err(ErrorKind::LimitExceeded)
            }
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn preferred_gds_goes_on_without_it_after_a_read_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    save_large(&path, &context()).await;
    let devices = devices(dir.path(), 1, &[]);
    let options = LoadOptions::default();
    let expected = load_host_contents(&path, &options).await;
    for (first, is_proved) in [("-DFAIL_READ_FROM=1", false), ("-DFAIL_READ_FROM=2", true)] {
        let flags = ["-DNVFS", "-DFAIL_READ=5026", first];
        let dir = tempfile::tempdir().unwrap();
        let perhaps = Direct::Perhaps(Ok(gds(dir.path(), &devices[0], &flags).unwrap()));
        let (tensors, report, device) = load(&path, Verify::Off, &options, sink(&devices, perhaps))
            .await
            .unwrap();
        assert!(contents(&tensors[0]) == expected);
        let ledger = &report.ledger;
        assert_eq!(ledger.bytes(), report.read_bytes);
        assert_eq!(device.gds.is_some(), is_proved, "{ledger}");
        assert_eq!(
            ledger.path(DataPath::Gds).requests,
            u64::from(is_proved),
            "{ledger}"
        );
        let told: Vec<DataPath> = ledger
            .downgrades
            .iter()
            .filter(|step| step.wanted == DataPath::Gds && step.reason.contains("5026"))
            .map(|step| step.taken)
            .collect();
        assert!(!told.is_empty() && !told.contains(&DataPath::Gds), "{ledger}");
        let dir = tempfile::tempdir().unwrap();
        let must = Direct::Must(gds(dir.path(), &devices[0], &flags).unwrap());
        let failed = load(&path, Verify::Off, &options, sink(&devices, must)).await;
        assert!(failed.unwrap_err().message().contains("5026"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn direct_reads_are_not_begun_where_their_scratch_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    // Enough for the tensors and what is left to others, not for 16 MiB more.
    let devices = devices(dir.path(), 1, &["-DMEMORY=31457280"]);
    let options = LoadOptions::default();
    let direct = gds(dir.path(), &devices[0], &["-DNVFS"]).unwrap();
    let perhaps = Direct::Perhaps(Ok(Arc::clone(&direct)));
    let (_, report, device) = load(&path, Verify::Off, &options, sink(&devices, perhaps))
        .await
        .unwrap();
    assert_eq!(report.ledger.path(DataPath::Gds).bytes, 0);
    let refusal = device.gds_refusal.unwrap();
    assert!(refusal.ends_with("direct reads take 16.0 MiB of it"), "{refusal}");
    let failed = load(&path, Verify::Off, &options, sink(&devices, Direct::Must(direct))).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::OutOfSpace);
}

#[tokio::test(flavor = "multi_thread")]
async fn required_gds_moves_every_byte_or_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 1, &[]);
    let options = LoadOptions::default();
    let expected = load_host_contents(&path, &options).await;
    let direct = Direct::Must(gds(dir.path(), &devices[0], &["-DNVFS"]).unwrap());
    let (tensors, report, device) = load(&path, Verify::Off, &options, sink(&devices, direct))
        .await
        .unwrap();
    assert!(contents(&tensors[0]) == expected);
    let only = Ledger::of(DataPath::Gds, report.read_bytes, report.pieces);
    assert_eq!(report.ledger.paths, only.paths);
    let proof = device.gds.unwrap();
    assert_eq!((proof.reads_nvfs, proof.reads_posix), (report.pieces, 0));
    assert_eq!(device.copied_bytes, 0);
    // A single read the other way.
    let dir = tempfile::tempdir().unwrap();
    let sneaky = gds(dir.path(), &devices[0], &["-DNVFS", "-DPOSIX_EVERY=1"]).unwrap();
    let error = load(&path, Verify::Off, &options, sink(&devices, Direct::Must(sneaky)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("went through host memory"), "{error}");
    // A file whose disk is not known.
    let dir = tempfile::tempdir().unwrap();
    let blind = gds(dir.path(), &devices[0], &["-DNVFS", "-DREGISTER_CODE=5027"]).unwrap();
    let error = load(&path, Verify::Off, &options, sink(&devices, Direct::Must(blind)))
        .await
        .unwrap_err();
    assert!(error.message().contains("udev"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn preferred_gds_says_why_it_was_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 1, &[]);
    let options = LoadOptions::default();
    let expected = load_host_contents(&path, &options).await;
    for (flags, reason) in [
        (&[][..], "no direct path"),
        (&["-DNVFS", "-DREGISTER_CODE=5027"], "udev"),
        (&["-DNVFS", "-DPOSIX_EVERY=1"], "went through host memory"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let direct = Direct::new(GdsPolicy::Prefer, gds(dir.path(), &devices[0], flags)).unwrap();
        let (tensors, report, _) = load(&path, Verify::Off, &options, sink(&devices, direct))
            .await
            .unwrap();
        assert!(contents(&tensors[0]) == expected);
        let ledger = &report.ledger;
        assert!(!ledger.paths.contains_key(&DataPath::Gds), "{ledger}");
        let is_told =
            |step: &forebay_core::Downgrade| step.wanted == DataPath::Gds && step.reason.contains(reason);
        assert!(ledger.downgrades.iter().any(is_told), "{ledger}");
        assert_eq!(ledger.bytes(), report.read_bytes);
    }
    let refused = gds(dir.path(), &devices[0], &[]);
    assert!(Direct::new(GdsPolicy::Require, refused).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_and_changes_are_not_forgotten_on_the_direct_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = model(dir.path()).await;
    let devices = devices(dir.path(), 1, &[]);
    let options = LoadOptions::default();
    let direct = |name: &str| {
        let dir = dir.path().join(name);
        fs::create_dir(&dir).unwrap();
        gds(&dir, &devices[0], &["-DP2P"]).unwrap()
    };
    let context = context();
    let source = open(&path, Verify::Off, &context).await.unwrap();
    write_hashes(&source.files()[0], &context).await.unwrap();
    assert!(fs::exists(format!("{}{SIDE_SUFFIX}", path.display())).unwrap());
    // With checksums, bytes go through host memory, where they are compared.
    let perhaps = Direct::Perhaps(Ok(direct("a")));
    let (_, report, device) = load(&path, Verify::Require, &options, sink(&devices, perhaps))
        .await
        .unwrap();
    assert!(report.ledger.verified_bytes >= report.tensor_bytes && device.copied_bytes > 0);
    let error = load(
        &path,
        Verify::Require,
        &options,
        sink(&devices, Direct::Must(direct("b"))),
    )
    .await
    .unwrap_err();
    assert!(error.message().contains("verify=\"off\""), "{error}");
    // Another content of the same size, after the headers were read.
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = load_sink(
        &source,
        &options,
        sink(&devices, Direct::Must(direct("c"))),
        &context,
    )
    .await
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
}
