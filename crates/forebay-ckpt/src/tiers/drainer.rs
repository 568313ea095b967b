//! Drains and collects in the background: once when it is told that there is something new, and every so often in case nobody told.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};

use super::{DrainEvent, DrainOptions, DrainReport, Tiers};

/// Shortest pause between two looks at the stores.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Longest pause after failures: a store that is back is found soon enough.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// How a drainer works.
#[derive(Debug, Clone)]
pub struct DrainerOptions {
    /// How to drain.
    pub drain: DrainOptions,
    /// Look again after that long, also when nobody said that there is something new.
    pub every: Duration,
    /// Collect by the tiers' rules after each drain, also after one that failed: what is not drained yet stays, and what need not stay makes room.
    pub collects: bool,
}

impl Default for DrainerOptions {
    fn default() -> Self {
        Self {
            drain: DrainOptions::default(),
            every: Duration::from_secs(30),
            collects: true,
        }
    }
}

/// How far a drainer is.
#[derive(Debug, Clone, Default)]
pub struct DrainState {
    /// Passes over the tiers that began.
    pub begun: u64,
    /// Passes that ended, well or not.
    pub ended: u64,
    /// What all of them did together.
    pub report: DrainReport,
    /// Why the last pass failed; it is tried again.
    pub error: Option<Arc<Error>>,
    /// Passes that failed since one went well.
    pub failures: u32,
}

/// Draining in the background; dropping it stops it where it is, and the next one goes on.
#[derive(Debug)]
pub struct Drainer {
    shared: Arc<Shared>,
    state: watch::Receiver<DrainState>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    tiers: Tiers,
    options: DrainerOptions,
    wake: Notify,
    is_stopping: Mutex<bool>,
}

impl Drainer {
    /// Begin, inside a tokio runtime.
    pub fn start(tiers: Tiers, options: DrainerOptions) -> Self {
        let shared = Arc::new(Shared {
            tiers,
            options,
            wake: Notify::new(),
            is_stopping: Mutex::new(false),
        });
        let (tell, state) = watch::channel(DrainState::default());
        let task = tokio::spawn(run(Arc::clone(&shared), tell));
        Self { shared, state, task }
    }

    /// Say that there is something new.
    pub fn poke(&self) {
        self.shared.wake.notify_one();
    }

    /// How far it is.
    pub fn state(&self) -> DrainState {
        self.state.borrow().clone()
    }

    /// Wait for a pass that begins after this call, so that it has seen all that was committed before. Fails with what the pass failed with.
    pub async fn settled(&self) -> Result<DrainState> {
        let mut state = self.state.clone();
        let target = state.borrow().begun + 1;
        self.poke();
        let ended = state.wait_for(|state| state.ended >= target).await;
        let ended =
            ended.map_err(|_| Error::new(ErrorKind::Cancelled, "drain", "the drainer was stopped"))?;
        match &ended.error {
            Some(error) => Err(Error::new(error.kind(), "drain", error.to_string())),
            None => Ok(ended.clone()),
        }
    }

    /// Drain what is there, and stop.
    pub async fn stop(self) -> DrainState {
        *self
            .shared
            .is_stopping
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.poke();
        let mut state = self.state.clone();
        while state.changed().await.is_ok() {}
        self.state.borrow().clone()
    }
}

impl Drop for Drainer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(shared: Arc<Shared>, tell: watch::Sender<DrainState>) {
    loop {
        let is_last = shared.is_stopping();
        tell.send_modify(|state| state.begun += 1);
        let done = shared.pass().await;
        tell.send_modify(|state| {
            state.ended = state.begun;
            match done {
                Ok(report) => {
                    state.report.add(report);
                    (state.error, state.failures) = (None, 0);
                }
                Err(error) => {
                    tracing::warn!(%error, "a drain failed and is tried again");
                    state.error = Some(Arc::new(error));
                    state.failures = state.failures.saturating_add(1);
                }
            }
        });
        if is_last {
            return;
        }
        let failures = tell.borrow().failures;
        let pause = shared.options.every.max(PAUSE_MIN) * 2u32.saturating_pow(failures.min(8));
        let until = tokio::time::sleep(pause.min(PAUSE_MAX.max(shared.options.every)));
        tokio::select! {
            () = shared.wake.notified() => {}
            () = until => {}
        }
    }
}

impl Shared {
    fn is_stopping(&self) -> bool {
        *self.is_stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pass(&self) -> Result<DrainReport> {
        let silent = |_: DrainEvent| {};
        let drained = self.tiers.drain(&self.options.drain, &silent).await;
        if self.options.collects {
            match (&drained, self.tiers.collect(false).await) {
                (_, Ok(_)) => {}
                (_, Err(error)) if error.kind() == ErrorKind::AlreadyExists => {
                    tracing::info!(%error, "somebody else collects");
                }
                (Ok(_), Err(error)) => return Err(error),
                (Err(_), Err(error)) => tracing::warn!(%error, "collecting failed, too"),
            }
        }
        drained
    }
}
