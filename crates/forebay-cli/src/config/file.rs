//! The configuration file: TOML, every name known, every complaint with file and line.

use std::path::{Path, PathBuf};

use forebay_core::{Error, ErrorKind, Result, env};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{self, SETTINGS, Setting, Value};

/// A configuration file larger than this is a mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A value of the file, with the line it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileValue {
    /// What it sets.
    pub(crate) key: &'static str,
    /// To what.
    pub(crate) value: Value,
    /// Where.
    pub(crate) line: usize,
}

/// Where the file is when nobody says: `forebay/config.toml` in the user's configuration folder.
pub(crate) fn default_path() -> Option<PathBuf> {
    let folder = env::XDG_CONFIG_HOME
        .get_os()
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::HOME.get_os()?).join(".config")))?;
    Some(folder.join("forebay").join("config.toml"))
}

/// Read the file; `None` when it is not there and nobody asked for it by name.
pub(crate) fn read(path: &Path, asked_for: bool) -> Result<Option<Vec<FileValue>>> {
    let fail = |error: std::io::Error| Error::from_io("read configuration", error).at(path.display());
    let meta = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !asked_for => return Ok(None),
        result => result.map_err(fail)?,
    };
    if meta.len() > FILE_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            "read configuration",
            "larger than 1 MiB",
        )
        .at(path.display()));
    }
    let text = std::fs::read_to_string(path).map_err(fail)?;
    parse(&text, path).map(Some)
}

fn parse(text: &str, path: &Path) -> Result<Vec<FileValue>> {
    let line_of = |offset: usize| 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    let at = |offset: usize| format!("{}:{}", path.display(), line_of(offset));
    let root = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        Error::new(
            ErrorKind::InvalidInput,
            "read configuration",
            error.message().to_owned(),
        )
        .at(at(offset))
        .with_hint("the file is TOML, such as: [limits] / part_bytes = \"8MiB\"")
    })?;
    let mut values = Vec::new();
    for (name, value) in root.get_ref() {
        let section = name.get_ref().as_ref();
        match value.get_ref() {
            DeValue::Table(table) if is_section(section) => {
                for (name, value) in table {
                    let key = format!("{section}.{}", name.get_ref());
                    values.push(take(&key, name.span().start, value, &at, &line_of)?);
                }
            }
            _ => values.push(take(section, name.span().start, value, &at, &line_of)?),
        }
    }
    Ok(values)
}

fn is_section(name: &str) -> bool {
    SETTINGS.iter().any(|setting| {
        setting
            .key
            .split_once('.')
            .is_some_and(|(section, _)| section == name)
    })
}

fn take(
    key: &str,
    offset: usize,
    value: &Spanned<DeValue<'_>>,
    at: &impl Fn(usize) -> String,
    line_of: &impl Fn(usize) -> usize,
) -> Result<FileValue> {
    let Some(setting) = settings::find(key) else {
        return Err(unknown(key).at(at(offset)));
    };
    let text = text_of(setting, value.get_ref()).map_err(|error| error.at(at(value.span().start)))?;
    let value = setting
        .parse(&text)
        .map_err(|error| error.at(at(value.span().start)))?;
    Ok(FileValue {
        key: setting.key,
        value,
        line: line_of(offset),
    })
}

/// Numbers, booleans and strings as text; anything else cannot be a setting.
fn text_of(setting: &Setting, value: &DeValue<'_>) -> Result<String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(on) => Ok(on.to_string()),
        other => Err(setting.refused(other.type_str(), "a string, a number or a boolean")),
    }
}

fn unknown(key: &str) -> Error {
    let message = format!("unknown setting '{}'", key.escape_debug());
    let error = Error::new(ErrorKind::InvalidInput, "read configuration", message);
    let last = key.rsplit('.').next().unwrap_or(key);
    let near = SETTINGS.iter().map(|setting| setting.key).find(|known| {
        let known_last = known.rsplit('.').next().unwrap_or(known);
        known_last == last || shared(known, key) * 3 >= known.len().max(key.len()) * 2
    });
    match near {
        Some(near) => error.with_hint(format!("did you mean {near}")),
        None => error.with_hint("forebay config lists all settings"),
    }
}

/// Bytes two names share at their beginning and end: enough to find a mistyped letter.
fn shared(a: &str, b: &str) -> usize {
    let head = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let tail = a
        .bytes()
        .rev()
        .zip(b.bytes().rev())
        .take_while(|(a, b)| a == b)
        .count();
    (head + tail).min(a.len().min(b.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<Vec<FileValue>> {
        parse(text, Path::new("c.toml"))
    }

    #[test]
    fn values_come_with_their_line() {
        let values =
            parse_text("state_dir = \"/s\"\n\n[limits]\npart_bytes = \"16MiB\"\ndisk_depth = 4\n").unwrap();
        let mut found: Vec<_> = values.iter().map(|value| (value.key, value.line)).collect();
        found.sort_unstable();
        assert_eq!(
            found,
            [
                ("limits.disk_depth", 5),
                ("limits.part_bytes", 4),
                ("state_dir", 1)
            ]
        );
    }

    #[test]
    fn complaints_name_file_and_line() {
        for (text, place, words) in [
            ("[limits]\npart_byte = 1\n", "c.toml:2", "limits.part_bytes"),
            ("\n\npart_bytes = 1\n", "c.toml:3", "limits.part_bytes"),
            ("[limit]\nx = 1\n", "c.toml:1", "forebay config"),
            ("[limits]\n\ndisk_depth = \"deep\"\n", "c.toml:3", "whole number"),
            ("[limits]\ndisk_depth = []\n", "c.toml:2", "number"),
            ("a = \n", "c.toml:1", "TOML"),
            ("[limits\n", "c.toml:1", "TOML"),
            ("limits = 3\n", "c.toml:1", "forebay config"),
        ] {
            let error = parse_text(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error.location(), Some(place), "{text}: {error}");
            assert!(
                error.hint().unwrap_or("").contains(words),
                "{text}: {:?}",
                error.hint()
            );
        }
    }
}
