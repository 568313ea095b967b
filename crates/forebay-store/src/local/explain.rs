//! Errors of the operating system, as a user of the store can act on them.

use std::io;
use std::path::Path;

use forebay_core::{Error, ErrorKind};

/// True when a file stands where the path needs a directory: there is no object of that name.
pub(super) fn is_not_a_directory(error: &Error) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|source| source.kind() == io::ErrorKind::NotADirectory)
}

/// Name the object and what can be done. The cause may speak of a temporary file that is gone by now.
pub(super) fn explain(op: &'static str, path: &Path, error: Error) -> Error {
    if error.op() == op {
        return error;
    }
    let hint = error.hint().map_or_else(
        || hint_of(&error).map(str::to_owned),
        |hint| Some(hint.to_owned()),
    );
    let explained = Error::new(error.kind(), op, "")
        .at(path.display())
        .with_source(error);
    match hint {
        Some(hint) => explained.with_hint(hint),
        None => explained,
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
            assert!(
                error.hint().unwrap().contains(word),
                "{errno}: {:?}",
                error.hint()
            );
        }
    }
}
