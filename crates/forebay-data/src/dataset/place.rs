//! From what a user writes to a store and names in it: a directory or prefix, one file, or a pattern such as `{000000..000123}.tar`.
//!
//! Several are several data sets, but for a list of single shards, as a shell or `glob` makes it of `dir/*.tar`: those are one data set.

use std::path::Path;
use std::sync::Arc;

use super::discover::named_family_of;
use forebay_core::{Error, ErrorKind, Key, Location, Result};
use forebay_io::FileKind;
use forebay_store::{Context, Store, open, open_object};
use futures::stream::{self, StreamExt, TryStreamExt};

/// Most names of one pattern: more is a slip of the pen.
const NAMES_MAX: usize = 4 << 20;

/// Most bytes that the names of one pattern may take, each reckoned as long as the longest: some 128 for each of [`NAMES_MAX`]. All of them are held at once, as
/// names and as keys, and a pattern of a few thousand characters could stand for more than any memory has.
const NAMES_BYTES_MAX: usize = 512 << 20;

/// Characters of a pattern that an error shows: more than any name has that somebody wrote.
const PATTERN_CHARS_SHOWN: usize = 1024;

/// Digits that numbers are padded to: more than any have.
const DIGITS_MAX: usize = 64;

/// Looks side by side.
const LOOKS_AT_ONCE_MAX: usize = 32;

/// What to write instead of names with `*`.
const NO_GLOB: &str =
    "'*' and '?' are not expanded: name the directory, or a pattern such as 'train-{000000..000123}.tar'";

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
        let is_object = is_object(&location, text, context).await;
        if is_object.map_err(|error| without_globs(error, text))? {
            let (store, key) = open_object(&location, context).await?;
            let shards = Some(vec![key]);
            return Ok(Self { store, shards });
        }
        Ok(Self {
            store: open(&location, context).await?,
            shards: None,
        })
    }

    /// The data sets that several URLs or paths name. Each is one, unless all of them are single shards of one directory and `are_weighted` does not say that they
    /// are to be mixed: then they are one data set, its shards in the order given.
    pub async fn find_all(
        texts: &[String],
        are_weighted: bool,
        base: &Path,
        context: &Context,
    ) -> Result<Vec<Self>> {
        // Owned: a closure over references would not be general enough for a future that moves between threads.
        let finds = texts.iter().cloned().map(|text| {
            let (base, context) = (base.to_path_buf(), context.clone());
            async move {
                let place = Self::find(&text, &base, &context).await?;
                let is_single = !text.contains('{') && place.shards.is_some();
                Ok::<_, Error>((place, is_single))
            }
        });
        let found: Vec<(Self, bool)> = stream::iter(finds)
            .buffered(LOOKS_AT_ONCE_MAX)
            .try_collect()
            .await?;
        let singles = found.iter().filter(|(_, is_single)| *is_single).count();
        let is_list = !are_weighted && singles > 1;
        let all = found.into_iter().map(|(place, _)| place);
        if is_list {
            return Ok(vec![one_of(all.collect(), singles)?]);
        }
        Ok(all.collect())
    }
}

/// The manifests of so many data sets, where any is named: one for each, in their order; `None` is for a data set that has its own beside its shards.
pub fn manifest_for_each<T: Clone>(named: &[Option<T>], datasets: usize) -> Result<Vec<Option<T>>> {
    if named.is_empty() {
        return Ok(vec![None; datasets]);
    }
    if named.len() == datasets {
        return Ok(named.to_vec());
    }
    let plural = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    };
    let message = format!(
        "{} named for {}",
        plural(named.len(), "manifest"),
        plural(datasets, "data set")
    );
    Err(Error::new(ErrorKind::InvalidInput, "open data set", message)
        .with_field("manifest")
        .with_hint(
            "name one for each data set, in their order; single shards of one directory are one data set",
        ))
}

