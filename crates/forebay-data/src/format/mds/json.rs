//! JSON as Python's `json.dumps(..., sort_keys=True)` writes it: a space behind commas and colons, nothing but ASCII.
//!
//! Keys are sorted by whoever makes the value: structs here have their fields in the order of their names.

use std::io::{self, Write};

use forebay_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

/// The text of a value.
pub(super) fn to_vec(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, Python);
    match value.serialize(&mut serializer) {
        Ok(()) => Ok(text),
        Err(error) => Err(Error::new(ErrorKind::Internal, "write mds", "").with_source(error)),
    }
}

struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        for letter in fragment.chars() {
            if matches!(letter, ' '..='~') {
                write!(writer, "{letter}")?;
                continue;
            }
            for unit in letter.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        match escape {
            CharEscape::Quote => writer.write_all(b"\\\""),
            CharEscape::ReverseSolidus => writer.write_all(b"\\\\"),
            CharEscape::Solidus => writer.write_all(b"/"),
            CharEscape::Backspace => writer.write_all(b"\\b"),
            CharEscape::FormFeed => writer.write_all(b"\\f"),
            CharEscape::LineFeed => writer.write_all(b"\\n"),
            CharEscape::CarriageReturn => writer.write_all(b"\\r"),
            CharEscape::Tab => writer.write_all(b"\\t"),
            CharEscape::AsciiControl(byte) => write!(writer, "\\u{byte:04x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_python_writes_it() {
        let value = serde_json::json!({
            "a": [1, null, "x"],
            "b": {},
            "c": [],
            "d": "\u{e9}\u{1f600}\"\\/\n\r\t\u{8}\u{c}\u{1}\u{7f}",
        });
        let text = String::from_utf8(to_vec(&value).unwrap()).unwrap();
        let expected = r#"{"a": [1, null, "x"], "b": {}, "c": [], "d": "\u00e9\ud83d\ude00\"\\/\n\r\t\b\f\u0001\u007f"}"#;
        assert_eq!(text, expected);
    }
}
