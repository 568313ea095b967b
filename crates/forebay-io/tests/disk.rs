//! The disk against a plain vector of bytes, on every engine, and what it says about its paths, its limits and its faults.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{DataPath, ErrorKind, Ledger, Limits, PathPolicy, Result, Seed, Span};
use forebay_io::sim::{SimConfig, SimFault, SimFs};
use forebay_io::{
    Access, AlignedBuf, Buf, Class, Direct, Disk, DiskConfig, Engine, File, FixedCaps, Gate, NameOp, OpenHow,
    Pages, Psync, Purpose, SimEngine, Uring,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const MIB: u64 = 1 << 20;

/// A disk with a place for its files.
struct Rig {
    disk: Disk,
    root: PathBuf,
    direct: Direct,
    runtime: Runtime,
    _dir: Option<TempDir>,
}

impl Rig {
    fn new(engine: Arc<dyn Engine>, direct: Direct, dir: Option<TempDir>, limits: Limits) -> Self {
        let config = DiskConfig {
            limits,
            gate: Gate::new(FixedCaps([4 * MIB; 4])),
            ..DiskConfig::default()
        };
        Self {
            disk: Disk::with_engine(engine, config).unwrap(),
            root: dir
                .as_ref()
                .map_or(PathBuf::from("/"), |dir| dir.path().to_owned()),
            direct,
            runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
            _dir: dir,
        }
    }

    fn psync(direct: Direct) -> Self {
        let engine = Psync::new(&limits(), Some("a test wants threads".to_owned())).unwrap();
        Self::new(Arc::new(engine), direct, Some(temp_dir()), limits())
    }

    fn uring(direct: Direct) -> Option<Self> {
        match Uring::new(&limits()) {
            Ok(engine) => Some(Self::new(Arc::new(engine), direct, Some(temp_dir()), limits())),
            Err(error) => skip(&error),
        }
    }

    fn sim(config: SimConfig) -> Self {
        Self::new(
            Arc::new(SimEngine::new(&SimFs::new(), config)),
            Direct::Auto,
            None,
            limits(),
        )
    }

    /// Every kind of disk there is.
    fn all() -> Vec<Self> {
        let moody = |direct_align| {
            Self::sim(SimConfig {
                seed: Seed(7),
                short_one_in: 3,
                reorder: true,
                direct_align,
                request_bytes: 64 << 10,
                ..SimConfig::default()
            })
        };
        let mut rigs = vec![moody(None), moody(Some(512)), moody(Some(4096))];
        for direct in [Direct::Never, Direct::Require] {
            rigs.push(Self::psync(direct));
            rigs.extend(Self::uring(direct));
        }
        rigs
    }

    fn open(&self, name: &str, purpose: Purpose) -> Result<Arc<File>> {
        let how = OpenHow {
            purpose,
            direct: self.direct,
            size_hint: None,
        };
        let path = self.root.join(name);
        self.runtime
            .block_on(self.disk.open_file(path, how, PathPolicy::Fastest))
    }

    fn file_of(&self, name: &str, bytes: &[u8]) -> Arc<File> {
        let file = self.open(name, Purpose::Create).unwrap();
        self.write(&file, 0, Buf::copy_of(bytes).unwrap()).unwrap();
        self.set_len(&file, bytes.len() as u64);
        file
    }

    fn write(&self, file: &Arc<File>, offset: u64, buf: Buf) -> Result<Ledger> {
        self.runtime
            .block_on(self.disk.write_at(file, offset, buf, Class::Checkpoint))
    }

    fn read(&self, file: &Arc<File>, span: Span) -> Result<(Buf, Ledger)> {
        self.runtime.block_on(self.disk.read(file, span, Class::Data))
    }

    fn read_into(&self, file: &Arc<File>, span: Span, buf: AlignedBuf) -> Result<(AlignedBuf, Ledger)> {
        self.runtime
            .block_on(self.disk.read_into(file, span, buf, Class::Data))
    }

    fn set_len(&self, file: &Arc<File>, len: u64) {
        self.runtime.block_on(self.disk.set_len(file, len)).unwrap();
    }
}

fn limits() -> Limits {
    Limits {
        buffer_bytes_max: 64 * MIB,
        disk_request_bytes: MIB,
        ..Limits::default()
    }
}

fn temp_dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[expect(clippy::print_stderr, reason = "a skipped test must say why")]
fn skip<T>(why: &dyn std::fmt::Display) -> Option<T> {
    eprintln!("skipped: {why}");
    None
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Seed(seed).rng().fill(&mut bytes);
    bytes
}

fn align_of(file: &File) -> u64 {
    match *file.access() {
        Access::Direct { align } => align.into(),
        Access::Buffered { .. } => 1,
    }
}

/// A buffer of `len` bytes whose address is `shift` bytes off a page.
fn shifted(len: usize, shift: usize) -> AlignedBuf {
    AlignedBuf::alloc(len + shift, Pages::Small)
        .unwrap()
        .split_off(shift)
}

#[derive(Debug, Clone)]
enum Op {
    Read {
        start: u64,
        len: u64,
    },
    ReadInto {
        start: u64,
        len: u64,
        shift: usize,
        extra: usize,
    },
    Write {
        offset: u64,
        len: u64,
        shift: usize,
    },
    SetLen {
        len: u64,
    },
}

/// Places in a small file, most of them near where requests are cut.
fn places() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..10_000u64,
        (1..3u64, 0..9_000u64).prop_map(|(mib, near)| mib * MIB - 4500 + near),
        (0..600u64).prop_map(|page| page * 4096),
    ]
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..1500u64,
        3 => 0..70_000u64,
        1 => MIB - 5000..2 * MIB + 5000,
        1 => (1..300u64).prop_map(|page| page * 4096),
    ]
}

