//! Tools a bare machine lacks, built once into the cache folder by `cargo install`, each at a pinned version.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::run::Runner;
use crate::workspace::cache;

/// A crate with one program of the same name.
#[derive(Debug)]
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    /// Roughly how long the build takes on two cores, for the message.
    cost: &'static str,
    /// Trades the tool's own speed for a quicker build.
    quick_build: bool,
}

/// Licences, bans and sources of the dependency tree.
pub(crate) const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    cost: "2-4 minutes",
    quick_build: true,
};

/// The S3 cluster of the slow lane; run as a separate process, never linked (it is AGPL).
pub(crate) const GARAGE: Tool = Tool {
    name: "garage",
    version: "2.5.0",
    cost: "10-35 minutes",
    quick_build: false,
};

impl Tool {
    fn folder(&self) -> Result<PathBuf> {
        Ok(cache()?
            .join("tools")
            .join(format!("{}-{}", self.name, self.version)))
    }

    /// The program in the cache folder, whether it is there yet or not.
    fn program(&self) -> Result<PathBuf> {
        Ok(self.folder()?.join("bin").join(self.name))
    }

    /// The command that puts it there.
    fn install_line(&self) -> Result<String> {
        let folder = self.folder()?;
        Ok(format!(
            "cargo install {} --version {} --locked --root {}",
            self.name,
            self.version,
            folder.display()
        ))
    }

    /// The program, if it was built before; else an error with the command that builds it.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        let program = self.program()?;
        if !program.exists() {
            bail!(
                "{} {} is not in the cache; run again with --install, or ({}): {}",
                self.name,
                self.version,
                self.cost,
                self.install_line()?
            );
        }
        Ok(program)
    }

    /// The program, built now if it was not before.
    pub(crate) fn find_or_install(&self, runner: &Runner) -> Result<PathBuf> {
        let program = self.program()?;
        if program.exists() {
            return Ok(program);
        }
        println!(
            "building {} {} once into the cache, {}",
            self.name, self.version, self.cost
        );
        let mut command = runner.cargo(&[
            "install",
            self.name,
            "--version",
            self.version,
            "--locked",
            "--root",
        ]);
        command.arg(self.folder()?);
        if self.quick_build {
            command.env("CARGO_PROFILE_RELEASE_LTO", "off");
            command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
            command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
            command.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        }
        // Flags meant for our own crates would only break or slow down somebody else's.
        command.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
        runner.run(&mut command)?;
        Ok(program)
    }
}

/// True if a program of this name is on PATH.
pub(crate) fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// True if `program args` can be started and succeeds, e.g. `cargo nextest --version`.
pub(crate) fn answers(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_the_command_that_installs_it() {
        let missing = Tool {
            name: "no-such-tool",
            version: "0.0.0",
            cost: "no time",
            quick_build: false,
        };
        let error = missing.find().unwrap_err().to_string();
        assert!(
            error.contains("cargo install no-such-tool --version 0.0.0 --locked"),
            "{error}"
        );
        assert!(error.contains("--install"), "{error}");
    }

    #[test]
    fn answers_tells_a_working_program_from_a_missing_one() {
        assert!(answers(&mut Command::new("true")));
        assert!(!answers(&mut Command::new("false")));
        assert!(!answers(&mut Command::new("no-such-program")));
        assert!(on_path("sh") && !on_path("no-such-program"));
    }
}
