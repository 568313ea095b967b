//! The part of a data set that a filter keeps.

use std::sync::Arc;

use crate::order::Selection;

/// Which samples of each shard are kept.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) shards: Vec<Arc<Selection>>,
}
