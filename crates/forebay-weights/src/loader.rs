//! From a source to filled memory: plan, read side by side, check, hand to the sink, account.
//!
//! ```text
//! Source --wanted--> Plan --pieces, several at once--> lease -> Store::read_into -> compare checksums -> accept
//! ```
//!
//! Files that are in the page cache already are not read around it: copying threads take them from there ([`hot`]), and the ledger says so.

mod device;
mod hot;
#[cfg(test)]
mod tests;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_core::{Clock, DataPath, Error, ErrorKind, Key, Ledger, PathPolicy, Result};
use forebay_io::{BufPool, PoolConfig, cpu_time};
use forebay_store::{Context, ReadOptions, Store};
use serde::Serialize;
use tokio::task::JoinSet;

pub use self::device::{DeviceOptions, load_device};
use self::window::Window;
use crate::load_plan::{Piece, Plan, PlanFile};
use crate::select::Selection;
use crate::sink::{HostSink, HostTensor, Sink};
use crate::source::{Source, SourceFile, is_remote};

/// Bytes of one piece of a local file: the disk cuts it further, so this only has to be large beside what a task costs.
const LOCAL_PIECE_BYTES: u64 = 32 << 20;

/// Least size of a piece: holds whole chunks of any size that checksums have.
const PIECE_BYTES_MIN: u64 = 8 << 20;

/// Most bytes of a piece of a file with edges of its own, where an edge is not nearer: sixteen chunks of the usual size, each of another rank.
const EDGE_PIECE_BYTES_MAX: u64 = 64 << 20;

/// Memory for what is cut out of files that are stores of their own; see [`cutting_pool`].
const CUTTING_BYTES: u64 = 4 * EDGE_PIECE_BYTES_MAX;

/// Most bytes of local files in flight. The gate holds those of them that are with the disk to less.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// Most pieces in flight, whatever their size: more only wait in queues.
const AT_ONCE_MAX: usize = 64;

/// How far a load is, for whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes to be read, known once the plan is made.
    pub total_bytes: AtomicU64,
    /// Bytes read.
    pub done_bytes: AtomicU64,
}

/// How to load.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Which tensors, and which parts of them.
    pub selection: Selection,
    /// Most host memory for tensors.
    pub memory_bytes_max: Option<u64>,
    /// Which data paths are acceptable. Unless it is the fastest, the page cache is not looked at.
    pub policy: PathPolicy,
    /// Told how far it is.
    pub progress: Option<Arc<Progress>>,
}

/// What a load did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LoadReport {
    /// Files read from.
    pub files: u64,
    /// Files that were taken from the page cache.
    pub files_hot: u64,
    /// Tensors loaded.
    pub tensors: u64,
    /// Their bytes.
    pub tensor_bytes: u64,
    /// Bytes read for them.
    pub read_bytes: u64,
    /// Memory they take, padding included.
    pub memory_bytes: u64,
    /// Reads asked of stores.
    pub pieces: u64,
    /// Time until everything was in place, from the plan on.
    pub seconds: f64,
    /// Time until the first piece was in place.
    pub first_piece_seconds: f64,
    /// How the bytes moved.
    pub ledger: Ledger,
}

/// Load into host memory.
pub async fn load_host(
    source: &Source,
    options: &LoadOptions,
    context: &Context,
) -> Result<(Vec<HostTensor>, LoadReport)> {
    let pool = cutting_pool(source, context)?;
    let sink = Arc::new(HostSink::new(&pool, options.memory_bytes_max));
    let shared: Arc<dyn Sink> = Arc::<HostSink>::clone(&sink);
    let mut report = load_into(source, options, shared, context).await?;
    let sink = Arc::into_inner(sink).ok_or_else(|| {
        Error::new(
            ErrorKind::Internal,
            "load",
            "somebody still reads after the last piece",
        )
    })?;
    let (tensors, ledger) = sink.into_tensors()?;
    report.ledger.merge(&ledger);
    Ok((tensors, report))
}

/// Where pieces that are cut up are leased from. A store that checks what it gives leases memory of its own from the pool of the context, and who holds a lease
/// of a pool must not wait for another: so what is read from it goes elsewhere.
fn cutting_pool(source: &Source, context: &Context) -> Result<BufPool> {
    if source.files().iter().all(|file| file.edges.is_none()) {
        return Ok(context.pool().clone());
    }
    BufPool::new(&PoolConfig {
        bytes_max: CUTTING_BYTES,
        ..PoolConfig::default()
    })
}

