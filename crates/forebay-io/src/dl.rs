//! Libraries that may or may not be on this machine, opened by name while the program runs.
//!
//! [`Library::open`] tries candidates in order and keeps what the loader said about each, because "not found" and "found but broken"
//! need different remedies. Symbols are looked up one by one, so that a missing one is an answer and not a crash. A library is never closed again:
//! drivers start threads and keep process-wide state.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Characters of the loader's words that are kept: it quotes whole search paths.
const MESSAGE_CHARS_MAX: usize = 300;

/// An open library.
#[derive(Debug)]
pub(crate) struct Library {
    handle: NonNull<c_void>,
    path: PathBuf,
}

// SAFETY: a handle of the loader may be used from any thread; it is never closed.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// A candidate that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// What was tried.
    pub(crate) path: PathBuf,
    /// What the loader said.
    pub(crate) message: String,
    /// A file of that name is there, but cannot be used.
    pub(crate) is_there: bool,
}

impl Library {
    /// The first of `candidates` that can be opened. A bare name is looked for where the loader looks.
    pub(crate) fn open(candidates: &[PathBuf]) -> Result<Self, Vec<Refusal>> {
        let mut refusals = Vec::new();
        for path in candidates {
            match open(path) {
                Ok(handle) => {
                    return Ok(Self {
                        handle,
                        path: path.clone(),
                    });
                }
                Err(message) => refusals.push(Refusal {
                    path: path.clone(),
                    // The loader names a file it did find, and says that it cannot open one it did not.
                    is_there: path.components().count() > 1 && path.exists()
                        || !message.contains("cannot open shared object file"),
                    message,
                }),
            }
        }
        Err(refusals)
    }

    /// The candidate that was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The address of a symbol, where the library has it.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, and the name is a string with its end.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

fn open(path: &Path) -> Result<NonNull<c_void>, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "a name with a zero byte".to_owned())?;
    // SAFETY: opening runs the library's own start code, which is what a driver library is opened for; the flags resolve everything
    // now, so that a broken library is refused here.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).ok_or_else(|| {
        // SAFETY: the message belongs to this thread until its next call into the loader.
        let message = unsafe { libc::dlerror() };
        if message.is_null() {
            return "the loader gave no reason".to_owned();
        }
        // SAFETY: the loader's messages are strings with their end.
        let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
        text.chars().take(MESSAGE_CHARS_MAX).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_from_what_is_broken() {
        let dir = tempfile::tempdir().unwrap();
        let broken = dir.path().join("libbroken.so");
        std::fs::write(&broken, b"not a library").unwrap();
        let refusals = Library::open(&["libforebay-nowhere.so.7".into(), broken.clone()]).unwrap_err();
        assert_eq!(refusals.len(), 2);
        assert!(!refusals[0].is_there, "{:?}", refusals[0]);
        assert!(
            refusals[1].is_there && refusals[1].path == broken,
            "{:?}",
            refusals[1]
        );
        assert!(!refusals[1].message.is_empty());
    }

    #[test]
    fn symbols_are_asked_for_one_by_one() {
        let library = Library::open(&["libc.so.6".into()]).unwrap();
        assert!(library.symbol(c"malloc").is_some());
        assert!(library.symbol(c"forebay_no_such_symbol").is_none());
        assert_eq!(library.path(), Path::new("libc.so.6"));
    }
}
