//! Where cuFile libraries are: where the loader finds them, in CUDA toolkits, and in Python environments.

use std::path::{Path, PathBuf};

use forebay_core::env;

/// The library's names: the one that programs are given, and the one for development.
const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];
/// Folders of a Python environment that NVIDIA's packages put it in: CUDA 12 and CUDA 13.
const WHEEL_FOLDERS: [&str; 2] = ["nvidia/cufile/lib", "nvidia/cu13/lib"];

/// What to try, in order; the variable alone when it is set.
pub(super) fn candidates() -> Vec<PathBuf> {
    if let Some(path) = env::CUFILE_LIBRARY.get_os() {
        return vec![path.into()];
    }
    let environment = env::VIRTUAL_ENV.get_os().map(PathBuf::from);
    candidates_in(Path::new("/usr/local"), environment.as_deref())
}

fn candidates_in(local: &Path, environment: Option<&Path>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    let mut folders = Vec::new();
    for toolkit in folders_like(local, "cuda") {
        folders.push(toolkit.join("lib64"));
        folders.push(toolkit.join("targets/x86_64-linux/lib"));
        folders.push(toolkit.join("targets/sbsa-linux/lib"));
    }
    for python in environment
        .into_iter()
        .flat_map(|environment| folders_like(&environment.join("lib"), "python3"))
    {
        folders.extend(
            WHEEL_FOLDERS
                .iter()
                .map(|folder| python.join("site-packages").join(folder)),
        );
    }
    for folder in folders {
        found.extend(
            NAMES
                .iter()
                .map(|name| folder.join(name))
                .filter(|path| path.exists()),
        );
    }
    found
}

/// Folders in `parent` whose name begins with `prefix`, newest name first.
fn folders_like(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders.reverse();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolkits_and_wheels_are_looked_into() {
        let dir = tempfile::tempdir().unwrap();
        let toolkit = dir.path().join("cuda-13.0/lib64");
        let wheel = dir
            .path()
            .join("venv/lib/python3.12/site-packages/nvidia/cufile/lib");
        for folder in [&toolkit, &wheel] {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("libcufile.so.0"), b"").unwrap();
        }
        let found = candidates_in(dir.path(), Some(&dir.path().join("venv")));
        assert_eq!(
            found,
            [
                PathBuf::from("libcufile.so.0"),
                PathBuf::from("libcufile.so"),
                toolkit.join("libcufile.so.0"),
                wheel.join("libcufile.so.0"),
            ]
        );
    }
}
