//! Ctrl-C: the first one stops the work cleanly, the second one stops the program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Remembers which signal came.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// 128 and the number of the signal, if one came.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            code => Some(code),
        }
    }
}

/// From now on, the first SIGINT or SIGTERM cancels `token`, and the second one ends the process at once. Inside a runtime only.
pub(crate) fn watch(token: CancellationToken) -> io::Result<Interrupt> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let interrupt = Interrupt(Arc::new(AtomicU8::new(0)));
    let seen = interrupt.clone();
    tokio::spawn(async move {
        loop {
            let code = tokio::select! {
                _ = interrupted.recv() => 130,
                _ = terminated.recv() => 143,
            };
            if seen.0.swap(code, Ordering::SeqCst) != 0 {
                std::process::exit(code.into());
            }
            token.cancel();
        }
    });
    Ok(interrupt)
}
