//! Small files, read whole: many in one turn of a worker thread.
//!
//! What a small file costs is not its bytes but the turns between the task that wants it and the thread that opens it. So a thread takes a list, and opens, looks at,
//! reads and closes one file after the other. The size each must have is said beforehand, by whoever listed it.

use std::io;
use std::path::{Path, PathBuf};

use forebay_core::{Error, ErrorKind, Result};

use crate::buf::AlignedBuf;

/// Read files of known sizes, one after the other into the front of `buf`. Blocks.
pub(crate) fn read(files: &[(PathBuf, u64)], mut buf: AlignedBuf) -> Result<AlignedBuf> {
    let mut at = 0;
    for (path, size) in files {
        let end = usize::try_from(*size).ok().and_then(|size| size.checked_add(at));
        let Some(place) = end.and_then(|end| buf.get_mut(at..end)) else {
            let message = "the buffer is shorter than the files";
            return Err(Error::new(ErrorKind::InvalidInput, "read", message).at(path.display()));
        };
        read_file(path, place)?;
        at += place.len();
    }
    Ok(buf)
}

/// Fill `place` with all of a file.
fn read_file(path: &Path, place: &mut [u8]) -> Result<()> {
    let fail = |error: io::Error| Error::from_io("read", error).at(path.display());
    // Never waits for the other end of a pipe; what is no file has no size that could be right.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK;
    let file =
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(|error| fail(error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| fail(error.into()))?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        let message = "this is not a regular file";
        return Err(Error::new(ErrorKind::InvalidInput, "read", message).at(path.display()));
    }
    let mut filled = 0;
    while let Some(rest) = place.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::io::read(&file, rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(fail(error.into())),
        }
    }
    if filled == place.len() && stat.st_size as u64 == place.len() as u64 {
        return Ok(());
    }
    let found = (stat.st_size as u64).min(if filled < place.len() {
        filled as u64
    } else {
        u64::MAX
    });
    let message = format!("the file has {found} bytes, where {} were expected", place.len());
    Err(Error::new(ErrorKind::Precondition, "read", message)
        .at(path.display())
        .with_hint("it changed meanwhile; list again"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn small_files_are_read_in_one_turn() {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<(PathBuf, u64)> = ["one", "", "three"]
            .iter()
            .enumerate()
            .map(|(index, text)| {
                let path = dir.path().join(index.to_string());
                fs::write(&path, text).unwrap();
                (path, text.len() as u64)
            })
            .collect();
        let read = |files: &[(PathBuf, u64)], len| {
            let buf = AlignedBuf::alloc(len, crate::Pages::default()).unwrap();
            super::read(files, buf).map_err(|error| error.kind())
        };
        assert_eq!(&read(&files, 100).unwrap()[..8], b"onethree");
        assert_eq!(read(&files, 7).unwrap_err(), ErrorKind::InvalidInput);
        for size in [2, 4] {
            let wrong = [(files[0].0.clone(), size)];
            assert_eq!(read(&wrong, 100).unwrap_err(), ErrorKind::Precondition, "{size}");
        }
        let missing = [(dir.path().join("none"), 1)];
        assert_eq!(read(&missing, 100).unwrap_err(), ErrorKind::NotFound);
        let folder = [(dir.path().to_owned(), 1)];
        assert_eq!(read(&folder, 100).unwrap_err(), ErrorKind::InvalidInput);
    }
}
