//! One error type for the whole project.
//!
//! An [`Error`] says what kind of thing went wrong, during which operation, at which place, and what the user can do.
//! [`ErrorKind`] alone decides what follows: whether a retry can help, the exit code of the command line, and the class of
//! the Python exception. All three are read from one table, so the faces cannot disagree.
//!
//! Errors are made where the cause is known, carried up unchanged, and reported once, by whoever handles them. Messages
//! never contain credentials: places are [`Location`](crate::Location)s, which keep none.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Result with Forebay's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whether trying the same thing again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The answer will not change.
    Never,
    /// A passing fault: again after a short, jittered pause.
    Backoff,
    /// The other side asks for less: again after a longer pause, and with less in flight.
    SlowDown,
}

macro_rules! error_kinds {
    ($( $(#[doc = $doc:literal])+ $kind:ident: $name:literal, $retry:ident, $exit:literal, $python:literal; )*) => {
        /// What kind of thing went wrong; decides retry, exit code and Python exception.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ErrorKind {
            $( $(#[doc = $doc])+ $kind, )*
        }

        impl ErrorKind {
            /// Every kind, in table order.
            pub const ALL: &'static [ErrorKind] = &[$( ErrorKind::$kind, )*];

            /// Short name in words, as the first thing an error message says.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$kind => $name, )* }
            }

            /// What it means, for the reference page.
            pub const fn doc(self) -> &'static str {
                match self { $( Self::$kind => concat!($($doc),+), )* }
            }

            /// Whether a retry can help.
            pub const fn retry(self) -> Retry {
                match self { $( Self::$kind => Retry::$retry, )* }
            }

            /// Exit code of the command line: 1 for "no", 2 for an error.
            pub const fn exit_code(self) -> u8 {
                match self { $( Self::$kind => $exit, )* }
            }

            /// Name of the Python exception class in the `forebay` package.
            pub const fn python_class(self) -> &'static str {
                match self { $( Self::$kind => $python, )* }
            }
        }
    };
}

