//! Memory of devices: one allocation each, filled from pinned slots by copies that run while the next pieces are read, or straight from the disk.
//!
//! ```text
//! lease: a slot of the ring -> read -> accept: copies to every device, queued -> the slot returns when the last device has read it
//! fetch: GPUDirect Storage, where it is wanted and shown to work -> straight into the allocation
//!        or, for files in the page cache, threads that copy small pieces to slots and queue them at once
//! ```
//!
//! Tensors lie at multiples of 256 bytes, which is what kernels on devices like best; files promise 8. The ring bounds what is in flight: `lease` waits
//! for a slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::safetensors::Dtype;
use forebay_core::{ByteSize, DataPath, Error, ErrorKind, Ledger, Result, Span};
use forebay_io::cufile::{Counters, Handle};
use forebay_io::device::{
    Device, DeviceBuf, Feeder, Flight, Ring, RingStats, Stream, Strips, Targets, Uploads,
};
use forebay_io::gds::{Gds, GdsPolicy};
use forebay_io::{AlignedBuf, File};
use serde::Serialize;

use super::{Sink, check_memory};
use crate::load_plan::{Cut, Moves, Piece, Placement, Plan};
use crate::source::SourceFile;

/// Where tensors begin: at multiples of what allocators of devices give.
const ALIGN: u64 = 256;

/// Bytes of a slot: small enough that a ring has dozens, large enough for whole chunks of checksums.
const SLOT_BYTES: u64 = 8 << 20;

/// Bytes in flight to begin with: what is filled and emptied again and again should stay in the caches. A disk that is better with more gets more.
const WINDOW_BYTES: u64 = 2 * SLOT_BYTES;

/// Memory of a device that is left to others when it is asked whether everything fits.
const HEADROOM_BYTES: u64 = 16 << 20;

/// A loaded tensor in device memory.
#[derive(Debug, Clone)]
pub struct DeviceTensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// The allocation that holds it and its neighbours.
    pub memory: Arc<DeviceBuf>,
    /// Where it is in there.
    pub place: Span,
}

/// What a load did on devices.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceReport {
    /// Bytes copied from pinned memory to devices.
    pub copied_bytes: u64,
    /// Time that allocating device memory took.
    pub alloc_seconds: f64,
    /// From the first piece that was read to the first that was on the device.
    pub first_landing_seconds: f64,
    /// The pinned memory, and what pinning took so far in this process, beside loads.
    pub ring: RingStats,
    /// Reads by GPUDirect Storage, by the way they went, as its library counted them.
    pub gds: Option<Counters>,
    /// Why bytes did not go by GPUDirect Storage, where it was wished for.
    pub gds_refusal: Option<String>,
}

/// The way around host memory.
#[derive(Debug)]
pub enum Direct {
    /// Not wanted.
    No,
    /// Where it works; otherwise why not.
    Perhaps(Result<Arc<Gds>, String>),
    /// Every byte.
    Must(Arc<Gds>),
}

impl Direct {
    /// By a policy and what came of opening it; an error when it is required and did not open.
    pub fn new(policy: GdsPolicy, opened: Result<Arc<Gds>>) -> Result<Self> {
        Ok(match policy {
            GdsPolicy::Off => Self::No,
            GdsPolicy::Prefer => Self::Perhaps(opened.map_err(|error| error.message().to_owned())),
            GdsPolicy::Require => Self::Must(opened?),
        })
    }

    fn gds(&self) -> Option<&Arc<Gds>> {
        match self {
            Self::No | Self::Perhaps(Err(_)) => None,
            Self::Perhaps(Ok(gds)) | Self::Must(gds) => Some(gds),
        }
    }
}

/// A destination in the memory of one or more devices; each gets everything.
#[derive(Debug)]
pub struct DeviceSink {
    devices: Vec<Device>,
    streams: Vec<Stream>,
    ring: Ring,
    uploads: Uploads,
    direct: Direct,
    /// Most memory of each device for tensors.
    bytes_max: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: Arc<Plan>,
    memory: Vec<Arc<DeviceBuf>>,
    alloc_time: Duration,
    /// When the first piece had been read.
    first_read: Option<Duration>,
    copied_bytes: u64,
    /// Files that are read directly, by their number, or why not.
    files: HashMap<usize, Result<Arc<Handle>, String>>,
    /// Files that are read from the page cache, by their number.
    open: HashMap<usize, Arc<File>>,
    /// Memory of each device with its stream.
    targets: Targets,
    /// Pieces that were read directly.
    direct_reads: u64,
    /// Set when a direct read failed, or cannot be had: the rest goes through pinned memory.
    has_given_up: bool,
    proof: Option<Counters>,
    refusal: Option<String>,
}

