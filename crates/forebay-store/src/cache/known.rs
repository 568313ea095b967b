//! What the origin said about its objects, for as long as it may be believed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::Key;

use crate::store::ObjectMeta;

/// Objects remembered: a few hundred bytes each. When there are more, all are forgotten and asked for again, which costs one request each.
const OBJECTS_MAX: usize = 1 << 18;

/// How an object came to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// The origin said so, at that time of the clock.
    ByOrigin(Duration),
    /// A header in the cache said so: version and size only.
    ByHeader,
}

/// Objects and what is known of them.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    objects: HashMap<Key, (ObjectMeta, Told)>,
    epoch: u64,
}

impl Known {
    /// To be taken before the origin is asked: what is asked before a change must not be remembered after it.
    pub(super) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Remember, unless something was forgotten since `epoch`.
    pub(super) fn remember(&self, meta: &ObjectMeta, told: Told, epoch: u64) {
        let mut state = self.lock();
        if state.epoch != epoch {
            return;
        }
        if state.objects.len() >= OBJECTS_MAX {
            state.objects.clear();
        }
        state.objects.insert(meta.key.clone(), (meta.clone(), told));
    }

    /// What is known.
    pub(super) fn get(&self, key: &Key) -> Option<(ObjectMeta, Told)> {
        self.lock().objects.get(key).cloned()
    }

    /// An object has changed, or may have.
    pub(super) fn forget(&self, key: &Key) {
        let mut state = self.lock();
        state.objects.remove(key);
        state.epoch = state.epoch.wrapping_add(1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