error_kinds! {
    /// The object, file, bucket or directory does not exist.
    NotFound: "not found", Never, 2, "NotFoundError";
    /// It exists already and must not be replaced.
    AlreadyExists: "already exists", Never, 1, "AlreadyExistsError";
    /// A stated condition (version, conditional write) does not hold, or the object changed while it was read.
    Precondition: "precondition failed", Never, 1, "PreconditionError";
    /// The caller is known but may not do this.
    PermissionDenied: "permission denied", Never, 2, "PermissionDeniedError";
    /// Credentials are missing, wrong or expired.
    Unauthenticated: "not authenticated", Never, 2, "AuthenticationError";
    /// An argument, URL, name or setting is wrong.
    InvalidInput: "invalid input", Never, 2, "InvalidInputError";
    /// Bytes are not what they were when they were written, or do not follow their format.
    Corrupt: "corrupt data", Never, 2, "CorruptDataError";
    /// The required data path or feature is not available here.
    Unsupported: "not supported", Never, 2, "UnsupportedError";
    /// No room left on the device, or a quota is used up.
    OutOfSpace: "out of space", Never, 2, "OutOfSpaceError";
    /// The file system or store does not take writes.
    ReadOnly: "read-only", Never, 2, "ReadOnlyError";
    /// A named limit would be exceeded.
    LimitExceeded: "limit exceeded", Never, 2, "LimitExceededError";
    /// No answer within the time allowed.
    Timeout: "timed out", Backoff, 2, "StoreTimeoutError";
    /// The other side is there but failed, or the connection broke.
    Unavailable: "unavailable", Backoff, 2, "UnavailableError";
    /// The other side asks for fewer requests.
    Throttled: "throttled", SlowDown, 2, "ThrottledError";
    /// The work was stopped by the caller or by Ctrl-C.
    Cancelled: "cancelled", Never, 2, "CancelledError";
    /// The operating system reported an input/output error.
    Io: "i/o error", Never, 2, "ForebayIOError";
    /// A fault in Forebay itself; please report it.
    Internal: "internal error", Never, 2, "InternalError";
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What went wrong, while doing what, where, and what to do about it.
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    op: &'static str,
    location: Option<String>,
    message: String,
    field: Option<String>,
    hint: Option<String>,
    retry_after: Option<Duration>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` during `op` (a verb such as `read` or `rename`) with a lowercase message without full stop.
    pub fn new(kind: ErrorKind, op: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            op,
            location: None,
            message: message.into(),
            field: None,
            hint: None,
            retry_after: None,
            source: None,
        }))
    }

    /// From an operating system error during `op`; the kind follows from the error number, and so does the hint where one number has one remedy.
    pub fn from_io(op: &'static str, source: io::Error) -> Self {
        let kind = kind_of_io(&source);
        let hint = hint_of_io(&source);
        let error = Self::new(kind, op, String::new()).with_source(source);
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// Name the place, when none is named yet: the innermost place is the most exact one.
    pub fn at(mut self, location: impl fmt::Display) -> Self {
        if self.0.location.is_none() {
            self.0.location = Some(location.to_string());
        }
        self
    }

    /// Say in front of the message of which part it speaks (`row group 3`); everything else stays.
    pub fn within(mut self, part: impl fmt::Display) -> Self {
        self.0.message = format!("{part}: {}", self.0.message);
        self
    }

    /// Name the field of the input that is wrong, for programs; people read it in the message.
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// Say what the user can do.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Keep the pause that the other side asks for.
    pub fn with_retry_after(mut self, pause: Duration) -> Self {
        self.0.retry_after = Some(pause);
        self
    }

    /// Keep the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation that failed.
    pub fn op(&self) -> &'static str {
        self.0.op
    }

    /// The place, where one is known.
    pub fn location(&self) -> Option<&str> {
        self.0.location.as_deref()
    }

    /// The message without kind, operation and place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The field of the input that is wrong, where one is known; `tiers.hot.keep` in a table of a list.
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The pause that the other side asks for before another try, where it does. Whoever tries again bounds it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Shorthand for `self.kind().retry()`.
    pub fn retry(&self) -> Retry {
        self.0.kind.retry()
    }
}

/// `kind: op place: message: cause`, in one line, without the hint.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.op)?;
        if let Some(location) = &self.0.location {
            f.write_str(" ")?;
            // A name may hold control characters, which must not reach a terminal.
            for character in location.chars() {
                if character.is_control() {
                    write!(f, "{}", character.escape_default())?;
                } else {
                    write!(f, "{character}")?;
                }
            }
        }
        if !self.0.message.is_empty() {
            write!(f, ": {}", self.0.message)?;
        }
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_ref()
            .map(|source| source.as_ref() as &(dyn StdError + 'static))
    }
}

/// Where the operating system's error numbers belong.
fn kind_of_io(error: &io::Error) -> ErrorKind {
    use io::ErrorKind as Io;
    match error.kind() {
        Io::NotFound => ErrorKind::NotFound,
        Io::AlreadyExists | Io::DirectoryNotEmpty => ErrorKind::AlreadyExists,
        Io::PermissionDenied => ErrorKind::PermissionDenied,
        Io::InvalidInput | Io::IsADirectory | Io::NotADirectory | Io::InvalidFilename => {
            ErrorKind::InvalidInput
        }
        Io::InvalidData | Io::UnexpectedEof => ErrorKind::Corrupt,
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => ErrorKind::OutOfSpace,
        Io::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        Io::TimedOut => ErrorKind::Timeout,
        Io::ConnectionRefused
        | Io::ConnectionReset
        | Io::ConnectionAborted
        | Io::NotConnected
        | Io::BrokenPipe
        | Io::HostUnreachable
        | Io::NetworkUnreachable => ErrorKind::Unavailable,
        Io::Unsupported => ErrorKind::Unsupported,
        _ if error.raw_os_error() == Some(ELOOP) => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}

/// What can be done about an error number, whatever was tried: files run out for listings, sockets and threads as they do for files.
fn hint_of_io(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        EMFILE => Some("raise the limit of open files (ulimit -n)"),
        ENFILE => Some("the machine has no more files to open: raise fs.file-max, or close some"),
        _ => None,
    }
}

/// Too many symbolic links; the standard library has no stable kind for it.
const ELOOP: i32 = 40;

/// The process has as many files open as it may; no stable kind either.
const EMFILE: i32 = 24;

/// The machine has as many files open as it may.
const ENFILE: i32 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_row() {
        for kind in ErrorKind::ALL {
            assert!(matches!(kind.exit_code(), 1 | 2), "{kind:?}");
            assert!(kind.python_class().ends_with("Error"), "{kind:?}");
            assert_eq!(kind.name(), kind.name().to_lowercase());
        }
    }

    #[test]
    fn display_tells_kind_op_place_and_cause_once() {
        let error = Error::from_io("open", io::Error::from_raw_os_error(2))
            .at("/data/a")
            .at("/data");
        assert_eq!(
            error.to_string(),
            "not found: open /data/a: No such file or directory (os error 2)"
        );
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.location(), Some("/data/a"));
    }

    #[test]
    fn the_part_that_an_error_speaks_of_is_put_in_front_and_nothing_is_lost() {
        let error = Error::new(ErrorKind::Precondition, "read", "another file")
            .at("/data/a")
            .with_field("x")
            .with_hint("index again")
            .with_source(io::Error::other("a cause"))
            .within("row group 3")
            .within(format_args!("shard {}", 1));
        assert_eq!(
            error.to_string(),
            "precondition failed: read /data/a: shard 1: row group 3: another file: a cause"
        );
        assert_eq!((error.field(), error.hint()), (Some("x"), Some("index again")));
    }

    #[test]
    fn running_out_of_files_has_a_remedy_wherever_it_happens() {
        for (errno, remedy) in [(23, "fs.file-max"), (24, "ulimit -n")] {
            let error = Error::from_io("list", io::Error::from_raw_os_error(errno)).at("/data");
            assert!(
                error.hint().is_some_and(|hint| hint.contains(remedy)),
                "{error:?}"
            );
        }
        assert_eq!(
            Error::from_io("list", io::Error::from_raw_os_error(5)).hint(),
            None
        );
    }

    #[test]
    fn operating_system_errors_find_their_kind() {
        for (errno, kind) in [
            (13, ErrorKind::PermissionDenied),
            (21, ErrorKind::InvalidInput),
            (28, ErrorKind::OutOfSpace),
            (122, ErrorKind::OutOfSpace),
            (30, ErrorKind::ReadOnly),
            (40, ErrorKind::InvalidInput),
            (5, ErrorKind::Io),
            (104, ErrorKind::Unavailable),
        ] {
            assert_eq!(
                Error::from_io("x", io::Error::from_raw_os_error(errno)).kind(),
                kind,
                "errno {errno}"
            );
        }
    }
}
