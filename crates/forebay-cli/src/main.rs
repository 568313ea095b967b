//! The `forebay` command.
//!
//! A run goes through four steps, one module each: [`args`] parses the command line into plain structs, [`config`] resolves settings
//! once, [`commands`] does the work against an [`App`], and [`printer`] is the only way to the terminal. Exit status: 0 done, 1 "no",
//! 2 an error, 130 when Ctrl-C stopped it. A closed stdout pipe is success.

mod app;
mod args;
mod bench;
mod commands;
mod config;
mod data;
mod interrupt;
mod outlet;
mod printer;
mod progress;
mod reference;
mod serve;
mod table;
mod target;

use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind as ClapKind;
use forebay_core::{Error, ErrorKind, env};

use app::App;
use args::Cli;
use config::Config;
use printer::{Printed, Printer, Stop, Verbosity};

/// Time for abandoned requests and removals of temporary data to end before the process does.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// How a run ended, when it was not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Success,
    /// The answer is "no".
    No,
    /// Some of the work failed; every failure was reported where it happened.
    Failed,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_arguments(&error),
    };
    let verbosity = match (cli.global.quiet, cli.global.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    let printer = Arc::new(Printer::new(cli.global.json, verbosity));
    let (outcome, signal) = run(cli, &printer);
    let outcome = outcome.and_then(|exit| printer.flush().map(|()| exit));
    match outcome {
        Ok(Exit::Success) | Err(Stop::Pipe) => ExitCode::SUCCESS,
        Ok(Exit::No) => ExitCode::from(1),
        Ok(Exit::Failed) => signal.map_or(ExitCode::from(2), ExitCode::from),
        Err(Stop::Error(error)) => {
            // What was printed before the error is data; a pipe that is closed by now changes nothing. After Ctrl-C nobody waits for a
            // reader of stdout.
            if error.kind() != ErrorKind::Cancelled {
                drop(printer.flush());
            }
            printer.error(&error);
            match signal {
                Some(code) if error.kind() == ErrorKind::Cancelled => ExitCode::from(code),
                _ => ExitCode::from(error.kind().exit_code()),
            }
        }
    }
}

/// Everything between the arguments and the exit status, and the status a signal asks for, if one came.
fn run(cli: Cli, printer: &Arc<Printer>) -> (Printed<Exit>, Option<u8>) {
    if let Err(error) = start_log(printer) {
        return (Err(error.into()), None);
    }
    let config = match Config::resolve(&cli.global.settings) {
        Ok(config) => config,
        Err(error) => return (Err(error.into()), None),
    };
    let runtime = match start_runtime() {
        Ok(runtime) => runtime,
        Err(error) => return (Err(Error::from_io("start", error).into()), None),
    };
    let app = App::new(Arc::clone(printer), config);
    let interrupt = {
        let _inside = runtime.enter();
        interrupt::watch(app.cancel().clone())
    };
    let outcome = match interrupt {
        Ok(_) => runtime.block_on(commands::run(cli.command, &app)),
        Err(ref error) => Err(Error::new(ErrorKind::Internal, "start", error.to_string()).into()),
    };
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    forebay_store::remove_drafts(SHUTDOWN_GRACE);
    (
        outcome,
        interrupt.ok().and_then(|interrupt| interrupt.exit_code()),
    )
}

/// Descriptors that a runtime takes for itself, in pairs: where there are fewer, it panics.
const RUNTIME_PAIRS: usize = 3;

fn start_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let pairs = (0..RUNTIME_PAIRS).map(|_| UnixStream::pair());
    drop(pairs.collect::<std::io::Result<Vec<_>>>()?);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// Tracing to stderr, as far as `FOREBAY_LOG` asks for it.
fn start_log(printer: &Printer) -> forebay_core::Result<()> {
    use tracing_subscriber::EnvFilter;
    let Some(filter) = env::LOG.get() else {
        return Ok(());
    };
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, "configure", error.to_string())
            .at(env::LOG.name)
            .with_hint("write a level such as info, or forebay_store=debug")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(printer.has_colour())
        .init();
    Ok(())
}

/// Help and version are data; anything else is an error of the user, told the way they asked for.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
    let json = std::env::args_os()
        .take_while(|arg| arg != "--")
        .any(|arg| arg == "--json");
    match error.kind() {
        ClapKind::DisplayHelp | ClapKind::DisplayVersion => {
            // Nobody is left to tell when stdout is closed.
            drop(error.print());
            ExitCode::SUCCESS
        }
        _ if json => {
            Printer::new(true, Verbosity::Normal).error(&argument_error(error));
            ExitCode::from(2)
        }
        _ => {
            drop(error.print());
            ExitCode::from(2)
        }
    }
}

/// The same as clap prints, in one error: its first paragraph is the message, its tip the hint.
fn argument_error(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(one_line);
    let message = match error.kind() {
        // Its text would be the help, or every command there is.
        ClapKind::DisplayHelpOnMissingArgumentOrSubcommand | ClapKind::MissingSubcommand => {
            "a command is missing".to_owned()
        }
        _ => paragraphs.next().unwrap_or_default(),
    };
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let tip = paragraphs.find_map(|text| text.strip_prefix("tip: ").map(str::to_owned));
    let hint = tip.unwrap_or_else(|| "forebay --help lists commands and options".to_owned());
    Error::new(ErrorKind::InvalidInput, "arguments", message).with_hint(hint)
}

fn one_line(paragraph: &str) -> String {
    let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
    lines.join(" ")
}
