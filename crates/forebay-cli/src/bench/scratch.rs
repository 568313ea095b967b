//! A folder of our own in somebody's directory, gone afterwards whatever happens short of a kill.

use std::path::{Path, PathBuf};

use forebay_core::{ByteSize, Error, ErrorKind, Result, Seed};

/// The folder; removed on drop with everything in it.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Make one in `dir`, after seeing that `bytes` fit.
    pub(crate) fn new(dir: &Path, bytes: u64) -> Result<Self> {
        let fail = |error: std::io::Error| Error::from_io("prepare", error).at(dir.display());
        if !std::fs::metadata(dir).map_err(fail)?.is_dir() {
            return Err(
                Error::new(ErrorKind::InvalidInput, "prepare", "this is not a directory").at(dir.display()),
            );
        }
        let free = free_bytes(dir)?;
        if free < bytes {
            let message = format!(
                "{} are needed, but only {} are free",
                ByteSize(bytes),
                ByteSize(free)
            );
            return Err(Error::new(ErrorKind::OutOfSpace, "prepare", message)
                .at(dir.display())
                .with_hint("choose a smaller --size, or a directory with more room"));
        }
        let path = dir.join(format!("forebay-scratch-{:016x}", Seed::fresh().0));
        std::fs::create_dir(&path).map_err(fail)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "cannot remove the scratch folder");
        }
    }
}

/// What an ordinary user may still write there.
fn free_bytes(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir)
        .map_err(|errno| Error::from_io("ask for free space", errno.into()).at(dir.display()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_gone_afterwards_and_refuses_what_does_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), 1).unwrap();
        std::fs::write(scratch.path().join("f"), "x").unwrap();
        drop(scratch);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let error = Scratch::new(dir.path(), u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfSpace);
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let error = Scratch::new(&dir.path().join("f"), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
