//! What people are told to do about a manifest: commands with the places they are about, so that they can be run as they stand.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result};
use forebay_store::Store;

use super::{OpenOptions, aside, has_former, manifest_place, registry};
use crate::manifest::{FormatSpec, MANIFEST_NAME};

/// The commands that advice about the manifest of a data set names.
#[derive(Debug)]
pub(super) struct Advice {
    /// Where the manifest is.
    pub(super) manifest: Location,
    /// Writes it anew.
    pub(super) anew: String,
    /// Compares the data set with it.
    pub(super) verify: String,
}

impl Advice {
    pub(super) fn new(store: &Arc<dyn Store>, options: &OpenOptions) -> Result<Self> {
        let (place, key) = manifest_place(store, options)?;
        let manifest = place.location().join(&key);
        let (anew, verify) = match &options.manifest_at {
            // Of all shards, whichever are named: it may be the manifest of all of them.
            Some(_) => (
                format!(
                    "forebay index -o {} --force {}",
                    word(&manifest),
                    word(store.location())
                ),
                format!(
                    "forebay verify --manifest {} {}",
                    word(&manifest),
                    word(&named(store, options))
                ),
            ),
            None => (
                format!("forebay index --force {}", word(store.location())),
                format!("forebay verify {}", word(&named(store, options))),
            ),
        };
        Ok(Self {
            manifest,
            anew,
            verify,
        })
    }

    /// Of a manifest whose format the shards do not tell: how many tokens make a sample, and that images in directories are no classes.
    pub(super) fn of(mut self, spec: &FormatSpec) -> Self {
        let is_told = match spec.name.as_str() {
            "tokens" => spec.params.is_empty(),
            registry::FILES => spec.params.get("layout").is_none_or(|layout| layout != "tree"),
            _ => true,
        };
        if !is_told {
            let params = spec.params.iter().map(|(name, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!(" --param {name}={value}")
            });
            let format = format!(
                "forebay index --format {}{}",
                spec.name,
                params.collect::<String>()
            );
            self.anew = self.anew.replacen("forebay index", &format, 1);
        }
        self
    }
}

/// What was named: the directory, or one shard of it. Several shards are known to an index of the directory as well.
fn named(store: &Arc<dyn Store>, options: &OpenOptions) -> Location {
    match options.shards.as_deref() {
        Some([only]) => store.location().join(only),
        _ => store.location().clone(),
    }
}

/// What is to be done where there must be a manifest and there is none.
pub(super) async fn how_to_have_one(store: &Arc<dyn Store>, options: &OpenOptions) -> Result<String> {
    if has_former(store, options).await? {
        return Ok(aside::note_former());
    }
    if let Some((place, key)) = &options.manifest_at {
        let inside = key.join(&Key::parse(MANIFEST_NAME)?);
        if place.head(&inside).await.is_ok() {
            let inside = place.location().join(&inside);
            return Ok(format!(
                "this is the directory of a manifest; name the file: {inside}"
            ));
        }
    }
    let command = how_to_index(store, options);
    Ok(format!("there is no manifest; make one with: {command}"))
}

/// The command that makes the manifest where it is kept.
fn how_to_index(store: &Arc<dyn Store>, options: &OpenOptions) -> String {
    match &options.manifest_at {
        Some((place, key)) => {
            let manifest = place.location().join(key);
            format!(
                "forebay index -o {} {}",
                word(&manifest),
                word(&named(store, options))
            )
        }
        None => format!("forebay index {}", word(store.location())),
    }
}

/// A place as a shell takes it for one word.
fn word(place: &Location) -> String {
    let text = place.to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:@%+=,".contains(c);
    if text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The error for a manifest of another format than the one that was asked for.
pub(super) fn other_format(wanted: &FormatSpec, found: &FormatSpec, advice: &Advice) -> Error {
    let show = |spec: &FormatSpec| {
        let params: Vec<String> = spec
            .params
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        [vec![spec.name.clone()], params].concat().join(", ")
    };
    let message = format!("the manifest is of format {}, not {}", show(found), show(wanted));
    Error::new(ErrorKind::Precondition, "open data set", message)
        .at(&advice.manifest)
        .with_hint(format!(
            "leave --format and what belongs to it away, or write the manifest anew with them: {}",
            advice.anew
        ))
}
