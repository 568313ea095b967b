//! Policies for bad samples, in the words of the command line and of Python.

use std::str::FromStr;

use forebay_core::{Error, ErrorKind};

use super::totals::BadPolicy;

/// Bad samples that are put up with, where no number is given: a few are bad luck, more are a damaged data set.
pub const BAD_DEFAULT_MAX: u64 = 100;

impl FromStr for BadPolicy {
    type Err = Error;

    /// `stop`, `skip`, `skip:MAX`, `quarantine:FOLDER` or `quarantine:MAX:FOLDER`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let quarantine = |max, folder: &str| {
            let folder = (!folder.is_empty()).then(|| folder.into());
            folder.map(|folder| Self::Quarantine { max, folder })
        };
        match text.split_once(':') {
            None if text == "stop" => Some(Self::Stop),
            None if text == "skip" => Some(Self::Skip { max: BAD_DEFAULT_MAX }),
            Some(("skip", max)) => max.parse().ok().map(|max| Self::Skip { max }),
            Some(("quarantine", rest)) => match rest.split_once(':').map(|(max, folder)| (max.parse(), folder)) {
                Some((Ok(max), folder)) => quarantine(max, folder),
                // A number alone is the most that may be bad, and no folder.
                None if rest.bytes().all(|byte| byte.is_ascii_digit()) => None,
                _ => quarantine(BAD_DEFAULT_MAX, rest),
            },
            _ => None,
        }
        .ok_or_else(|| {
            let message = format!("'{}' is no way to treat bad samples", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, "stream", message)
                .with_field("bad")
                .with_hint("write stop, skip:MAX with the most that may be bad, or quarantine:MAX:FOLDER to keep them")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        let quarantine = |max, folder: &str| BadPolicy::Quarantine {
            max,
            folder: folder.into(),
        };
        for (text, policy) in [
            ("stop", BadPolicy::Stop),
            ("skip", BadPolicy::Skip { max: 100 }),
            ("skip:7", BadPolicy::Skip { max: 7 }),
            ("quarantine:a/b", quarantine(100, "a/b")),
            ("quarantine:7:a:b", quarantine(7, "a:b")),
            ("quarantine:C:b", quarantine(100, "C:b")),
        ] {
            assert_eq!(text.parse::<BadPolicy>().unwrap(), policy);
        }
        for text in [
            "",
            "keep",
            "stop:1",
            "skip:",
            "skip:-1",
            "skip:1:2",
            "quarantine",
            "quarantine:",
            "quarantine:3:",
            "quarantine:3",
        ] {
            assert!(text.parse::<BadPolicy>().unwrap_err().hint().is_some(), "{text}");
        }
    }
}
