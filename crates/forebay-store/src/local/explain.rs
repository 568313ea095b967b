//! Errors of the operating system, as a user of the store can act on them.

use std::io;
use std::path::Path;

use forebay_core::{Error, ErrorKind};

use super::TEMP_PREFIX;

/// True when a file stands where the path needs a directory: there is no object of that name.
pub(super) fn is_not_a_directory(error: &Error) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|source| source.kind() == io::ErrorKind::NotADirectory)
}

/// Name the object and what can be done, on one level: what was asked for, which step of it failed, what the system said.
pub(super) fn explain(op: &'static str, path: &Path, error: Error) -> Error {
    if error.op() == op {
        return error;
    }
    let hint = error.hint().map_or_else(
        || hint_of(&error).map(str::to_owned),
        |hint| Some(hint.to_owned()),
    );
    let place = path.display().to_string();
    let mut message = error.op().to_owned();
    // A temporary file is gone by now, and means nothing to anybody.
    let elsewhere = error
        .location()
        .filter(|at| **at != place && !at.contains(TEMP_PREFIX));
    if let Some(elsewhere) = elsewhere {
        message.push(' ');
        message.push_str(elsewhere);
    }
    if !error.message().is_empty() {
        message.push_str(": ");
        message.push_str(error.message());
    }
    let explained = because(Error::new(error.kind(), op, message).at(place), error);
    match hint {
        Some(hint) => explained.with_hint(hint),
        None => explained,
    }
}

/// Keep the innermost cause of `cause`: what the operating system said, where it was that.
pub(super) fn because(error: Error, cause: Error) -> Error {
    let code = std::error::Error::source(&cause)
        .and_then(|source| source.downcast_ref::<io::Error>())
        .and_then(io::Error::raw_os_error);
    match code {
        Some(code) => error.with_source(io::Error::from_raw_os_error(code)),
        None if std::error::Error::source(&cause).is_some() => error.with_source(cause),
        None => error,
    }
}

fn hint_of(error: &Error) -> Option<&'static str> {
    if is_not_a_directory(error) {
        return Some("a file stands where a directory is needed: choose another name");
    }
    match error.kind() {
        ErrorKind::OutOfSpace => {
            Some("free some space or raise the quota; what was there before is unharmed")
        }
        ErrorKind::ReadOnly => {
            Some("the file system is mounted read-only: write elsewhere, or mount it for writing")
        }
        ErrorKind::PermissionDenied => {
            Some("check owner and mode of the file and of the directories above it")
        }
        ErrorKind::Io => Some("the device or file system reported a fault: see the kernel's log"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_follow_from_the_error_number() {
        for (errno, kind, word) in [
            (28, ErrorKind::OutOfSpace, "space"),
            (122, ErrorKind::OutOfSpace, "quota"),
            (30, ErrorKind::ReadOnly, "read-only"),
            (13, ErrorKind::PermissionDenied, "mode"),
            (20, ErrorKind::InvalidInput, "directory"),
            (5, ErrorKind::Io, "kernel"),
        ] {
            let cause =
                Error::from_io("write", io::Error::from_raw_os_error(errno)).at("/d/.forebay-tmp-1-2");
            let error = explain("put", Path::new("/d/k"), cause);
            assert_eq!((error.kind(), error.location()), (kind, Some("/d/k")));
            let text = error.to_string();
            let system = io::Error::from_raw_os_error(errno).to_string();
            assert_eq!(text.matches(&system).count(), 1, "{text}");
            assert!(!text.contains(TEMP_PREFIX), "{text}");
            assert!(
                error.hint().unwrap().contains(word),
                "{errno}: {:?}",
                error.hint()
            );
        }
    }
}
