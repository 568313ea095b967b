//! Names of places that memory can be at: `cpu`, `cuda`, `cuda:1`.

use std::fmt;
use std::str::FromStr;

use forebay_core::{Error, ErrorKind, Result};

/// Where loaded bytes are to lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Place {
    /// Memory of this process.
    #[default]
    Host,
    /// Memory of the GPU with this number among those visible to the process.
    Cuda(u32),
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let ordinal = match text {
            "cpu" | "host" => return Ok(Self::Host),
            "cuda" => Some(0),
            _ => text
                .strip_prefix("cuda:")
                .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok()),
        };
        ordinal.map(Self::Cuda).ok_or_else(|| {
            let message = format!("unknown device '{}'", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, "device", message)
                .with_field("device")
                .with_hint("one of: cpu, cuda, cuda:0, cuda:1, ...")
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_torch_reads_them() {
        for (text, place) in [
            ("cpu", Place::Host),
            ("host", Place::Host),
            ("cuda", Place::Cuda(0)),
            ("cuda:3", Place::Cuda(3)),
        ] {
            assert_eq!(text.parse::<Place>().unwrap(), place);
        }
        for text in [
            "",
            "gpu",
            "cuda:",
            "cuda:+1",
            "cuda:-1",
            "cuda:99999999999",
            "CUDA:0",
            "cuda:0 ",
        ] {
            assert_eq!(
                text.parse::<Place>().unwrap_err().kind(),
                ErrorKind::InvalidInput,
                "{text}"
            );
        }
        assert_eq!(Place::Cuda(2).to_string(), "cuda:2");
    }
}
