//! Open files, and the decision how each of them is read and written.
//!
//! [`OpenHow`] says what the caller wants; opening asks the kernel (statx `DIOALIGN`) what the file can do and settles on
//! [`Access::Direct`] or [`Access::Buffered`] with the reason in words. The reason goes into the ledger of everything that is
//! done with the file, and under a required path it is the error.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, OFlags, StatxFlags};

use crate::map::PAGE;

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Read an existing file.
    Read,
    /// Read and write an existing file, or create it.
    Update,
    /// Create a file that must not exist, and write it.
    Create,
}

/// Whether to go around the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Direct where the file system offers it and the file is not tiny.
    #[default]
    Auto,
    /// Direct or an error that says why not.
    Require,
    /// Through the page cache, because the caller wants that.
    Never,
}

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenHow {
    /// What for.
    pub purpose: Purpose,
    /// Around the page cache?
    pub direct: Direct,
    /// Bytes the caller is going to write, where it knows; files below 64 KiB are not worth direct I/O.
    pub size_hint: Option<u64>,
    /// Permission bits of a file that is made; the umask takes its share.
    pub permissions: u32,
}

/// Permissions of new files where nobody asks for others.
pub(crate) const PERMISSIONS_DEFAULT: u32 = 0o644;

impl OpenHow {
    /// Read an existing file, directly where possible.
    pub const READ: Self = Self {
        purpose: Purpose::Read,
        direct: Direct::Auto,
        size_hint: None,
        permissions: PERMISSIONS_DEFAULT,
    };
    /// Create a new file, written directly where possible.
    pub const CREATE: Self = Self {
        purpose: Purpose::Create,
        direct: Direct::Auto,
        size_hint: None,
        permissions: PERMISSIONS_DEFAULT,
    };

    /// The same with another wish about the page cache.
    pub const fn with_direct(self, direct: Direct) -> Self {
        Self { direct, ..self }
    }

    /// The same with other permissions for a file that is made.
    pub const fn with_permissions(self, permissions: u32) -> Self {
        Self { permissions, ..self }
    }

    /// The same with the number of bytes that will be written.
    pub const fn with_size_hint(self, bytes: u64) -> Self {
        Self {
            size_hint: Some(bytes),
            ..self
        }
    }
}

/// Files smaller than this go through the page cache: one request either way, and no padding and truncating of the tail.
pub(crate) const DIRECT_BYTES_MIN: u64 = 64 << 10;

/// How an open file is read and written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Around the page cache; offsets, lengths and addresses must be multiples of `align`.
    Direct {
        /// Alignment in bytes, a power of two.
        align: u32,
    },
    /// Through the page cache, and why.
    Buffered {
        /// Why not directly.
        reason: String,
    },
}

/// An open file. Closed when the last reference goes, which is after the last request on it.
#[derive(Debug)]
pub struct File {
    pub(crate) handle: Handle,
    id: u64,
    path: PathBuf,
    access: Access,
    size: u64,
    device: u64,
    /// Dropped with the file.
    close_notice: OnceLock<Box<dyn fmt::Debug + Send + Sync>>,
    /// A sync failed once: what was lost then cannot be made durable by another one.
    sync_failed: AtomicBool,
    /// Requests would run inside the submitting call unless they are handed to the kernel's own threads.
    blocks_submitter: bool,
}

#[derive(Debug)]
pub(crate) enum Handle {
    Os(OwnedFd),
    Sim(u64),
}

impl File {
    /// Where it was opened; it may have been renamed since.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Direct or buffered, and why.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Size when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Unique among all files of this process's life.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Device number, to find the ring that serves it.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Remember that making the content durable failed.
    pub(crate) fn mark_sync_failed(&self) {
        self.sync_failed.store(true, Ordering::Release);
    }

    /// An error when an earlier sync failed: the kernel forgets what it lost, so a later success would mean nothing.
    pub(crate) fn check_syncable(&self) -> Result<()> {
        if !self.sync_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = "an earlier sync of this file failed, so its content may be lost";
        Err(Error::new(ErrorKind::Io, "sync", message)
            .at(self.path.display())
            .with_hint("write the file again"))
    }

