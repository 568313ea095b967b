//! Being written.
use crate::*;
use forebay_core::{Error, ErrorKind, Limits, Result};
use std::sync::Arc;
/// Being written.
#[derive(Debug)]
pub enum SimEngine {}
impl SimEngine {
    /// Being written.
    pub fn new(_: &Limits) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "sim", "being written"))
    }
}
impl Engine for SimEngine {
    fn report(&self) -> EngineReport {
        match *self {}
    }
    fn read(
        &self,
        _: &Arc<File>,
        _: u64,
        _: AlignedBuf,
        _: usize,
        _: Option<Permit>,
    ) -> Completion<ReadDone> {
        match *self {}
    }
    fn write(&self, _: &Arc<File>, _: u64, _: Buf, _: Option<Permit>) -> Completion<WriteDone> {
        match *self {}
    }
    fn sync(&self, _: &Arc<File>) -> Completion<Result<()>> {
        match *self {}
    }
    fn name(&self, _: NameOp) -> Completion<Result<NameDone>> {
        match *self {}
    }
}
