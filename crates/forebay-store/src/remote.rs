//! Being written.
use crate::context::Context;
use crate::store::Store;
use forebay_core::{Location, Result};
use std::sync::Arc;

pub(crate) async fn open(_: &Location, _: &Context) -> Result<Arc<dyn Store>> {
    unimplemented!()
}