/// How far off a page buffers lie: often not at all, or on a sector.
fn shifts() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), (0..8usize).prop_map(|sector| sector * 512), 0..4096usize]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (places(), lengths()).prop_map(|(start, len)| Op::Read { start, len }),
        // A read that a direct file can serve in place after its head: buffer and span lie alike.
        2 => (places(), lengths()).prop_map(|(start, len)| {
            Op::ReadInto { start, len, shift: start as usize % 4096, extra: 0 }
        }),
        3 => (places(), lengths(), shifts(), 0..9000usize)
            .prop_map(|(start, len, shift, extra)| Op::ReadInto { start, len, shift, extra }),
        4 => (places(), lengths(), shifts()).prop_map(|(offset, len, shift)| Op::Write { offset, len, shift }),
        1 => places().prop_map(|len| Op::SetLen { len }),
    ];
    prop::collection::vec(op, 1..12)
}

/// A file and what must be in it.
struct Model<'a> {
    rig: &'a Rig,
    file: Arc<File>,
    bytes: Vec<u8>,
    writes: u64,
}

impl Model<'_> {
    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Read { start, len } => self.read(Span::at(start, len).unwrap()),
            Op::ReadInto {
                start,
                len,
                shift,
                extra,
            } => {
                self.read_into(Span::at(start, len).unwrap(), shift, extra);
            }
            Op::Write { offset, len, shift } => self.write(offset, len as usize, shift),
            Op::SetLen { len } => {
                self.rig.set_len(&self.file, len);
                self.bytes.resize(len as usize, 0);
            }
        }
    }

    fn read(&self, span: Span) {
        match self.rig.read(&self.file, span) {
            Ok((buf, ledger)) => {
                self.check_found(span, &buf);
                self.check_ledger(&ledger, span.len(), 0);
            }
            Err(error) => self.check_missing(span, &error),
        }
    }

    fn read_into(&self, span: Span, shift: usize, extra: usize) {
        let len = span.len() as usize + extra;
        let buf = shifted(len, shift);
        let (address, capacity) = (buf.as_ptr(), buf.capacity() as u64);
        match self.rig.read_into(&self.file, span, buf) {
            Ok((buf, ledger)) => {
                assert_eq!(
                    (buf.as_ptr(), buf.len()),
                    (address, len),
                    "the same buffer comes back whole"
                );
                self.check_found(span, &buf[..span.len() as usize]);
                self.check_ledger(
                    &ledger,
                    span.len(),
                    self.copied_by_read(span, address as u64, capacity),
                );
            }
            Err(error) => self.check_missing(span, &error),
        }
    }

    /// Bytes that cannot land where they are wanted: all of them when buffer and span lie differently, else the ends.
    fn copied_by_read(&self, span: Span, address: u64, capacity: u64) -> u64 {
        let align = align_of(&self.file);
        if address % align != span.start() % align {
            return span.len();
        }
        let head = (span.start().next_multiple_of(align) - span.start()).min(span.len());
        let rest = span.len() - head;
        if head + rest.next_multiple_of(align) <= capacity {
            head
        } else {
            head + rest % align
        }
    }

    fn write(&mut self, offset: u64, len: usize, shift: usize) {
        let align = align_of(&self.file);
        self.writes += 1;
        let bytes = pattern(self.writes, len);
        let mut buf = shifted(len, shift);
        buf.copy_from_slice(&bytes);
        let copied = if (buf.as_ptr() as u64).is_multiple_of(align) {
            len as u64 % align
        } else {
            len as u64
        };
        if !offset.is_multiple_of(align) && len > 0 {
            let error = self.rig.write(&self.file, offset, buf.freeze()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            return;
        }
        let ledger = self.rig.write(&self.file, offset, buf.freeze()).unwrap();
        self.check_ledger(&ledger, len as u64, copied);
        // A tail off the alignment is padded with zeros.
        let (start, end) = (offset as usize, offset as usize + len);
        let padded = end.next_multiple_of(align as usize);
        if len > 0 {
            self.bytes.resize(self.bytes.len().max(padded), 0);
            self.bytes[start..end].copy_from_slice(&bytes);
            self.bytes[end..padded].fill(0);
        }
    }

    fn check_found(&self, span: Span, found: &[u8]) {
        let size = self.bytes.len() as u64;
        assert!(span.is_empty() || span.end() <= size, "{span} read of {size}");
        assert!(
            span.is_empty() || *found == self.bytes[span.start() as usize..span.end() as usize],
            "wrong bytes at {span}"
        );
    }

    fn check_missing(&self, span: Span, error: &forebay_core::Error) {
        let size = self.bytes.len() as u64;
        assert!(!span.is_empty() && span.end() > size, "{span} of {size}: {error}");
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert_eq!(error.location(), self.file.path().to_str());
    }

    fn check_ledger(&self, ledger: &Ledger, bytes: u64, copied_bytes: u64) {
        let path = self.rig.disk.path_of(&self.file);
        let totals = ledger.path(path);
        assert_eq!((ledger.bytes(), totals.bytes), (bytes, bytes), "{ledger:?}");
        assert_eq!(totals.copied_bytes, copied_bytes, "{ledger:?}");
        assert_eq!(totals.requests > 0, bytes > 0, "{ledger:?}");
        let reasons: Vec<&str> = ledger
            .downgrades
            .iter()
            .map(|step| step.reason.as_str())
            .collect();
        match (self.file.access(), self.rig.disk.report().fallback_reason) {
            (Access::Buffered { reason }, _) => assert_eq!(reasons, [reason]),
            (Access::Direct { .. }, Some(reason)) => assert_eq!(reasons, [reason]),
            (Access::Direct { .. }, None) => assert!(reasons.is_empty(), "{reasons:?}"),
        }
        assert!(ledger.downgrades.iter().all(|step| step.taken == path));
    }
}

