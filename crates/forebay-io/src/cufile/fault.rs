//! Codes of cuFile as errors: kind, words, and what to do.

use std::io;

use forebay_core::{Error, ErrorKind};

use crate::dl::Refusal;

/// An error for a code of cuFile.
pub(super) fn fault(op: &'static str, code: i32, cuda: i32) -> Error {
    let (kind, words, hint) = sort(code);
    let message = match (words, cuda) {
        ("", 0) => format!("error {code} of cuFile"),
        ("", cuda) => format!("error {code} of cuFile (CUDA error {cuda})"),
        (words, 0) => format!("{words} (cuFile error {code})"),
        (words, cuda) => format!("{words} (cuFile error {code}, CUDA error {cuda})"),
    };
    let error = Error::new(kind, op, message);
    if hint.is_empty() {
        return error;
    }
    error.with_hint(hint)
}

/// A read gives the code of cuFile with a minus, or -1 for an error of the operating system.
pub(super) fn read_fault(op: &'static str, answer: isize) -> Error {
    if answer == -1 {
        return Error::from_io(op, io::Error::last_os_error());
    }
    fault(op, i32::try_from(-answer).unwrap_or(0), 0)
}

fn sort(code: i32) -> (ErrorKind, &'static str, &'static str) {
    const DOCTOR: &str = "`forebay gds FILE` says what is missing and what to change";
    match code {
        5001 => (
            ErrorKind::Unsupported,
            "no direct path exists on this machine: neither nvidia-fs nor peer-to-peer copies are there",
            DOCTOR,
        ),
        5002..=5006 => (
            ErrorKind::Unsupported,
            "nvidia-fs does not fit this library",
            DOCTOR,
        ),
        5007 => (ErrorKind::Unsupported, "the platform is not supported", DOCTOR),
        5008 => (
            ErrorKind::Unsupported,
            "GPUDirect Storage is not supported on this file",
            DOCTOR,
        ),
        5009 => (
            ErrorKind::Unsupported,
            "GPUDirect Storage is not supported on this GPU",
            DOCTOR,
        ),
        5010 | 5033 | 5048 => (ErrorKind::Unsupported, "nvidia-fs failed", DOCTOR),
        5011 => (ErrorKind::Io, "the CUDA driver failed", ""),
        5012..=5017 => (ErrorKind::Internal, "cuFile does not know this device memory", ""),
        5018..=5020 => (
            ErrorKind::Unsupported,
            "cuFile does not take this kind of file, or the way it was opened",
            DOCTOR,
        ),
        5025 => (ErrorKind::PermissionDenied, "permission denied", ""),
        5027 => (
            ErrorKind::Unsupported,
            "the file's block device is not known to cuFile: without the records of udev not even a slow path works",
            "in a container, mount /run/udev read-only; `forebay gds FILE` says more",
        ),
        5029 => (ErrorKind::Unsupported, "the block device was not found", DOCTOR),
        5034 => (
            ErrorKind::Unsupported,
            "cuFile's configuration switches I/O off",
            "look at cufile.json",
        ),
        5036 => (
            ErrorKind::OutOfSpace,
            "GPU memory cannot be pinned for the bus",
            "the window of the GPU on the bus (BAR1) is used up: close other users, or enlarge it",
        ),
        5043 => (ErrorKind::OutOfSpace, "out of memory", ""),
        5044 => (ErrorKind::Io, "the read failed", ""),
        _ => (ErrorKind::Io, "", ""),
    }
}

/// There is no cuFile library, or none that can be used.
pub(super) fn no_library(refusals: &[Refusal]) -> Error {
    if let Some(refusal) = refusals.iter().find(|refusal| refusal.is_there) {
        return broken(&format!(
            "{} cannot be used: {}",
            refusal.path.display(),
            refusal.message
        ));
    }
    Error::new(
        ErrorKind::Unsupported,
        "open cufile",
        "the GPUDirect Storage library libcufile.so.0 is not installed",
    )
    .with_hint("install libcufile of the CUDA toolkit, or the Python package nvidia-cufile; or load with gds=\"off\"")
}

/// A library that is there and cannot be used.
pub(super) fn broken(why: &str) -> Error {
    let message = format!("the GPUDirect Storage library is only half installed: {why}");
    Error::new(ErrorKind::Unsupported, "open cufile", message)
        .with_hint("install libcufile anew, in the version of the CUDA toolkit; or load with gds=\"off\"")
}