    /// Whether requests must be handed to the kernel's own threads to run side by side.
    pub(crate) fn blocks_submitter(&self) -> bool {
        self.blocks_submitter
    }

    /// Keep `notice` until the file is closed, and drop it then. Only the first one is kept.
    pub(crate) fn on_close(&self, notice: impl fmt::Debug + Send + Sync + 'static) {
        let _ = self.close_notice.set(Box::new(notice));
    }

    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        self.fd().map(|fd| fd.as_raw_fd())
    }

    /// The descriptor, unless the file is simulated.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.handle {
            Handle::Os(fd) => Some(fd.as_fd()),
            Handle::Sim(_) => None,
        }
    }

    pub(crate) fn simulated(id: u64, path: PathBuf, access: Access, size: u64) -> Self {
        Self {
            handle: Handle::Sim(id),
            id: next_id(),
            path,
            access,
            size,
            device: 0,
            close_notice: OnceLock::new(),
            sync_failed: AtomicBool::new(false),
            blocks_submitter: false,
        }
    }

    /// Open on the real file system and decide how it is accessed.
    pub(crate) fn open(path: &Path, how: OpenHow) -> Result<Self> {
        let fail = |error: io::Error| open_error(path, error);
        let mut options = fs::OpenOptions::new();
        match how.purpose {
            Purpose::Read => options.read(true),
            Purpose::Update => options.read(true).write(true).create(true),
            Purpose::Create => options.read(true).write(true).create_new(true),
        };
        // O_NONBLOCK: opening a FIFO by mistake must not hang. It goes as soon as the kind is known: with it, io_uring serves files of some
        // file systems one at a time, inside the submitting call.
        let fd = OwnedFd::from(
            options
                .mode(how.permissions)
                .custom_flags(libc::O_NONBLOCK)
                .open(path)
                .map_err(fail)?,
        );
        let opened = Self::look_at(fd, path, how);
        if opened.is_err() && how.purpose == Purpose::Create {
            // What was made a moment ago and cannot be used must not stand in the way of the next try.
            let _ = fs::remove_file(path);
        }
        opened
    }

    /// Find out what was opened and decide how it is accessed.
    fn look_at(fd: OwnedFd, path: &Path, how: OpenHow) -> Result<Self> {
        let fail = |errno: rustix::io::Errno| open_error(path, errno.into());
        let mask = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, mask).map_err(fail)?;
        let kind = rustix::fs::FileType::from_raw_mode(stat.stx_mode.into());
        if kind.is_dir() {
            return Err(fail(rustix::io::Errno::ISDIR));
        }
        if !kind.is_file() && !kind.is_block_device() {
            let what = format!("is a {kind:?}, not a regular file");
            return Err(Error::new(ErrorKind::InvalidInput, "open", what).at(path.display()));
        }
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(fail)?;
        rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK).map_err(fail)?;
        let (size, device) = if kind.is_block_device() {
            (
                block_device_bytes(&fd),
                (stat.stx_rdev_major, stat.stx_rdev_minor),
            )
        } else {
            (stat.stx_size, (stat.stx_dev_major, stat.stx_dev_minor))
        };
        let system = if kind.is_file() {
            file_system_name(&fd)
        } else {
            "the block device".to_owned()
        };
        // A file that is going to be written has the size its writer knows; without that it counts as large.
        let bytes = match how.purpose {
            Purpose::Read => size,
            Purpose::Update | Purpose::Create => how.size_hint.unwrap_or(u64::MAX),
        };
        let access = decide(&fd, path, &stat, how, bytes, &system)?;
        let device = rustix::fs::makedev(device.0, device.1);
        let blocks_submitter = system == "fuse";
        Ok(Self {
            handle: Handle::Os(fd),
            id: next_id(),
            path: path.to_owned(),
            access,
            size,
            device,
            close_notice: OnceLock::new(),
            sync_failed: AtomicBool::new(false),
            blocks_submitter,
        })
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn block_device_bytes(fd: &OwnedFd) -> u64 {
    rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).unwrap_or(0)
}