fn agrees_with_the_model(rig: &Rig) {
    let config = Config {
        cases: 48,
        failure_persistence: None,
        ..Config::default()
    };
    let number = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&ops(), |ops| {
            number.set(number.get() + 1);
            let name = format!("f{}", number.get());
            let mut model = Model {
                rig,
                file: rig.open(&name, Purpose::Create).unwrap(),
                bytes: Vec::new(),
                writes: 0,
            };
            for op in &ops {
                model.apply(op);
            }
            let whole = Span::first(model.bytes.len() as u64);
            model.read(whole);
            let stats = rig.disk.pool().stats();
            assert_eq!((stats.leased_bytes, rig.disk.gate().in_flight().0), (0, [0; 4]));
            let path = rig.root.join(&name);
            rig.runtime
                .block_on(rig.disk.name(NameOp::Unlink { path }))
                .unwrap();
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_thread_pool_agrees_with_a_vector_of_bytes() {
    agrees_with_the_model(&Rig::psync(Direct::Never));
    agrees_with_the_model(&Rig::psync(Direct::Require));
}

#[test]
fn io_uring_agrees_with_a_vector_of_bytes() {
    for direct in [Direct::Never, Direct::Require] {
        if let Some(rig) = Rig::uring(direct) {
            agrees_with_the_model(&rig);
        }
    }
}

#[test]
fn a_moody_simulation_agrees_with_a_vector_of_bytes() {
    for rig in Rig::all().into_iter().take(3) {
        agrees_with_the_model(&rig);
    }
}

#[test]
fn large_transfers_are_cut_by_the_disk_too() {
    for rig in Rig::all() {
        let bytes = pattern(1, 20 << 20);
        let file = rig.file_of("f", &bytes);
        let mut model = Model {
            rig: &rig,
            file,
            bytes,
            writes: 10,
        };
        // In place, bounced whole, and bounced at the ends, over several operations each.
        for (start, len, shift) in [
            (0, 20 << 20, 0),
            (100, 19 << 20, 0),
            (4096, 17 << 20, 8),
            (5000, 18 << 20, 5000 % 4096),
        ] {
            let span = Span::at(start, len).unwrap();
            model.read(span);
            model.read_into(span, shift, 0);
        }
        model.write(4096, 18 << 20, 0);
        model.write(8192, (9 << 20) + 4096, 40);
        model.read(Span::first(20 << 20));
    }
}

#[test]
fn a_file_that_shrinks_is_told_not_filled_up() {
    for rig in Rig::all() {
        let bytes = pattern(2, 3 << 20);
        let file = rig.file_of("f", &bytes);
        let believed = Span::first(file.size().max(3 << 20));
        rig.set_len(&file, 1_500_000);
        let error = rig.read(&file, believed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(error.message().contains("1500000"), "says where it ends: {error}");
        assert_eq!(error.location(), file.path().to_str());
        // The caller's buffer comes back whole, to be filled from elsewhere.
        for shift in [0, 8] {
            let buf = shifted(3 << 20, shift);
            let address = buf.as_ptr();
            let reading = rig.disk.try_read_into(&file, believed, buf, Class::Data);
            let (buf, result) = rig.runtime.block_on(reading).unwrap();
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Precondition);
            assert_eq!((buf.as_ptr(), buf.len()), (address, 3 << 20));
        }
        assert_eq!(rig.disk.pool().stats().leased_bytes, 0);
        assert!(rig.read(&file, Span::first(1_500_000)).unwrap().0[..] == bytes[..1_500_000]);
    }
}

#[test]
fn a_file_that_shrinks_and_grows_meanwhile_never_gives_other_bytes() {
    for direct in [Direct::Never, Direct::Require] {
        let rig = Rig::psync(direct);
        let bytes = vec![7; 2 << 20];
        let file = rig.file_of("f", &bytes);
        std::thread::scope(|scope| {
            let cut_file = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
            let cutter = scope.spawn(move || {
                for round in 0..200 {
                    cut_file
                        .set_len(if round % 2 == 0 { 1 << 20 } else { 2 << 20 })
                        .unwrap();
                }
            });
            while !cutter.is_finished() {
                match rig.read(&file, Span::first(2 << 20)) {
                    Ok((buf, _)) => assert!(buf.iter().all(|byte| matches!(byte, 0 | 7))),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Precondition, "{error}"),
                }
            }
        });
    }
}

#[test]
fn a_full_disk_is_an_error_with_its_place() {
    for direct_align in [None, Some(4096)] {
        let rig = Rig::sim(SimConfig {
            capacity_bytes: Some(MIB),
            direct_align,
            ..SimConfig::default()
        });
        let file = rig.open("f", Purpose::Create).unwrap();
        let error = rig
            .write(&file, 0, Buf::copy_of(&pattern(3, 2 << 20)).unwrap())
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.location()),
            (ErrorKind::OutOfSpace, Some("/f"))
        );
    }
}

