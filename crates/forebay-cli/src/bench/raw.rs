//! The disk's own limit, by the plainest means: threads that call `pread` and `pwrite` with `O_DIRECT` in a loop.
//!
//! Nothing of Forebay's engine, gate, pool or disk is involved, only the operating system and page-aligned memory, so the
//! figure can be held against them. Where a file system refuses `O_DIRECT`, the page cache is used and the result says so.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Error, ErrorKind, Result, Seed};
use forebay_io::{AlignedBuf, Pages};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use tokio_util::sync::CancellationToken;

use super::meter::{Meter, Sample};

/// Which blocks are touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Each block once, in order.
    Sequential,
    /// So many blocks anywhere.
    Random {
        /// How many.
        blocks: u64,
        /// Which.
        seed: Seed,
    },
}

/// How a file is read or written: by that many threads, each with one block in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Size of the file, a multiple of the block.
    pub(crate) file_bytes: u64,
    /// Size of one call.
    pub(crate) block_bytes: u64,
    /// Calls in flight.
    pub(crate) depth: u64,
    /// Which blocks.
    pub(crate) order: Order,
}

impl Shape {
    fn blocks(&self) -> u64 {
        match self.order {
            Order::Sequential => self.file_bytes / self.block_bytes,
            Order::Random { blocks, .. } => blocks,
        }
    }

    /// Offset of the block with that number.
    pub(crate) fn offset(&self, number: u64) -> u64 {
        let block = match self.order {
            Order::Sequential => number,
            Order::Random { seed, .. } => {
                let count = (self.file_bytes / self.block_bytes).max(1);
                seed.derive(number).rng().below(count)
            }
        };
        block * self.block_bytes
    }

    /// Bytes moved in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks() * self.block_bytes
    }
}

/// Write a new file of that shape, synced.
pub(crate) fn write(path: &Path, shape: &Shape, stop: &CancellationToken) -> Result<Sample> {
    let fd = open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
    // File systems that cannot reserve are fine.
    let _ = rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, shape.file_bytes.max(1));
    let memory = memory(shape)?;
    let meter = Meter::start();
    run(shape, memory, stop, path, |buf, offset| {
        rustix::io::pwrite(&fd, buf, offset)
    })?;
    rustix::fs::fsync(&fd).map_err(|errno| failed("sync", path, errno))?;
    Ok(meter.stop(shape.bytes()))
}

/// Read a file in that shape.
pub(crate) fn read(path: &Path, shape: &Shape, stop: &CancellationToken) -> Result<Sample> {
    let fd = open(path, OFlags::RDONLY)?;
    let memory = memory(shape)?;
    let meter = Meter::start();
    run(shape, memory, stop, path, |buf, offset| {
        rustix::io::pread(&fd, buf, offset)
    })?;
    Ok(meter.stop(shape.bytes()))
}

/// Bytes of one call and calls in flight of [`read_files`]: past the knee of every disk measured.
const FILES_BLOCK_BYTES: u64 = 4 << 20;
const FILES_DEPTH: usize = 4;

/// Read whole files of any size, one after the other, into memory that is used again.
pub(crate) fn read_files(paths: &[PathBuf], stop: &CancellationToken) -> Result<Sample> {
    let files = paths
        .iter()
        .map(|path| {
            let fd = open(path, OFlags::RDONLY)?;
            let stat = rustix::fs::fstat(&fd).map_err(|errno| failed("open", path, errno))?;
            Ok((fd, path, stat.st_size.unsigned_abs()))
        })
        .collect::<Result<Vec<_>>>()?;
    let blocks: Vec<(usize, u64)> = files
        .iter()
        .enumerate()
        .flat_map(|(file, (_, _, size))| {
            (0..*size)
                .step_by(FILES_BLOCK_BYTES as usize)
                .map(move |offset| (file, offset))
        })
        .collect();
    let mut bufs = Vec::new();
    for _ in 0..FILES_DEPTH {
        let mut buf = AlignedBuf::alloc(FILES_BLOCK_BYTES as usize, Pages::default())?;
        buf.fill(1);
        bufs.push(buf);
    }
    let next = AtomicU64::new(0);
    let worker = |mut buf: AlignedBuf| -> Result<()> {
        while let Some((file, offset)) = blocks.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            if stop.is_cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "measure", "interrupted"));
            }
            let (fd, path, _) = &files[*file];
            loop {
                match rustix::io::pread(fd, &mut *buf, *offset) {
                    Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(failed("measure", path, errno)),
                    Ok(_) => break,
                }
            }
        }
        Ok(())
    };
    let meter = Meter::start();
    std::thread::scope(|scope| {
        let threads: Vec<_> = bufs
            .into_iter()
            .map(|buf| {
                scope.spawn({
                    let worker = &worker;
                    move || worker(buf)
                })
            })
            .collect();
        threads.into_iter().try_for_each(joined)
    })?;
    Ok(meter.stop(files.iter().map(|(_, _, size)| size).sum()))
}

