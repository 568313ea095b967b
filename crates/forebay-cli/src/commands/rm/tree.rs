//! A local directory, removed with everything in it by one walk.
//!
//! The walk runs on a thread that may block and tells what it does through a short queue: one message for each file, so that it can be
//! counted and shown, and one for each failure. It goes by open directories and never follows a link, so a directory that somebody
//! replaces by a link meanwhile leads nowhere else. Ctrl-C ends it before the next file.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_core::{Error, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Messages waiting to be shown; a terminal that is slow slows the walk down.
const MESSAGES_WAITING_MAX: usize = 256;

/// A file that is gone, or why it is not.
pub(super) type Message = Result<PathBuf>;

/// Remove `root` with everything in it; messages end with the walk.
pub(super) fn remove(root: PathBuf, cancel: CancellationToken) -> mpsc::Receiver<Message> {
    let (messages, inbox) = mpsc::channel(MESSAGES_WAITING_MAX);
    tokio::task::spawn_blocking(move || {
        let walk = Walk { messages, cancel };
        // How it ended was told.
        let _: Outcome = walk.remove_dir(CWD, root.as_os_str(), &root);
    });
    inbox
}

struct Walk {
    messages: mpsc::Sender<Message>,
    cancel: CancellationToken,
}

/// How a directory ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is gone.
    Gone,
    /// Something in it could not be removed, which was told.
    Left,
    /// Nobody wants to go on.
    Stopped,
}

impl Walk {
    /// The directory `name` in `parent`; `path` is how it is called in messages.
    fn remove_dir(&self, parent: impl AsFd, name: &OsStr, path: &Path) -> Outcome {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match openat(&parent, name, flags, Mode::empty()) {
            Ok(dir) => dir,
            // A directory that may not be read may still be empty.
            Err(Errno::ACCESS) => return self.unlink_dir(parent, name, path),
            Err(error) => return self.fail(error, path),
        };
        match self.empty(&dir, path) {
            Outcome::Gone => self.unlink_dir(parent, name, path),
            other => other,
        }
    }

    fn unlink_dir(&self, parent: impl AsFd, name: &OsStr, path: &Path) -> Outcome {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Outcome::Gone,
            Err(error) => self.fail(error, path),
        }
    }

    /// Everything in an open directory: files as they are met, then the directories, so that only one listing is open at a time.
    fn empty(&self, dir: &OwnedFd, path: &Path) -> Outcome {
        let mut outcome = Outcome::Gone;
        let mut dirs: Vec<CString> = Vec::new();
        let entries = match Dir::read_from(dir) {
            Ok(entries) => entries,
            Err(error) => return self.fail(error, path),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.fail(error, path),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.cancel.is_cancelled() {
                return Outcome::Stopped;
            }
            match self.remove_entry(dir, name, entry.file_type(), path) {
                Some(Outcome::Gone) => {}
                Some(Outcome::Left) => outcome = Outcome::Left,
                Some(Outcome::Stopped) => return Outcome::Stopped,
                None => dirs.push(name.to_owned()),
            }
        }
        for name in dirs {
            let name = OsStr::from_bytes(name.to_bytes());
            match self.remove_dir(dir, name, &path.join(name)) {
                Outcome::Gone => {}
                Outcome::Left => outcome = Outcome::Left,
                Outcome::Stopped => return Outcome::Stopped,
            }
        }
        outcome
    }

    /// A file, a link or anything else but a directory: `None` for that one.
    fn remove_entry(&self, dir: &OwnedFd, name: &CStr, kind: FileType, path: &Path) -> Option<Outcome> {
        if kind == FileType::Directory {
            return None;
        }
        let path = || path.join(OsStr::from_bytes(name.to_bytes()));
        match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) => Some(self.tell(Ok(path()), Outcome::Gone)),
            // Somebody else was faster.
            Err(Errno::NOENT) => Some(Outcome::Gone),
            // Some file systems do not tell kinds in listings.
            Err(Errno::ISDIR) => None,
            Err(error) => Some(self.fail(error, &path())),
        }
    }

    fn fail(&self, error: Errno, path: &Path) -> Outcome {
        let error = Error::from_io("remove", error.into()).at(path.display());
        self.tell(Err(error), Outcome::Left)
    }

    fn tell(&self, message: Message, outcome: Outcome) -> Outcome {
        match self.messages.blocking_send(message) {
            Ok(()) => outcome,
            Err(_) => Outcome::Stopped,
        }
    }
}
