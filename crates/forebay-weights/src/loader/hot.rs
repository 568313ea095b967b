//! Files that are in the page cache already.
//!
//! Around the page cache a file comes at the rate of the disk, even when all of it is in memory. So the wanted parts of local files are sampled first;
//! one that is mostly there is read by copying threads instead, several at once, since one of them copies slower than memory can.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{DataPath, Error, ErrorKind, PathPolicy, Result, Span};
use forebay_io::{PAGE, residency};
use forebay_store::{Context, LocalStore, Store};

use super::Lane;
use crate::load_plan::Plan;

/// From this share on, copying is faster than the disk even though the rest must be read through the cache.
const HOT_PERCENT_MIN: u64 = 80;

/// Places of a file that are looked at.
const WINDOWS: u64 = 64;

/// Bytes of each.
const WINDOW_BYTES: u64 = 256 << 10;

/// Let copying threads read the files that are in the page cache; gives how many pieces they can work on at once.
pub(super) async fn divert(lanes: &mut [Lane], plan: &Arc<Plan>, context: &Context) -> Result<usize> {
    let mut hot = Vec::new();
    for (number, lane) in lanes.iter().enumerate() {
        let Some(path) = lane.file.path().filter(|_| lane.is_used) else {
            continue;
        };
        let spans = windows(plan, number);
        let share = tokio::task::spawn_blocking(move || share_percent(&path, &spans))
            .await
            .map_err(|error| {
                Error::new(ErrorKind::Cancelled, "load", "the runtime is shutting down").with_source(error)
            })?;
        if let Some(share) = share.filter(|share| *share >= HOT_PERCENT_MIN) {
            hot.push((number, share));
        }
    }
    if hot.is_empty() {
        return Ok(0);
    }
    // io_uring would copy on the one thread that submits.
    let copying = Context::new(context.copying_disk()?.clone())
        .with_time(Arc::clone(context.clock()), context.seed())
        .with_state_dir(None);
    for (number, share) in hot {
        let lane = &mut lanes[number];
        let store: Arc<dyn Store> = Arc::new(LocalStore::open(lane.store.location(), &copying)?);
        lane.store = store;
        lane.options.policy = PathPolicy::Require(DataPath::Buffered);
        lane.hot = Some(format!(
            "{share} % of the file is in the page cache, from where it comes faster than from the disk"
        ));
    }
    Ok(Context::copying_threads())
}

/// Places spread evenly over what is read of a file.
fn windows(plan: &Plan, file: usize) -> Vec<Span> {
    let pieces = plan.pieces().iter().filter(|piece| piece.file == file);
    let spans: Vec<Span> = pieces.map(|piece| piece.span).collect();
    let total: u64 = spans.iter().map(|span| span.len()).sum();
    let step = (total / WINDOWS).max(WINDOW_BYTES);
    let mut windows = Vec::new();
    let (mut passed, mut next) = (0, 0);
    for span in spans {
        while next < passed + span.len() {
            let start = span.start() + (next - passed);
            let start = start - start % PAGE as u64;
            windows.extend(Span::new(start, span.end().min(start + WINDOW_BYTES)));
            next += step;
        }
        passed += span.len();
    }
    windows
}

fn share_percent(path: &Path, windows: &[Span]) -> Option<u64> {
    let found = residency(path, windows).ok().flatten()?;
    let total: u64 = windows.iter().map(|window| window.len()).sum();
    (total > 0).then(|| found.saturating_mul(100) / total)
}
