//! The Python environment of the checkout: `.venv`, exactly the packages of `xtask/requirements.txt`, and the wheel.
//!
//! `python -m venv` makes the folder, pip installs a pinned uv, and uv does the rest: it resolves nothing (every
//! version and hash is in the file) and takes seconds where pip takes minutes. A stamp file remembers what was
//! installed, so a second run costs nothing. The wheel is built by maturin and installed like a user would; the
//! package is never imported from the source folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::args::VenvOptions;
use crate::run::Runner;
use crate::tools;

/// The oldest Python the wheel supports.
const PYTHON_MIN: (u32, u32) = (3, 10);

/// The package installer; the same version is pinned with its hash in the requirements.
const UV: &str = "uv==0.13.7";

/// How the wheel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WheelProfile {
    /// Shares compiled dependencies (optimised even here) with the Rust tests; what the tests use.
    Dev,
    /// What users get, and what benchmarks measure; minutes on two cores.
    Release,
}

impl WheelProfile {
    fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }
}

/// `cargo xtask venv`.
pub(crate) fn run(runner: &Runner, options: &VenvOptions) -> Result<bool> {
    ensure(runner, options.torch)?;
    let profile = if options.release {
        WheelProfile::Release
    } else {
        WheelProfile::Dev
    };
    install_wheel(runner, profile)?;
    println!("ready: {}", runner.workspace().venv().display());
    Ok(true)
}

/// Makes `.venv` hold what the requirements say.
pub(crate) fn ensure(runner: &Runner, torch: bool) -> Result<()> {
    let workspace = runner.workspace();
    let venv = workspace.venv();
    let python = workspace.venv_bin("python");
    let mut files = vec![workspace.root().join("xtask/requirements.txt")];
    if torch {
        files.push(workspace.root().join("xtask/requirements-torch.txt"));
    }
    let wanted = stamp(&files)?;
    let stamp_path = venv.join("forebay-stamp.txt");
    let python_works = tools::answers(Command::new(&python).arg("--version"));
    // A venv with more than wanted (torch, for now) will do; one with less or other versions will not.
    if python_works && std::fs::read_to_string(&stamp_path).is_ok_and(|made| made.starts_with(&wanted)) {
        return Ok(());
    }
    if !python_works {
        let base = find_python()?;
        println!("making .venv with {}", base.to_string_lossy());
        runner
            .run(runner.command(&base).args(["-m", "venv", "--clear"]).arg(&venv))
            .context(
                "cannot make a virtual environment; on Debian and Ubuntu the package python3-venv is needed",
            )?;
    }
    if !tools::answers(Command::new(workspace.venv_bin("uv")).arg("--version")) {
        runner.run(
            runner
                .command(&python)
                .args(["-m", "pip", "install", "--quiet", UV]),
        )?;
    }
    let _ = std::fs::remove_file(&stamp_path);
    let mut sync = uv(runner);
    sync.args(["sync", "--quiet", "--require-hashes"]).args(&files);
    runner.run(&mut sync)?;
    std::fs::write(&stamp_path, wanted).context("cannot write the stamp of .venv")?;
    Ok(())
}

/// `uv pip` for our environment, to which the subcommand is added.
fn uv(runner: &Runner) -> Command {
    let workspace = runner.workspace();
    let mut command = runner.command(workspace.venv_bin("uv"));
    command.arg("pip").env("VIRTUAL_ENV", workspace.venv());
    command
}

/// Builds the wheel and installs it.
pub(crate) fn install_wheel(runner: &Runner, profile: WheelProfile) -> Result<()> {
    let wheel = build_wheel(runner, profile)?;
    let mut install = uv(runner);
    install
        .args(["install", "--quiet", "--no-deps", "--force-reinstall"])
        .arg(wheel);
    runner.run(&mut install)
}