#[test]
fn errors_of_the_kernel_come_through_with_nothing_left_behind() {
    for (fault, kind) in [
        (SimFault::Eio, ErrorKind::Io),
        (SimFault::Enospc, ErrorKind::OutOfSpace),
        (SimFault::TornWrite, ErrorKind::Io),
    ] {
        // The open, then the third of four requests.
        let rig = Rig::sim(SimConfig {
            fail_op: Some((4, fault)),
            ..SimConfig::default()
        });
        let file = rig.open("f", Purpose::Create).unwrap();
        let error = rig
            .write(&file, 0, Buf::copy_of(&pattern(4, 4 << 20)).unwrap())
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(rig.disk.gate().in_flight().0, [0; 4]);
    }
    let rig = Rig::sim(SimConfig {
        fail_op: Some((8, SimFault::Eio)),
        ..SimConfig::default()
    });
    let file = rig.file_of("f", &pattern(5, 4 << 20));
    let error = rig.read(&file, Span::first(4 << 20)).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Io, "read"));
    assert_eq!(
        (
            rig.disk.pool().stats().leased_bytes,
            rig.disk.gate().in_flight().0
        ),
        (0, [0; 4])
    );
}

#[test]
fn buffers_that_are_too_short_and_offsets_that_are_not_aligned_are_refused() {
    for rig in Rig::all() {
        let bytes = pattern(6, 3 << 20);
        let file = rig.file_of("f", &bytes);
        let error = rig
            .read_into(&file, Span::first(4097), shifted(4096, 0))
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.location()),
            (ErrorKind::InvalidInput, file.path().to_str())
        );
        if align_of(&file) > 1 {
            let error = rig
                .write(&file, 100, Buf::copy_of(&pattern(7, 2 << 20)).unwrap())
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(
                rig.read(&file, Span::first(3 << 20)).unwrap().0[..] == bytes,
                "nothing was written"
            );
        }
    }
}

