//! What every command needs: the printer, the settings, the stores' surroundings and the wish to stop.

use std::future::Future;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_store::Context;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::printer::Printer;

/// Surroundings of a command.
#[derive(Debug)]
pub(crate) struct App {
    printer: Arc<Printer>,
    config: Config,
    cancel: CancellationToken,
}

impl App {
    /// With nothing opened yet.
    pub(crate) fn new(printer: Arc<Printer>, config: Config) -> Self {
        Self {
            printer,
            config,
            cancel: CancellationToken::new(),
        }
    }

    /// The way to the terminal.
    pub(crate) fn printer(&self) -> &Arc<Printer> {
        &self.printer
    }

    /// The settings in force.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Cancelled by Ctrl-C.
    pub(crate) fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Open the disk engine and what goes with it.
    pub(crate) fn context(&self) -> Result<Context> {
        self.config.context()
    }

    /// Do `work`, unless Ctrl-C comes first: then it is dropped, which gives up what it had begun.
    pub(crate) async fn unless_cancelled<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(interrupted().into()),
            result = work => result,
        }
    }
}

/// What Ctrl-C makes of a command.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Cancelled, "run", "interrupted")
}
