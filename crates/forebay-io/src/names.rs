//! Operations on names: open, stat, list, rename, unlink, directories and their durability.
//!
//! They are part of the engine seam, so that the simulation sees every step of a durable write and can stop after each of
//! them. On a real machine they are plain system calls, run by worker threads.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps};

use crate::file::{File, OpenHow};

/// Names in one directory that are read into memory: above it, listing is refused rather than letting memory grow without bound.
pub(crate) const DIR_ENTRIES_MAX: usize = 16 << 20;

/// One operation on names.
#[derive(Debug, Clone)]
pub enum NameOp {
    /// Open a file.
    Open {
        /// Where.
        path: PathBuf,
        /// How.
        how: OpenHow,
    },
    /// Size, kind and times; symbolic links are followed.
    Stat {
        /// Of what.
        path: PathBuf,
    },
    /// The same of many names in one directory, in one turn: turns are what small files cost.
    StatMany {
        /// The directory.
        dir: PathBuf,
        /// The names in it.
        names: Vec<OsString>,
    },
    /// The entries of a directory, sorted by name.
    List {
        /// Which directory.
        path: PathBuf,
    },
    /// Give a file another name, atomically.
    Rename {
        /// Old name.
        from: PathBuf,
        /// New name.
        to: PathBuf,
        /// Replace an existing file, or fail with `AlreadyExists`. Devices, pipes and sockets are never replaced: that is `InvalidInput`.
        replace: bool,
        /// Refuse with `Corrupt` when the file has another size.
        size: Option<u64>,
    },
    /// Remove a file.
    Unlink {
        /// Which.
        path: PathBuf,
    },
    /// Make a directory and the missing ones above it; those that exist are fine. Each new one is made durable in its parent.
    CreateDirs {
        /// The innermost.
        path: PathBuf,
    },
    /// Remove an empty directory.
    RemoveDir {
        /// Which.
        path: PathBuf,
    },
    /// Make the names in a directory durable.
    SyncDir {
        /// Which.
        path: PathBuf,
    },
    /// Set the length of an open file.
    SetLen {
        /// Which.
        file: Arc<File>,
        /// To how many bytes.
        len: u64,
    },
    /// Grow an open file to `len` with its blocks reserved: a full disk is known before the first byte, and writes that do not
    /// move the end of the file run side by side (ext4 takes a lock otherwise). File systems that cannot are fine.
    Reserve {
        /// Which.
        file: Arc<File>,
        /// For how many bytes.
        len: u64,
    },
    /// Set the time of last use to now.
    Touch {
        /// Which.
        path: PathBuf,
    },
}

/// What an operation on names gave.
#[derive(Debug)]
pub enum NameDone {
    /// Done, nothing to tell.
    Nothing,
    /// The opened file.
    File(Arc<File>),
    /// Size, kind, times.
    Stat(FileStat),
    /// The same for many names, in their order.
    Stats(Vec<Result<FileStat>>),
    /// Entries, sorted by name.
    Entries(Vec<DirEntry>),
    /// A file has another name.
    Renamed(Renamed),
}

/// A file before and after it was renamed, seen in the same turn: a writer needs both, and turns are what small files cost.
#[derive(Debug, Clone, Copy)]
pub struct Renamed {
    /// Under its old name.
    pub before: FileStat,
    /// What the new name meant right after; none when that is gone already.
    pub after: Option<FileStat>,
}

/// Kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Regular file (or a block device, which is read like one).
    File,
    /// Directory.
    Dir,
    /// Anything else: sockets, FIFOs, dangling links.
    Other,
}

/// What is known of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Kind.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Bytes it takes on the device.
    pub stored_bytes: u64,
    /// Last change of content, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of content, names or permissions, nanoseconds since 1970. Unlike `modified_ns`, nobody can set it back.
    pub changed_ns: i64,
    /// Last use as far as the file system keeps it, nanoseconds since 1970.
    pub accessed_ns: i64,
    /// Permission bits.
    pub permissions: u32,
    /// Device and inode: the identity, to find loops.
    pub identity: (u64, u64),
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name as the file system has it; may not be UTF-8.
    pub name: OsString,
    /// Kind; links are `Other` here and must be stat'ed.
    pub kind: FileKind,
}

