//! The only way to the terminal: stdout is data, stderr is talk.
//!
//! Commands hand rows to [`Printer::data`] and remarks to [`Printer::say`]; whether a remark is shown, in colour or not, and whether
//! data is JSON, is decided here. A reader of stdout that has seen enough (`| head`) ends the program quietly and successfully:
//! writing to a closed pipe gives [`Stop::Pipe`], which travels up like an error and exits with 0.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;

use forebay_core::{Error, env};
use serde::Serialize;

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Something went wrong.
    Error(Error),
    /// Nobody reads stdout any more.
    Pipe,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Result of everything that may print.
pub(crate) type Printed<T = ()> = Result<T, Stop>;

/// How much is said on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Errors only.
    Quiet,
    /// What was done.
    Normal,
    /// What was done to each object, and ledgers.
    Verbose,
}

/// Writes data to stdout and talk to stderr.
#[derive(Debug)]
pub(crate) struct Printer {
    json: bool,
    verbosity: Verbosity,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    colour: bool,
    /// Buffered: a listing of a million rows is not a million system calls.
    stdout: Mutex<io::BufWriter<io::Stdout>>,
}

impl Printer {
    /// For this process's streams.
    pub(crate) fn new(json: bool, verbosity: Verbosity) -> Self {
        let stderr_is_terminal = io::stderr().is_terminal();
        Self {
            json,
            verbosity,
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal,
            colour: stderr_is_terminal && env::NO_COLOR.get_os().is_none(),
            stdout: Mutex::new(io::BufWriter::with_capacity(64 << 10, io::stdout())),
        }
    }

    /// True when data is to be JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// How much is said.
    pub(crate) fn verbosity(&self) -> Verbosity {
        self.verbosity
    }

    /// True when progress bars make sense.
    pub(crate) fn shows_progress(&self) -> bool {
        self.stderr_is_terminal && self.verbosity > Verbosity::Quiet
    }

    /// True when they make sense beside data that streams to stdout: on one terminal the two would tear each other.
    pub(crate) fn shows_progress_of_data(&self) -> bool {
        self.shows_progress() && !self.stdout_is_terminal
    }

    /// True when stderr may have colours.
    pub(crate) fn has_colour(&self) -> bool {
        self.colour
    }

    /// True when people read what is written to stdout.
    pub(crate) fn is_stdout_terminal(&self) -> bool {
        self.stdout_is_terminal
    }

    /// One line of data for people.
    pub(crate) fn data(&self, line: impl Display) -> Printed {
        self.raw(self.data_line(line).as_bytes())?;
        if self.stdout_is_terminal {
            self.flush()?;
        }
        Ok(())
    }

    /// How such a line is written: control characters in names are made visible on a terminal, where they could do harm.
    pub(crate) fn data_line(&self, line: impl Display) -> String {
        let line = line.to_string();
        let mut line = if self.stdout_is_terminal {
            visible(&line)
        } else {
            line
        };
        line.push('\n');
        line
    }

    /// One JSON value on a line of its own.
    pub(crate) fn json(&self, value: &impl Serialize) -> Printed {
        self.raw(&Self::json_line(value)?)
    }

    /// How such a line is written.
    pub(crate) fn json_line(value: &impl Serialize) -> Printed<Vec<u8>> {
        let mut line = serde_json::to_vec(value).map_err(unwritable)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Bytes as they are.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Printed {
        let mut stdout = self
            .stdout
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        stdout.write_all(bytes).map_err(stopped)
    }

    /// Everything out, before the program ends.
    pub(crate) fn flush(&self) -> Printed {
        let mut stdout = self
            .stdout
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        stdout.flush().map_err(stopped)
    }

    /// A remark on stderr, unless quiet or JSON was asked for.
    pub(crate) fn say(&self, remark: impl Display) {
        if self.verbosity > Verbosity::Quiet && !self.json {
            self.talk(&visible_lines(&remark.to_string()));
        }
    }

    /// A remark that only `--verbose` shows.
    pub(crate) fn detail(&self, remark: impl Display) {
        if self.verbosity == Verbosity::Verbose && !self.json {
            self.talk(&visible_lines(&remark.to_string()));
        }
    }

    /// An error with its hint; with `--json` as an object.
    pub(crate) fn error(&self, error: &Error) {
        if self.json {
            let object = ErrorObject {
                error: ErrorBody::of(error),
            };
            let text = serde_json::to_string(&object).unwrap_or_else(|_| error.to_string());
            self.talk(&format!("{text}\n"));
            return;
        }
        self.labelled("error", "31", &error.to_string());
        if let Some(hint) = error.hint() {
            self.labelled("hint", "36", hint);
        }
    }

    /// An error about one of many objects, which stops nothing: told as it happens, counted at the end. With `--json` they are part of the result.
    pub(crate) fn object_error(&self, error: &Error, place: Option<String>) {
        if self.json {
            return;
        }
        let text = match place {
            Some(place) => format!("{place}: {error}"),
            None => error.to_string(),
        };
        self.labelled("error", "31", &text);
        if let Some(hint) = error.hint() {
            self.labelled("hint", "36", hint);
        }
    }

    fn labelled(&self, label: &str, colour: &str, text: &str) {
        let text = visible(text);
        if self.colour {
            self.talk(&format!("\x1b[1;{colour}m{label}\x1b[0m: {text}\n"));
        } else {
            self.talk(&format!("{label}: {text}\n"));
        }
    }

    #[expect(clippy::unused_self, reason = "all talk goes through the printer")]
    fn talk(&self, text: &str) {
        // Nobody is left to tell when stderr is gone.
        drop(io::stderr().write_all(text.as_bytes()));
    }
}

/// The error object of `--json`.
#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    error: ErrorBody<'a>,
}

/// An error in JSON; also used for single failed objects in reports.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody<'a> {
    kind: forebay_core::ErrorKind,
    op: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<&'a str>,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

impl<'a> ErrorBody<'a> {
    /// Kind, operation, place, the whole message and the hint.
    pub(crate) fn of(error: &'a Error) -> Self {
        Self {
            kind: error.kind(),
            op: error.op(),
            location: error.location(),
            message: error.to_string(),
            hint: error.hint(),
        }
    }
}

fn stopped(error: io::Error) -> Stop {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Stop::Pipe
    } else {
        Stop::Error(Error::from_io("write", error).at("standard output"))
    }
}

fn unwritable(error: serde_json::Error) -> Stop {
    let error =
        Error::new(forebay_core::ErrorKind::Internal, "print", "value cannot be JSON").with_source(error);
    Stop::Error(error)
}

/// Control characters made visible (tabs and newlines too), everything else as it is.
pub(crate) fn visible(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars()
        .map(|c| {
            if c.is_control() {
                c.escape_default().to_string()
            } else {
                c.to_string()
            }
        })
        .collect()
}

/// Remarks may have several lines, such as a ledger; names within them are made visible by whoever puts them there, so that no name
/// can add a line.
fn visible_lines(remark: &str) -> String {
    remark
        .split('\n')
        .flat_map(|line| [visible(line), "\n".to_owned()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_cannot_reach_a_terminal() {
        assert_eq!(visible("a\x1b[2Jb\tc"), "a\\u{1b}[2Jb\\tc");
        assert_eq!(visible_lines("a\x1b[2J\n  b\rc"), "a\\u{1b}[2J\n  b\\rc\n");
        assert_eq!(visible("caf\u{e9} x"), "caf\u{e9} x");
    }
}
