//! What each step of `cargo xtask test` runs.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Result, bail};

use crate::env;
use crate::servers::{Server, ServerKind};
use crate::test::{Session, StepName};
use crate::test::{browser, peers};
use crate::tidy;
use crate::tools::{self, CARGO_DENY};
use crate::venv::{self, WheelProfile, python_tool};

/// One Python test may take this long; the slowest real one takes a few seconds.
const PYTEST_TIMEOUT_S: u32 = 120;

/// What pytest returns when no test was chosen.
const PYTEST_NO_TESTS: i32 = 5;

/// Runs one step; an error is the reason it failed.
pub(super) fn run(session: &mut Session<'_>, step: StepName) -> Result<()> {
    let runner = session.runner;
    match step {
        StepName::Fmt => runner.run(&mut runner.cargo(&["fmt", "--all", "--check"])),
        StepName::Tidy => run_tidy(session),
        StepName::Venv => session.venv(),
        StepName::Typos => run_typos(session),
        StepName::Clippy => runner.run(&mut runner.cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ])),
        StepName::Deny => run_deny(session),
        StepName::Rust => run_rust(session),
        StepName::Doc => run_doc(session),
        StepName::Wheel => run_wheel(session),
        StepName::Ruff => run_ruff(session),
        StepName::Mypy => run_mypy(session),
        StepName::Stubtest => run_stubtest(session),
        StepName::Pytest => run_pytest(session),
        StepName::Web => browser::check(session),
        StepName::Browser => browser::run(session),
        StepName::Peers => peers::run(session),
        StepName::Garage => run_conformance(session, ServerKind::Garage),
        StepName::Ceph => run_conformance(session, ServerKind::Ceph),
    }
}

fn run_tidy(session: &Session<'_>) -> Result<()> {
    if tidy::run(session.runner.workspace())? {
        Ok(())
    } else {
        bail!("the rules above do not hold")
    }
}

fn run_typos(session: &mut Session<'_>) -> Result<()> {
    session.venv()?;
    let runner = session.runner;
    runner.run(python_tool(runner, "typos").args(["--config", "typos.toml", "."]))
}

fn run_deny(session: &Session<'_>) -> Result<()> {
    let runner = session.runner;
    let program = CARGO_DENY.find_or_install(runner)?;
    let args = [
        "--workspace",
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ];
    runner.run(runner.command(program).args(args))
}

fn run_rust(session: &mut Session<'_>) -> Result<()> {
    let mut command = rust_tests(session, &["--workspace"]);
    if session.options.fast {
        println!("without servers: tests that need one skip themselves");
    } else {
        with_server(&mut command, session.server_env()?);
    }
    session.runner.run(&mut command)
}

/// The store's conformance suite against a server of the slow lane.
fn run_conformance(session: &mut Session<'_>, kind: ServerKind) -> Result<()> {
    // The suite is built before the server is started, so that a compile error does not wait for it.
    let scope = ["--package", "forebay-store", "--test", "conformance"];
    let runner = session.runner;
    runner.run(runner.cargo(&["test", "--no-run", "--locked"]).args(scope))?;
    let server = Server::start(runner, kind, session.options.install)?;
    let mut command = rust_tests(session, &scope);
    with_server(&mut command, server.env());
    runner.run(&mut command)
}

/// Rust tests of some packages by nextest, or by plain `cargo test` where nextest is not installed.
fn rust_tests(session: &Session<'_>, scope: &[&str]) -> Command {
    let runner = session.runner;
    let filter = session.options.filter.as_deref();
    if tools::answers(&mut runner.cargo(&["nextest", "--version"])) {
        let mut command = runner.cargo(&["nextest", "run", "--locked", "--profile", "ci"]);
        command.args(scope);
        if let Some(filter) = filter {
            command.args(["--no-tests", "pass", "--", filter]);
        }
        return command;
    }
    println!("cargo-nextest is not installed: plain `cargo test`, without its time limits");
    let mut command = runner.cargo(&["test", "--locked"]);
    command.args(scope);
    if !scope.contains(&"--test") {
        command.args(["--lib", "--bins", "--tests", "--examples"]);
    }
    command.args(filter);
    command
}

fn with_server(command: &mut Command, server: Vec<(&'static str, String)>) {
    command.envs(server).env(env::TEST_REQUIRE_SERVERS, "1");
}

fn run_doc(session: &Session<'_>) -> Result<()> {
    let runner = session.runner;
    runner.run(&mut runner.cargo(&["test", "--doc", "--workspace", "--locked"]))?;
    let mut links = runner.cargo(&["doc", "--workspace", "--no-deps", "--locked"]);
    runner.run(links.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"))
}

fn run_wheel(session: &mut Session<'_>) -> Result<()> {
    session.venv()?;
    venv::install_wheel(session.runner, WheelProfile::Dev)
}

fn run_ruff(session: &mut Session<'_>) -> Result<()> {
    session.venv()?;
    let runner = session.runner;
    let folders: Vec<&str> = [
        "crates/forebay-python",
        "crates/forebay-data/tests/peers",
        "bench",
        "examples",
    ]
    .into_iter()
    .filter(|folder| runner.workspace().root().join(folder).exists())
    .collect();
    runner.run(python_tool(runner, "ruff").arg("check").args(&folders))?;
    runner.run(
        python_tool(runner, "ruff")
            .args(["format", "--check"])
            .args(&folders),
    )
}

fn run_mypy(session: &mut Session<'_>) -> Result<()> {
    session.venv()?;
    let mut command = package_tool(session, "mypy");
    session.runner.run(command.args(["--strict", "python/forebay"]))
}

/// Stubs are checked against the installed wheel, so this step needs `wheel` before it.
fn run_stubtest(session: &mut Session<'_>) -> Result<()> {
    session.venv()?;
    let mut command = package_tool(session, "stubtest");
    command.args(["--mypy-config-file", "pyproject.toml"]);
    let allowlist = session
        .runner
        .workspace()
        .python_crate()
        .join("stubtest-allowlist.txt");
    if allowlist.exists() {
        command.arg("--allowlist").arg(allowlist);
        // Which entries are needed depends on the version of Python.
        command.arg("--ignore-unused-allowlist");
    }
    session.runner.run(command.arg("forebay._forebay"))
}

fn run_pytest(session: &mut Session<'_>) -> Result<()> {
    let server = session.server_env()?;
    let mut command = package_tool(session, "pytest");
    command.arg(format!("--timeout={PYTEST_TIMEOUT_S}")).arg("tests");
    if let Some(filter) = &session.options.filter {
        command.args(["-k", filter]);
    }
    with_server(&mut command, server);
    let status = session.runner.status(&mut command)?;
    let nothing_chosen = session.options.filter.is_some() && status.code() == Some(PYTEST_NO_TESTS);
    if status.success() || nothing_chosen {
        Ok(())
    } else {
        bail!("pytest failed: {status}")
    }
}

/// A Python tool that runs in the folder of the Python package, whose `pyproject.toml` configures it.
fn package_tool(session: &Session<'_>, name: &str) -> Command {
    let mut command = python_tool(session.runner, name);
    command.current_dir(session.runner.workspace().python_crate());
    command.env(
        "MYPY_CACHE_DIR",
        OsString::from(session.runner.workspace().root().join(".mypy_cache")),
    );
    command
}