/// Run one operation on the real file system. Blocks.
pub(crate) fn run(op: NameOp) -> Result<NameDone> {
    match op {
        NameOp::Open { path, how } => File::open(&path, how).map(|file| NameDone::File(Arc::new(file))),
        NameOp::Stat { path } => stat(&path).map(NameDone::Stat),
        NameOp::StatMany { dir, names } => {
            // From the directory itself: the way to it is walked once, not once for every name.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let stats = match rustix::fs::open(&dir, flags, Mode::empty()) {
                Ok(fd) => names.iter().map(|name| stat_at(&fd, &dir, name)).collect(),
                Err(_) => names.iter().map(|name| stat(&dir.join(name))).collect(),
            };
            Ok(NameDone::Stats(stats))
        }
        NameOp::List { path } => list(&path).map(NameDone::Entries),
        NameOp::Rename {
            from,
            to,
            replace,
            size,
        } => rename(&from, &to, replace, size),
        NameOp::Unlink { path } => done("unlink", &path, fs::remove_file(&path)),
        NameOp::CreateDirs { path } => create_dirs(&path),
        NameOp::RemoveDir { path } => done("rmdir", &path, fs::remove_dir(&path)),
        NameOp::SyncDir { path } => sync_dir(&path),
        NameOp::SetLen { file, len } => on_file("truncate", &file, |fd| rustix::fs::ftruncate(fd, len)),
        NameOp::Reserve { file, len } => reserve(&file, len),
        NameOp::Touch { path } => touch(&path),
    }
}

fn done(op: &'static str, path: &Path, result: io::Result<()>) -> Result<NameDone> {
    result
        .map(|()| NameDone::Nothing)
        .map_err(|error| Error::from_io(op, error).at(path.display()))
}

fn on_file(
    op: &'static str,
    file: &File,
    call: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> rustix::io::Result<()>,
) -> Result<NameDone> {
    let fd = file.fd().ok_or_else(|| foreign(op, file))?;
    done(op, file.path(), call(fd).map_err(Into::into))
}

/// The error for a file that belongs to another engine.
pub(crate) fn foreign(op: &'static str, file: &File) -> Error {
    Error::new(ErrorKind::Internal, op, "the file was opened by another engine").at(file.path().display())
}

fn stat(path: &Path) -> Result<FileStat> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(told(&stat, || path.to_owned())),
        Err(errno) => Err(Error::from_io("stat", errno.into()).at(path.display())),
    }
}

/// The same of a name in an open directory.
fn stat_at(fd: impl AsFd, dir: &Path, name: &OsStr) -> Result<FileStat> {
    match rustix::fs::statat(fd, name, AtFlags::empty()) {
        Ok(stat) => Ok(told(&stat, || dir.join(name))),
        Err(errno) => Err(Error::from_io("stat", errno.into()).at(dir.join(name).display())),
    }
}

/// What the kernel tells of a name, whose path is only put together where that is not enough.
fn told(stat: &rustix::fs::Stat, path: impl FnOnce() -> PathBuf) -> FileStat {
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    let is_device = kind.is_block_device();
    let kind = match kind {
        _ if kind.is_dir() => FileKind::Dir,
        _ if kind.is_file() || kind.is_block_device() => FileKind::File,
        _ => FileKind::Other,
    };
    let nanos = |secs: i64, nsec: i64| secs.saturating_mul(1_000_000_000).saturating_add(nsec);
    FileStat {
        kind,
        size: if is_device {
            device_bytes(&path())
        } else {
            stat.st_size as u64
        },
        stored_bytes: stat.st_blocks as u64 * 512,
        modified_ns: nanos(stat.st_mtime, stat.st_mtime_nsec as i64),
        changed_ns: nanos(stat.st_ctime, stat.st_ctime_nsec as i64),
        accessed_ns: nanos(stat.st_atime, stat.st_atime_nsec as i64),
        permissions: stat.st_mode & 0o7777,
        identity: (stat.st_dev, stat.st_ino),
    }
}

