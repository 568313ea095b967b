//! Tests against a driver made of C (`stub/cuda.c`), compiled by the compiler that links Rust programs: everything but the hardware.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use forebay_core::{ErrorKind, ManualClock};

use super::*;
use crate::buf::AlignedBuf;
use crate::dl::Library;
use crate::map::Pages;

/// A stub of its own, with its counters.
struct Stub {
    driver: Arc<Driver>,
    library: Library,
    dir: tempfile::TempDir,
}

pub(crate) fn compile(dir: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let library = dir.join(name);
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .arg(&library)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("stub").join(source))
        .args(flags)
        .status()
        .unwrap();
    assert!(compiled.success());
    library
}

fn open(flags: &[&str]) -> Result<Stub> {
    let dir = tempfile::tempdir().unwrap();
    let path = compile(dir.path(), "cuda.c", "libcuda.so.1", flags);
    let driver = Arc::new(Driver::open(std::slice::from_ref(&path))?);
    let library = Library::open(&[path]).unwrap();
    Ok(Stub { driver, library, dir })
}

impl Stub {
    fn count(&self, name: &std::ffi::CStr) -> u64 {
        let address = self.library.symbol(name).unwrap();
        // SAFETY: the stub's counters are functions without arguments.
        let call: extern "C" fn() -> u64 = unsafe { std::mem::transmute(address.as_ptr()) };
        call()
    }

    fn live(&self) -> u64 {
        self.count(c"stub_live")
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }
}

fn filled(len: usize, seed: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::alloc(len, Pages::Small).unwrap();
    for (index, byte) in buf.iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(31).wrapping_add(seed);
    }
    buf
}

