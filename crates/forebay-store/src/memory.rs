//! Being written.

use crate::context::Context;
use crate::store::*;
use async_trait::async_trait;
use forebay_core::{Key, Location, Result, Span};
use forebay_io::AlignedBuf;
use std::sync::Arc;

/// Being written.
#[derive(Debug)]
pub enum MemoryStore {}

impl MemoryStore {
    /// Being written.
    pub fn named(_: &Location) -> Arc<dyn Store> {
        unimplemented!()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn location(&self) -> &Location {
        match *self {}
    }
    async fn head(&self, _: &Key) -> Result<ObjectMeta> {
        match *self {}
    }
    async fn read_into(&self, _: &Key, _: Span, _: AlignedBuf, _: &ReadOptions) -> Result<ReadDone> {
        match *self {}
    }
    async fn put(&self, _: &Key, _: Body, _: &PutOptions) -> Result<PutDone> {
        match *self {}
    }
    async fn upload(&self, _: &Key, _: &PutOptions) -> Result<Box<dyn Upload>> {
        match *self {}
    }
    fn list(&self, _: &Key, _: ListOptions) -> Listing {
        match *self {}
    }
    async fn delete(&self, _: &Key) -> Result<()> {
        match *self {}
    }
    async fn capabilities(&self) -> Result<Capabilities> {
        match *self {}
    }
}
