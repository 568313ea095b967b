//! From what the command line names to data sets: found, behind the cache where one is set, with their index, filtered.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result};
use forebay_data::Dataset;
use forebay_data::dataset::{
    OpenOptions, Place, Progress, Save, manifest_for_each, note_filtered, note_unindexed,
};
use forebay_data::filter::Filter;
use forebay_data::loader::{Sieve, Sources, StreamSpec};
use forebay_store::cache::Mode;
use forebay_store::{Context, Store};

use crate::app::{App, Source};
use crate::args::StreamArgs;
use crate::data::manifest_at;
use crate::progress::Bar;

/// Opens the data sets of a run.
pub(super) struct Opening<'a> {
    args: &'a StreamArgs,
    context: &'a Context,
    app: &'a App,
    bar: &'a Bar,
    /// What is read from: told about at the end of the run.
    stores: Vec<Source>,
}

impl<'a> Opening<'a> {
    pub(super) fn new(args: &'a StreamArgs, context: &'a Context, app: &'a App, bar: &'a Bar) -> Self {
        Self {
            args,
            context,
            app,
            bar,
            stores: Vec::new(),
        }
    }

    /// All data sets, filtered, and the stores they are read from.
    pub(super) async fn open(
        mut self,
        filter: Option<&Filter>,
        spec: &StreamSpec,
    ) -> Result<(Sources, Vec<Source>)> {
        let places = self.places().await?;
        let named: Vec<Option<&OsStr>> = self
            .args
            .manifest
            .iter()
            .map(|url| Some(url.as_os_str()))
            .collect();
        let manifests = manifest_for_each(&named, places.len())?;
        let mut datasets = Vec::with_capacity(places.len());
        let mut sieves = Vec::with_capacity(places.len());
        for (place, manifest) in places.into_iter().zip(manifests) {
            let dataset = self.dataset(place, manifest).await?;
            if let Some(filter) = filter {
                sieves.push(dataset.sieve(filter, spec.threads, spec.memory_bytes_max).await?);
            }
            datasets.push(dataset);
        }
        if filter.is_some() {
            datasets = self.filtered(sieves).await?;
        }
        let weights = (!self.args.weights.is_empty()).then(|| self.args.weights.clone());
        let sources = match datasets.pop() {
            Some(alone) if datasets.is_empty() && weights.is_none() => alone.into(),
            last => Sources::mixed(datasets.into_iter().chain(last).collect(), weights)?,
        };
        Ok((sources, self.stores))
    }

    /// Where the data sets are.
    async fn places(&self) -> Result<Vec<Place>> {
        let urls = self.args.urls.iter().map(|url| {
            let url = url.to_str().map(str::to_owned);
            url.ok_or_else(|| {
                let message = "the name of a data set must be UTF-8";
                Error::new(ErrorKind::InvalidInput, "open data set", message)
            })
        });
        let urls: Vec<String> = urls.collect::<Result<_>>()?;
        let base = std::env::current_dir()
            .map_err(|error| Error::from_io("start", error).at("current directory"))?;
        Place::find_all(&urls, !self.args.weights.is_empty(), &base, self.context).await
    }

    async fn dataset(&mut self, place: Place, manifest: Option<&OsStr>) -> Result<Dataset> {
        let args = self.args;
        let store = self.cached(place.store).await?;
        let options = OpenOptions {
            format: args.format.spec()?,
            shards: place.shards,
            save: if args.save_index { Save::IfAbsent } else { Save::No },
            progress: Arc::new(Indexing {
                bar: StageBar(self.bar.clone(), "indexing"),
                location: store.location().clone(),
                world: args.world,
                is_saved: args.save_index,
            }),
            ..OpenOptions::default()
        };
        let options = options.with_manifest_at(self.manifest_at(manifest).await?);
        Dataset::open(store, self.context, &options).await
    }

    /// A manifest that is not beside its shards, behind the cache as it would be there.
    async fn manifest_at(&mut self, url: Option<&OsStr>) -> Result<Option<(Arc<dyn Store>, Key)>> {
        match manifest_at(url, self.context).await? {
            Some((store, key)) => Ok(Some((self.cached(store).await?, key))),
            None => Ok(None),
        }
    }

    /// The cache before a store, where one is set.
    async fn cached(&mut self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>> {
        // Only what this rank reads: the other parts of a shard are for other ranks.
        let source = self
            .app
            .source_read_often(store, Mode::Blocks, self.context)
            .await?;
        let store = source.store();
        self.stores.push(source);
        Ok(store)
    }

    /// The parts of the data sets that were asked for; says first what finding them takes.
    async fn filtered(&self, sieves: Vec<Sieve>) -> Result<Vec<Dataset>> {
        let bytes = sieves.iter().map(Sieve::bytes_about).fold(0, u64::saturating_add);
        if let Some(note) = note_filtered(bytes, self.args.world) {
            self.bar.suspend(|printer| printer.say(note));
        }
        let progress: Arc<dyn Progress> = Arc::new(StageBar(self.bar.clone(), "filtering"));
        let mut datasets = Vec::with_capacity(sieves.len());
        for sieve in sieves {
            let kept = sieve.keep(&progress).await?;
            self.bar.suspend(|printer| {
                printer.say(format_args!(
                    "the filter keeps {} of {} samples",
                    kept.samples_kept(),
                    kept.samples()
                ));
            });
            datasets.push(kept);
        }
        Ok(datasets)
    }
}

/// How far making an index, or filtering, is.
#[derive(Debug)]
struct StageBar(Bar, &'static str);

impl Progress for StageBar {
    fn noted(&self, note: &str) {
        self.0.suspend(|printer| printer.say(note));
    }

    fn planned(&self, _shards: u64, bytes: u64) {
        self.0.stage(self.1, bytes);
    }

    fn moved(&self, bytes: u64) {
        self.0.add(bytes);
    }
}

/// How far making an index is; says first what that takes.
#[derive(Debug)]
struct Indexing {
    bar: StageBar,
    location: Location,
    world: u32,
    is_saved: bool,
}

impl Progress for Indexing {
    fn noted(&self, note: &str) {
        self.bar.noted(note);
    }

    fn planned(&self, shards: u64, bytes: u64) {
        let note = note_unindexed(&self.location, (shards, bytes), self.world, self.is_saved);
        self.bar.noted(&note);
        self.bar.planned(shards, bytes);
    }

    fn moved(&self, bytes: u64) {
        self.bar.moved(bytes);
    }
}
