//! Policies for bad samples, in the words of the command line and of Python.

use std::str::FromStr;

use forebay_core::{Error, ErrorKind};

use super::totals::BadPolicy;

/// Bad samples that `replace` puts up with, where no number is given: a few are bad luck, more are a damaged data set.
pub const BAD_DEFAULT_MAX: u64 = 100;

impl FromStr for BadPolicy {
    type Err = Error;

    /// `stop`, `replace` or `replace:MAX`.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            None if text == "stop" => Some(Self::Stop),
            None if text == "replace" => Some(Self::Replace { max: BAD_DEFAULT_MAX }),
            Some(("replace", max)) => max.parse().ok().map(|max| Self::Replace { max }),
            _ => None,
        }
        .ok_or_else(|| {
            let message = format!("'{}' is no way to treat bad samples", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, "stream", message)
                .with_field("bad")
                .with_hint("write stop, replace, or replace:MAX with the most that may be bad")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_are_written() {
        for (text, policy) in [
            ("stop", BadPolicy::Stop),
            ("replace", BadPolicy::Replace { max: 100 }),
            ("replace:7", BadPolicy::Replace { max: 7 }),
        ] {
            assert_eq!(text.parse::<BadPolicy>().unwrap(), policy);
        }
        for text in ["", "skip", "stop:1", "replace:", "replace:-1", "replace:1:2"] {
            assert!(text.parse::<BadPolicy>().unwrap_err().hint().is_some(), "{text}");
        }
    }
}
