//! The sample that stands in where a batch has none that is whole: the last of the batch before.
//!
//! While a run goes on, each batch hands its last sample on to the next. The first batch after resuming has nobody to ask: the batches before it are looked at
//! again, the nearest first, and only if it comes to that. So a resumed run gives what the whole one gave.

use std::pin::Pin;
use std::sync::Arc;

use forebay_core::Result;
use tokio::sync::oneshot;

use super::collate::{Pick, why_bad};
use super::course::{Draws, Leg, Spot};
use super::decode::Wanted;
use super::read::{Reader, Share};

/// Batches that are looked at again, at most: more than these without a whole sample are not a damage but the data set.
const BATCHES_BACK_MAX: usize = 64;

/// Gives the sample, to whoever waits for it.
pub(super) type Before = Pin<Box<dyn Future<Output = Option<Pick>> + Send>>;

/// From the batch before, when that is collated.
pub(super) fn coming(from: oneshot::Receiver<Pick>) -> Before {
    Box::pin(async { from.await.ok() })
}

/// From the batches of a leg before one, which have to be read for it.
pub(super) fn look_back(readers: Arc<[Reader]>, fields: Arc<[Wanted]>, leg: Leg, index: u64) -> Before {
    Box::pin(async move {
        for batch in (0..index).rev().take(BATCHES_BACK_MAX) {
            let mut spots = leg.spots(batch, &mut Draws::default()).ok()?;
            // The last place, or what was put there: the next good one from the first on.
            let last = usize::from(!spots.is_empty());
            spots.rotate_right(last);
            for spot in spots {
                let pick = pick(&readers, &leg, spot).await.ok()??;
                if why_bad(&fields, &pick).is_none() {
                    return Some(pick);
                }
            }
        }
        None
    })
}

async fn pick(readers: &[Reader], leg: &Leg, spot: Spot) -> Result<Option<Pick>> {
    let (Some(reader), Some(window)) = (readers.get(spot.source as usize), leg.window(spot)?) else {
        return Ok(None);
    };
    let at = spot.position.saturating_sub(window.start) as usize;
    let Some((block, sample)) = window.order().get(at).copied() else {
        return Ok(None);
    };
    let Some(block) = window.blocks.get(block as usize) else {
        return Ok(None);
    };
    let hold = reader.hold(block.shard, None).await?;
    let block = Arc::new(reader.load(block.clone(), hold, Share::own(None)).await?);
    Ok(Some(Pick { block, sample }))
}