/// Leave the mounts of the other threads and mount a file system of one's own; threads started later see it.
fn mount_own(target: &Path, data: &std::ffi::CStr, flags: libc::c_ulong) -> std::io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let target = std::ffi::CString::new(target.as_os_str().as_bytes())?;
    // SAFETY: plain system calls on strings that live until they return.
    let results = unsafe {
        [
            libc::unshare(libc::CLONE_NEWNS),
            libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ),
            libc::mount(
                c"tmpfs".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                flags,
                data.as_ptr().cast(),
            ),
        ]
    };
    if results.contains(&-1) {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

#[test]
fn a_full_and_a_read_only_file_system_are_told_apart() {
    for (flags, kind) in [(0, ErrorKind::OutOfSpace), (libc::MS_RDONLY, ErrorKind::ReadOnly)] {
        let dir = temp_dir();
        let target = dir.path().to_owned();
        // Of its own, because what it mounts is seen by this thread and those it starts.
        let test = std::thread::spawn(move || {
            if let Err(error) = mount_own(&target, c"size=1m", flags) {
                return skip(&format!("cannot mount a small tmpfs: {error}"));
            }
            let engines: [Option<Arc<dyn Engine>>; 2] = [
                Some(Arc::new(Psync::new(&limits(), None).unwrap())),
                Uring::new(&limits())
                    .ok()
                    .map(|engine| Arc::new(engine) as Arc<dyn Engine>),
            ];
            for engine in engines.into_iter().flatten() {
                let mut rig = Rig::new(engine, Direct::Auto, None, limits());
                rig.root.clone_from(&target);
                let written = rig
                    .open("f", Purpose::Update)
                    .and_then(|file| rig.write(&file, 0, Buf::copy_of(&pattern(8, 2 << 20))?));
                let error = written.unwrap_err();
                assert_eq!(error.kind(), kind, "{error}");
                assert_eq!(error.location(), target.join("f").to_str());
            }
            Some(())
        });
        test.join().unwrap();
    }
}

#[test]
fn a_required_path_that_memory_cannot_offer_is_an_error_with_the_reason() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let path = dir.path().join("f");
    std::fs::write(&path, pattern(9, 1 << 20)).unwrap();
    let open = |rig: &Rig, policy| {
        let opening = rig.disk.open_file(path.clone(), OpenHow::READ, policy);
        rig.runtime.block_on(opening)
    };
    for rig in [Some(Rig::psync(Direct::Auto)), Rig::uring(Direct::Auto)]
        .into_iter()
        .flatten()
    {
        let error = open(&rig, PathPolicy::Require(DataPath::DirectUring)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("tmpfs"), "{error}");
        assert_eq!(error.location(), path.to_str());
        assert!(error.hint().is_some());
        let file = open(&rig, PathPolicy::Require(DataPath::Buffered)).unwrap();
        assert_eq!(rig.disk.path_of(&file), DataPath::Buffered);
        let file = open(&rig, PathPolicy::Fastest).unwrap();
        let (_, ledger) = rig.read(&file, Span::first(1 << 20)).unwrap();
        assert!(ledger.downgrades[0].reason.contains("tmpfs"), "{ledger:?}");
        assert_eq!(ledger.downgrades[0].wanted, DataPath::DirectUring);
    }
}