pub(crate) fn open_error(path: &Path, error: io::Error) -> Error {
    let hint = match error.raw_os_error() {
        Some(libc::ELOOP) => Some("the path runs through a loop of symbolic links"),
        Some(libc::EISDIR) => Some("this is a directory; name a file in it"),
        _ => None,
    };
    let error = Error::from_io("open", error).at(path.display());
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// Settle on direct or buffered, and switch the descriptor accordingly.
fn decide(
    fd: &OwnedFd,
    path: &Path,
    stat: &rustix::fs::Statx,
    how: OpenHow,
    bytes: u64,
    system: &str,
) -> Result<Access> {
    let found = match how.direct {
        Direct::Never => Err("the caller asked for the page cache".to_owned()),
        Direct::Auto if bytes < DIRECT_BYTES_MIN => Err(format!("smaller than {DIRECT_BYTES_MIN} bytes")),
        Direct::Auto | Direct::Require => switch_to_direct(fd, stat, system),
    };
    match found {
        Ok(align) => Ok(Access::Direct { align }),
        Err(reason) if how.direct == Direct::Require => {
            let message = format!("direct I/O is required but not available: {reason}");
            Err(Error::new(ErrorKind::Unsupported, "open", message)
                .at(path.display())
                .with_hint("use a file system with direct I/O (ext4, xfs, Lustre), or drop the requirement"))
        }
        Err(reason) => Ok(Access::Buffered { reason }),
    }
}

fn switch_to_direct(fd: &OwnedFd, stat: &rustix::fs::Statx, name: &str) -> Result<u32, String> {
    if name == "tmpfs" {
        // Since Linux 6.6 it takes O_DIRECT without a word, and goes on copying from its pages.
        return Err("tmpfs keeps its files in the page cache".to_owned());
    }
    let told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    if told && (stat.stx_dio_mem_align == 0 || stat.stx_dio_offset_align == 0) {
        return Err(format!("{name} offers no direct I/O for this file"));
    }
    // Kernels before 6.1 and some file systems do not tell; a page suits all of them.
    let align = if told {
        stat.stx_dio_mem_align.max(stat.stx_dio_offset_align)
    } else {
        PAGE as u32
    };
    if align as usize > PAGE {
        return Err(format!(
            "{name} asks for an alignment of {align} bytes, and buffers have {PAGE}"
        ));
    }
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|errno| format!("fcntl: {errno}"))?;
    match rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT) {
        Ok(()) => Ok(align.max(512)),
        Err(errno) => Err(format!("{name} refuses O_DIRECT: {errno}")),
    }
}

/// Name of the file system in words, from its magic number.
fn file_system_name(fd: &OwnedFd) -> String {
    let Ok(stat) = rustix::fs::fstatfs(fd) else {
        return "the file system".to_owned();
    };
    match stat.f_type as u64 {
        0x0102_1994 => "tmpfs".to_owned(),
        0xef53 => "ext4".to_owned(),
        0x5846_5342 => "xfs".to_owned(),
        0x9123_683e => "btrfs".to_owned(),
        0x6969 => "nfs".to_owned(),
        0x0bd0_0bd0 => "lustre".to_owned(),
        0x794c_7630 => "overlayfs".to_owned(),
        0x6573_5546 => "fuse".to_owned(),
        0x2fc1_2fc1 => "zfs".to_owned(),
        magic => format!("file system {magic:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_things_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path| File::open(path, OpenHow::READ).unwrap_err();
        assert_eq!(open(&dir.path().join("missing")).kind(), ErrorKind::NotFound);
        assert_eq!(open(dir.path()).kind(), ErrorKind::InvalidInput);
        std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
        assert_eq!(open(&dir.path().join("loop")).kind(), ErrorKind::InvalidInput);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("fifo"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        assert_eq!(open(&dir.path().join("fifo")).kind(), ErrorKind::InvalidInput);
        let error = File::open(Path::new("/dev/null"), OpenHow::READ).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn tmpfs_has_a_reason_and_a_requirement_is_an_error() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            return;
        };
        let path = dir.path().join("f");
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        let file = File::open(&path, OpenHow::READ).unwrap();
        let Access::Buffered { reason } = file.access() else {
            panic!("{file:?}")
        };
        assert!(reason.contains("tmpfs"), "{reason}");
        let error = File::open(&path, OpenHow::READ.with_direct(Direct::Require)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("tmpfs"), "{error}");
    }
}
