//! `cargo xtask test`: everything that must hold, in steps from fast to slow, from a bare checkout.
//!
//! [`plan`] turns the options into a list of steps, without looking at the machine; [`run`] walks the list, prints a
//! header before and a table after, and stops at the first failure. What steps share is made when first needed and
//! kept in a [`Session`]: the Python environment, and the SeaweedFS server the Rust and Python tests talk to, which
//! stops when the session ends, however it ends. [`steps`] says what each step does.

mod browser;
mod peers;
mod steps;

use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::args::TestOptions;
use crate::run::Runner;
use crate::servers::{Server, ServerKind};
use crate::venv;

/// One thing that can fail by itself; the order is the order of running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepName {
    Fmt,
    Tidy,
    Venv,
    Typos,
    Clippy,
    Deny,
    Rust,
    Doc,
    Wheel,
    Ruff,
    Mypy,
    Stubtest,
    Pytest,
    Web,
    Browser,
    Peers,
    Garage,
    Ceph,
}

impl StepName {
    const ALL: [Self; 18] = [
        Self::Fmt,
        Self::Tidy,
        Self::Venv,
        Self::Typos,
        Self::Clippy,
        Self::Deny,
        Self::Rust,
        Self::Doc,
        Self::Wheel,
        Self::Ruff,
        Self::Mypy,
        Self::Stubtest,
        Self::Pytest,
        Self::Web,
        Self::Browser,
        Self::Peers,
        Self::Garage,
        Self::Ceph,
    ];

    /// The name on the command line and in the table, and what the step is for.
    fn described(self) -> (&'static str, &'static str) {
        match self {
            Self::Fmt => ("fmt", "Rust source is formatted"),
            Self::Tidy => ("tidy", "house rules: layers, sizes, names, links"),
            Self::Venv => ("venv", "Python environment with pinned packages"),
            Self::Typos => ("typos", "spelling"),
            Self::Clippy => ("clippy", "lints, warnings denied"),
            Self::Deny => ("deny", "licences, bans and sources of dependencies"),
            Self::Rust => ("rust", "Rust tests, with SeaweedFS"),
            Self::Doc => ("doc", "documentation tests and links"),
            Self::Wheel => ("wheel", "Python wheel, built and installed"),
            Self::Ruff => ("ruff", "Python lints and formatting"),
            Self::Mypy => ("mypy", "Python types, strict"),
            Self::Stubtest => ("stubtest", "stubs agree with the compiled module"),
            Self::Pytest => ("pytest", "Python tests, with SeaweedFS"),
            Self::Web => ("web", "types and parts of the web page, where node is"),
            Self::Browser => ("browser", "the web page in Chromium"),
            Self::Peers => (
                "peers",
                "other libraries: their data sets, both ways, and their tests",
            ),
            Self::Garage => ("garage", "store conformance on Garage, three nodes"),
            Self::Ceph => ("ceph", "store conformance on Ceph RGW"),
        }
    }

    fn name(self) -> &'static str {
        self.described().0
    }

    /// Runs with nothing but the Rust toolchain.
    fn is_fast(self) -> bool {
        matches!(self, Self::Fmt | Self::Tidy | Self::Clippy | Self::Rust)
    }

    /// Has no meaning while there is no Python package.
    fn needs_package(self) -> bool {
        matches!(
            self,
            Self::Wheel | Self::Ruff | Self::Mypy | Self::Stubtest | Self::Pytest | Self::Peers
        )
    }

    /// The server a slow step is about.
    fn slow_server(self) -> Option<ServerKind> {
        match self {
            Self::Garage => Some(ServerKind::Garage),
            Self::Ceph => Some(ServerKind::Ceph),
            _ => None,
        }
    }
}

impl FromStr for StepName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|step| step.name() == text)
            .ok_or_else(|| anyhow!("unknown step `{text}`; see `cargo xtask test --list`"))
    }
}

/// The steps the options ask for, in order. Naming a step runs it in whatever lane.
fn plan(options: &TestOptions) -> Vec<StepName> {
    let wanted = |step: &StepName| {
        if !options.only.is_empty() {
            return options.only.contains(step);
        }
        match step.slow_server() {
            Some(kind) => options.servers.contains(&kind),
            None if *step == StepName::Browser => options.browser,
            None if *step == StepName::Peers => options.peers,
            None => !options.fast || step.is_fast(),
        }
    };
    StepName::ALL
        .into_iter()
        .filter(wanted)
        .filter(|step| !options.skip.contains(step))
        .collect()
}

/// What steps share; dropping it stops the server.
#[derive(Debug)]
struct Session<'a> {
    runner: &'a Runner,
    options: &'a TestOptions,
    venv_ready: bool,
    server: Option<Server>,
}

impl Session<'_> {
    /// Makes the Python environment if no step did so before.
    fn venv(&mut self) -> Result<()> {
        if !self.venv_ready {
            venv::ensure(self.runner, self.options.torch)?;
            self.venv_ready = true;
        }
        Ok(())
    }

    /// The variables that point tests to SeaweedFS, which is started if it does not run yet.
    fn server_env(&mut self) -> Result<Vec<(&'static str, String)>> {
        if let Some(server) = &mut self.server {
            server.check()?;
            return Ok(server.env());
        }
        self.venv()?;
        let server = Server::start(self.runner, ServerKind::SeaweedFs, false)?;
        Ok(self.server.insert(server).env())
    }
}

