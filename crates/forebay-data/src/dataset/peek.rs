//! A folder of plain files as its listing tells it, before anything is read: what is in it, and single samples, of whose files alone the bytes are read.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_store::Context;

use super::{Discovered, Progress};
use crate::format::files::FileSet;
use crate::source::ShardSource;
use crate::table::Table;

impl Discovered {
    /// What the listing says of a folder of plain files; `None` where shards are objects.
    pub fn files(&self) -> Option<&FileSet> {
        self.from.folder().map(|folder| folder.set())
    }

    /// The bytes of a shard.
    pub fn source(&self, shard: usize, context: &Context) -> Result<ShardSource> {
        let meta = self.shards.get(shard).cloned().ok_or_else(missing)?;
        Ok(ShardSource::new(Arc::clone(&self.from.store), meta, context))
    }

    /// The table of some samples in a row of a virtual shard: where they lie there, with their checksums. Nothing but their files is read.
    pub async fn peek(
        &self,
        shard: usize,
        samples: Range<usize>,
        context: &Context,
        progress: &Arc<dyn Progress>,
    ) -> Result<Table> {
        let folder = self.from.folder().ok_or_else(missing)?;
        let progress = Arc::clone(progress);
        let source = self.source(shard, context)?;
        let source = source.watched(move |bytes, _| progress.moved(bytes));
        folder.peek(&source, samples).await
    }
}

fn missing() -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "read shard",
        "there is no such virtual shard",
    )
}
