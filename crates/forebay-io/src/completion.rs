//! The answer to a submitted request: awaited by tasks, waited for by threads.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

/// A value that will arrive. Dropping it does not stop the work: what was submitted owns its buffers and runs to its end.
pub struct Completion<T>(State<T>);

enum State<T> {
    Ready(Option<T>),
    Pending(oneshot::Receiver<T>),
    /// The receiver goes first, so that the queue can see who went away.
    Queued(oneshot::Receiver<T>, Place),
    Held(oneshot::Receiver<T>, Pump),
}

/// A place in a queue; given up by calling what it holds, so that those behind can move up.
struct Place(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(give_up) = self.0.take() {
            give_up();
        }
    }
}

/// Holds answers back and lets them go in an order of its own, as a simulation does; driven by those who wait.
pub(crate) trait Holder: Send + Sync {
    /// Perhaps let some answer go; called again and again, it lets every answer go.
    fn step(&self);
    /// Let the answer number `ticket` go: nobody waits for it any more.
    fn release(&self, ticket: u64);
}

/// Names one held answer, and lets it go when nobody waits for it any more.
struct Pump {
    holder: Arc<dyn Holder>,
    ticket: u64,
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.holder.release(self.ticket);
    }
}

impl<T> Completion<T> {
    /// A value that is there already.
    pub fn ready(value: T) -> Self {
        Self(State::Ready(Some(value)))
    }

    /// A value that somebody will send.
    pub fn pending(receiver: oneshot::Receiver<T>) -> Self {
        Self(State::Pending(receiver))
    }

    /// A value that somebody will send in his turn; `give_up` is called once it is no longer waited for.
    pub(crate) fn queued(receiver: oneshot::Receiver<T>, give_up: impl FnOnce() + Send + 'static) -> Self {
        Self(State::Queued(receiver, Place(Some(Box::new(give_up)))))
    }

    /// A value that is held back until those who wait have asked `holder` often enough.
    pub(crate) fn held(receiver: oneshot::Receiver<T>, holder: Arc<dyn Holder>, ticket: u64) -> Self {
        Self(State::Held(receiver, Pump { holder, ticket }))
    }

    /// Block this thread until the value is there. Not for threads of an async runtime.
    pub fn wait(self) -> Result<T> {
        match self.0 {
            State::Ready(value) => value.ok_or_else(gone),
            State::Pending(receiver) => receiver.blocking_recv().map_err(|_| gone()),
            State::Queued(receiver, place) => {
                let value = receiver.blocking_recv().map_err(|_| gone());
                drop(place);
                value
            }
            State::Held(mut receiver, pump) => loop {
                match receiver.try_recv() {
                    Ok(value) => return Ok(value),
                    Err(oneshot::error::TryRecvError::Closed) => return Err(gone()),
                    Err(oneshot::error::TryRecvError::Empty) => pump.holder.step(),
                }
            },
        }
    }
}

impl<T: Unpin> Future for Completion<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        match &mut self.0 {
            State::Ready(value) => Poll::Ready(value.take().ok_or_else(gone)),
            State::Pending(receiver) | State::Queued(receiver, _) => {
                Pin::new(receiver).poll(cx).map(|value| value.map_err(|_| gone()))
            }
            State::Held(receiver, pump) => {
                pump.holder.step();
                let polled = Pin::new(receiver).poll(cx).map(|value| value.map_err(|_| gone()));
                if polled.is_pending() {
                    // Nobody but those who wait makes progress: come again, after the others had their turn.
                    cx.waker().wake_by_ref();
                }
                polled
            }
        }
    }
}

impl<T> fmt::Debug for Completion<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completion")
    }
}

fn gone() -> Error {
    Error::new(
        ErrorKind::Internal,
        "wait",
        "the engine stopped before it answered, or belongs to the process before a fork",
    )
}