/// Load into any sink; returns when everything is in place.
pub async fn load_into(
    source: &Source,
    options: &LoadOptions,
    sink: Arc<dyn Sink>,
    context: &Context,
) -> Result<LoadReport> {
    let clock = Arc::clone(context.clock());
    let (began, cpu_began) = (clock.now(), cpu_time());
    let plan = Arc::new(plan(source, options, &*sink, context)?);
    sink.prepare(&plan).await?;
    if let Some(progress) = &options.progress {
        progress.total_bytes.store(plan.read_bytes(), Ordering::Relaxed);
    }
    let (lanes, bounds) = lanes(source, &plan, options, &*sink, context).await?;
    let mut report = LoadReport {
        files: lanes.iter().filter(|lane| lane.is_used).count() as u64,
        files_hot: lanes.iter().filter(|lane| lane.hot.is_some()).count() as u64,
        tensors: plan.tensors().len() as u64,
        tensor_bytes: plan.tensor_bytes(),
        read_bytes: plan.read_bytes(),
        memory_bytes: plan.dest_bytes(),
        pieces: plan.pieces().len() as u64,
        ..LoadReport::default()
    };
    let work = Arc::new(Work {
        plan,
        lanes,
        sink,
        progress: options.progress.clone(),
    });
    let since = |moment: Duration| clock.now().saturating_sub(moment).as_secs_f64();
    let moved = Arc::clone(&work).move_all(bounds, &*clock, |ledger| {
        if report.first_piece_seconds == 0.0 {
            report.first_piece_seconds = since(began);
        }
        report.ledger.merge(ledger);
    });
    if let Err(error) = moved.await {
        return Err(work.sink.fail(error).await);
    }
    work.sink.finish().await?;
    report.seconds = since(began);
    report.ledger.cpu_ns = cpu_time().saturating_sub(cpu_began).as_nanos() as u64;
    Ok(report)
}

/// The plan for a source and a sink.
pub fn plan(source: &Source, options: &LoadOptions, sink: &dyn Sink, context: &Context) -> Result<Plan> {
    let wanted = source.wanted(&options.selection)?;
    let is_far = source.files().iter().any(|file| is_remote(&file.location));
    let piece_bytes = if is_far {
        context.limits().part_bytes
    } else {
        LOCAL_PIECE_BYTES
    };
    let piece_bytes = piece_bytes.min(sink.piece_bytes_max()).max(PIECE_BYTES_MIN);
    let piece_bytes_max = EDGE_PIECE_BYTES_MAX.min(sink.piece_bytes_max()).max(piece_bytes);
    let files: Vec<PlanFile<'_>> = source
        .files()
        .iter()
        .map(|file| PlanFile {
            header: &file.header,
            cuts: file.cuts(piece_bytes_max),
        })
        .collect();
    Plan::new(&files, &wanted, sink.placement(), piece_bytes)
}

/// How one file is read.
#[derive(Debug)]
struct Lane {
    file: Arc<SourceFile>,
    store: Arc<dyn Store>,
    key: Key,
    options: ReadOptions,
    /// Why it is taken from the page cache, where it is.
    hot: Option<String>,
    is_used: bool,
    /// Pieces that have not come yet.
    left: AtomicUsize,
}

impl Lane {
    /// A local file must still be what it was when it was opened: reads of it do not look.
    async fn look(&self) -> Result<()> {
        if !self.options.caller_looks {
            return Ok(());
        }
        let (then, now) = (&self.file.meta, self.file.store.head(&self.file.key).await);
        let changed = |message: &str| {
            Error::new(ErrorKind::Precondition, "load", message)
                .at(&self.file.location)
                .with_hint("load again when whoever writes it is done; replace files by renaming")
        };
        match now {
            Ok(now) if now.version == then.version && now.size == then.size => Ok(()),
            Ok(_) => Err(changed("the file changed while it was loaded")),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(changed("the file was removed while it was loaded").with_source(error))
            }
            Err(error) => Err(error.at(&self.file.location)),
        }
    }
}

/// What is under way at once.
struct Bounds {
    window: Window,
    pieces_max: usize,
}

async fn lanes(
    source: &Source,
    plan: &Arc<Plan>,
    options: &LoadOptions,
    sink: &dyn Sink,
    context: &Context,
) -> Result<(Vec<Lane>, Bounds)> {
    let mut lanes = Vec::with_capacity(source.files().len());
    let mut pieces = vec![0; source.files().len()];
    for piece in plan.pieces() {
        if let Some(count) = pieces.get_mut(piece.file) {
            *count += 1;
        }
    }
    for (number, file) in source.files().iter().enumerate() {
        let mut read_options = file.read_options();
        read_options.policy = options.policy;
        read_options.caller_looks = file.path().is_some();
        lanes.push(Lane {
            store: Arc::clone(&file.store),
            key: file.key.clone(),
            options: read_options,
            hot: None,
            is_used: pieces.get(number).is_some_and(|count| *count > 0),
            left: AtomicUsize::new(pieces.get(number).copied().unwrap_or_default()),
            file: Arc::clone(file),
        });
    }
    let largest = plan.pieces().iter().map(|piece| piece.span.len()).max();
    let bytes_of = |pieces: usize| largest.unwrap_or(0).saturating_mul(pieces as u64);
    let (mut bytes, mut pieces_max) = (WINDOW_BYTES_MAX, AT_ONCE_MAX);
    // Checking takes longer than reading; a small window would keep cores idle.
    let is_checked = lanes.iter().any(|lane| lane.is_used && lane.file.is_checked());
    let mut is_small = !is_checked;
    if lanes.iter().any(|lane| is_remote(&lane.file.location)) {
        let requests = context.limits().store_requests_max as usize;
        (bytes, pieces_max) = (bytes.max(bytes_of(requests)), pieces_max.max(requests));
        is_small = false;
    }
    if options.policy == PathPolicy::Fastest {
        let threads = hot::divert(&mut lanes, plan, context).await?;
        // Twice as many as there are threads: one is being copied while the next is got ready.
        bytes = bytes.max(bytes_of(2 * threads));
        is_small &= threads == 0;
    }
    let window = if is_small {
        Window::new(sink.window_bytes(), bytes)
    } else {
        Window::fixed(bytes)
    };
    Ok((lanes, Bounds { window, pieces_max }))
}