fn content(buf: &DeviceBuf) -> Vec<u8> {
    let mut bytes = vec![0; buf.len()];
    buf.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_machine_without_a_driver_says_so() {
    let error = Driver::open(&["libforebay-nowhere.so".into()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .message()
            .starts_with("there is no CUDA driver here: libforebay-nowhere.so not found"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("cpu"));
}

#[test]
fn drivers_that_cannot_be_used_say_why() {
    let cases: [(&[&str], &str); 4] = [
        (&["-DVERSION=11020"], "too old: it is for CUDA 11.2"),
        (&["-DNO_UUID"], "lacks cuDeviceGetUuid_v2"),
        (
            &["-DINIT_CODE=100"],
            "no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)",
        ),
        (&["-DINIT_CODE=34"], "error 34 of the CUDA driver"),
    ];
    for (flags, words) in cases {
        let error = open(flags).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains(words), "{error}");
        assert!(error.hint().is_some(), "{error}");
    }
}

#[test]
fn devices_tell_who_they_are() {
    let stub = open(&["-DDEVICES=2"]).unwrap();
    assert_eq!(
        (stub.driver.version(), stub.driver.device_count().unwrap()),
        ((13, 0), 2)
    );
    let info = stub.driver.device_info(1).unwrap();
    assert_eq!(
        (info.name.as_str(), info.pci.as_str(), info.compute),
        ("Stub GPU 1", "0000:3b:00.0", (9, 0))
    );
    assert_eq!(info.uuid, "GPU-02020202-0202-0202-0202-020202020202");
    let error = Device::open(&stub.driver, 2).unwrap_err();
    assert_eq!(
        error.message(),
        "there is no device cuda:2: 2 visible to this process"
    );
    assert_eq!(stub.live(), 0, "describing makes no context");
}

#[test]
fn bytes_arrive_where_they_were_sent_and_nothing_is_left_behind() {
    let stub = open(&[]).unwrap();
    {
        let device = Device::open(&stub.driver, 0).unwrap();
        let stream = device.stream().unwrap();
        let target = Arc::new(device.alloc(10_000).unwrap());
        let source = filled(8192, 7);
        let expected = source.to_vec();
        let mut flight = Flight::new(source);
        flight.copy(&stream, 0..4096, &target, 5904).unwrap();
        flight.copy(&stream, 4096..8192, &target, 0).unwrap();
        flight.launch().unwrap();
        assert!(!flight.is_done().unwrap(), "the stub copies when it must");
        let (buf, outcome) = flight.wait();
        outcome.unwrap();
        assert_eq!(buf.unwrap().len(), 8192);
        let got = content(&target);
        assert_eq!(got[5904..], expected[..4096]);
        assert_eq!(got[..4096], expected[4096..]);
        assert_eq!(device.memory().unwrap().free_bytes, (1 << 30) - 10_000);
    }
    assert_eq!(stub.live(), 0);
    assert_eq!(
        stub.count(c"stub_depth"),
        0,
        "the caller's context is current again"
    );
}

#[test]
fn strips_land_side_by_side_from_the_host_and_on_the_device() {
    let stub = open(&[]).unwrap();
    let device = Device::open(&stub.driver, 0).unwrap();
    let stream = device.stream().unwrap();
    let (whole, target) = (
        Arc::new(device.alloc(4096).unwrap()),
        Arc::new(device.alloc(16 * 64).unwrap()),
    );
    let source = filled(4096, 11);
    let rows: Vec<u8> = source.chunks(64).flat_map(|row| row[8..24].to_vec()).collect();
    let strips = Strips {
        from: 8,
        to: 0,
        bytes: 16,
        rows: 64,
        from_stride: 64,
        to_stride: 16,
    };
    let mut flight = Flight::new(source);
    flight.copy(&stream, 0..4096, &whole, 0).unwrap();
    flight.copy_strips(&stream, strips, &target).unwrap();
    flight.launch().unwrap();
    flight.wait().1.unwrap();
    assert_eq!(content(&target), rows);
    let again = device.alloc(16 * 64).unwrap();
    again.copy_from(&stream, &whole, &[strips]).unwrap();
    assert_eq!(content(&again), rows);
    // Rows that overlap in the source go one by one.
    let stairs = Strips {
        from_stride: 8,
        rows: 4,
        ..strips
    };
    again.copy_from(&stream, &whole, &[stairs]).unwrap();
    let mut source = vec![0; 4096];
    whole.read(0, &mut source).unwrap();
    let expected: Vec<u8> = (0..4)
        .flat_map(|row| source[8 + row * 8..24 + row * 8].to_vec())
        .collect();
    assert_eq!(content(&again)[..64], expected);
}

#[test]
fn copies_out_of_bounds_or_to_another_device_are_refused() {
    let stub = open(&["-DDEVICES=2"]).unwrap();
    let (one, two) = (
        Device::open(&stub.driver, 0).unwrap(),
        Device::open(&stub.driver, 1).unwrap(),
    );
    let stream = one.stream().unwrap();
    let target = Arc::new(one.alloc(4096).unwrap());
    let elsewhere = Arc::new(two.alloc(4096).unwrap());
    let mut flight = Flight::new(filled(4096, 1));
    for (piece, buf, offset) in [
        (0..4097, &target, 0),
        (0..4096, &target, 1),
        (0..1, &target, usize::MAX),
        (0..1, &elsewhere, 0),
    ] {
        let error = flight.copy(&stream, piece, buf, offset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    flight.copy(&stream, 0..0, &target, 4096).unwrap();
    assert_eq!(stub.count(c"stub_copies"), 0);
}

#[test]
fn a_flight_that_is_dropped_still_lands() {
    let stub = open(&[]).unwrap();
    let device = Device::open(&stub.driver, 0).unwrap();
    let stream = device.stream().unwrap();
    let target = Arc::new(device.alloc(4096).unwrap());
    let source = filled(4096, 3);
    let expected = source.to_vec();
    let mut flight = Flight::new(source);
    flight.copy(&stream, 0..4096, &target, 0).unwrap();
    // Neither launched nor waited for.
    drop(flight);
    assert_eq!(content(&target), expected);
}

#[test]
fn too_little_memory_is_told_in_bytes() {
    let stub = open(&["-DMEMORY=1048576"]).unwrap();
    let device = Device::open(&stub.driver, 0).unwrap();
    let _held = device.alloc(1 << 19).unwrap();
    let error = device.alloc(3 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfSpace);
    assert_eq!(
        error.message(),
        "3.0 MiB (3145728 bytes) are needed on cuda:0, and 512.0 KiB of 1.0 MiB are free"
    );
    assert!(error.hint().unwrap().contains("nvidia-smi"));
}

fn ring(device: &Device, bytes_max: u64) -> Ring {
    Ring::new(device, RingConfig { bytes_max }, Arc::new(ManualClock::default())).unwrap()
}

#[test]
fn slots_are_recycled_only_after_the_device_has_read_them() {
    const SLOT: usize = 1 << 20;
    let stub = open(&["-DMEMORY=268435456"]).unwrap();
    {
        let device = Device::open(&stub.driver, 0).unwrap();
        let ring = ring(&device, 8 << 20);
        let (stream, uploads) = (device.stream().unwrap(), ring.uploads());
        let target = Arc::new(device.alloc(64 * SLOT).unwrap());
        for index in 0..64usize {
            let mut slot = ring.pool().lease(SLOT).wait().unwrap().unwrap();
            slot.fill(index as u8 + 1);
            let mut flight = Flight::new(slot);
            flight.copy(&stream, 0..SLOT, &target, index * SLOT).unwrap();
            uploads.send(flight).unwrap();
        }
        uploads.finish().wait().unwrap().unwrap();
        assert_eq!(uploads.landed(), 64);
        let got = content(&target);
        for (index, slot) in got.chunks(SLOT).enumerate() {
            assert!(slot.iter().all(|byte| *byte == index as u8 + 1), "slot {index}");
        }
        let stats = ring.stats();
        assert_eq!(
            (stats.bytes_max, stats.pinned_bytes, stats.leased_bytes_peak),
            (8 << 20, 8 << 20, 8 << 20)
        );
    }
    // The thread that waits for landings ends with its ring.
    for _ in 0..1000 {
        if stub.live() == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{} things of the driver are left", stub.live());
}

#[test]
fn a_thread_that_paces_itself_has_one_slot_in_flight_and_finish_waits_for_the_last() {
    const SLOT: usize = 1 << 20;
    let stub = open(&["-DMEMORY=268435456"]).unwrap();
    let device = Device::open(&stub.driver, 0).unwrap();
    let ring = ring(&device, 8 << 20);
    let (stream, uploads) = (device.stream().unwrap(), ring.uploads());
    let target = Arc::new(device.alloc(32 * SLOT).unwrap());
    for index in 0..32usize {
        let mut slot = ring.pool().lease(SLOT).wait().unwrap().unwrap();
        slot.fill(index as u8 + 1);
        let mut flight = Flight::new(slot);
        flight.copy(&stream, 0..SLOT, &target, index * SLOT).unwrap();
        uploads.pace(flight).unwrap();
        assert_eq!(uploads.landed(), index as u64);
        assert_eq!(ring.pool().stats().leased_bytes, SLOT as u64);
    }
    uploads.finish().wait().unwrap().unwrap();
    assert_eq!((uploads.landed(), ring.pool().stats().leased_bytes), (32, 0));
    for (index, slot) in content(&target).chunks(SLOT).enumerate() {
        assert!(slot.iter().all(|byte| *byte == index as u8 + 1), "slot {index}");
    }
}

/// A file in the page cache, each slot of it filled with its number.
fn hot_file(dir: &Path, slots: usize) -> Arc<crate::file::File> {
    let bytes: Vec<u8> = (0..slots).flat_map(|slot| vec![slot as u8; FEED_SLOT]).collect();
    let path = dir.join("hot");
    std::fs::write(&path, bytes).unwrap();
    Feeder::open(&path).unwrap()
}

/// Bytes that threads of the feeder copy at a time.
const FEED_SLOT: usize = 4 << 20;

#[test]
fn threads_that_keep_all_slots_let_go_of_them_when_somebody_waits() {
    const JOBS: u64 = 12;
    let stub = open(&["-DMEMORY=268435456"]).unwrap();
    let device = Device::open(&stub.driver, 0).unwrap();
    // Two slots for four threads, each of which keeps one; a job fills two.
    let ring = ring(&device, 2 * FEED_SLOT as u64);
    let feeder = Feeder::new(4).unwrap();
    let file = hot_file(stub.dir(), 2 * JOBS as usize);
    let loads: Vec<(Uploads, Targets)> = (0..2)
        .map(|_| {
            let target = Arc::new(device.alloc(JOBS as usize * 2 * FEED_SLOT).unwrap());
            (ring.uploads(), Arc::new(vec![(device.stream().unwrap(), target)]))
        })
        .collect();
    let mut fed = Vec::new();
    for job in 0..JOBS {
        let span = forebay_core::Span::at(job * 2 * FEED_SLOT as u64, 2 * FEED_SLOT as u64).unwrap();
        let runs = vec![Strips::run(0, span.start() as usize, span.len() as usize)];
        for (uploads, targets) in &loads {
            fed.push(feeder.feed(&file, span, runs.clone(), targets, uploads));
        }
    }
    for completion in fed {
        completion.wait().unwrap().unwrap();
    }
    // Neither load is finished, and a read that goes around the page cache needs both slots.
    let whole = ring.lease(2 * FEED_SLOT).wait().unwrap().unwrap();
    drop(whole);
    for (uploads, targets) in &loads {
        uploads.finish().wait().unwrap().unwrap();
        for (slot, bytes) in content(&targets[0].1).chunks(FEED_SLOT).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == slot as u8), "slot {slot}");
        }
    }
    assert_eq!(ring.pool().stats().leased_bytes, 0);
}

#[test]
fn slots_lie_in_memory_that_was_pinned_as_one() {
    const SLOT: usize = 7 << 20;
    let stub = open(&[]).unwrap();
    let device = Device::open(&stub.driver, 0).unwrap();
    let ring = ring(&device, 96 << 20);
    ring.pin_all().unwrap();
    let (stream, target) = (device.stream().unwrap(), Arc::new(device.alloc(SLOT).unwrap()));
    // As many as there are: a step holds four, and what is left of one does not go together with the start of the next.
    let slots: Vec<AlignedBuf> = std::iter::from_fn(|| ring.pool().try_lease(SLOT)).collect();
    assert_eq!(slots.len(), 12);
    for slot in slots {
        let mut flight = Flight::new(slot);
        flight.copy(&stream, 0..SLOT, &target, 0).unwrap();
        flight.launch().unwrap();
        flight.wait().1.unwrap();
    }
}

#[test]
fn one_buffer_feeds_several_devices() {
    let stub = open(&["-DDEVICES=2"]).unwrap();
    let devices: Vec<Device> = (0..2)
        .map(|ordinal| Device::open(&stub.driver, ordinal).unwrap())
        .collect();
    let ring = ring(&devices[0], 2 << 20);
    let uploads = ring.uploads();
    let mut slot = ring.pool().lease(4096).wait().unwrap().unwrap();
    slot.fill(0x5a);
    let mut flight = Flight::new(slot);
    let targets: Vec<Arc<DeviceBuf>> = devices
        .iter()
        .map(|device| Arc::new(device.alloc(4096).unwrap()))
        .collect();
    for (device, target) in devices.iter().zip(&targets) {
        flight
            .copy(&device.stream().unwrap(), 0..4096, target, 0)
            .unwrap();
    }
    uploads.send(flight).unwrap();
    uploads.finish().wait().unwrap().unwrap();
    for target in &targets {
        assert_eq!(content(target), [0x5a; 4096]);
    }
}

#[test]
fn a_lost_device_fails_the_load_and_gives_the_slots_back() {
    let stub = open(&["-DFAIL_AT=3"]).unwrap();
    let device = Device::open(&stub.driver, 0).unwrap();
    let ring = ring(&device, 2 << 20);
    let (stream, uploads) = (device.stream().unwrap(), ring.uploads());
    let target = Arc::new(device.alloc(4096).unwrap());
    let mut failed = None;
    for _ in 0..2000 {
        let slot = ring.pool().lease(4096).wait().unwrap().unwrap();
        let mut flight = Flight::new(slot);
        if let Err(error) = flight
            .copy(&stream, 0..4096, &target, 0)
            .and_then(|()| uploads.send(flight))
        {
            failed = Some(error);
            break;
        }
    }
    let failed = failed.expect("nothing goes on after the loss");
    let finished = uploads.finish().wait().unwrap();
    // Whichever call meets the loss first tells it; the others say that they were stopped.
    let error = if failed.kind() == ErrorKind::Cancelled {
        finished.unwrap_err()
    } else {
        failed
    };
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(
        error.message(),
        "the device was lost: unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED)"
    );
    assert!(error.hint().unwrap().contains("Xid"));
    assert_eq!(ring.pool().stats().leased_bytes, 0);
}

#[test]
fn a_ring_that_cannot_be_pinned_whole_goes_on_smaller() {
    let stub = open(&["-DPIN_MAX=41943040"]).unwrap();
    let device = Device::open(&stub.driver, 0).unwrap();
    let ring = ring(&device, 128 << 20);
    // Whoever comes second finds nothing more to do.
    let _ = ring.pin_all();
    while ring.stats().bytes_max != 32 << 20 {
        std::thread::yield_now();
    }
    assert!(ring.pool().try_lease(4 << 20).is_some());
    for bytes_max in [0, RING_BYTES_MAX + 1] {
        let error = Ring::new(
            &device,
            RingConfig { bytes_max },
            Arc::new(ManualClock::default()),
        )
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
