//! Conveniences over [`Store`] that no implementation needs to know: parallel ranged reads, whole objects, small puts.

use async_trait::async_trait;
use forebay_core::{Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Buf};

use crate::context::Context;
use crate::store::{PutDone, PutOptions, ReadDone, ReadOptions, Store};

/// Conveniences over [`Store`].
#[async_trait]
pub trait StoreExt: Store {
    /// Read `span` into the front of `buf` by ranges side by side, all of the same version.
    async fn read_parallel(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
        context: &Context,
    ) -> Result<ReadDone>;

    /// Read `span` into memory leased from the context's pool.
    async fn read(
        &self,
        key: &Key,
        span: Span,
        options: &ReadOptions,
        context: &Context,
    ) -> Result<(Buf, Ledger)>;

    /// Write a copy of `bytes`.
    async fn put_bytes(&self, key: &Key, bytes: &[u8], options: &PutOptions) -> Result<PutDone>;
}
