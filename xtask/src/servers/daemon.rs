//! A server process: started in a group of its own with its output in a log file, stopped when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::run::Runner;

/// Pause between two looks at something that is not ready.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Lines of a log shown when its server fails.
const LOG_LINES_SHOWN: usize = 20;

/// One process of a server.
#[derive(Debug)]
pub(super) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a [`bound_command`](crate::run::bound_command), its output going to `folder/name.log`.
    pub(super) fn start(name: &str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let err = out.try_clone().context("cannot share the log file")?;
        command.stdout(Stdio::from(out)).stderr(Stdio::from(err));
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// An error if the process has ended, with the end of its log.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot look at a server process")? {
            None => Ok(()),
            Some(status) => Err(anyhow!("{} ended: {status}\n{}", self.name, self.log_tail())),
        }
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    /// Kills at once: the data is thrown away, so there is nothing to end gracefully for.
    fn stop(&mut self) {
        // The group has the process' own number, see `bound_command`, and takes grandchildren along.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Tries something until it works, as long as the processes live and the time lasts.
pub(super) fn until_ok<T>(
    runner: &Runner,
    wait: Duration,
    daemons: &mut [Daemon],
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let until = Instant::now() + wait;
    loop {
        let error = match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        daemons.iter_mut().try_for_each(Daemon::check)?;
        if Instant::now() >= until {
            let tails: Vec<String> = daemons.iter().map(Daemon::log_tail).collect();
            bail!(
                "not ready after {} s: {error:#}\n{}",
                wait.as_secs(),
                tails.join("\n")
            );
        }
        runner.pause(RETRY_PAUSE)?;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    /// A plain command in its own group: the test binary cannot play the part of `bound-exec`.
    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0).stdin(Stdio::null());
        command
    }

    #[test]
    fn a_process_that_ends_is_reported_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start("d", &mut shell("echo broken; exit 7"), folder.path()).unwrap();
        daemon.child.wait().unwrap();
        let error = daemon.check().unwrap_err().to_string();
        assert!(error.contains('7') && error.contains("broken"), "{error}");
    }

    #[test]
    fn dropping_stops_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        // The grandchild would hold the pipe open for ten minutes if it survived its parent.
        let fifo = folder.path().join("alive");
        let script = format!("mkfifo {0}; (exec sleep 600 3<>{0}) & wait", fifo.display());
        let mut daemon = Daemon::start("d", &mut shell(&script), folder.path()).unwrap();
        while !fifo.exists() {
            daemon.check().unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        let group = Pid::from_child(&daemon.child);
        drop(daemon);
        // Killed grandchildren are reaped by init at its leisure; the group is gone once they are.
        for _ in 0..1000 {
            if rustix::process::test_kill_process_group(group).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the group outlived its daemon");
    }
}