/// Size of a block device, which stat does not tell; 0 when it cannot be opened.
fn device_bytes(path: &Path) -> u64 {
    use std::io::{Seek, SeekFrom};
    fs::File::open(path)
        .and_then(|mut device| device.seek(SeekFrom::End(0)))
        .unwrap_or(0)
}

fn list(path: &Path) -> Result<Vec<DirEntry>> {
    let fail = |error: io::Error| Error::from_io("list", error).at(path.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let kind = match entry.file_type() {
            Ok(kind) if kind.is_dir() => FileKind::Dir,
            Ok(kind) if kind.is_file() => FileKind::File,
            _ => FileKind::Other,
        };
        if entries.len() == DIR_ENTRIES_MAX {
            let message = format!("more than {DIR_ENTRIES_MAX} names in one directory");
            return Err(Error::new(ErrorKind::LimitExceeded, "list", message).at(path.display()));
        }
        entries.push(DirEntry {
            name: entry.file_name(),
            kind,
        });
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn rename(from: &Path, to: &Path, replace: bool, size: Option<u64>) -> Result<NameDone> {
    let before = stat(from)?;
    check_size(from, &before, size)?;
    rename_only(from, to, replace)?;
    let after = stat(to).ok();
    Ok(NameDone::Renamed(Renamed { before, after }))
}

/// Whether a file that is to be renamed has the size it should have.
pub(crate) fn check_size(path: &Path, stat: &FileStat, size: Option<u64>) -> Result<()> {
    match size {
        Some(size) if size != stat.size => {
            let message = format!("the file has {} bytes, but {size} were written", stat.size);
            Err(Error::new(ErrorKind::Corrupt, "rename", message).at(path.display()))
        }
        _ => Ok(()),
    }
}

fn rename_only(from: &Path, to: &Path, replace: bool) -> Result<()> {
    let failed = |error: io::Error| Error::from_io("rename", error).at(to.display());
    if replace {
        refuse_special(to)?;
        return fs::rename(from, to).map_err(failed);
    }
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // File systems without RENAME_NOREPLACE (NFS, some FUSE) mostly have hard links, which are as exclusive.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
            fs::hard_link(from, to).map_err(|error| Error::from_io("link", error).at(to.display()))?;
            // From here on the file has its new name, whatever becomes of the old one.
            if let Err(error) = fs::remove_file(from) {
                tracing::warn!(%error, path = %from.display(), "cannot remove the old name of a renamed file");
            }
            Ok(())
        }
        result => result.map_err(|errno| failed(errno.into())),
    }
}

/// Whoever writes to a device or a pipe means what is behind it; renaming over it would take it from everybody else. Links are followed.
fn refuse_special(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(there) if !there.is_file() && !there.is_dir() => Err(Error::new(
            ErrorKind::InvalidInput,
            "rename",
            "a device, pipe or socket stands there",
        )
        .at(path.display())
        .with_hint("choose another name; forebay cat writes to pipes and devices")),
        // A directory, and whatever else is wrong, is told by the rename itself.
        _ => Ok(()),
    }
}

fn create_dirs(path: &Path) -> Result<NameDone> {
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .collect();
    for dir in missing.into_iter().rev() {
        match fs::create_dir(dir) {
            // Somebody else made it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => drop(done("mkdir", dir, result)?),
        }
        if let Err(error) = sync_dir(parent_of(dir)) {
            // The kernel reports a loss once and forgets it: were it left, whoever finds it would build on a name that may not last.
            drop(fs::remove_dir(dir));
            return Err(error);
        }
    }
    if path.is_dir() {
        Ok(NameDone::Nothing)
    } else {
        done("mkdir", path, Err(io::ErrorKind::NotADirectory.into()))
    }
}

/// The directory that holds `path`; the current one for a bare name, whose parent the standard library calls "".
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ if path.has_root() => path,
        _ => Path::new("."),
    }
}

fn sync_dir(path: &Path) -> Result<NameDone> {
    let result = fs::File::open(path).and_then(|dir| match dir.sync_all() {
        // Some network file systems have no fsync of directories and keep names durable by themselves.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(()),
        result => result,
    });
    done("sync directory", path, result)
}

