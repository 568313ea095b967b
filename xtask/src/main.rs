//! House-keeping for the Forebay workspace, run as `cargo xtask <command>`.
//!
//! | command   | module      | what it does                                                      |
//! |-----------|-------------|-------------------------------------------------------------------|
//! | `tidy`    | [`tidy`]    | house rules that neither rustc nor clippy know                    |
//! | `test`    | [`mod@test`] | everything that must hold, from a bare checkout                   |
//! | `servers` | [`servers`] | one S3 server in the foreground, for developers and benchmarks    |
//! | `venv`    | [`venv`]    | the Python environment, with the wheel of this checkout           |
//! | `bench`   | [`mod@bench`] | the benchmarks in `bench/`, from that environment                 |
//! | `fuzz`    | [`fuzz`]    | the fuzz targets in `fuzz/`, with coverage                        |
//!
//! [`args`] parses the command line into plain structs, [`workspace`] knows where things are, [`run`] starts child
//! processes and stops them on Ctrl-C, [`tools`] installs what a bare machine lacks into the cache folder.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developer tool talks to the terminal"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "a developer tool reads the real clock and environment"
)]

mod args;
mod bench;
mod env;
mod fuzz;
mod run;
mod servers;
mod test;
mod tidy;
mod tools;
mod venv;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::Command;
use crate::run::Runner;
use crate::workspace::Workspace;

fn main() -> ExitCode {
    match dispatch() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs one command: exit 0 when all is well, 1 when a check said no, 2 (an `Err`) when the tool itself failed.
fn dispatch() -> Result<ExitCode> {
    let command = args::parse(std::env::args_os())?;
    if let Command::BoundExec(bound) = command {
        return Err(run::bound_exec(&bound));
    }
    if let Command::Help = command {
        print!("{}", args::USAGE);
        return Ok(ExitCode::SUCCESS);
    }
    let workspace = Workspace::find()?;
    let runner = Runner::install(workspace)?;
    let passed = match command {
        Command::Tidy => tidy::run(runner.workspace())?,
        Command::Test(options) => test::run(&runner, &options),
        Command::Servers(options) => servers::run_foreground(&runner, &options)?,
        Command::Venv(options) => venv::run(&runner, &options)?,
        Command::Bench(options) => bench::run(&runner, &options)?,
        Command::Fuzz(options) => fuzz::run(&runner, &options)?,
        Command::Help | Command::BoundExec(_) => true,
    };
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
