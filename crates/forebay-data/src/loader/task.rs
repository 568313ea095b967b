//! A task that ends when nobody waits for it any more.

use forebay_core::{Error, ErrorKind, Result};
use tokio::task::JoinHandle;

/// A running task; dropping it stops it.
#[derive(Debug)]
pub(super) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    /// Start.
    pub(super) fn spawn(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// What it gives.
    pub(super) async fn wait(mut self) -> Result<T> {
        self.done().await
    }

    /// The same, for those who may be interrupted and ask again. Once it was given, nobody may ask.
    pub(super) async fn done(&mut self) -> Result<T> {
        (&mut self.0)
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, "stream", "a task ended").with_source(error))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
