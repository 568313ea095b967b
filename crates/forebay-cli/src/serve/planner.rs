//! Computing off the workers, within bounds: so many plans at a time, so long a wait for a turn, so long for each.
//!
//! The work gets a flag that tells it to stop. The flag is raised when the future that waits for the answer is dropped, which is what
//! happens when the client goes away, when the server stops, and when the time is over. So nothing is computed that nobody reads.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind};
use http::StatusCode;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::api::Failure;
use super::limits::Limits;

/// When to come again while all turns are taken: most plans take milliseconds.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Whether to stop.
pub(super) type Stop = CancellationToken;

/// Where plans are computed; cheap to copy.
#[derive(Debug, Clone)]
pub(super) struct Planner {
    turns: Arc<Semaphore>,
    wait_max: Duration,
    time_max: Duration,
}

impl Planner {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(limits.calls_max)),
            wait_max: limits.call_wait_max,
            time_max: limits.call_time_max,
        }
    }

    /// What the work answers, when it has its turn and is done in time.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let turn = Arc::clone(&self.turns).acquire_owned();
        let turn = match tokio::time::timeout(self.wait_max, turn).await {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) => return Err(internal("the server is stopping")),
            Err(_) => return Err(busy()),
        };
        let stop = Stop::new();
        let _raised_when_dropped = stop.clone().drop_guard();
        let work = move || {
            // A turn ends with its work, not with the wait for it: what cannot be stopped at once still takes a core.
            let _turn = turn;
            work(&stop)
        };
        match tokio::time::timeout(self.time_max, tokio::task::spawn_blocking(work)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::error!(%error, "a plan was not computed to its end");
                Err(internal("the plan was not computed to its end"))
            }
            Err(_) => Err(late(self.time_max)),
        }
    }
}

fn internal(message: &str) -> Failure {
    Failure::internal(Error::new(ErrorKind::Internal, "serve", message))
}

fn busy() -> Failure {
    let error = Error::new(
        ErrorKind::Throttled,
        "serve",
        "the planner is busy with other plans",
    )
    .with_hint("ask again in a moment")
    .with_retry_after(RETRY_AFTER);
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, error)
}

fn late(time_max: Duration) -> Failure {
    let message = format!("the plan takes longer than {} s", time_max.as_secs_f64());
    let error = Error::new(ErrorKind::Timeout, "serve", message)
        .with_hint("ask for fewer values or events, or use forebay plan, which has no such limit");
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, error)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(20);

    fn planner(wait_max: Duration, time_max: Duration) -> Planner {
        Planner::new(&Limits {
            calls_max: 1,
            call_wait_max: wait_max,
            call_time_max: time_max,
            ..Limits::default()
        })
    }

    /// Work that ends when it is told to and in no other way, and says both.
    fn endless(
        told: mpsc::Sender<&'static str>,
    ) -> impl FnOnce(&Stop) -> Result<(), Failure> + Send + 'static {
        move |stop| {
            told.send("begun").unwrap();
            while !stop.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            told.send("stopped").unwrap();
            Ok(())
        }
    }

    async fn heard(said: &mpsc::Receiver<&'static str>) -> &'static str {
        loop {
            if let Ok(word) = said.try_recv() {
                return word;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn work_nobody_waits_for_is_stopped_and_its_turn_is_free_again() {
        let planner = planner(LONG, LONG);
        let (told, said) = mpsc::channel();
        let asking = tokio::spawn({
            let planner = planner.clone();
            async move { planner.compute(endless(told)).await }
        });
        assert_eq!(heard(&said).await, "begun");
        asking.abort();
        assert_eq!(heard(&said).await, "stopped");
        assert_eq!(planner.compute(|_| Ok(7)).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn work_that_takes_too_long_is_stopped() {
        let planner = planner(LONG, SHORT);
        let (told, said) = mpsc::channel();
        let failure = planner.compute(endless(told)).await.unwrap_err();
        assert_eq!(failure.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(failure.retry_after().is_none(), "it would take as long again");
        assert_eq!(heard(&said).await, "begun");
        assert_eq!(heard(&said).await, "stopped");
    }

    #[tokio::test]
    async fn whoever_waits_too_long_for_a_turn_is_told_when_to_come_again() {
        let planner = planner(SHORT, LONG);
        let (told, said) = mpsc::channel();
        let first = tokio::spawn({
            let planner = planner.clone();
            async move { planner.compute(endless(told)).await }
        });
        assert_eq!(heard(&said).await, "begun");
        let failure = planner.compute(|_| Ok(())).await.unwrap_err();
        assert_eq!(failure.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(failure.retry_after().unwrap(), "1");
        first.abort();
        assert_eq!(heard(&said).await, "stopped");
    }

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let planner = planner(LONG, LONG);
        let failure = planner.compute(|_| -> Result<(), Failure> { panic!("on purpose") });
        assert_eq!(
            failure.await.unwrap_err().status(),
            StatusCode::INTERNAL_SERVER_ERROR
        );
        assert_eq!(
            planner.compute(|_| Ok(7)).await.unwrap(),
            7,
            "the turn is free again"
        );
    }
}
