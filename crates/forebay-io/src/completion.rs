//! The answer to a submitted request: awaited by tasks, waited for by threads.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

/// A value that will arrive. Dropping it does not stop the work: what was submitted owns its buffers and runs to its end.
pub struct Completion<T>(State<T>);

enum State<T> {
    Ready(Option<T>),
    Pending(oneshot::Receiver<T>),
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

    /// Block this thread until the value is there. Not for threads of an async runtime.
    pub fn wait(self) -> Result<T> {
        match self.0 {
            State::Ready(value) => value.ok_or_else(gone),
            State::Pending(receiver) => receiver.blocking_recv().map_err(|_| gone()),
        }
    }
}

impl<T: Unpin> Future for Completion<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        match &mut self.0 {
            State::Ready(value) => Poll::Ready(value.take().ok_or_else(gone)),
            State::Pending(receiver) => Pin::new(receiver).poll(cx).map(|value| value.map_err(|_| gone())),
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
        ErrorKind::Cancelled,
        "wait",
        "the engine stopped before it answered",
    )
}
