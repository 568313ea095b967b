//! Operations on names and lengths, as the simulated kernel does them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use rustix::io::Errno;

use crate::buf::AlignedBuf;
use crate::file::{Access, Direct, File, OpenHow, Purpose};
use crate::names::{NameDone, NameOp, Renamed, check_size};

use super::content::Content;
use super::fs::{self, SimFs, Ticket};
use super::{SimEngine, SimFault, failed, number_of};

impl SimEngine {
    pub(super) fn call_name(&self, op: NameOp, tickets: &mut Vec<Ticket>) -> Result<NameDone> {
        match op {
            NameOp::Open { path, how } => self.open(path, how),
            NameOp::Stat { path } => self
                .on_path("stat", &path, false, |fs| fs.stat(&path))
                .map(NameDone::Stat),
            NameOp::StatMany { dir, names } => {
                let stats = names.iter().map(|name| {
                    let path = dir.join(name);
                    self.on_path("stat", &path, false, |fs| fs.stat(&path))
                });
                Ok(NameDone::Stats(stats.collect()))
            }
            NameOp::List { path } => self
                .on_path("list", &path, false, |fs| fs.list(&path))
                .map(NameDone::Entries),
            NameOp::Rename {
                from,
                to,
                replace,
                size,
            } => self.rename_file(&from, &to, replace, size),
            NameOp::Unlink { path } => nothing(self.on_path("unlink", &path, false, |fs| fs.unlink(&path))),
            NameOp::CreateDirs { path } => nothing(self.create_dirs(&path)),
            NameOp::RemoveDir { path } => {
                nothing(self.on_path("rmdir", &path, false, |fs| fs.remove_dir(&path)))
            }
            NameOp::SyncDir { path } => nothing(self.sync_dir(&path)),
            NameOp::SetLen { file, len } => {
                nothing(self.resize("truncate", &file, (len, Content::set_len), tickets))
            }
            NameOp::Reserve { file, len } => {
                nothing(self.resize("reserve", &file, (len, Content::grow), tickets))
            }
            NameOp::Touch { path } => nothing(self.on_path("touch", &path, false, |fs| fs.touch(&path))),
        }
    }

    pub(super) fn call_read_files(
        &self,
        files: &[(PathBuf, u64)],
        mut buf: AlignedBuf,
    ) -> Result<AlignedBuf> {
        let mut at = 0;
        for (path, size) in files {
            let place = buf.get_mut(at..at + *size as usize).unwrap_or_default();
            let (found, filled) = self.on_path("read", path, false, |fs| {
                let (number, found) = fs.open(path, Purpose::Read)?;
                let filled = fs.read(number, 0, place);
                fs.close(number);
                Ok((found, filled?))
            })?;
            if found != *size || filled as u64 != found {
                let message = format!("the file has {found} bytes, where {size} were expected");
                return Err(Error::new(ErrorKind::Precondition, "read", message).at(path.display()));
            }
            at += filled;
        }
        Ok(buf)
    }

    fn rename_file(&self, from: &Path, to: &Path, replace: bool, size: Option<u64>) -> Result<NameDone> {
        let turn = format_args!("rename {} to {} replace={replace}", from.display(), to.display());
        self.plain_turn(turn, true)
            .map_err(|errno| failed("rename", to, errno))?;
        let mut fs = self.fs.lock();
        let before = fs.stat(from).map_err(|errno| failed("stat", from, errno))?;
        check_size(from, &before, size)?;
        fs.rename(from, to, replace)
            .map_err(|errno| failed("rename", to, errno))?;
        let after = fs.stat(to).ok();
        Ok(NameDone::Renamed(Renamed { before, after }))
    }

    fn on_path<T>(
        &self,
        op: &'static str,
        path: &Path,
        needs_room: bool,
        call: impl FnOnce(&mut fs::State) -> rustix::io::Result<T>,
    ) -> Result<T> {
        self.plain_turn(format_args!("{op} {}", path.display()), needs_room)
            .and_then(|()| call(&mut self.fs.lock()))
            .map_err(|errno| failed(op, path, errno))
    }

    fn open(&self, path: PathBuf, how: OpenHow) -> Result<NameDone> {
        let access = match (self.config.direct_align, how.direct) {
            (_, Direct::Never) => Access::Buffered {
                reason: "the caller asked for the page cache".to_owned(),
            },
            (Some(align), _) => Access::Direct { align },
            (None, Direct::Auto) => Access::Buffered {
                reason: "simulated without direct I/O".to_owned(),
            },
            (None, Direct::Require) => {
                let message = "direct I/O is required but not available: simulated without it";
                return Err(Error::new(ErrorKind::Unsupported, "open", message).at(path.display()));
            }
        };
        let needs_room = how.purpose != Purpose::Read;
        let (number, size) = self.on_path("open", &path, needs_room, |fs| fs.open(&path, how.purpose))?;
        let file = File::simulated(number, path, access, size);
        file.on_close(CloseNotice {
            fs: self.fs.clone(),
            number,
        });
        Ok(NameDone::File(Arc::new(file)))
    }

    /// Two operations for each missing directory: make it, and make it durable in its parent.
    fn create_dirs(&self, path: &Path) -> Result<()> {
        let missing: Vec<&Path> = {
            let fs = self.fs.lock();
            path.ancestors()
                .take_while(|dir| !dir.as_os_str().is_empty() && fs.find(dir).is_err())
                .collect()
        };
        if missing.is_empty() {
            return self.on_path("mkdir", path, false, |fs| fs.list(path).map(drop));
        }
        for dir in missing.into_iter().rev() {
            self.on_path("mkdir", dir, true, |fs| match fs.make_dir(dir) {
                Err(Errno::EXIST) => Ok(()),
                result => result,
            })?;
            if let Err(error) = self.sync_dir(dir.parent().unwrap_or(Path::new("/"))) {
                drop(self.on_path("rmdir", dir, false, |fs| fs.remove_dir(dir)));
                return Err(error);
            }
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let result = match self.turn(format_args!("sync directory {}", path.display())) {
            Ok(Some(SimFault::Eio)) => Err(Errno::IO),
            Ok(fault) => self.fs.lock().sync_dir(path, fault == Some(SimFault::FsyncEio)),
            Err(errno) => Err(errno),
        };
        result.map_err(|errno| failed("sync directory", path, errno))
    }

    /// Change a length as `resize` does.
    fn resize(
        &self,
        op: &'static str,
        file: &File,
        (len, resize): (u64, fn(&mut Content, u64, usize)),
        tickets: &mut Vec<Ticket>,
    ) -> Result<()> {
        let number = number_of(op, file)?;
        let capacity = self.config.capacity_bytes;
        let ticket = self.on_path(op, file.path(), true, |fs| {
            fs.edit(number, len, capacity, |content, ticket| {
                resize(content, ticket, len as usize);
            })
        })?;
        tickets.push(ticket);
        Ok(())
    }
}

/// Forgets an open file when it is closed.
#[derive(Debug)]
struct CloseNotice {
    fs: SimFs,
    number: u64,
}

impl Drop for CloseNotice {
    fn drop(&mut self) {
        self.fs.lock().close(self.number);
    }
}

fn nothing(result: Result<()>) -> Result<NameDone> {
    result.map(|()| NameDone::Nothing)
}
