//! The text files of the checkout, in memory.

use std::path::Path;

use anyhow::{Context as _, Result};
use ignore::WalkBuilder;

/// Larger files are data, not text people write.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// One text file; the path is relative to the checkout, with `/`.
#[derive(Clone, Debug)]
pub(super) struct SourceFile {
    pub(super) path: String,
    pub(super) text: String,
}

impl SourceFile {
    /// True for a file name ending, such as `.rs`.
    pub(super) fn is(&self, ending: &str) -> bool {
        self.path.ends_with(ending)
    }

    /// The crate the file belongs to: `forebay-io` for `crates/forebay-io/...`, `xtask` for `xtask/...`.
    pub(super) fn crate_name(&self) -> Option<&str> {
        let mut parts = self.path.split('/');
        match parts.next()? {
            "crates" => parts.next(),
            "xtask" => Some("xtask"),
            _ => None,
        }
    }
}

/// Reads every file git tracks or would offer to track: all but the ignored ones.
pub(super) fn load(root: &Path) -> Result<Vec<SourceFile>> {
    let mut walk = WalkBuilder::new(root);
    // Only what travels with the checkout decides, not the machine's own git settings.
    walk.hidden(false)
        .require_git(false)
        .parents(false)
        .git_global(false)
        .git_exclude(false);
    walk.filter_entry(|entry| entry.file_name() != ".git")
        .sort_by_file_path(Path::cmp);
    let mut files = Vec::new();
    for entry in walk.build() {
        let entry = entry.context("cannot walk the checkout")?;
        let is_text_size = entry
            .metadata()
            .is_ok_and(|meta| meta.is_file() && meta.len() <= FILE_BYTES_MAX);
        if !is_text_size {
            continue;
        }
        let path = entry
            .path()
            .strip_prefix(root)
            .unwrap_or(entry.path())
            .to_string_lossy()
            .into_owned();
        let bytes = match std::fs::read(entry.path()) {
            Ok(bytes) => bytes,
            // Somebody's editor or build removed it between listing and reading.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        };
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile { path, text });
        }
    }
    Ok(files)
}

/// A file for the tests of the checks.
#[cfg(test)]
pub(super) fn file(path: &str, text: &str) -> SourceFile {
    SourceFile {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_hidden_and_binary_files() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        write(".gitignore", b"/target\n");
        write("target/a.rs", b"ignored");
        write(".git/config", b"not ours");
        write(".ci/run", b"hidden but ours");
        write("fixtures/x.bin", b"\xff\xfe");
        write("crates/a/src/lib.rs", b"//! Doc.");
        let paths: Vec<String> = load(root.path())
            .unwrap()
            .into_iter()
            .map(|file| file.path)
            .collect();
        assert_eq!(paths, [".ci/run", ".gitignore", "crates/a/src/lib.rs"]);
    }

    #[test]
    fn files_know_their_crate() {
        assert_eq!(
            file("crates/forebay-io/src/lib.rs", "").crate_name(),
            Some("forebay-io")
        );
        assert_eq!(file("xtask/src/main.rs", "").crate_name(), Some("xtask"));
        assert_eq!(file("bench/run.py", "").crate_name(), None);
    }
}