/// Builds the wheel and puts the package into a folder of its own, for other environments to import it from.
pub(crate) fn unpack_wheel(runner: &Runner, profile: WheelProfile, folder: &Path) -> Result<()> {
    let wheel = build_wheel(runner, profile)?;
    let _ = std::fs::remove_dir_all(folder);
    let mut install = uv(runner);
    install
        .args(["install", "--quiet", "--no-deps", "--target"])
        .arg(folder)
        .arg(wheel);
    runner.run(&mut install)
}

/// Installs what a file of pinned requirements names into a folder of its own, for a Python of another environment.
pub(crate) fn install_into(runner: &Runner, requirements: &Path, python: &Path, folder: &Path) -> Result<()> {
    let mut install = uv(runner);
    install
        .args(["install", "--quiet", "--no-deps", "--require-hashes", "--python"])
        .arg(python)
        .arg("--target")
        .arg(folder)
        .arg("--requirements")
        .arg(requirements);
    runner.run(&mut install)
}

/// Builds the wheel.
fn build_wheel(runner: &Runner, profile: WheelProfile) -> Result<PathBuf> {
    let workspace = runner.workspace();
    let out = workspace.target().join("wheels").join(profile.name());
    let _ = std::fs::remove_dir_all(&out);
    let mut build = python_tool(runner, "maturin");
    build.args([
        "build",
        "--locked",
        "--profile",
        profile.name(),
        "--manifest-path",
    ]);
    build.arg(workspace.python_crate().join("Cargo.toml"));
    build.arg("--interpreter").arg(workspace.venv_bin("python"));
    build.arg("--out").arg(&out);
    runner.run(&mut build)?;
    only_wheel(&out)
}

/// A program of the environment, run as if the environment were activated.
pub(crate) fn python_tool(runner: &Runner, name: &str) -> Command {
    let workspace = runner.workspace();
    let mut command = runner.command(workspace.venv_bin(name));
    let mut path = OsString::from(workspace.venv().join("bin"));
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    command.env("VIRTUAL_ENV", workspace.venv()).env("PATH", path);
    // A user's own PYTHONPATH could shadow the wheel under test.
    command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command
}

fn only_wheel(folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut wheels = entries.filter_map(|entry| Some(entry.ok()?.path()));
    wheels
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| anyhow!("maturin left no wheel in {}", folder.display()))
}

/// What identifies an installed environment: the text of its requirement files.
fn stamp(files: &[PathBuf]) -> Result<String> {
    let mut text = String::new();
    for file in files {
        text += &std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    Ok(text)
}

/// The first Python that is new enough.
fn find_python() -> Result<OsString> {
    let names = [
        "python3",
        "python",
        "python3.14",
        "python3.13",
        "python3.12",
        "python3.11",
        "python3.10",
    ];
    for name in names {
        let output = Command::new(name).arg("--version").output();
        let Ok(output) = output else { continue };
        if python_version(&String::from_utf8_lossy(&output.stdout)).is_some_and(|found| found >= PYTHON_MIN) {
            return Ok(name.into());
        }
    }
    bail!("no Python {}.{} or newer on PATH", PYTHON_MIN.0, PYTHON_MIN.1)
}

/// `Python 3.11.7` -> `(3, 11)`.
fn python_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix("Python ")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_versions_compare_as_numbers() {
        assert_eq!(python_version("Python 3.11.7\n"), Some((3, 11)));
        assert!(python_version("Python 3.9.2").unwrap() < PYTHON_MIN);
        assert!(python_version("Python 3.10.0").unwrap() >= PYTHON_MIN);
        assert_eq!(python_version("zsh: not found"), None);
    }

    #[test]
    fn the_installer_is_pinned_alike_in_both_places() {
        let root = crate::workspace::Workspace::find().unwrap();
        let pins = std::fs::read_to_string(root.root().join("xtask/requirements.txt")).unwrap();
        assert!(
            pins.lines().any(|line| line.split(' ').next() == Some(UV)),
            "{UV} is not in requirements.txt"
        );
    }
}
