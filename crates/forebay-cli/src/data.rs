//! What the commands about data sets share: where one is, and which format the options name.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_data::Dtype;
use forebay_data::dataset::Place;
use forebay_data::manifest::FormatSpec;
use forebay_store::{Context, Store, open_object};

use crate::args::FormatArgs;
use crate::target::Target;

/// Formats whose columns can be pickles.
const PICKLED: [&str; 2] = ["mds", "litdata"];

impl FormatArgs {
    /// The format that was asked for, if one was.
    pub(crate) fn spec(&self) -> Result<Option<FormatSpec>> {
        let is_tokens = self.tokens.is_some() || self.dtype.is_some();
        let by_option = [
            (is_tokens, "tokens"),
            (self.records.is_some(), "tfrecord"),
            (self.layout.is_some(), "files"),
        ];
        let implied = by_option
            .iter()
            .find(|(is_given, _)| *is_given)
            .map(|(_, name)| *name);
        let Some(name) = self.format.as_deref().or(implied) else {
            return if self.allow_pickle {
                Err(no_pickles("which format has the pickles is not said"))
            } else if let Some(param) = self.param.first() {
                let message = format!(
                    "--param {} is of a format that is not named",
                    param.escape_debug()
                );
                Err(Error::new(ErrorKind::InvalidInput, "arguments", message)
                    .with_hint("name it by --format"))
            } else {
                Ok(None)
            };
        };
        // Tokens of LitData are cut into samples as raw ones are.
        let is_cut = name == "litdata" && self.dtype.is_none();
        let is_of = |of: &str| of == name || (of == "tokens" && is_cut);
        if by_option.iter().any(|(is_given, of)| *is_given && !is_of(of)) {
            let message = format!("--tokens, --dtype, --records or --layout say nothing about format {name}");
            return Err(Error::new(ErrorKind::InvalidInput, "arguments", message));
        }
        if self.allow_pickle && !PICKLED.contains(&name) {
            return Err(no_pickles(&format!(
                "--allow-pickle says nothing about format {name}"
            )));
        }
        let mut spec = FormatSpec::new(name);
        if let Some(tokens) = self.tokens {
            spec = spec.with("tokens", tokens);
        }
        if let Some(dtype) = &self.dtype {
            spec = spec.with("dtype", dtype_of(dtype)?.name());
        }
        if let Some(records) = &self.records {
            spec = spec.with("records", records.as_str());
        }
        if let Some(layout) = &self.layout {
            spec = spec.with("layout", layout.as_str());
        }
        if self.allow_pickle {
            spec = spec.with("pickle", true);
        }
        for param in &self.param {
            let (name, value) = param_of(param)?;
            if spec.params.contains_key(name) {
                let message = format!("parameter '{}' is given twice", name.escape_debug());
                return Err(Error::new(ErrorKind::InvalidInput, "arguments", message));
            }
            spec = spec.with(name, value);
        }
        Ok(Some(spec))
    }
}

/// A parameter of a format: what is no JSON is text.
fn param_of(text: &str) -> Result<(&str, serde_json::Value)> {
    let Some((name, value)) = text.split_once('=') else {
        let message = format!("'{}' is no parameter", text.escape_debug());
        return Err(Error::new(ErrorKind::InvalidInput, "arguments", message)
            .with_hint("write --param NAME=VALUE, such as --param 'lists=[\"caption\"]'"));
    };
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((name, value))
}

fn no_pickles(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "arguments", message)
        .with_hint("--allow-pickle goes with --format mds or --format litdata")
}

/// A type by its name in numpy, or as Rust writes it.
pub(crate) fn dtype_of(name: &str) -> Result<Dtype> {
    let long = [("u", "uint"), ("i", "int"), ("f", "float")];
    let short = long.iter().find_map(|(short, long)| {
        let bits = name.strip_prefix(short)?;
        Dtype::parse(&format!("{long}{bits}"))
    });
    Dtype::parse(name).or(short).ok_or_else(|| {
        let message = format!("there is no type '{}'", name.escape_debug());
        Error::new(ErrorKind::InvalidInput, "arguments", message)
            .with_hint("types are called uint16, int32, float32, ...")
    })
}

/// Where a data set is.
pub(crate) async fn find(url: &str, context: &Context) -> Result<Place> {
    let base =
        std::env::current_dir().map_err(|error| Error::from_io("start", error).at("current directory"))?;
    Place::find(url, &base, context).await
}

/// A manifest that is elsewhere.
pub(crate) async fn manifest_at(
    url: Option<&OsStr>,
    context: &Context,
) -> Result<Option<(Arc<dyn Store>, Key)>> {
    match url {
        Some(url) => Ok(Some(open_object(&Target::parse(url)?.location, context).await?)),
        None => Ok(None),
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `1 shard`, `2 shards`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_json_or_text() {
        assert_eq!(
            param_of("lists=[\"a\"]").unwrap(),
            ("lists", serde_json::json!(["a"]))
        );
        assert_eq!(param_of("tokens=2048").unwrap(), ("tokens", 2048.into()));
        assert_eq!(param_of("records=raw").unwrap(), ("records", "raw".into()));
        assert!(param_of("lists").is_err());
    }

    #[test]
    fn types_have_two_names() {
        assert_eq!(dtype_of("u16").unwrap(), Dtype::Uint16);
        assert_eq!(dtype_of("uint16").unwrap(), Dtype::Uint16);
        assert_eq!(dtype_of("f32").unwrap(), Dtype::Float32);
        assert!(dtype_of("u15").is_err() && dtype_of("").is_err());
    }
}
