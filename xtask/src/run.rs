//! Child processes: run one to its end, stop it on Ctrl-C, tie one to our own life.
//!
//! Steps run in our process group, so a Ctrl-C at the terminal reaches them as well as us. Servers run in groups of
//! their own and are stopped by whoever holds them; should we be killed outright, the kernel kills them, because they
//! are started through [`bound_exec`], which asks for a signal at the parent's death and then becomes the server.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, parent_id};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::workspace::Workspace;

/// How often a running child is looked at: short against any step, long against the cost of looking.
const POLL: Duration = Duration::from_millis(20);

/// How long a child may take to end after we passed on a signal; cargo and pytest need a moment to stop theirs.
const GRACE: Duration = Duration::from_secs(10);

/// How long a command may take that only asks something; Ceph's tools wait for ever for a monitor that is gone.
const SHORT_LIMIT: Duration = Duration::from_secs(60);

/// Runs child processes for one checkout.
#[derive(Debug)]
pub(crate) struct Runner {
    workspace: Workspace,
    interrupted: Arc<AtomicBool>,
}

impl Runner {
    /// Takes over SIGINT and SIGTERM, so that servers are stopped before we end.
    pub(crate) fn install(workspace: Workspace) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("cannot handle signals")?;
        }
        Ok(Self {
            workspace,
            interrupted,
        })
    }

    /// The checkout the children run in.
    pub(crate) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// True once the user asked us to stop.
    pub(crate) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Sleeps, but not past an interruption, which is an error.
    pub(crate) fn pause(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.interrupted() {
                bail!("interrupted");
            }
            std::thread::sleep(POLL.min(time));
        }
        Ok(())
    }

    /// A command that runs in the checkout, without what `cargo run` put into our environment about `xtask` itself.
    pub(crate) fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(self.workspace.root());
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if name_text.starts_with("CARGO_PKG_") || name_text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command
    }

    /// The cargo that started us, with the given arguments.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = self.command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(args);
        command
    }

    /// Runs a command to its end; anything but success is an error that names the command.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        let status = self.status(command)?;
        if status.success() {
            Ok(())
        } else {
            Err(anyhow!("`{}` failed: {status}", shown(command)))
        }
    }

    /// Runs a command to its end and tells how it ended.
    pub(crate) fn status(&self, command: &mut Command) -> Result<ExitStatus> {
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start `{}`", shown(command)))?;
        self.wait(&mut child, None)
    }

    /// Runs a short command and returns what it wrote to stdout; its stderr goes into the error.
    pub(crate) fn output(&self, command: &mut Command) -> Result<String> {
        // Files instead of pipes: nobody has to read while the command runs, so it can be timed.
        let mut out = tempfile::tempfile().context("cannot create a temporary file")?;
        let mut err = tempfile::tempfile().context("cannot create a temporary file")?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(err.try_clone()?);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start `{}`", shown(command)))?;
        let status = self.wait(&mut child, Some(SHORT_LIMIT))?;
        if !status.success() {
            let reason = contents(&mut err)?;
            bail!("`{}` failed: {status}: {}", shown(command), reason.trim());
        }
        contents(&mut out)
    }

    fn wait(&self, child: &mut Child, limit: Option<Duration>) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().context("cannot wait for a child process")? {
                // The child may have died of the same Ctrl-C before we looked at the flag.
                return if self.interrupted() {
                    Err(anyhow!("interrupted"))
                } else {
                    Ok(status)
                };
            }
            if self.interrupted() {
                stop(child, GRACE);
                bail!("interrupted");
            }
            if limit.is_some_and(|limit| start.elapsed() > limit) {
                stop(child, GRACE);
                bail!("no answer within {} s", start.elapsed().as_secs());
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Everything in a file, as text.
fn contents(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Asks a child to end, then insists.
fn stop(child: &mut Child, grace: Duration) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    let until = Instant::now() + grace;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(POLL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// A command line for people: program by its last name, arguments separated by blanks.
fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let mut text = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Arguments of the hidden command [`bound_exec`] runs.
#[derive(Debug)]
pub(crate) struct BoundExec {
    /// Process that must be alive for the program to go on.
    pub(crate) parent_pid: u32,
    /// Program to become.
    pub(crate) program: OsString,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
}

/// The hidden command's name.
pub(crate) const BOUND_EXEC: &str = "bound-exec";

/// A command that runs `program` in a process group of its own and dies with us, however we die.
pub(crate) fn bound_command(program: impl Into<OsString>) -> Command {
    // `/proc/self/exe` is this very program even when a build replaced the file meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg(BOUND_EXEC)
        .arg(std::process::id().to_string())
        .arg(program.into());
    command.process_group(0).stdin(Stdio::null());
    command
}

/// Becomes the program of a [`bound_command`]; returns only when that fails.
pub(crate) fn bound_exec(bound: &BoundExec) -> anyhow::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return anyhow!(error).context("cannot tie the process to its parent");
    }
    // The parent may have died before the signal was armed; then nobody would stop us.
    if parent_id() != bound.parent_pid {
        return anyhow!("the parent process is gone");
    }
    let error = Command::new(&bound.program).args(&bound.args).exec();
    anyhow!(error).context(format!("cannot start {}", bound.program.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner() -> Runner {
        let workspace = Workspace::find().unwrap();
        Runner {
            workspace,
            interrupted: Arc::new(AtomicBool::new(false)),
        }
    }

    #[test]
    fn failing_command_is_an_error_that_names_it() {
        let runner = runner();
        assert!(runner.run(&mut Command::new("true")).is_ok());
        let error = runner
            .run(Command::new("sh").args(["-c", "exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("sh -c exit 3") && error.contains('3'), "{error}");
    }

    #[test]
    fn interruption_stops_a_running_child() {
        let runner = runner();
        runner.interrupted.store(true, Ordering::Relaxed);
        // Without the stop this would sit for ten minutes and trip the test runner's timeout.
        let error = runner.run(Command::new("sleep").arg("600")).unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
        assert!(runner.pause(Duration::from_secs(600)).is_err());
    }

    #[test]
    fn output_carries_stderr_in_the_error() {
        let error = runner()
            .output(Command::new("sh").args(["-c", "echo why >&2; exit 1"]))
            .unwrap_err();
        assert!(error.to_string().ends_with("why"), "{error}");
    }
}
