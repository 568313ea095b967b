//! Pins: notes that an attempt is being saved or drained, or that a gc is at work.
//!
//! A save puts its pin before it writes anything and removes it after the commit; gc reads pins before it reads manifests. So whatever gc meets is pinned,
//! committed, or nobody's. A save that was killed leaves its pin, which expires; gcs and drains renew theirs, so that a killed one is soon told from one at work.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{Context, Entry as Row, ListOptions, PutMode, PutOptions, Store, StoreExt};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::names::{Attempt, PINS, gc_pin_key, is_gc_pin, pin_key};
use crate::open::read_small;

#[cfg(test)]
pub(crate) mod tests;

/// Most bytes of a pin that are read: it has a few numbers and a host name.
const PIN_BYTES_MAX: u64 = 64 << 10;

/// How often those who work for long renew their pin.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(20);

/// A pin of these that did not change for so long has no owner any more: it missed four renewals.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(90);

/// How long a pin holds when its owner does not remove it: longer than any save takes.
pub const PIN_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a pin says.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Pin {
    /// The step and attempt that are being saved; none for a gc.
    pub(crate) save: Option<(u64, Attempt)>,
    /// The checkpoint whose chunks may be referenced.
    pub(crate) base: Option<(u64, Attempt)>,
    /// Beside these, attempts whose objects are needed: what a drain brings or found.
    #[serde(default)]
    pub(crate) holds: Vec<(u64, Attempt)>,
    pub(crate) world: u32,
    pub(crate) created_ns: u64,
    pub(crate) host: String,
    /// Of the process, where it was noted.
    #[serde(default)]
    pub(crate) pid: Option<u32>,
    /// Which start of which machine that process is of: names of hosts are given twice, in containers above all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot_id: Option<String>,
    /// Within which numbers of processes its own means something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid_namespace: Option<u64>,
    /// For a drain: which of several it is.
    #[serde(default)]
    pub(crate) owner: Option<String>,
    /// Key slots of the data key that all ranks seal with, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<String>,
}

impl Pin {
    pub(crate) fn new(context: &Context, world: u32) -> Self {
        let created_ns = u64::try_from(context.clock().unix().as_nanos()).unwrap_or(u64::MAX);
        Self {
            save: None,
            base: None,
            holds: Vec::new(),
            world,
            created_ns,
            host: host_name(),
            pid: Some(std::process::id()),
            boot_id: boot_id(),
            pid_namespace: pid_namespace(),
            owner: None,
            keys: None,
        }
    }

    /// True when it is of a process that would be seen here if it still were: the same start of the same machine, and the same numbers of processes.
    pub(crate) fn is_of_the_dead(&self) -> bool {
        let is_seen = self.boot_id.is_some()
            && self.boot_id == boot_id()
            && self.pid_namespace.is_some()
            && self.pid_namespace == pid_namespace();
        is_seen
            && self
                .pid
                .is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    }

    pub(crate) fn is_expired(&self, now: Duration, age_max: Duration) -> bool {
        let created = Duration::from_nanos(self.created_ns);
        now.saturating_sub(created) > age_max
    }

    pub(crate) async fn put(&self, store: &dyn Store, key: &Key) -> Result<()> {
        self.put_by(store, key, PutMode::Replace).await
    }

    async fn put_by(&self, store: &dyn Store, key: &Key, mode: PutMode) -> Result<()> {
        let bytes = serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Internal, "pin", "a pin cannot be written").with_source(error)
        })?;
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        store.put_bytes(key, &bytes, &options).await.map(drop)
    }
}

/// A text that each start of a machine draws anew.
fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// The number of the namespace that process ids of this process are of.
fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid")
        .ok()
        .map(|namespace| namespace.ino())
}

pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| String::new(), |name| name.trim().to_owned())
}

/// A pin in the store and what is in it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) key: Key,
    pub(crate) pin: Pin,
}

/// Tells gcs at work from those that were killed, by looking at their pins again and again: one at work renews its own.
#[derive(Debug, Default)]
pub(crate) struct Watch(HashMap<Key, (Pin, Instant)>);

impl Watch {
    /// False once it is known that nobody is behind the pin any more.
    pub(crate) fn is_at_work(&mut self, found: &Found, now: Duration, age_max: Duration) -> bool {
        if found.pin.is_expired(now, age_max) || found.pin.is_of_the_dead() {
            return false;
        }
        match self.0.get(&found.key) {
            Some((pin, since)) if *pin == found.pin => since.elapsed() < STALE_AFTER,
            _ => {
                self.0
                    .insert(found.key.clone(), (found.pin.clone(), Instant::now()));
                true
            }
        }
    }
}

/// Look at the pins of other gcs than `own`: gives one that may be at work, and removes those of the dead, who find out should they be alive after all.
pub(crate) async fn gc_at_work(
    store: &Arc<dyn Store>,
    context: &Context,
    own: Option<&Key>,
    watch: &mut Watch,
    age_max: Duration,
) -> Result<Option<Found>> {
    let now = context.clock().unix();
    let pins = list(store, context).await?.into_iter();
    let mut at_work = None;
    for found in pins.filter(|found| is_gc_pin(&found.key) && Some(&found.key) != own) {
        if watch.is_at_work(&found, now, age_max) {
            at_work = Some(found);
        } else {
            store.delete(&found.key).await?;
        }
    }
    Ok(at_work)
}

/// Note that an attempt is being saved.
pub(crate) async fn put_save(store: &dyn Store, pin: &Pin, mode: PutMode) -> Result<()> {
    match pin.save {
        Some((_, attempt)) => pin.put_by(store, &pin_key(attempt), mode).await,
        None => Err(Error::new(ErrorKind::Internal, "pin", "a pin of no attempt")),
    }
}

/// Note that a gc is at work.
pub(crate) async fn put_gc(store: &dyn Store, pin: &Pin, id: u64) -> Result<Key> {
    let key = gc_pin_key(id);
    pin.put(store, &key).await?;
    Ok(key)
}

/// The pin of an attempt, when it is there.
pub(crate) async fn of_attempt(
    store: &Arc<dyn Store>,
    context: &Context,
    attempt: Attempt,
) -> Result<Option<Pin>> {
    read(store, context, &pin_key(attempt)).await
}

pub(crate) async fn read(store: &Arc<dyn Store>, context: &Context, key: &Key) -> Result<Option<Pin>> {
    match read_small(store, context, key, PIN_BYTES_MAX).await {
        Ok((bytes, _)) => {
            let pin = serde_json::from_slice(&bytes).map_err(|error| {
                Error::new(ErrorKind::Corrupt, "read pin", "this is no pin")
                    .at(store.location().join(key))
                    .with_source(error)
                    .with_hint("when no save is running, remove it by hand")
            })?;
            Ok(Some(pin))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_pin(key: &Key) -> bool {
    key.file_name()
        .rsplit_once('.')
        .is_some_and(|(_, ending)| ending == "pin")
}

/// All pins.
pub(crate) async fn list(store: &Arc<dyn Store>, context: &Context) -> Result<Vec<Found>> {
    let mut rows = store.list(&Key::parse(PINS)?, ListOptions { recursive: false });
    let mut found = Vec::new();
    while let Some(row) = rows.next().await {
        let key = match row {
            Ok(Row::Object(meta)) if is_pin(&meta.key) => meta.key,
            Ok(_) => continue,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        if let Some(pin) = read(store, context, &key).await? {
            found.push(Found { key, pin });
        }
    }
    Ok(found)
}
