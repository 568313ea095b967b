//! Work for the processor, apart from the tasks that wait for bytes: at most as many pieces at once as there are cores.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use tokio::sync::Semaphore;

/// A bounded number of working threads.
#[derive(Debug, Clone)]
pub(crate) struct Cpu {
    turns: Arc<Semaphore>,
    threads: usize,
}

impl Cpu {
    /// With that many at once.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(threads.max(1))),
            threads: threads.max(1),
        }
    }

    /// How many there are at once.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Do `work` on a thread for it, when it is its turn.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let turn = Arc::clone(&self.turns)
            .acquire_owned()
            .await
            .map_err(|_| gone())?;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| gone().with_source(error))
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Internal, "stream", "a working thread ended")
}
