//! `forebay ckpt`: what checkpoints there are, what is in them, whether they are whole, which may go, and where else they are to be.

mod diff;
mod drain;
mod export;
mod gc;
mod key;
mod log;
mod ls;
mod rewrap;
mod show;
mod value;
mod verify;

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_ckpt::{Checkpoint, newest};
use forebay_core::{Error, ErrorKind, Result};
use forebay_store::{Context, Store};

use crate::Exit;
use crate::app::App;
use crate::args::CkptCommand;
use crate::printer::{Printed, Printer};
use crate::target::{Found, Target};

/// Do what `forebay ckpt` asks for.
pub(super) async fn run(command: CkptCommand, app: &App) -> Printed<Exit> {
    match command {
        CkptCommand::Ls(args) => app.unless_cancelled(ls::run(&args, app)).await,
        CkptCommand::Show(args) => app.unless_cancelled(show::run(&args, app)).await,
        CkptCommand::Verify(args) => app.unless_cancelled(verify::run(&args, app)).await,
        CkptCommand::Diff(args) => app.unless_cancelled(diff::run(&args, app)).await,
        CkptCommand::Gc(args) => app.unless_cancelled(gc::run(&args, app)).await,
        CkptCommand::Drain(args) => drain::run(&args, app).await,
        CkptCommand::Export(args) => app.unless_cancelled(export::run(&args, app)).await,
        CkptCommand::Restore(args) => drain::restore(&args, app).await,
        // To its end: each manifest is replaced at once, and its pin removed.
        CkptCommand::Rewrap(args) => rewrap::run(&args, app).await,
        CkptCommand::Key(args) => key::run(&args, app),
        CkptCommand::Log(args) => log::run(&args, app),
    }
}

/// The store that checkpoints are in.
async fn store(url: &OsStr, context: &Context) -> Result<Arc<dyn Store>> {
    let target = Target::parse(url)?;
    match target.look(context).await? {
        Found::Prefix { store } => Ok(store),
        Found::Object { .. } => {
            let message = "checkpoints are in a directory or prefix, and this is an object";
            Err(Error::new(ErrorKind::InvalidInput, "open", message).at(&target.location))
        }
    }
}

/// The store that checkpoints go to; nothing need be there yet.
async fn destination(url: &OsStr, context: &Context) -> Result<Arc<dyn Store>> {
    let target = Target::parse(url)?;
    forebay_store::open(&target.location, context).await
}

/// The checkpoint of a step, or the newest; those above it that are damaged are told.
async fn open(url: &OsStr, step: Option<u64>, context: &Context, printer: &Printer) -> Result<Checkpoint> {
    let store = store(url, context).await?;
    if let Some(step) = step {
        return Checkpoint::open(store, context, step).await;
    }
    let place = store.location().clone();
    let (checkpoint, damaged) = newest(store, context).await?;
    for (step, error) in damaged {
        printer.object_error(&error, Some(format!("step {step}")));
    }
    checkpoint.ok_or_else(|| Error::new(ErrorKind::NotFound, "open", "there is no checkpoint here").at(place))
}
