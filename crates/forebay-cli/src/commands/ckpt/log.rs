//! `forebay ckpt log`: goes through the chain of an access log.

use forebay_ckpt::AccessLog;
use forebay_core::ErrorKind;

use crate::Exit;
use crate::app::App;
use crate::args::CkptLogArgs;
use crate::data::count;
use crate::printer::Printed;

/// Verify.
pub(super) fn run(args: &CkptLogArgs, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    let verified = match AccessLog::new(&args.file).verify() {
        Ok(verified) => verified,
        // "No" is an answer, too.
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            printer.object_error(&error, None);
            return Ok(Exit::No);
        }
        Err(error) => return Err(error.into()),
    };
    if printer.is_json() {
        printer.json(&verified)?;
        return Ok(Exit::Success);
    }
    printer.data(&verified.last)?;
    let torn = if verified.torn {
        ", and one that a crash tore"
    } else {
        ""
    };
    printer.say(format_args!(
        "{} in an unbroken chain{torn}",
        count(verified.lines, "line")
    ));
    Ok(Exit::Success)
}
