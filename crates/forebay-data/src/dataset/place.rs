//! From what a user writes to a store and names in it: a directory or prefix, one file, or a pattern such as `{000000..000123}.tar`.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result};
use forebay_io::FileKind;
use forebay_store::{Context, Store, open, open_object};

/// Most names of one pattern: more is a slip of the pen.
const NAMES_MAX: usize = 4 << 20;

/// Where a data set is.
#[derive(Debug, Clone)]
pub struct Place {
    /// Opened at the data set's directory or prefix.
    pub store: Arc<dyn Store>,
    /// The shards, where they were named.
    pub shards: Option<Vec<Key>>,
}

impl Place {
    /// Find out what a URL or path names; relative paths are taken from `base`. Braces are always a pattern.
    pub async fn find(text: &str, base: &Path, context: &Context) -> Result<Self> {
        if let Some(brace) = text.find('{') {
            let (parent, pattern) = match text[..brace].rfind('/') {
                Some(slash) => (&text[..=slash], &text[slash + 1..]),
                None => (".", text),
            };
            let keys = expand(pattern)?
                .iter()
                .map(|name| Key::parse(name))
                .collect::<Result<_>>()?;
            return Ok(Self {
                store: open(&Location::parse(parent, base)?, context).await?,
                shards: Some(keys),
            });
        }
        let location = Location::parse(text, base)?;
        if is_object(&location, text, context).await? {
            let (store, key) = open_object(&location, context).await?;
            let shards = Some(vec![key]);
            return Ok(Self { store, shards });
        }
        Ok(Self {
            store: open(&location, context).await?,
            shards: None,
        })
    }
}

async fn is_object(location: &Location, text: &str, context: &Context) -> Result<bool> {
    if let Some(path) = location.to_path() {
        return Ok(context.disk().stat(&path).await?.kind != FileKind::Dir);
    }
    if text.ends_with('/') || location.split_last().is_none() {
        return Ok(false);
    }
    let (store, key) = open_object(location, context).await?;
    match store.head(&key).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The names a pattern stands for, as a shell expands it: `{a,b}` and `{000..123}`, any number of them side by side.
pub fn expand(pattern: &str) -> Result<Vec<String>> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some(open) = rest.find('{') {
        let Some(close) = rest[open..].find('}').map(|at| open + at) else {
            return Err(bad(pattern, "a brace is not closed"));
        };
        let inside = &rest[open + 1..close];
        if inside.contains('{') {
            return Err(bad(pattern, "braces within braces"));
        }
        let choices = choices(pattern, inside)?;
        if names.len().saturating_mul(choices.len()) > NAMES_MAX {
            return Err(bad(pattern, "it stands for too many names"));
        }
        let head = &rest[..open];
        names = names
            .iter()
            .flat_map(|name| choices.iter().map(move |choice| format!("{name}{head}{choice}")))
            .collect();
        rest = &rest[close + 1..];
    }
    if rest.contains('}') {
        return Err(bad(pattern, "a brace is not opened"));
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

fn choices(pattern: &str, inside: &str) -> Result<Vec<String>> {
    let Some((first, last)) = inside.split_once("..") else {
        if inside.contains(',') {
            return Ok(inside.split(',').map(str::to_owned).collect());
        }
        return Err(bad(pattern, "braces hold {first..last} or {a,b}"));
    };
    let number = |text: &str| -> Result<u64> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number.ok_or_else(|| bad(pattern, "a range goes from a number to a number"))
    };
    let (from, to) = (number(first)?, number(last)?);
    if from > to || to - from >= NAMES_MAX as u64 {
        return Err(bad(pattern, "a range that runs backwards or is too long"));
    }
    // As in a shell: a leading zero pads all of them.
    let is_padded = [first, last]
        .iter()
        .any(|text| text.len() > 1 && text.starts_with('0'));
    let width = if is_padded { first.len().max(last.len()) } else { 0 };
    Ok((from..=to).map(|number| format!("{number:0width$}")).collect())
}

fn bad(pattern: &str, why: &str) -> Error {
    let message = format!("{why}: {}", pattern.escape_debug());
    Error::new(ErrorKind::InvalidInput, "name shards", message)
        .with_hint("patterns look like 'train-{000000..000123}.tar'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_expand_as_in_a_shell() {
        let expanded = |pattern: &str| expand(pattern).unwrap();
        assert_eq!(
            expanded("a{08..11}.tar"),
            ["a08.tar", "a09.tar", "a10.tar", "a11.tar"]
        );
        assert_eq!(expanded("{9..11}"), ["9", "10", "11"]);
        assert_eq!(expanded("{0..1}/{x,y}"), ["0/x", "0/y", "1/x", "1/y"]);
        assert_eq!(expanded("{000..002}-b"), ["000-b", "001-b", "002-b"]);
        assert_eq!(expanded("plain"), ["plain"]);
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        for pattern in [
            "{1..0}",
            "{a..b}",
            "{",
            "}",
            "{0..1",
            "{{0..1}}",
            "{x}",
            "{}",
            "{0..99999999}",
            "{0..9999}{0..9999}",
            "{0..18446744073709551615}",
            "{+1..2}",
        ] {
            let error = expand(pattern).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{pattern}");
            assert!(error.hint().is_some());
        }
    }
}
