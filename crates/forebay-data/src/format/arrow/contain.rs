//! The one place where panics of the Parquet and Arrow libraries end.
//!
//! What they do with hostile bytes was looked through, and what they trust is checked before. But they are large, they
//! assert in many places (negative offsets, levels that do not fit each other), and a shard from elsewhere must not take a training run down with
//! it. All of it is safe to leave in the middle: they work on memory of their own, which the unwinding frees.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_core::{Error, ErrorKind, Result};
use parquet::errors::ParquetError;

/// An error of the library, or one of ours, on the way out of a contained call.
#[derive(Debug)]
pub(in crate::format) enum Failure {
    Library(ParquetError),
    Ours(Error),
}

impl From<ParquetError> for Failure {
    fn from(error: ParquetError) -> Self {
        Self::Library(error)
    }
}

impl From<arrow_schema::ArrowError> for Failure {
    fn from(error: arrow_schema::ArrowError) -> Self {
        // The reader hands library errors through Arrow's.
        match error {
            arrow_schema::ArrowError::ExternalError(inner) => match inner.downcast::<ParquetError>() {
                Ok(error) => Self::Library(*error),
                Err(other) => Self::Library(ParquetError::External(other)),
            },
            arrow_schema::ArrowError::NotYetImplemented(what) => Self::Library(ParquetError::NYI(what)),
            other => Self::Library(ParquetError::ArrowError(other.to_string())),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// Call a library to read `what`, in the course of `op`; its errors and its panics are `Corrupt`.
pub(in crate::format) fn contained<T>(
    op: &'static str,
    what: &str,
    call: impl FnOnce() -> Result<T, Failure>,
) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(Failure::Ours(error))) => Err(error),
        Ok(Err(Failure::Library(error))) => {
            let kind = match &error {
                ParquetError::NYI(_) => ErrorKind::Unsupported,
                _ => ErrorKind::Corrupt,
            };
            let message = format!("{what} cannot be read: {}", sentence(&error));
            Err(Error::new(kind, op, message))
        }
        Err(_) => {
            let message = format!("{what} does not follow the format");
            Err(Error::new(ErrorKind::Corrupt, op, message))
        }
    }
}

/// What the library puts in front of its errors, one before the other.
const PREFIXES: &[&str] = &[
    "Parquet argument error: ",
    "Parquet error: ",
    "Arrow: ",
    "EOF: ",
    "External: ",
    "NYI: ",
    "Parser error: ",
    "Ipc error: ",
    "Schema error: ",
    "Io error: ",
    "Invalid argument error: ",
    "Not yet implemented: ",
];

/// The library's words without its prefixes.
fn sentence(error: &ParquetError) -> String {
    let text = error.to_string();
    let mut rest = text.as_str();
    while let Some(shorter) = PREFIXES.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        rest = shorter;
    }
    // Traces of flatbuffers have a line for each table that they came through.
    let line = rest.lines().next().unwrap_or_default();
    line.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use std::io;

    use arrow_schema::ArrowError;

    use super::*;

    #[test]
    fn panics_and_errors_come_out_as_corrupt() {
        let error = contained::<()>("read", "the footer", || panic!("on purpose")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let error = contained::<()>("read", "column 'x'", || {
            Err(ParquetError::General("Page CRC checksum mismatch".into()).into())
        });
        assert_eq!(
            error.unwrap_err().message(),
            "column 'x' cannot be read: Page CRC checksum mismatch"
        );
        for error in [
            ArrowError::SchemaError("a type that is none".into()),
            ArrowError::IoError("a type that is none".into(), io::Error::other("")),
        ] {
            let error = contained::<()>("read", "x", || Err(error.into())).unwrap_err();
            assert_eq!(error.message(), "x cannot be read: a type that is none");
        }
        let ours = Error::new(ErrorKind::LimitExceeded, "read", "too much");
        assert_eq!(
            contained::<()>("read", "x", || Err(ours.into()))
                .unwrap_err()
                .kind(),
            ErrorKind::LimitExceeded
        );
    }
}
