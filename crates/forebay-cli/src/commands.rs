//! One module per command; [`run`] sends each to its own.

mod bench_ckpt;
mod bench_disk;
mod bench_store;
mod cat;
mod ckpt;
mod config;
mod cp;
mod demo;
mod gds;
mod index;
mod inspect;
mod load;
mod ls;
mod pack;
pub(crate) mod plan;
mod rm;
mod serve;
mod stat;
mod stream;
mod verify;

use clap::CommandFactory;
use forebay_core::{Error, ErrorKind};

use crate::Exit;
use crate::app::App;
use crate::args::{BenchCommand, Cli, Command};
use crate::printer::{Printed, Stop};
use crate::reference;

/// Do what the command line asks for.
pub(crate) async fn run(command: Command, app: &App) -> Printed<Exit> {
    match command {
        Command::Ls(args) => app.unless_cancelled(ls::run(&args, app)).await,
        Command::Stat(args) => app.unless_cancelled(stat::run(&args, app)).await,
        Command::Cp(args) => cp::run(&args, app).await,
        Command::Rm(args) => rm::run(&args, app).await,
        Command::Cat(args) => app.unless_cancelled(cat::run(&args, app)).await,
        Command::Index(args) => index::run(&args, app).await,
        Command::Pack(args) => pack::run(&args, app).await,
        Command::Verify(args) => verify::run(&args, app).await,
        Command::Inspect(args) => app.unless_cancelled(inspect::run(&args, app)).await,
        Command::Bench(BenchCommand::Disk(args)) => bench_disk::run(&args, app).await,
        Command::Bench(BenchCommand::Ckpt(args)) => bench_ckpt::run(&args, app).await,
        Command::Bench(BenchCommand::Store(args)) => bench_store::run(&args, app).await,
        Command::Demo(args) => demo::run(&args, app).await,
        Command::Serve(args) => serve::run(&args, app).await,
        Command::Plan(command) => plan::run(command, app).await,
        Command::Stream(args) => stream::run(&args, app).await,
        Command::Ckpt(command) => ckpt::run(command, app).await,
        Command::Gds(args) => gds::run(&args, app),
        Command::Load(args) => load::run(&args, app).await,
        Command::Config => config::run(app),
        Command::Completions(args) => completions(args.shell, app),
        Command::Man(args) => manual(&args.command, app),
        Command::Reference(args) => {
            app.printer().raw(reference::page(args.page).as_bytes())?;
            Ok(Exit::Success)
        }
    }
}

fn completions(shell: clap_complete::Shell, app: &App) -> Printed<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut script);
    app.printer().raw(&script)?;
    Ok(Exit::Success)
}

fn manual(path: &[String], app: &App) -> Printed<Exit> {
    let mut command = Cli::command();
    // Propagates the names of commands above into the ones below.
    command.build();
    for name in path {
        command = match command.find_subcommand(name).filter(|sub| !sub.is_hide_set()) {
            Some(sub) => sub.clone(),
            None => {
                let message = format!("there is no command '{}'", name.escape_debug());
                return Err(Error::new(ErrorKind::InvalidInput, "manual", message)
                    .with_hint("forebay --help lists the commands")
                    .into());
            }
        };
    }
    let mut page = Vec::new();
    let title = command.get_display_name().unwrap_or("forebay").to_owned();
    clap_mangen::Man::new(command.display_name(title))
        .render(&mut page)
        .map_err(|error| Stop::Error(Error::from_io("render", error)))?;
    app.printer().raw(&page)?;
    Ok(Exit::Success)
}
