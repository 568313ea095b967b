//! `forebay gds`: can this file reach this GPU without passing through host memory, and if not, why, and what to change.

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::device::Place;
use forebay_io::gds::probe::{Question, Report, State, probe};

use crate::Exit;
use crate::app::App;
use crate::args::GdsArgs;
use crate::printer::Printed;
use crate::table::Table;

/// Look, try and tell.
pub(super) fn run(args: &GdsArgs, app: &App) -> Printed<Exit> {
    let ordinal = ordinal_of(&args.device)?;
    if let Some(file) = &args.file
        && let Err(error) = std::fs::metadata(file)
    {
        return Err(Error::from_io("open", error).at(file.display()).into());
    }
    let question = Question::here(args.file.clone(), ordinal);
    // Libraries of drivers are opened and a read is tried, all of which blocks.
    let report = tokio::task::block_in_place(|| probe(&question));
    print(&report, app)?;
    Ok(if report.is_possible {
        Exit::Success
    } else {
        Exit::No
    })
}

fn ordinal_of(device: &str) -> Result<u32> {
    match device.parse()? {
        Place::Cuda(ordinal) => Ok(ordinal),
        Place::Host => Err(Error::new(
            ErrorKind::InvalidInput,
            "arguments",
            "GPUDirect Storage is for GPUs, not for host memory",
        )
        .with_hint("--device cuda:0")),
    }
}

fn print(report: &Report, app: &App) -> Printed {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(report);
    }
    let mut table = Table::new(&["precondition", "holds", "found"]);
    for row in &report.rows {
        let holds = match row.state {
            State::Yes => "yes",
            State::No => "NO",
            State::Unknown => "?",
            State::Unneeded => "-",
        };
        table.row([row.name, holds, &row.found]);
        if let Some(remedy) = row.remedy.as_ref().filter(|_| row.state != State::Unneeded) {
            table.row(["", "", &format!("-> {remedy}")]);
        }
    }
    for line in table.lines() {
        printer.data(line)?;
    }
    printer.data("")?;
    printer.data(if report.is_possible {
        "bytes can go straight to the GPU"
    } else {
        "bytes cannot go straight to the GPU: they go through pinned host memory, and the ledger says so"
    })?;
    Ok(())
}
