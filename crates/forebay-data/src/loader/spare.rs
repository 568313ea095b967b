//! The sample that stands in where a batch has none that is whole: the last of the batch before.
//!
//! While a run goes on, each batch hands its last sample on to the next. The first batch after resuming has nobody to ask: the batches before it are looked at
//! again, the nearest first, and only if it comes to that. Whether a sample can be decoded shows when it is tried, so there are several to try; a resumed run gives what
//! the whole one gave, where one of them can be used.

use std::future::ready;
use std::sync::Arc;

use forebay_core::Result;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::oneshot;

use super::collate::{Pick, why_bad};
use super::course::{Draws, Leg, Spot};
use super::decode::Wanted;
use super::read::{Reader, Share};

/// Batches that are looked at again, at most: more than these without a whole sample are not a damage but the data set.
const BATCHES_BACK_MAX: usize = 64;

/// Samples that are tried, at most, for the same reason: each is decoded as often as a batch has places.
const PICKS_MAX: usize = 64;

/// Gives samples to try until one can be used.
pub(super) type Before = BoxStream<'static, Pick>;

/// From the batch before, when that is collated.
pub(super) fn coming(from: oneshot::Receiver<Pick>) -> Before {
    stream::once(from).filter_map(|pick| ready(pick.ok())).boxed()
}

/// From the batches of a leg before one, which have to be read for it.
pub(super) fn look_back(readers: Arc<[Reader]>, fields: Arc<[Wanted]>, leg: Leg, index: u64) -> Before {
    let leg = Arc::new(leg);
    let from = Arc::clone(&leg);
    let batches = (0..index).rev().take(BATCHES_BACK_MAX);
    let spots = batches.map_while(move |batch| last_first(&from, batch)).flatten();
    let picks = stream::iter(spots).then(move |spot| {
        let (readers, leg) = (Arc::clone(&readers), Arc::clone(&leg));
        async move { pick(&readers, &leg, spot).await }
    });
    // What cannot be read ends the search.
    let picks = picks.map(|pick| pick.ok().flatten());
    let picks = picks.take_while(|pick| ready(pick.is_some()));
    let whole = picks.filter_map(move |pick| ready(pick.filter(|pick| why_bad(&fields, pick).is_none())));
    whole.take(PICKS_MAX).boxed()
}

/// The last place of a batch, then what was put there where it is bad: the next good one from the first on.
fn last_first(leg: &Leg, batch: u64) -> Option<Vec<Spot>> {
    let mut spots = leg.spots(batch, &mut Draws::default()).ok()?;
    let last = usize::from(!spots.is_empty());
    spots.rotate_right(last);
    Some(spots)
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
