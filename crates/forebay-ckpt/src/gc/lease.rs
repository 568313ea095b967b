//! The pin of a gc: only one is at work in a place, and drains to it wait until none is.
//!
//! Renewed while its owner lives. Who finds one of another watches it: when it changes, its owner lives, and the newcomer is refused; when it does not for
//! [`STALE_AFTER`], it is removed. An owner that slept so long that others may have taken it for dead finds that out before it deletes anything more.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::pages::Source;
use crate::pin::{self, Pin, RENEW_EVERY, STALE_AFTER, Watch};
use crate::save::{LOOK_PAUSE, LOOK_PAUSE_MAX};

/// Without a renewal for so long, a gc stops: well before others take it for dead, so that no deletion of its own comes after that.
const FRESH_MAX: Duration = Duration::from_secs(60);

/// A gc's hold on its place.
#[derive(Debug)]
pub(super) struct GcLease {
    source: Source,
    key: Key,
    /// When it was renewed last; none once it was lost.
    renewed: watch::Receiver<Option<Instant>>,
    renewal: tokio::task::JoinHandle<()>,
}

impl GcLease {
    /// Put a pin, and refuse to work beside another gc.
    pub(super) async fn take(source: &Source, age_max: Duration) -> Result<Self> {
        let now = source.context.clock().unix().as_nanos() as u64;
        let id = source.context.seed().derive(now).0;
        let pin = Pin::new(&source.context, 0);
        let key = pin::put_gc(&*source.store, &pin, id).await?;
        let (tell, renewed) = watch::channel(Some(Instant::now()));
        let renewal = tokio::spawn(renew(source.clone(), key.clone(), pin, tell));
        let lease = Self {
            source: source.clone(),
            key,
            renewed,
            renewal,
        };
        match lease.await_alone(age_max).await {
            Ok(()) => Ok(lease),
            Err(error) => {
                lease.release().await?;
                Err(error)
            }
        }
    }

    async fn await_alone(&self, age_max: Duration) -> Result<()> {
        let mut watch = Watch::default();
        let mut pause = LOOK_PAUSE;
        let mut first: Option<Pin> = None;
        loop {
            let Source { store, context, .. } = &self.source;
            let Some(found) = pin::gc_at_work(store, context, Some(&self.key), &mut watch, age_max).await?
            else {
                return Ok(());
            };
            let now = context.clock().unix();
            let renewed = Duration::from_nanos(found.pin.created_ns);
            // By their clock or by ours; one that is older by both may still be of a clock that is wrong, and is watched.
            let is_fresh = now.abs_diff(renewed) <= STALE_AFTER;
            let has_changed = first.as_ref().is_some_and(|first| *first != found.pin);
            if is_fresh || has_changed {
                let message = format!("another gc is at work here, on {:?}", found.pin.host);
                return Err(Error::new(ErrorKind::AlreadyExists, "gc", message)
                    .at(self.source.store.location())
                    .with_hint(
                        "wait until it has ended; one that was killed is passed over after 90 seconds",
                    ));
            }
            first.get_or_insert(found.pin);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_PAUSE_MAX);
        }
    }

    /// Fail when others may take this gc for dead: asked before everything that cannot be undone.
    pub(super) fn check(&self) -> Result<()> {
        let renewed = *self.renewed.borrow();
        if renewed.is_some_and(|renewed| renewed.elapsed() < FRESH_MAX) {
            return Ok(());
        }
        let message = "the pin of this gc was removed, or could not be renewed in time";
        Err(Error::new(ErrorKind::Precondition, "gc", message).at(self.source.store.location()))
    }

    /// Give it back.
    pub(super) async fn release(self) -> Result<()> {
        self.renewal.abort();
        self.source.store.delete(&self.key).await
    }
}

impl Drop for GcLease {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

async fn renew(source: Source, key: Key, mut pin: Pin, tell: watch::Sender<Option<Instant>>) {
    let store = Arc::clone(&source.store);
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        // From before the renewal: others see it later than that.
        let begun = Instant::now();
        match pin::read(&store, &source.context, &key).await {
            Ok(Some(_)) => {}
            // Others took this gc for dead.
            Ok(None) => {
                tell.send_replace(None);
                return;
            }
            Err(error) => tracing::warn!(%error, "cannot look at the pin of a gc"),
        }
        pin.created_ns = source.context.clock().unix().as_nanos() as u64;
        match pin.put(&*store, &key).await {
            Ok(()) => drop(tell.send_replace(Some(begun))),
            Err(error) => tracing::warn!(%error, "cannot renew the pin of a gc"),
        }
    }
}