/// Everything that the tasks of one load share.
#[derive(Debug)]
struct Work {
    plan: Arc<Plan>,
    lanes: Vec<Lane>,
    sink: Arc<dyn Sink>,
    progress: Option<Arc<Progress>>,
}

impl Work {
    /// Move all pieces, several at once; after a failure none is begun, and those under way are dropped.
    async fn move_all(
        self: Arc<Self>,
        bounds: Bounds,
        clock: &dyn Clock,
        mut moved: impl FnMut(&Ledger),
    ) -> Result<()> {
        let Bounds {
            mut window,
            pieces_max,
        } = bounds;
        let mut tasks = JoinSet::new();
        let mut pieces = self.plan.pieces().iter().peekable();
        loop {
            while tasks.len() < pieces_max
                && let Some(piece) = pieces.next_if(|piece| window.admits(piece.span.len()))
            {
                window.take(piece.span.len());
                tasks.spawn(Arc::clone(&self).run(piece.index));
            }
            let Some(done) = tasks.join_next().await else {
                return Ok(());
            };
            let done = done.map_err(|error| {
                Error::new(ErrorKind::Cancelled, "load", "the runtime is shutting down").with_source(error)
            });
            match done.flatten() {
                Ok((bytes, ledger)) => {
                    window.give_back(bytes, clock.now());
                    moved(&ledger);
                }
                Err(error) => {
                    tasks.shutdown().await;
                    return Err(error);
                }
            }
        }
    }

    /// Move one piece, and look at the file when it was the last of it; gives its bytes.
    async fn run(self: Arc<Self>, index: usize) -> Result<(u64, Ledger)> {
        let lost = || Error::new(ErrorKind::Internal, "load", "a piece belongs to no file");
        let piece = self.plan.pieces().get(index).ok_or_else(lost)?;
        let lane = self.lanes.get(piece.file).ok_or_else(lost)?;
        match self.move_piece(piece, lane).await {
            Ok(ledger) => {
                if lane.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    lane.look().await?;
                }
                self.tell(piece.span.len());
                Ok((piece.span.len(), ledger))
            }
            // A file that somebody writes to is not a damaged one.
            Err(error) => match lane.look().await {
                Err(changed) if changed.kind() == ErrorKind::Precondition => Err(changed.with_source(error)),
                _ => Err(error),
            },
        }
    }

    async fn move_piece(&self, piece: &Piece, lane: &Lane) -> Result<Ledger> {
        let hashes = lane.file.hashes.as_ref();
        if hashes.is_none()
            && let Some(mut ledger) = self.sink.fetch(piece, &lane.file, lane.hot.is_some()).await?
        {
            if let Some(reason) = lane
                .hot
                .as_ref()
                .filter(|_| !ledger.paths.contains_key(&DataPath::Gds))
            {
                ledger.record_downgrade(DataPath::DirectUring, DataPath::Buffered, reason);
            }
            return Ok(ledger);
        }
        let buf = self.sink.lease(piece).await?;
        let read = lane.store.read_into(&lane.key, piece.span, buf, &lane.options);
        let done = read.await.map_err(|error| error.at(&lane.file.location))?;
        let mut ledger = done.ledger;
        if let Some(reason) = &lane.hot {
            // The disk only knows that the page cache was asked for.
            ledger.downgrades.clear();
            ledger.record_downgrade(DataPath::DirectUring, DataPath::Buffered, reason);
        }
        if let Some(hashes) = hashes {
            let bytes = done.buf.get(..piece.span.len() as usize).unwrap_or_default();
            ledger.verified_bytes += hashes
                .check(piece.span, bytes)
                .map_err(|bad| bad.error(&lane.file.header).at(&lane.file.location))?;
        }
        ledger.merge(&self.sink.accept(piece, done.buf).await?);
        Ok(ledger)
    }

    fn tell(&self, bytes: u64) {
        if let Some(progress) = &self.progress {
            progress.done_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}
