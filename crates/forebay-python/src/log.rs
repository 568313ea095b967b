//! Tracing events to stderr, as far as `FOREBAY_LOG` asks for it: the same variable and filter as on the command line.
//!
//! Events come from threads that have nothing to do with the interpreter and may outlive it, so they go to the file descriptor and not
//! to Python's `logging`. No lock is taken on the way: a child that was forked while some thread wrote an event could never take it.

use std::io;

use forebay_core::{Error, ErrorKind, Result, env};
use tracing_subscriber::EnvFilter;

/// Writes to the descriptor of stderr, each event by one call.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: `bytes` are readable for their length; a descriptor that is closed is an error, not a fault.
        let written = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begin, when the variable is set. In a forked child the parent's subscriber goes on, since nothing in it is tied to threads.
pub(crate) fn start() -> Result<()> {
    let Some(filter) = env::LOG.get() else {
        return Ok(());
    };
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, "configure", error.to_string())
            .at(env::LOG.name)
            .with_hint("write a level such as info, or forebay_store=debug")
    })?;
    // An error says that there is one already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Stderr)
        .with_ansi(false)
        .try_init();
    Ok(())
}