#[test]
fn a_required_path_of_another_engine_is_an_error_with_the_reason() {
    let rig = Rig::psync(Direct::Auto);
    let file = rig.file_of("f", &pattern(10, 1 << 20));
    let opening = rig.disk.open_file(
        file.path(),
        OpenHow::READ,
        PathPolicy::Require(DataPath::DirectUring),
    );
    let error = rig.runtime.block_on(opening).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("a test wants threads"), "{error}");
}

#[test]
fn a_slow_consumer_holds_the_ceiling_of_memory() {
    const PIECE: u64 = MIB;
    const PIECES: u64 = 64;
    let limits = Limits {
        buffer_bytes_max: 4 * MIB,
        ..limits()
    };
    let engines: [Option<Arc<dyn Engine>>; 2] = [
        Some(Arc::new(Psync::new(&limits, None).unwrap())),
        Uring::new(&limits)
            .ok()
            .map(|engine| Arc::new(engine) as Arc<dyn Engine>),
    ];
    for engine in engines.into_iter().flatten() {
        let rig = Rig::new(engine, Direct::Auto, Some(temp_dir()), limits.clone());
        let bytes = pattern(11, (PIECES * PIECE) as usize);
        let file = rig.file_of("f", &bytes);
        let mut seen = BTreeSet::new();
        rig.runtime.block_on(async {
            let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
            let mut readers = tokio::task::JoinSet::new();
            for index in 0..PIECES {
                let (disk, file, sender) = (rig.disk.clone(), Arc::clone(&file), sender.clone());
                readers.spawn_on(
                    async move {
                        let span = Span::at(index * PIECE, PIECE).unwrap();
                        let (buf, _) = disk.read(&file, span, Class::Data).await.unwrap();
                        sender.send((index, buf)).await.unwrap();
                    },
                    rig.runtime.handle(),
                );
            }
            drop(sender);
            while let Some((index, buf)) = receiver.recv().await {
                // All the others get their turn, and fill what they can, before the consumer goes on.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                let start = (index * PIECE) as usize;
                assert!(buf[..] == bytes[start..start + PIECE as usize]);
                seen.insert(index);
                let stats = rig.disk.pool().stats();
                assert!(stats.leased_bytes <= 4 * MIB, "{stats:?}");
            }
            while readers.join_next().await.is_some() {}
        });
        let stats = rig.disk.pool().stats();
        assert_eq!(seen.len() as u64, PIECES);
        assert_eq!((stats.bytes_max, stats.leased_bytes), (4 * MIB, 0));
        assert_eq!(stats.leased_bytes_peak, 4 * MIB, "used up, never passed");
        assert!(stats.waits > 0);
    }
}