/// One data set of single shards.
fn one_of(places: Vec<Place>, singles: usize) -> Result<Place> {
    let refuse = |message: String, hint: &str| {
        Err(Error::new(ErrorKind::InvalidInput, "open data set", message).with_hint(hint.to_owned()))
    };
    if singles < places.len() {
        let message = format!("{singles} single shards stand beside other data sets");
        return refuse(
            message,
            "name the shards of one data set by its directory or by a pattern such as 'train-{000000..000123}.tar', or give weights to mix them",
        );
    }
    let mut places = places.into_iter();
    let Some(Place { store, shards }) = places.next() else {
        return refuse("nothing is named".to_owned(), "name a data set");
    };
    let mut keys = shards.unwrap_or_default();
    for place in places {
        if place.store.location() != store.location() {
            let message = format!(
                "{singles} single shards lie in several directories, {} and {}, and are no data set",
                store.location(),
                place.store.location()
            );
            return refuse(
                message,
                "name the directory above them, or a pattern such as 'train-{000000..000123}.tar'; with weights they are mixed",
            );
        }
        keys.extend(place.shards.unwrap_or_default());
    }
    let mut sorted: Vec<&Key> = keys.iter().collect();
    sorted.sort_unstable();
    let twice = sorted
        .windows(2)
        .find_map(|pair| (pair.first() == pair.last()).then(|| pair.first()));
    if let Some(twice) = twice.flatten() {
        let message = format!("shard {twice:?} is named twice");
        return refuse(message, "name every shard once");
    }
    Ok(Place {
        store,
        shards: Some(keys),
    })
}

/// Say that patterns of a shell are none here, where one is not found.
fn without_globs(error: Error, text: &str) -> Error {
    if error.kind() == ErrorKind::NotFound && is_glob(text) {
        return error.with_hint(NO_GLOB);
    }
    error
}

fn is_glob(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// The same for a place at which nothing was found.
pub(super) fn nothing_at(error: Error, location: &Location) -> Error {
    without_globs(error, &location.to_string()).at(location)
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
        // A name that ends as those of shards do is no directory.
        Err(error) if super::is_absent(&error) => match named_family_of(&key) {
            Some(_) if error.kind() != ErrorKind::NotFound => Err(super::or_missing(error)),
            _ => Ok(false),
        },
        Err(error) => Err(error),
    }
}

/// The names a pattern stands for, as a shell expands it: `{a,b}` and `{000..123}`, any number of them side by side.
pub fn expand(pattern: &str) -> Result<Vec<String>> {
    let mut names = vec![String::new()];
    let mut longest = 0;
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
        longest += head.len() + choices.iter().map(String::len).max().unwrap_or(0);
        check_bytes(pattern, names.len() * choices.len(), longest)?;
        names = names
            .iter()
            .flat_map(|name| choices.iter().map(move |choice| format!("{name}{head}{choice}")))
            .collect();
        rest = &rest[close + 1..];
    }
    if rest.contains('}') {
        return Err(bad(pattern, "a brace is not opened"));
    }
    check_bytes(pattern, names.len(), longest + rest.len())?;
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

/// Refuse names that take too much memory, before they are made.
fn check_bytes(pattern: &str, names: usize, longest: usize) -> Result<()> {
    if names.saturating_mul(longest) > NAMES_BYTES_MAX {
        return Err(bad(pattern, "the names it stands for are too long for so many"));
    }
    Ok(())
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
    if width > DIGITS_MAX {
        return Err(bad(pattern, "numbers of so many digits"));
    }
    Ok((from..=to).map(|number| format!("{number:0width$}")).collect())
}