fn reserve(file: &File, len: u64) -> Result<NameDone> {
    let flags = rustix::fs::FallocateFlags::empty();
    on_file("reserve", file, |fd| {
        match rustix::fs::fallocate(fd, flags, 0, len.max(1)) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => Ok(()),
            result => result,
        }
    })
}

fn touch(path: &Path) -> Result<NameDone> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
    };
    done(
        "touch",
        path,
        rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).map_err(Into::into),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_of_a_directory_are_each_what_they_are_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "four").unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("l")).unwrap();
        let many = |dir: &Path| {
            let names = ["a", "none", "d", "l"].map(OsString::from).to_vec();
            let dir = dir.to_owned();
            match run(NameOp::StatMany { dir, names }).unwrap() {
                NameDone::Stats(stats) => stats,
                other => panic!("{other:?}"),
            }
        };
        let stats = many(dir.path());
        for (name, many) in ["a", "none", "d", "l"].iter().zip(stats) {
            let path = dir.path().join(name);
            match (stat(&path), many) {
                (Ok(alone), Ok(many)) => assert_eq!(alone, many, "{name}"),
                (Err(alone), Err(many)) => assert_eq!(alone.to_string(), many.to_string(), "{name}"),
                (alone, many) => panic!("{name}: {alone:?}, {many:?}"),
            }
        }
        let gone = many(&dir.path().join("gone"));
        assert!(
            gone.iter()
                .all(|stat| stat.as_ref().unwrap_err().kind() == ErrorKind::NotFound)
        );
    }

    #[test]
    fn rename_without_replace_is_exclusive() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "new").unwrap();
        fs::write(&b, "old").unwrap();
        let op = |replace| NameOp::Rename {
            from: a.clone(),
            to: b.clone(),
            replace,
            size: None,
        };
        assert_eq!(run(op(false)).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&b).unwrap(), b"old");
        run(op(true)).unwrap();
        assert_eq!(fs::read(&b).unwrap(), b"new");
    }

    #[test]
    fn a_rename_never_takes_the_place_of_a_socket_or_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let (from, socket, link) = (dir.path().join("a"), dir.path().join("s"), dir.path().join("l"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        fs::write(&from, "new").unwrap();
        for to in [&socket, &link] {
            let op = NameOp::Rename {
                from: from.clone(),
                to: to.clone(),
                replace: true,
                size: None,
            };
            let error = run(op).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
        assert!(from.exists() && !fs::metadata(&link).unwrap().is_file());
    }

    #[test]
    fn many_names_are_looked_at_in_one_turn() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "12").unwrap();
        let op = NameOp::StatMany {
            dir: dir.path().to_owned(),
            names: vec!["b".into(), "a".into()],
        };
        let NameDone::Stats(stats) = run(op).unwrap() else {
            panic!()
        };
        assert_eq!(stats[0].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(stats[1].as_ref().unwrap().size, 2);
    }

    #[test]
    fn a_bare_name_lies_in_the_current_directory() {
        for (path, parent) in [("a", "."), ("a/b", "a"), ("./a", "."), ("/a", "/"), ("/", "/")] {
            assert_eq!(parent_of(Path::new(path)), Path::new(parent), "{path}");
        }
        let name = PathBuf::from(format!("forebay-names-{}", std::process::id()));
        run(NameOp::CreateDirs { path: name.clone() }).unwrap();
        run(NameOp::RemoveDir { path: name }).unwrap();
    }

    #[test]
    fn directories_are_made_listed_and_refused() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x/y/z");
        run(NameOp::CreateDirs { path: deep.clone() }).unwrap();
        run(NameOp::CreateDirs { path: deep.clone() }).unwrap();
        fs::write(dir.path().join("x/f"), "1").unwrap();
        let NameDone::Entries(entries) = run(NameOp::List {
            path: dir.path().join("x"),
        })
        .unwrap() else {
            panic!()
        };
        let names: Vec<_> = entries
            .iter()
            .map(|entry| (entry.name.to_str().unwrap(), entry.kind))
            .collect();
        assert_eq!(names, [("f", FileKind::File), ("y", FileKind::Dir)]);
        let error = run(NameOp::CreateDirs {
            path: dir.path().join("x/f/g"),
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
