//! Copies objects into the first tier after they were read from a farther one.
//!
//! In the background, once per object at a time, a few objects side by side, one part in memory each. The copy is put only if
//! absent, so it never replaces what somebody wrote meanwhile; where the first tier cannot promise that, nothing is promoted. An
//! object that is deleted while it is copied stays deleted, and none is copied while it is being deleted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Crc64Nvme, Error, ErrorKind, Key, Ledger, Result, Span};
use tokio::sync::Notify;

use super::Shared;
use crate::context::Context;
use crate::store::{Body, Checksum, ObjectMeta, PutDone, PutMode, PutOptions, ReadOptions, Store};

/// Objects copied side by side; reads of others go on without being promoted.
const PROMOTIONS_MAX: usize = 4;

/// Copies under way, and deletions that allow none.
#[derive(Debug, Default)]
pub(super) struct Promotions {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Objects being copied, each with the sign that stops it.
    running: HashMap<Key, Arc<AtomicBool>>,
    /// Objects being deleted, and by how many.
    deleting: HashMap<Key, usize>,
}

impl Promotions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begin a copy, unless it runs already, too many do, or the object is being deleted; gives the sign that stops it.
    fn claim(&self, key: &Key) -> Option<Arc<AtomicBool>> {
        let mut state = self.lock();
        let is_taken = state.running.contains_key(key) || state.deleting.contains_key(key);
        if is_taken || state.running.len() >= PROMOTIONS_MAX {
            return None;
        }
        let stopped = Arc::new(AtomicBool::new(false));
        state.running.insert(key.clone(), Arc::clone(&stopped));
        Some(stopped)
    }

    fn end(&self, key: &Key) {
        self.lock().running.remove(key);
        self.ended.notify_waiters();
    }

    /// An object is about to be deleted: no copy of it begins until the result is dropped, and the one under way is stopped.
    pub(super) fn deleting<'a>(&'a self, key: &'a Key) -> Deleting<'a> {
        let mut state = self.lock();
        *state.deleting.entry(key.clone()).or_default() += 1;
        let stopped = state.running.get(key);
        if let Some(stopped) = stopped {
            stopped.store(true, Ordering::SeqCst);
        }
        Deleting {
            was_running: stopped.is_some(),
            promotions: self,
            key,
        }
    }

    /// Wait until nothing is being copied.
    pub(super) async fn settled(&self) {
        self.until(HashMap::is_empty).await;
    }

    async fn until(&self, done: impl Fn(&HashMap<Key, Arc<AtomicBool>>) -> bool) {
        loop {
            // `notify_waiters` reaches everybody who asked before it was called.
            let ended = self.ended.notified();
            if done(&self.lock().running) {
                return;
            }
            ended.await;
        }
    }
}

/// A deletion under way, which ends however it ends.
#[derive(Debug)]
pub(super) struct Deleting<'a> {
    promotions: &'a Promotions,
    key: &'a Key,
    was_running: bool,
}

impl Deleting<'_> {
    /// Wait until the object is not being copied; true when it was, so that it may be in the first tier again.
    pub(super) async fn settled(&self) -> bool {
        self.promotions
            .until(|running| !running.contains_key(self.key))
            .await;
        self.was_running
    }
}

impl Drop for Deleting<'_> {
    fn drop(&mut self) {
        let mut state = self.promotions.lock();
        if let Some(count) = state.deleting.get_mut(self.key) {
            *count -= 1;
            if *count == 0 {
                state.deleting.remove(self.key);
            }
        }
    }
}

/// Ends the claim however the copy ends.
struct Claim(Arc<Shared>, Key);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.promotions.end(&self.1);
    }
}

/// Copy an object that was read from tier `index` into the first one, in the background.
pub(super) fn begin(shared: &Arc<Shared>, index: usize, key: &Key, meta: Option<ObjectMeta>) {
    let Some(bytes_max) = shared.config.promote_bytes_max.filter(|_| index > 0) else {
        return;
    };
    if meta.as_ref().is_some_and(|meta| meta.size > bytes_max) {
        return;
    }
    let Some(stopped) = shared.promotions.claim(key) else {
        return;
    };
    let claim = Claim(Arc::clone(shared), key.clone());
    tokio::spawn(async move {
        match promote(&claim, index, meta, bytes_max, &stopped).await {
            Err(error) if !matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::Cancelled) => {
                tracing::warn!(%error, "cannot promote an object into the first tier");
            }
            _ => {}
        }
        drop(claim);
    });
}

async fn promote(
    Claim(shared, key): &Claim,
    index: usize,
    meta: Option<ObjectMeta>,
    bytes_max: u64,
    stopped: &AtomicBool,
) -> Result<()> {
    let (from, to) = (&shared.stores[index], shared.first());
    let meta = match meta {
        Some(meta) => meta,
        None => from.head(key).await?,
    };
    if meta.size > bytes_max {
        return Ok(());
    }
    let options = PutOptions {
        mode: PutMode::IfAbsent,
        size_hint: Some(meta.size),
        permissions: meta.permissions,
        ..PutOptions::default()
    };
    copy_object(&**from, &**to, &meta, &options, &shared.context, stopped)
        .await
        .map(drop)
}

/// Copy an object part by part, checked against the source's checksum where it has one before the copy becomes visible.
pub(super) async fn copy_object(
    from: &dyn Store,
    to: &dyn Store,
    meta: &ObjectMeta,
    options: &PutOptions,
    context: &Context,
    stopped: &AtomicBool,
) -> Result<PutDone> {
    if meta.size == 0 {
        return to.put(&meta.key, Body::default(), options).await;
    }
    let upload = to.upload(&meta.key, options).await?;
    let read = ReadOptions {
        version: meta.version.clone(),
        class: options.class,
        ..ReadOptions::default()
    };
    let mut crc = Crc64Nvme::default();
    let mut ledger = Ledger::default();
    let stop = || {
        let error = Error::new(ErrorKind::Cancelled, "copy", "the object was deleted meanwhile");
        Err(error.at(from.location().join(&meta.key)))
    };
    for (index, span) in (0u32..).zip(Span::first(meta.size).pieces(upload.part_bytes())) {
        if stopped.load(Ordering::SeqCst) {
            upload.abort().await?;
            return stop();
        }
        let buf = context.pool().lease(span.len() as usize).await??;
        let done = from.read_into(&meta.key, span, buf, &read).await?;
        let part = done.buf.freeze().slice(..span.len() as usize);
        crc.update(&part);
        ledger.merge(&upload.put_part(index, part.into()).await?);
    }
    if let Some(Checksum::Crc64Nvme(expected)) = meta.checksum
        && expected != crc.value()
    {
        upload.abort().await?;
        let message = "the object does not match its checksum";
        return Err(Error::new(ErrorKind::Corrupt, "copy", message).at(from.location().join(&meta.key)));
    }
    if stopped.load(Ordering::SeqCst) {
        upload.abort().await?;
        return stop();
    }
    let mut done = upload.complete().await?;
    done.ledger.merge(&ledger);
    Ok(done)
}
