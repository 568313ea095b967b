//! What weights are loaded from: files of them, or checkpoints that are shown as such.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_ckpt::{CheckpointView, KeyWrap, Keys, PublicKey, ViewOptions, Viewed};
use forebay_core::{Error, ErrorKind, Location, Result};
use forebay_store::Context;
use forebay_store::cache::{CacheConfig, Mode};
use forebay_weights::source::OpenOptions;
use forebay_weights::{CheckedFile, Edges, Source};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::get;
use crate::process::Process;
use crate::store::cache_of;

/// What a source is opened with.
pub(super) struct Opening {
    urls: Vec<String>,
    base: PathBuf,
    verify: Option<String>,
    cache: Option<String>,
    step: Option<u64>,
    keys: Vec<String>,
    trust: Vec<PathBuf>,
}

/// Everything that was named.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) source: Source,
    /// Tensors of checkpoints that cannot be loaded so.
    pub(super) left_out: Vec<String>,
    /// Newer steps that cannot be read, and why.
    pub(super) damaged: Vec<(u64, String)>,
}

impl Opening {
    pub(super) fn new(urls: Vec<String>, base: PathBuf, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        Ok(Self {
            urls,
            base,
            verify: get(options, "verify")?,
            cache: get(options, "cache")?,
            step: get(options, "step")?,
            keys: get(options, "keys")?.unwrap_or_default(),
            trust: get(options, "trust")?.unwrap_or_default(),
        })
    }

    pub(super) async fn open(self, process: &'static Process, context: &Context) -> Result<Named> {
        let mut locations = Vec::with_capacity(self.urls.len());
        for url in &self.urls {
            if url.starts_with("mem:") && process.is_forked() {
                let message = "objects in memory cannot be used after a fork";
                return Err(Error::new(ErrorKind::Unsupported, "open", message).at(url));
            }
            locations.push(Location::parse(url, &self.base)?);
        }
        let cache = match locations.first() {
            Some(location) => cache_of(self.cache.as_deref(), false, location, &self.base)?,
            None => None,
        };
        let options = OpenOptions {
            verify: self.verify.as_deref().unwrap_or("prefer").parse()?,
            // Parts of files are wanted as often as whole ones.
            cache: cache.map(|config| CacheConfig {
                mode: Mode::Blocks,
                ..config
            }),
        };
        let view_options = self.view_options(options.cache.clone(), context)?;
        let mut named = Named::default();
        let mut sources = Vec::with_capacity(locations.len());
        for location in locations {
            match CheckpointView::find(&location, &view_options, context).await? {
                Some(Viewed { view, damaged }) => {
                    let newer = damaged.into_iter();
                    named
                        .damaged
                        .extend(newer.map(|(step, error)| (step, error.to_string())));
                    named.left_out.extend_from_slice(view.left_out());
                    sources.push(shown(view).await?);
                }
                None => sources.push(Source::open(&[location], &options, context).await?),
            }
        }
        named.source = Source::joined(sources)?;
        Ok(named)
    }

    fn view_options(&self, cache: Option<CacheConfig>, context: &Context) -> Result<ViewOptions> {
        let keys = self.keys.iter().map(|key| KeyWrap::parse(key, context));
        let trusted = self.trust.iter().map(|path| PublicKey::file(path));
        let trusted = trusted.collect::<Result<Vec<_>>>()?;
        Ok(ViewOptions {
            step: self.step,
            keys: Keys::new(keys.collect::<Result<Vec<_>>>()?),
            trusted: (!trusted.is_empty()).then_some(trusted),
            cache,
        })
    }
}

/// A checkpoint as a file.
async fn shown(view: CheckpointView) -> Result<Source> {
    Source::of_checked(CheckedFile {
        location: view.origin(),
        key: view.key().clone(),
        edges: Edges::new(view.cuts())?,
        store: Arc::new(view),
    })
    .await
}
