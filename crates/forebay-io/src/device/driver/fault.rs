//! Codes of the CUDA driver as errors: kind, words, and what to do.

use forebay_core::{Error, ErrorKind};

use crate::dl::Refusal;

/// What to do when the process's context on a device is gone.
const LOST_HINT: &str =
    "what this process has on the device is lost: look for Xid lines in dmesg, and start the process again";

/// An error for `code` with the driver's own `words` for it.
pub(super) fn fault(op: &'static str, code: u32, words: &str) -> Error {
    let (kind, hint) = sort(code);
    let message = if hint == Some(LOST_HINT) {
        format!("the device was lost: {words}")
    } else {
        words.to_owned()
    };
    let error = Error::new(kind, op, message);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Where the codes of `cuda.h` belong. Those that are not named stand for misuse of the driver by us.
fn sort(code: u32) -> (ErrorKind, Option<&'static str>) {
    match code {
        // Out of memory.
        2 => (
            ErrorKind::OutOfSpace,
            Some(
                "free device memory: other processes show in nvidia-smi, caches of this one in torch.cuda.empty_cache()",
            ),
        ),
        // Not initialised, shut down.
        3 | 4 => (
            ErrorKind::Unsupported,
            Some(
                "CUDA does not survive fork(): start processes by spawn, and leave devices alone while the process ends",
            ),
        ),
        // The stub of the toolkit, against which programs are linked.
        34 => (
            ErrorKind::Unsupported,
            Some("this is the stub library of a CUDA toolkit: remove its folder from LD_LIBRARY_PATH"),
        ),
        // Busy or unavailable.
        46 => (
            ErrorKind::Unavailable,
            Some("another process has the device for itself (exclusive compute mode), or it is being reset"),
        ),
        100 => (
            ErrorKind::Unsupported,
            Some("no GPU is visible: look at nvidia-smi, CUDA_VISIBLE_DEVICES, and the container's --gpus"),
        ),
        101 => (
            ErrorKind::InvalidInput,
            Some("number devices from 0, and look at CUDA_VISIBLE_DEVICES"),
        ),
        // Uncorrectable memory error, link errors, faults of kernels, a context that is gone, and the unknown.
        214 | 219..=222 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999 => {
            (ErrorKind::Io, Some(LOST_HINT))
        }
        // The operating system refused.
        304 => (
            ErrorKind::PermissionDenied,
            Some("the operating system refused: look at the permissions of /dev/nvidia*, and at ulimit -l"),
        ),
        712 => (ErrorKind::InvalidInput, Some("this memory is pinned already")),
        800 => (ErrorKind::PermissionDenied, None),
        801 => (ErrorKind::Unsupported, None),
        // Kernel module and library of different versions; a library that is newer than the hardware allows.
        803 | 804 => (
            ErrorKind::Unsupported,
            Some(
                "kernel module and driver library are of different versions: reboot after an update, and look at the container's libraries",
            ),
        ),
        _ => (ErrorKind::Internal, None),
    }
}

/// There is no driver library, or none that can be used.
pub(super) fn no_library(refusals: &[Refusal]) -> Error {
    let broken = refusals.iter().find(|refusal| refusal.is_there);
    let names: Vec<String> = refusals
        .iter()
        .map(|refusal| refusal.path.display().to_string())
        .collect();
    let (message, hint) = match broken {
        Some(refusal) => (
            format!("{} cannot be used: {}", refusal.path.display(), refusal.message),
            "reinstall the NVIDIA driver, or correct FOREBAY_CUDA_LIBRARY",
        ),
        None => (
            format!("there is no CUDA driver here: {} not found", names.join(" and ")),
            "install the NVIDIA driver, start the container with --gpus, or load to cpu",
        ),
    };
    Error::new(ErrorKind::Unsupported, "open device", message).with_hint(hint)
}

/// The driver is older than what is used of it.
pub(super) fn too_old(why: &str) -> Error {
    let message = format!("the CUDA driver is too old: {why}");
    Error::new(ErrorKind::Unsupported, "open device", message)
        .with_hint("install a driver for CUDA 11.4 (470) or later, or load to cpu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_find_their_kind_and_say_what_to_do() {
        for (code, kind) in [
            (2, ErrorKind::OutOfSpace),
            (100, ErrorKind::Unsupported),
            (101, ErrorKind::InvalidInput),
            (719, ErrorKind::Io),
            (803, ErrorKind::Unsupported),
            (1, ErrorKind::Internal),
        ] {
            assert_eq!(fault("copy", code, "words").kind(), kind, "{code}");
        }
        let lost = fault("copy", 714, "words (NAME)");
        assert_eq!(lost.message(), "the device was lost: words (NAME)");
        assert_eq!(lost.hint(), Some(LOST_HINT));
    }
}