fn bad(pattern: &str, why: &str) -> Error {
    let shown: String = pattern.chars().take(PATTERN_CHARS_SHOWN).collect();
    let more = if shown.len() < pattern.len() { "..." } else { "" };
    let message = format!("{why}: {}{more}", shown.escape_debug());
    Error::new(ErrorKind::InvalidInput, "name shards", message)
        .with_hint("patterns look like 'train-{000000..000123}.tar'")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directories and the shards of what is named under a directory that holds `names`.
    async fn found(
        names: &[&str],
        texts: &[&str],
        are_weighted: bool,
    ) -> Result<Vec<(String, Option<Vec<Key>>)>> {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"x").unwrap();
        }
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let context = Context::open(forebay_io::DiskConfig::default())?.with_state_dir(None);
        let places = Place::find_all(&texts, are_weighted, root.path(), &context).await?;
        let directory = |place: &Place| {
            place
                .store
                .location()
                .to_string()
                .rsplit('/')
                .find(|part| !part.is_empty())
                .unwrap()
                .to_owned()
        };
        Ok(places
            .into_iter()
            .map(|place| (directory(&place), place.shards))
            .collect())
    }

    #[tokio::test]
    async fn a_list_of_shards_is_one_data_set() {
        let names = ["a/0.tar", "a/1.tar", "a/2.tar", "b/0.tar"];
        let keys = |names: &[&str]| {
            Some(
                names
                    .iter()
                    .map(|name| Key::parse(name).unwrap())
                    .collect::<Vec<_>>(),
            )
        };
        let one = found(&names, &["a/1.tar", "a/0.tar", "a/2.tar"], false)
            .await
            .unwrap();
        assert_eq!(one, [("a".to_owned(), keys(&["1.tar", "0.tar", "2.tar"]))]);
        // Directories, patterns, and what has weights are data sets of their own.
        for (texts, are_weighted) in [
            (["a", "b"], false),
            (["a/{0..1}.tar", "b/0.tar"], false),
            (["a", "b/0.tar"], false),
            (["a/0.tar", "a/1.tar"], true),
        ] {
            assert_eq!(
                found(&names, &texts, are_weighted).await.unwrap().len(),
                2,
                "{texts:?}"
            );
        }
        for (texts, told) in [
            (&["a/0.tar", "b/0.tar"][..], "several directories"),
            (&["a/0.tar", "a/1.tar", "b"], "beside other data sets"),
            (&["a/0.tar", "a/1.tar", "a/0.tar"], "named twice"),
        ] {
            let error = found(&names, texts, false).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(
                error.message().contains(told) && error.hint().is_some(),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn patterns_of_a_shell_are_told_from_names() {
        let error = found(&["a/0.tar"], &["a/*.tar"], false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.hint().unwrap().contains("{000000..000123}"), "{error}");
        let error = found(&["a/0.tar"], &["a/1.tar"], false).await.unwrap_err();
        assert!(!error.hint().is_some_and(|hint| hint.contains('*')));
    }

    #[test]
    fn every_data_set_has_a_manifest_or_none_has() {
        assert_eq!(manifest_for_each::<&str>(&[], 2).unwrap(), [None, None]);
        assert_eq!(
            manifest_for_each(&[Some("a"), None], 2).unwrap(),
            [Some("a"), None]
        );
        for (named, datasets, told) in [
            (&[Some("a")][..], 2, "1 manifest named for 2 data sets"),
            (&[Some("a"), Some("b")], 1, "2 manifests named for 1 data set"),
        ] {
            let error = manifest_for_each(named, datasets).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().contains(told), "{error}");
        }
    }

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
    fn patterns_whose_names_take_too_much_memory_are_refused() {
        let long = |length: usize| "x".repeat(length);
        for pattern in [
            format!("{{0..99999}}{}", long(16_000)),
            format!("{}{{0..99999}}", long(16_000)),
            format!("{{0..2000}}{{{},b}}{{0..1000}}", long(16_000)),
            format!("{{0..2000}}{}{{0..1000}}", long(16_000)),
        ] {
            let Err(error) = expand(&pattern) else {
                panic!("{} characters are expanded", pattern.len());
            };
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().contains("too long"), "{error}");
            assert!(error.message().len() < 2000, "{}", error.message().len());
        }
        // As many, or as long, where the other is not.
        assert_eq!(expand("{0..99999}.tar").unwrap().len(), 100_000);
        assert_eq!(expand(&format!("{{0..9}}{}", long(16_000))).unwrap().len(), 10);
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
            &format!("{{{}..9}}", "0".repeat(70_000)),
            "{0..18446744073709551615}",
            "{+1..2}",
        ] {
            let error = expand(pattern).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{pattern}");
            assert!(error.hint().is_some());
        }
    }
}
