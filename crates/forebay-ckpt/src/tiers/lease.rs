//! The pin of a drain at its destination: keeps gc there from what the drain brings, and a second drain of the same source from doing the same work.
//!
//! One name for each pair of source and destination, renewed while its owner lives. Who finds one watches it: when it changes, its owner lives, and the
//! newcomer is refused; when it does not for [`DrainOptions::stale_after`](super::DrainOptions::stale_after), or its process is known to be dead, it is taken over. An owner who was taken over finds that out
//! before it commits.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Result, Seed};

use crate::names::{Attempt, drain_pin_key};
use crate::pages::Source;
use crate::pin::{self, PIN_AGE_MAX, Pin, RENEW_EVERY, Watch};
use crate::save::{LOOK_PAUSE, LOOK_PAUSE_MAX, wait_for};

/// How long a drain waits for a gc at its destination: longer than it takes to find out that one was killed.
const GC_WAIT: Duration = Duration::from_secs(120);

/// Most attempts that one pin holds: as many as a pin has room for. Full saves come long before.
pub(super) const HOLDS_MAX: usize = 512;

/// A drain's hold on its destination.
#[derive(Debug)]
pub(crate) struct Lease {
    to: Source,
    key: Key,
    owner: String,
    pin: Arc<tokio::sync::Mutex<Pin>>,
    renewal: tokio::task::JoinHandle<()>,
}

impl Lease {
    /// Take the lease, or say who has it.
    pub(crate) async fn take(from: &Source, to: &Source, stale_after: Duration) -> Result<Self> {
        let key = drain_pin_key(&from.store.identity());
        await_free(to, &key, stale_after).await?;
        let now = to.context.clock().unix().as_nanos() as u64;
        let Seed(draw) = to.context.seed().derive(now);
        let owner = format!("{draw:016x}");
        let mut pin = Pin::new(&to.context, 0);
        pin.owner = Some(owner.clone());
        pin.put(&*to.store, &key).await?;
        let pin = Arc::new(tokio::sync::Mutex::new(pin));
        let renewal = tokio::spawn(renew(to.clone(), key.clone(), Arc::clone(&pin)));
        let lease = Self {
            to: to.clone(),
            key,
            owner,
            pin,
            renewal,
        };
        // Of two who took it at once, the later one has it.
        lease.check().await?;
        Ok(lease)
    }

    /// Which of several drains this is.
    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    /// Hold attempts: once this returns, no gc at the destination removes what is there of them.
    pub(super) async fn hold(&self, save: (u64, Attempt), holds: Vec<(u64, Attempt)>) -> Result<()> {
        if holds.len() > HOLDS_MAX {
            let message = format!("step {} references {} earlier attempts", save.0, holds.len());
            return Err(Error::new(ErrorKind::LimitExceeded, "drain", message)
                .with_hint("make a full save from time to time"));
        }
        {
            let mut pin = self.pin.lock().await;
            (pin.save, pin.holds) = (Some(save), holds);
            pin.put(&*self.to.store, &self.key).await?;
        }
        // A gc that read pins before ours was there may still delete.
        let watch = tokio::sync::Mutex::new(Watch::default());
        let wait = wait_for(GC_WAIT, || async {
            let Source { store, context, .. } = &self.to;
            let mut watch = watch.lock().await;
            let at_work = pin::gc_at_work(store, context, None, &mut watch, PIN_AGE_MAX).await?;
            Ok(at_work.is_none().then_some(()))
        });
        match wait.await? {
            Some(()) => Ok(()),
            None => {
                let message = "a gc is at work at the destination";
                Err(Error::new(ErrorKind::AlreadyExists, "drain", message)
                    .at(self.to.store.location())
                    .with_hint("the next drain goes on when it has ended"))
            }
        }
    }

    /// Fail when somebody else has taken over.
    pub(crate) async fn check(&self) -> Result<()> {
        let there = pin::read(&self.to.store, &self.to.context, &self.key).await?;
        if there.is_some_and(|pin| pin.owner.as_ref() == Some(&self.owner)) {
            return Ok(());
        }
        let message = "another drain has taken over, or the pin of this one was removed";
        Err(Error::new(ErrorKind::Precondition, "drain", message).at(self.to.store.location()))
    }

    /// As a killed process does.
    #[cfg(test)]
    pub(crate) fn die(&self) {
        self.renewal.abort();
    }

    /// Give it back.
    pub(super) async fn release(self) {
        self.renewal.abort();
        // Not another's, should one have taken over.
        if self.check().await.is_ok()
            && let Err(error) = self.to.store.delete(&self.key).await
        {
            tracing::warn!(%error, "the pin of a drain stays until it is stale");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

async fn renew(to: Source, key: Key, pin: Arc<tokio::sync::Mutex<Pin>>) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let mut pin = pin.lock().await;
        match pin::read(&to.store, &to.context, &key).await {
            Ok(Some(there)) if there.owner == pin.owner => {}
            // Gone or another's: the commit will find out.
            Ok(_) => return,
            Err(error) => tracing::warn!(%error, "cannot look at the pin of a drain"),
        }
        pin.created_ns = to.context.clock().unix().as_nanos() as u64;
        if let Err(error) = pin.put(&*to.store, &key).await {
            tracing::warn!(%error, "cannot renew the pin of a drain");
        }
    }
}

/// Wait until nobody has the lease any more; `AlreadyExists` once its owner shows that it lives.
async fn await_free(to: &Source, key: &Key, stale_after: Duration) -> Result<()> {
    let look = || pin::read(&to.store, &to.context, key);
    let Some(first) = look().await? else { return Ok(()) };
    let since = tokio::time::Instant::now();
    let mut pause = LOOK_PAUSE;
    loop {
        if first.is_of_the_dead() || since.elapsed() >= stale_after {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK_PAUSE_MAX);
        match look().await? {
            None => return Ok(()),
            Some(pin) if pin == first => {}
            Some(pin) => {
                let message = format!("another drain from there is at work, on {:?}", pin.host);
                return Err(Error::new(ErrorKind::AlreadyExists, "drain", message).at(to.store.location()));
            }
        }
    }
}
