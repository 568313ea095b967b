//! Much data to stdout: written by a thread that nobody has to wait for.
//!
//! A reader of stdout may be slow for as long as it likes, and a write to a full pipe cannot be interrupted from within. So the bytes of
//! `cat` and `ls` go through a short queue to a thread: Ctrl-C then only drops the [`Outlet`], and the process ends without the thread.

use std::fmt::Display;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::Buf;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::app::{App, interrupted};
use crate::printer::{Printed, Printer, Stop};

/// Pieces waiting for the thread: one, so that the next is there when the last is out, and memory stays bounded.
const PIECES_WAITING_MAX: usize = 1;

/// Lines gathered before they are handed over: a listing of a million rows is not a million messages.
const LINES_BYTES: usize = 64 << 10;

/// What the thread is asked to do.
enum Order {
    Bytes(Buf),
    Lines(Vec<u8>),
    Flush(oneshot::Sender<()>),
}

/// The way to a thread that writes to stdout.
#[derive(Debug)]
pub(crate) struct Outlet {
    printer: Arc<Printer>,
    lines: Vec<u8>,
    orders: mpsc::Sender<Order>,
    /// Why the thread ended before its time; nothing once that was told.
    ended: Option<oneshot::Receiver<Stop>>,
}

impl Outlet {
    /// Start the thread.
    pub(crate) fn open(app: &App) -> Result<Self> {
        let (orders, inbox) = mpsc::channel(PIECES_WAITING_MAX);
        let (end, ended) = oneshot::channel();
        let (printer, cancel) = (Arc::clone(app.printer()), app.cancel().clone());
        // Not a thread of the runtime: that would wait for it before the process ends.
        std::thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || {
                if let Err(stop) = serve(inbox, &printer, &cancel) {
                    // Nobody is left to tell after Ctrl-C.
                    drop(end.send(stop));
                }
            })
            .map_err(|error| Error::from_io("start", error))?;
        Ok(Self {
            printer: Arc::clone(app.printer()),
            lines: Vec::new(),
            orders,
            ended: Some(ended),
        })
    }

    /// Bytes as they are.
    pub(crate) async fn bytes(&mut self, bytes: Buf) -> Printed {
        self.order(Order::Bytes(bytes)).await
    }

    /// One line of data for people.
    pub(crate) async fn data(&mut self, line: impl Display) -> Printed {
        self.lines
            .extend_from_slice(self.printer.data_line(line).as_bytes());
        self.pass_on().await
    }

    /// One JSON value on a line of its own.
    pub(crate) async fn json(&mut self, value: &impl Serialize) -> Printed {
        self.lines.extend(Printer::json_line(value)?);
        self.pass_on().await
    }

    /// Wait until everything is out.
    pub(crate) async fn flush(&mut self) -> Printed {
        self.hand_over().await?;
        let (done, is_done) = oneshot::channel();
        self.order(Order::Flush(done)).await?;
        match is_done.await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.why_ended().await),
        }
    }

    /// End with `result`, after everything that was printed before it is out.
    pub(crate) async fn close<T>(mut self, result: Printed<T>) -> Printed<T> {
        // Where stdout itself is what failed, nothing more gets out.
        if self.ended.is_some() {
            let flushed = self.flush().await;
            // An error of the source is more telling than one of stdout behind it.
            return result.and_then(|value| flushed.map(|()| value));
        }
        result
    }

    async fn pass_on(&mut self) -> Printed {
        if self.printer.is_stdout_terminal() {
            // People read along.
            return self.flush().await;
        }
        if self.lines.len() >= LINES_BYTES {
            self.hand_over().await?;
        }
        Ok(())
    }

    async fn hand_over(&mut self) -> Printed {
        if self.lines.is_empty() {
            return Ok(());
        }
        let lines = std::mem::take(&mut self.lines);
        self.order(Order::Lines(lines)).await
    }

    async fn order(&mut self, order: Order) -> Printed {
        match self.orders.send(order).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.why_ended().await),
        }
    }

    async fn why_ended(&mut self) -> Stop {
        let why = match self.ended.take() {
            Some(ended) => ended.await.ok(),
            None => None,
        };
        why.unwrap_or_else(|| {
            Stop::Error(Error::new(
                ErrorKind::Internal,
                "write",
                "the writing thread ended",
            ))
        })
    }
}

/// What the thread does until nobody orders anything any more.
fn serve(mut inbox: mpsc::Receiver<Order>, printer: &Printer, cancel: &CancellationToken) -> Printed {
    while let Some(order) = inbox.blocking_recv() {
        if cancel.is_cancelled() {
            // Whoever ordered may learn of the end of this thread before it learns of the signal.
            return Err(interrupted().into());
        }
        match order {
            Order::Bytes(bytes) => printer.raw(&bytes)?,
            Order::Lines(lines) => printer.raw(&lines)?,
            Order::Flush(done) => {
                printer.flush()?;
                // Whoever asked may have stopped waiting.
                let _: std::result::Result<(), ()> = done.send(());
            }
        }
    }
    Ok(())
}
