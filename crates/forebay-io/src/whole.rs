//! Small files, read whole: many in one turn of a worker thread.
//!
//! What a small file costs is not its bytes but the turns between the task that wants it and the thread that opens it, and those between the thread and a disk. So a thread takes
//! a list, opens and looks at some of its files, and asks for all their bytes together ([`wave`]). The size each must have is said beforehand, by whoever listed it.

mod budget;
mod wave;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use forebay_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::buf::AlignedBuf;
use crate::file::open_error;
use budget::Share;
use wave::{Open, Unread, WAVE_FILES_MAX};

/// How files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// By waves, where the kernel has rings for us: what waits for a disk is asked for together.
    Waves,
    /// One after the other.
    Singly,
}

/// Read files of known sizes, one after the other into the front of `buf`. Blocks.
pub(crate) fn read(files: &[(PathBuf, u64)], mut buf: AlignedBuf, how: How) -> Result<AlignedBuf> {
    match read_places(files, &mut buf, how) {
        Ok(()) => Ok(buf),
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Ring(error)) => {
            // The kernel may still write to it.
            std::mem::forget(buf);
            Err(Error::from_io("read", error).with_hint("io_uring stopped working; start anew"))
        }
    }
}

/// Why files are not read.
enum Stop {
    Failed(Error),
    Ring(io::Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn read_places(files: &[(PathBuf, u64)], buf: &mut [u8], how: How) -> Result<(), Stop> {
    let (mut rest, mut files, mut how) = (buf, files, how);
    let mut folder = Folder::default();
    while !files.is_empty() {
        let most = if how == How::Waves { WAVE_FILES_MAX } else { 1 };
        let share = Share::take(most.min(files.len()));
        let mut wave = Vec::with_capacity(share.files());
        for (path, size) in files.iter().take(share.files()) {
            let file = match open(&mut folder, path, *size) {
                // Those of this wave are closed before the next one.
                Err(error) if is_full(&error) && !wave.is_empty() => break,
                opened => opened?,
            };
            let place = usize::try_from(*size).ok();
            let Some(place) = place.and_then(|size| rest.split_off_mut(..size)) else {
                let message = "the buffer is shorter than the files";
                let error = Error::new(ErrorKind::InvalidInput, "read", message);
                return Err(error.at(path.display()).into());
            };
            wave.push(Open { file, place });
        }
        let filled = match how {
            How::Waves => wave::read(&mut wave),
            How::Singly => Err(Unread::NoRing),
        };
        let filled = match filled {
            Ok(filled) => filled,
            Err(Unread::Stopped(error)) => return Err(Stop::Ring(error)),
            Err(Unread::NoRing) => {
                how = How::Singly;
                let singly = wave.iter_mut().map(|open| fill(&open.file, open.place, 0));
                singly.collect()
            }
        };
        for ((filled, open), (path, _)) in filled.into_iter().zip(&wave).zip(files) {
            let filled = filled.map_err(|error| failed(path, error))?;
            if filled < open.place.len() {
                return Err(changed(path, filled as u64, open.place.len() as u64).into());
            }
        }
        files = files.get(wave.len()..).unwrap_or_default();
    }
    Ok(())
}

/// The folder of the last file. Files of one folder are opened from there: the way to it is walked once.
#[derive(Debug, Default)]
struct Folder {
    path: PathBuf,
    fd: Option<OwnedFd>,
}

impl Folder {
    fn open(&mut self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return rustix::fs::open(path, flags, Mode::empty());
        };
        if parent.as_os_str() != self.path.as_os_str() {
            let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            parent.clone_into(&mut self.path);
            self.fd = rustix::fs::open(parent, how, Mode::empty()).ok();
        }
        match &self.fd {
            Some(fd) => rustix::fs::openat(fd, name, flags, Mode::empty()),
            None => rustix::fs::open(path, flags, Mode::empty()),
        }
    }
}

/// Open a file that must have that size.
fn open(folder: &mut Folder, path: &Path, size: u64) -> Result<OwnedFd> {
    // Never waits for the other end of a pipe; what is no file has no size that could be right.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = folder
        .open(path, flags)
        .map_err(|error| open_error(path, error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| failed(path, error))?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        let message = "this is not a regular file";
        return Err(Error::new(ErrorKind::InvalidInput, "read", message).at(path.display()));
    }
    match u64::try_from(stat.st_size) {
        Ok(found) if found == size => Ok(file),
        found => Err(changed(path, found.unwrap_or(0), size)),
    }
}

/// Fill the rest of `place` with what is in a file from there on; gives how many bytes it has then, all of it unless the file ends.
fn fill(file: &OwnedFd, place: &mut [u8], filled: usize) -> Result<usize, Errno> {
    let mut filled = filled;
    while let Some(rest) = place.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// True when no more files can be opened while others are.
fn is_full(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    let errno = source.and_then(io::Error::raw_os_error);
    errno.is_some_and(|errno| errno == libc::EMFILE || errno == libc::ENFILE)
}

fn failed(path: &Path, error: Errno) -> Error {
    Error::from_io("read", error.into()).at(path.display())
}

fn changed(path: &Path, found: u64, expected: u64) -> Error {
    let message = format!("the file has {found} bytes, where {expected} were expected");
    Error::new(ErrorKind::Precondition, "read", message)
        .at(path.display())
        .with_hint("it changed meanwhile; list again")
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
        for how in [How::Waves, How::Singly] {
            check(dir.path(), &files, how);
        }
    }

    fn check(dir: &Path, files: &[(PathBuf, u64)], how: How) {
        let read = |files: &[(PathBuf, u64)], len| {
            let buf = AlignedBuf::alloc(len, crate::Pages::default()).unwrap();
            super::read(files, buf, how).map_err(|error| error.kind())
        };
        assert_eq!(&read(files, 100).unwrap()[..8], b"onethree");
        assert_eq!(read(files, 7).unwrap_err(), ErrorKind::InvalidInput);
        for size in [2, 4] {
            let wrong = [(files[0].0.clone(), size)];
            assert_eq!(read(&wrong, 100).unwrap_err(), ErrorKind::Precondition, "{size}");
        }
        let missing = [(dir.join("none"), 1)];
        assert_eq!(read(&missing, 100).unwrap_err(), ErrorKind::NotFound);
        let folder = [(dir.to_owned(), 1)];
        assert_eq!(read(&folder, 100).unwrap_err(), ErrorKind::InvalidInput);
    }

    #[test]
    fn waves_come_in_the_order_of_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let texts: Vec<String> = (0..=3 * WAVE_FILES_MAX)
            .map(|index| index.to_string().repeat(index % 7))
            .collect();
        let mut files = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            // Of several folders, one after the other and back again.
            let folder = dir.path().join((index / 5 % 3).to_string());
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join(index.to_string());
            fs::write(&path, text).unwrap();
            files.push((path, text.len() as u64));
        }
        let all = texts.concat();
        for how in [How::Waves, How::Singly] {
            let buf = AlignedBuf::alloc(all.len(), crate::Pages::default()).unwrap();
            assert_eq!(&super::read(&files, buf, how).unwrap()[..], all.as_bytes());
        }
    }

    #[test]
    fn a_file_that_ends_early_is_told_from_one_that_is_read_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "abcdef").unwrap();
        let file = open(&mut Folder::default(), &path, 6).unwrap();
        let mut place = *b"ab......";
        assert_eq!(fill(&file, &mut place[..6], 2).unwrap(), 6);
        assert_eq!(
            (&place, fill(&file, &mut place.clone(), 0).unwrap()),
            (b"abcdef..", 6)
        );
        let mut longer = [0; 8];
        let mut wave = [Open {
            file,
            place: &mut longer,
        }];
        if let Ok(filled) = wave::read(&mut wave) {
            assert_eq!(filled[0].unwrap(), 6);
        }
    }

    #[test]
    fn a_full_table_of_files_is_known() {
        let path = Path::new("file");
        let refused = |errno: Errno| open_error(path, errno.into());
        assert!(is_full(&refused(Errno::MFILE)) && is_full(&refused(Errno::NFILE)));
        assert!(!is_full(&refused(Errno::NOENT)) && !is_full(&changed(path, 1, 2)));
    }
}