impl DeviceSink {
    /// On `devices`, through `ring` or directly.
    pub fn new(devices: Vec<Device>, ring: Ring, direct: Direct) -> Result<Self> {
        let streams = devices.iter().map(Device::stream).collect::<Result<_>>()?;
        let refusal = match &direct {
            Direct::Perhaps(Err(reason)) => Some(reason.clone()),
            _ => None,
        };
        Ok(Self {
            devices,
            streams,
            uploads: ring.uploads(),
            ring,
            direct,
            bytes_max: None,
            state: Mutex::new(State {
                refusal,
                ..State::default()
            }),
        })
    }

    /// The same with a bound: tensors that need more memory of a device are an error before anything is read.
    pub fn within(self, bytes_max: Option<u64>) -> Self {
        Self { bytes_max, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tensors on each device, once everything is loaded.
    pub fn tensors(&self) -> Vec<Vec<DeviceTensor>> {
        let state = self.lock();
        let on = |memory: &Arc<DeviceBuf>| {
            let tensors = state.plan.tensors().iter();
            tensors
                .map(|tensor| DeviceTensor {
                    name: tensor.name.clone(),
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                    memory: Arc::clone(memory),
                    place: tensor.place,
                })
                .collect()
        };
        state.memory.iter().map(on).collect()
    }

    /// What was done on devices.
    pub fn report(&self) -> DeviceReport {
        let state = self.lock();
        let first = match (state.first_read, self.uploads.first_landed()) {
            (Some(read), Some(landed)) => landed.saturating_sub(read),
            _ => Duration::ZERO,
        };
        DeviceReport {
            copied_bytes: state.copied_bytes,
            alloc_seconds: state.alloc_time.as_secs_f64(),
            first_landing_seconds: first.as_secs_f64(),
            ring: self.ring.stats(),
            gds: state.proof,
            gds_refusal: state.refusal.clone(),
        }
    }

    /// What cannot go by GPUDirect Storage: an error when all of it must, noted otherwise.
    fn refuse(&self, reason: String) -> Result<()> {
        if matches!(self.direct, Direct::Must(_)) {
            let message = format!("every byte must go by GPUDirect Storage, and cannot: {reason}");
            return Err(Error::new(ErrorKind::Unsupported, "load", message)
                .with_hint("`forebay gds FILE` says more; gds=\"prefer\" goes on without it"));
        }
        if matches!(self.direct, Direct::Perhaps(_)) {
            self.lock().refusal.get_or_insert(reason);
        }
        Ok(())
    }

    /// Direct reads fail: the error when all bytes must go that way, noted otherwise, and the rest takes the other way.
    fn give_up(&self, error: Error) -> Result<()> {
        if matches!(self.direct, Direct::Must(_)) {
            return Err(error);
        }
        let mut state = self.lock();
        state.has_given_up = true;
        state.refusal.get_or_insert_with(|| error.message().to_owned());
        Ok(())
    }

    /// The file as cuFile knows it, made known at its first piece.
    async fn registered(
        &self,
        gds: &Arc<Gds>,
        number: usize,
        file: &Arc<SourceFile>,
    ) -> Result<Arc<Handle>, String> {
        if let Some(known) = self.lock().files.get(&number) {
            return known.clone();
        }
        let opened = match file.path() {
            None => Err(file.way_through_host()),
            Some(path) => {
                let gds = Arc::clone(gds);
                match tokio::task::spawn_blocking(move || gds.register(&path)).await {
                    Ok(registered) => registered.map_err(|error| error.message().to_owned()),
                    Err(_) => Err("the runtime is shutting down".to_owned()),
                }
            }
        };
        self.lock().files.entry(number).or_insert(opened).clone()
    }

    /// Read a piece straight into device memory; `None` where that is not wanted, or does not work and need not.
    async fn read_direct(&self, piece: &Piece, file: &Arc<SourceFile>) -> Result<Option<Ledger>> {
        let Some(gds) = self.direct.gds() else {
            return Ok(None);
        };
        let target = {
            let state = self.lock();
            state
                .memory
                .first()
                .map(Arc::clone)
                .filter(|_| !state.has_given_up)
        };
        let Some(target) = target else {
            return Ok(None);
        };
        let handle = match self.registered(gds, piece.file, file).await {
            Ok(handle) => handle,
            Err(reason) => {
                self.refuse(reason)?;
                return Ok(None);
            }
        };
        let read = gds.read(&handle, piece.span, &target, strips_of(piece));
        match read.await.flatten() {
            Ok(()) => {
                self.lock().direct_reads += 1;
                Ok(Some(Ledger::of(DataPath::Gds, piece.span.len(), 1)))
            }
            Err(error) => {
                self.give_up(error)?;
                Ok(None)
            }
        }
    }

    /// Copy a piece from the page cache by the threads of the feeder. Strips of rows are left to the usual way.
    async fn feed(&self, piece: &Piece, file: &Arc<SourceFile>) -> Result<Option<Ledger>> {
        let runs = strips_of(piece);
        if runs.iter().any(|run| run.rows != 1) {
            return Ok(None);
        }
        let Some(open) = self.opened(piece.file, file).await? else {
            return Ok(None);
        };
        let targets = {
            let mut state = self.lock();
            state.first_read.get_or_insert_with(|| self.ring.clock().now());
            Arc::clone(&state.targets)
        };
        let bytes: u64 = runs.iter().map(|run| run.bytes as u64).sum();
        let copied = bytes * targets.len() as u64;
        let requests = Feeder::shared()?
            .feed(&open, piece.span, runs, &targets, &self.uploads)
            .await??;
        self.lock().copied_bytes += copied;
        let mut ledger = Ledger::of(DataPath::Buffered, piece.span.len(), requests);
        ledger.record_copy(DataPath::Memory, copied);
        Ok(Some(ledger))
    }

    /// A file opened to be read through the page cache, at its first piece; `None` where it is not a local one.
    async fn opened(&self, number: usize, file: &Arc<SourceFile>) -> Result<Option<Arc<File>>> {
        if let Some(open) = self.lock().open.get(&number) {
            return Ok(Some(Arc::clone(open)));
        }
        let Some(path) = file.path() else {
            return Ok(None);
        };
        let opened = tokio::task::spawn_blocking(move || Feeder::open(&path)).await;
        let opened = opened.map_err(|error| {
            Error::new(ErrorKind::Cancelled, "load", "the runtime is shutting down").with_source(error)
        })??;
        let mut state = self.lock();
        Ok(Some(Arc::clone(state.open.entry(number).or_insert(opened))))
    }

    /// Compare the counters of cuFile, when it was used.
    fn prove(&self) -> Result<()> {
        let is_used = self.lock().direct_reads > 0;
        let Some(gds) = self.direct.gds().filter(|_| is_used) else {
            return Ok(());
        };
        match gds.proof() {
            Ok(counters) => self.lock().proof = Some(counters),
            Err(error) => self.refuse(error.message().to_owned())?,
        }
        Ok(())
    }
}

/// Check that so many bytes are free on every device.
fn check_free(devices: &[Device], len: u64) -> Result<()> {
    for device in devices {
        let memory = device.memory()?;
        if len > memory.free_bytes.saturating_sub(HEADROOM_BYTES) {
            let message = format!(
                "{} ({len} bytes) are needed on cuda:{}, and {} of {} are free",
                ByteSize(len),
                device.ordinal(),
                ByteSize(memory.free_bytes),
                ByteSize(memory.total_bytes)
            );
            return Err(Error::new(ErrorKind::OutOfSpace, "load", message)
                .with_hint("load less with select or shard, or free device memory (nvidia-smi, torch.cuda.empty_cache())"));
        }
    }
    Ok(())
}

/// Allocate on every device; what is missing is told before anything is read.
fn allocate(devices: &[Device], len: u64) -> Result<Vec<Arc<DeviceBuf>>> {
    check_free(devices, len)?;
    let len = usize::try_from(len)
        .map_err(|_| Error::new(ErrorKind::LimitExceeded, "load", "more than memory can be"))?;
    devices
        .iter()
        .map(|device| Ok(Arc::new(device.alloc(len)?)))
        .collect()
}

fn strips_of(piece: &Piece) -> Vec<Strips> {
    match &piece.moves {
        Moves::Whole => vec![Strips::run(
            0,
            piece.dest.start() as usize,
            piece.dest.len() as usize,
        )],
        Moves::Cuts(cuts) => cuts.iter().map(strips_of_cut).collect(),
    }
}

fn strips_of_cut(cut: &Cut) -> Strips {
    Strips {
        from: cut.from as usize,
        to: cut.to as usize,
        bytes: cut.bytes as usize,
        rows: cut.rows as usize,
        from_stride: cut.from_stride as usize,
        to_stride: cut.to_stride as usize,
    }
}

#[async_trait]
impl Sink for DeviceSink {
    fn placement(&self) -> Placement {
        Placement::Packed { align: ALIGN }
    }

    fn piece_bytes_max(&self) -> u64 {
        SLOT_BYTES
    }

    fn window_bytes(&self) -> u64 {
        match self.direct.gds() {
            Some(_) => u64::MAX,
            None => WINDOW_BYTES,
        }
    }

    async fn prepare(&self, plan: &Arc<Plan>) -> Result<()> {
        let clock = Arc::clone(self.ring.clock());
        let (devices, len) = (self.devices.clone(), plan.dest_bytes());
        check_memory(len, self.bytes_max)?;
        // Direct reads need room beside the tensors; what is not there is told now, and not by the read that does not get it.
        let scratch = self
            .direct
            .gds()
            .map_or(0, |_| Gds::scratch_bytes(plan.pieces().len()));
        let allocated = tokio::task::spawn_blocking(move || {
            let began = clock.now();
            let lacking = check_free(&devices, len.saturating_add(scratch)).err();
            let memory = allocate(&devices, len)?;
            Ok((memory, clock.now().saturating_sub(began), lacking))
        });
        let (memory, alloc_time, lacking) = allocated.await.map_err(|error| {
            Error::new(ErrorKind::Cancelled, "load", "the runtime is shutting down").with_source(error)
        })??;
        if let Some(error) = lacking {
            let beside = ByteSize(scratch);
            let message = format!("{}; direct reads take {beside} of it", error.message());
            self.give_up(Error::new(error.kind(), error.op(), message))?;
        }
        let mut state = self.lock();
        state.plan = Arc::clone(plan);
        state.targets = Arc::new(
            self.streams
                .iter()
                .cloned()
                .zip(memory.iter().map(Arc::clone))
                .collect(),
        );
        state.memory = memory;
        state.alloc_time = alloc_time;
        Ok(())
    }

    async fn fetch(&self, piece: &Piece, file: &Arc<SourceFile>, is_hot: bool) -> Result<Option<Ledger>> {
        match self.read_direct(piece, file).await? {
            None if is_hot => self.feed(piece, file).await,
            fetched => Ok(fetched),
        }
    }

    async fn lease(&self, piece: &Piece) -> Result<AlignedBuf> {
        if matches!(self.direct, Direct::Must(_)) {
            self.refuse(
                "bytes with checksums are compared in host memory; load them with verify=\"off\"".to_owned(),
            )?;
        }
        self.ring.lease(piece.span.len() as usize).await?
    }

    async fn accept(&self, piece: &Piece, buf: AlignedBuf) -> Result<Ledger> {
        let memory = {
            let mut state = self.lock();
            state.first_read.get_or_insert_with(|| self.ring.clock().now());
            state.memory.clone()
        };
        let strips = strips_of(piece);
        let bytes: usize = strips.iter().map(|strips| strips.bytes * strips.rows).sum();
        let mut flight = Flight::new(buf);
        for (stream, target) in self.streams.iter().zip(&memory) {
            for strips in &strips {
                flight.copy_strips(stream, *strips, target)?;
            }
        }
        self.uploads.send(flight)?;
        let copied = bytes as u64 * memory.len() as u64;
        self.lock().copied_bytes += copied;
        let mut ledger = Ledger::default();
        ledger.record_copy(DataPath::Memory, copied);
        Ok(ledger)
    }

    async fn finish(&self) -> Result<()> {
        self.uploads.finish().await??;
        self.prove()
    }

    async fn fail(&self, error: Error) -> Error {
        // What failed first is with the copies: pieces that came after it only heard that there was something.
        match self.uploads.finish().await.flatten() {
            Ok(()) => error,
            Err(cause) => cause,
        }
    }
}