fn joined(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread
        .join()
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "measure", "a thread panicked")))
}

/// Copy a file to a new one, synced: each thread reads a block and writes it, so that both directions are busy at once.
pub(crate) fn copy(from: &Path, to: &Path, shape: &Shape, stop: &CancellationToken) -> Result<Sample> {
    let source = open(from, OFlags::RDONLY)?;
    let target = open(to, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
    let _ = rustix::fs::fallocate(&target, FallocateFlags::KEEP_SIZE, 0, shape.file_bytes.max(1));
    let memory = memory(shape)?;
    let meter = Meter::start();
    run(shape, memory, stop, from, |buf, offset| {
        let count = rustix::io::pread(&source, &mut *buf, offset)?;
        rustix::io::pwrite(&target, &buf[..count], offset)
    })?;
    rustix::fs::fsync(&target).map_err(|errno| failed("sync", to, errno))?;
    Ok(meter.stop(shape.bytes()))
}

/// True when files here can be accessed around the page cache.
pub(crate) fn is_direct(path: &Path) -> bool {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .is_ok()
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
        // A file system without direct I/O may still have made the file.
        Err(rustix::io::Errno::INVAL) => rustix::fs::open(path, flags.difference(OFlags::EXCL), mode),
        result => result,
    }
    .map_err(|errno| failed("open", path, errno))
}

/// A block for each thread, filled. In one piece, so that it lies in large pages: a call of 1 MiB in small ones has more pieces than some disks take at once.
fn memory(shape: &Shape) -> Result<Vec<AlignedBuf>> {
    let (block, depth) = (shape.block_bytes as usize, shape.depth.max(1) as usize);
    let mut rest = AlignedBuf::alloc(block * depth, Pages::default())?;
    Seed(1).rng().fill(&mut rest);
    let mut blocks = Vec::with_capacity(depth);
    for _ in 1..depth {
        let behind = rest.split_off(block);
        blocks.push(std::mem::replace(&mut rest, behind));
    }
    blocks.push(rest);
    Ok(blocks)
}

fn run(
    shape: &Shape,
    memory: Vec<AlignedBuf>,
    stop: &CancellationToken,
    path: &Path,
    call: impl Fn(&mut [u8], u64) -> rustix::io::Result<usize> + Sync,
) -> Result<()> {
    let next = AtomicU64::new(0);
    let worker = |mut buf: AlignedBuf| -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= shape.blocks() {
                return Ok(());
            }
            if stop.is_cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "measure", "interrupted"));
            }
            let count = loop {
                match call(&mut buf, shape.offset(number)) {
                    Err(rustix::io::Errno::INTR) => {}
                    result => break result.map_err(|errno| failed("measure", path, errno))?,
                }
            };
            if count as u64 != shape.block_bytes {
                let message = format!("{count} bytes instead of {}", shape.block_bytes);
                return Err(Error::new(ErrorKind::Io, "measure", message).at(path.display()));
            }
        }
    };
    std::thread::scope(|scope| {
        let worker = &worker;
        let threads: Vec<_> = memory
            .into_iter()
            .map(|buf| scope.spawn(move || worker(buf)))
            .collect();
        threads.into_iter().try_for_each(joined)
    })
}

fn failed(op: &'static str, path: &Path, errno: rustix::io::Errno) -> Error {
    Error::from_io(op, errno.into()).at(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let shape = Shape {
            file_bytes: 1 << 20,
            block_bytes: 64 << 10,
            depth: 3,
            order: Order::Sequential,
        };
        let stop = CancellationToken::new();
        assert_eq!(write(&path, &shape, &stop).unwrap().bytes, 1 << 20);
        let content = std::fs::read(&path).unwrap();
        assert_eq!(content.len(), 1 << 20);
        assert!(
            content
                .chunks(4096)
                .all(|page| page.iter().any(|byte| *byte != 0))
        );
        let random = Shape {
            order: Order::Random {
                blocks: 100,
                seed: Seed(5),
            },
            ..shape
        };
        assert_eq!(read(&path, &random, &stop).unwrap().bytes, 100 * (64 << 10));
        let copied = dir.path().join("g");
        assert_eq!(copy(&path, &copied, &shape, &stop).unwrap().bytes, 1 << 20);
        assert_eq!(std::fs::read(&copied).unwrap(), content);
        assert!((0..100).all(|number| random.offset(number) <= (1 << 20) - (64 << 10)));
        stop.cancel();
        assert_eq!(
            read(&path, &shape, &stop).unwrap_err().kind(),
            ErrorKind::Cancelled
        );
    }
}
