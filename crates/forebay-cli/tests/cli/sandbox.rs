//! A machine of its own for each test: a folder, a home, and an environment with nothing else in it.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// Owner of nothing, on every Linux.
const NOBODY: u32 = 65_534;

pub(crate) struct Sandbox {
    dir: TempDir,
    vars: Vec<(String, String)>,
    program: PathBuf,
    /// Run as nobody: the tests run as root, whom no permission stops.
    is_nobody: bool,
}

/// What a run printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("home")).unwrap();
        std::fs::create_dir(dir.path().join("here")).unwrap();
        Self {
            dir,
            vars: Vec::new(),
            program: env!("CARGO_BIN_EXE_forebay").into(),
            is_nobody: false,
        }
    }

    /// With permissions that count: where the tests run as root, everything is run as nobody, from a copy that nobody can reach.
    pub(crate) fn without_privileges(mut self) -> Self {
        if rustix::process::geteuid().is_root() {
            let copy = self.dir.path().join("forebay");
            std::fs::copy(&self.program, &copy).unwrap();
            std::fs::set_permissions(self.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
            self.program = copy;
            self.is_nobody = true;
            self.give(self.work());
            self.give(self.home());
        }
        self
    }

    /// Make whoever runs the program the owner of a path.
    pub(crate) fn give(&self, path: impl AsRef<Path>) {
        if self.is_nobody {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    /// With another variable in the environment of everything that is run.
    pub(crate) fn var(mut self, name: &str, value: impl Into<String>) -> Self {
        self.vars.push((name.to_owned(), value.into()));
        self
    }

    /// The current directory of everything that is run.
    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("here")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A path in the current directory.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.work().join(name)
    }

    /// Write a file of `len` bytes whose content follows from its name.
    pub(crate) fn file(&self, name: &str, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let seed = forebay_core::crc64nvme(name.as_bytes());
        forebay_core::Seed(seed).rng().fill(&mut bytes);
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &bytes).unwrap();
        bytes
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Names in a folder, hidden ones too, sorted.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(dir)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Journals of copies that were not finished.
    pub(crate) fn journals(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.home().join(".cache/forebay/transfers")) else {
            return Vec::new();
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "lock").collect()
    }

    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        if self.is_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
            .args(args)
            .env_clear()
            .env("HOME", self.home())
            .env("PATH", "/usr/bin:/bin")
            // No test may wait for a metadata service that is not there.
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .envs(self.vars.iter().map(|(name, value)| (name, value)))
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        let output = self.command(args).output().unwrap();
        self.ran(&output)
    }

    /// Printed text with what differs between runs made the same.
    pub(crate) fn ran(&self, output: &Output) -> Ran {
        let normal = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            text.replace(self.dir.path().to_str().unwrap(), "[DIR]")
        };
        Ran {
            code: output.status.code(),
            out: normal(&output.stdout),
            err: normal(&output.stderr),
        }
    }
}

/// Wait until a program has come to where `is_there` says; one that ends before is told instead of waited for.
#[track_caller]
pub(crate) fn wait_until(child: &mut Child, is_there: impl Fn() -> bool) {
    while !is_there() {
        if let Some(status) = child.try_wait().unwrap() {
            let mut text = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                stderr.read_to_string(&mut text).unwrap();
            }
            panic!("it ended too early, {status}:\n{text}");
        }
        std::thread::yield_now();
    }
}

impl Ran {
    /// Ended with that status; otherwise everything is shown.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "stdout:\n{}\nstderr:\n{}",
            self.out,
            self.err
        );
        self
    }

    #[track_caller]
    pub(crate) fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in:\n{}", self.err);
        }
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<serde_json::Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The error object on stderr.
    #[track_caller]
    pub(crate) fn json_error(&self) -> serde_json::Value {
        let value: serde_json::Value =
            serde_json::from_str(&self.err).unwrap_or_else(|error| panic!("{error}: {}", self.err));
        value["error"].clone()
    }
}