/// How a step ended.
#[derive(Debug)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

impl Outcome {
    fn name(&self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }
}

/// One row of the table at the end.
#[derive(Debug)]
struct Row {
    step: StepName,
    outcome: Outcome,
    took: Duration,
}

/// Runs the steps; `false` if one failed.
pub(crate) fn run(runner: &Runner, options: &TestOptions) -> bool {
    let steps = plan(options);
    if options.list {
        for step in StepName::ALL {
            println!("{:<9} {}", step.name(), step.described().1);
        }
        return true;
    }
    let mut session = Session {
        runner,
        options,
        venv_ready: false,
        server: None,
    };
    let mut rows = Vec::with_capacity(steps.len());
    for step in steps {
        let row = run_step(&mut session, step);
        let failed = matches!(row.outcome, Outcome::Failed);
        rows.push(row);
        if runner.interrupted() || failed && !options.keep_going {
            break;
        }
    }
    drop(session);
    print!("{}", table(&rows));
    !runner.interrupted() && !rows.iter().any(|row| matches!(row.outcome, Outcome::Failed))
}

/// Why a step has no meaning on this machine or in this checkout, if so.
fn skip_reason(session: &Session<'_>, step: StepName) -> Option<String> {
    if step == StepName::Web && session.options.only.is_empty() {
        return browser::missing();
    }
    let package = session.runner.workspace().python_crate().join("pyproject.toml");
    let is_without = step.needs_package() && !package.exists();
    is_without.then(|| "there is no crates/forebay-python/pyproject.toml".to_owned())
}

fn run_step(session: &mut Session<'_>, step: StepName) -> Row {
    let (name, what) = step.described();
    println!("==> {name}: {what}");
    if let Some(reason) = skip_reason(session, step) {
        println!("skipped: {reason}");
        return Row {
            step,
            outcome: Outcome::Skipped,
            took: Duration::ZERO,
        };
    }
    let start = Instant::now();
    let result = steps::run(session, step);
    let took = start.elapsed();
    if let Err(error) = &result {
        println!("error: {name}: {error:#}");
    }
    let outcome = if result.is_ok() {
        Outcome::Passed
    } else {
        Outcome::Failed
    };
    Row { step, outcome, took }
}

fn table(rows: &[Row]) -> String {
    let line = |name: &str, result: &str, took: Duration| {
        format!("{name:<9} {result:<8} {:>6.1} s\n", took.as_secs_f64())
    };
    let mut lines = vec![String::from("\nstep      result       time\n")];
    lines.extend(
        rows.iter()
            .map(|row| line(row.step.name(), row.outcome.name(), row.took)),
    );
    lines.push(line("total", "", rows.iter().map(|row| row.took).sum()));
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &TestOptions) -> Vec<&'static str> {
        plan(options).into_iter().map(StepName::name).collect()
    }

    #[test]
    fn lanes_hold_the_steps_they_promise() {
        let default = names(&TestOptions::default());
        assert_eq!(default.len(), 14);
        assert!(default.contains(&"web"));
        assert!(
            ["browser", "peers", "garage", "ceph"]
                .iter()
                .all(|slow| !default.contains(slow))
        );
        let browser = TestOptions {
            browser: true,
            fast: true,
            ..TestOptions::default()
        };
        assert_eq!(names(&browser).last(), Some(&"browser"));
        let peers = TestOptions {
            peers: true,
            ..TestOptions::default()
        };
        assert_eq!(names(&peers).last(), Some(&"peers"));
        let fast = TestOptions {
            fast: true,
            ..TestOptions::default()
        };
        assert_eq!(names(&fast), ["fmt", "tidy", "clippy", "rust"]);
        let slow = TestOptions {
            servers: vec![ServerKind::Ceph],
            ..TestOptions::default()
        };
        assert_eq!(names(&slow).last(), Some(&"ceph"));
        assert_eq!(names(&slow).len(), 15);
    }

    #[test]
    fn named_steps_run_in_their_order_whatever_the_lane() {
        let only = vec![StepName::Garage, StepName::Fmt, StepName::Rust];
        let options = TestOptions {
            only,
            skip: vec![StepName::Rust],
            fast: true,
            ..TestOptions::default()
        };
        assert_eq!(names(&options), ["fmt", "garage"]);
    }

    #[test]
    fn names_are_read_back_and_the_list_is_complete() {
        for step in StepName::ALL {
            assert_eq!(step.name().parse::<StepName>().unwrap(), step);
        }
        assert!("lint".parse::<StepName>().is_err());
    }

    #[test]
    fn the_table_shows_every_outcome_and_the_sum() {
        let row = |step, outcome| Row {
            step,
            outcome,
            took: Duration::from_millis(1500),
        };
        let rows = [
            row(StepName::Fmt, Outcome::Passed),
            row(StepName::Rust, Outcome::Failed),
            row(StepName::Pytest, Outcome::Skipped),
        ];
        let text = table(&rows);
        for line in [
            "fmt       ok          1.5 s",
            "rust      FAILED      1.5 s",
            "total                 4.5 s",
        ] {
            assert!(text.lines().any(|have| have == line), "{text}");
        }
    }
}
