//! What every command needs: the printer, the settings, the stores' surroundings and the wish to stop.

use std::future::Future;
use std::sync::Arc;

use forebay_core::{ByteSize, Error, ErrorKind, Result, Scheme};
use forebay_store::cache::{Cache, CacheConfig, Mode};
use forebay_store::{Context, Store};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::printer::Printer;

/// Surroundings of a command.
#[derive(Debug)]
pub(crate) struct App {
    printer: Arc<Printer>,
    config: Config,
    cancel: CancellationToken,
}

impl App {
    /// With nothing opened yet.
    pub(crate) fn new(printer: Arc<Printer>, config: Config) -> Self {
        Self {
            printer,
            config,
            cancel: CancellationToken::new(),
        }
    }

    /// The way to the terminal.
    pub(crate) fn printer(&self) -> &Arc<Printer> {
        &self.printer
    }

    /// The settings in force.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Cancelled by Ctrl-C.
    pub(crate) fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Open the disk engine and what goes with it.
    pub(crate) fn context(&self) -> Result<Context> {
        self.config.context()
    }

    /// `store` to read objects from once: behind the cache, where one is wanted and the store is remote.
    pub(crate) async fn source(
        &self,
        store: Arc<dyn Store>,
        mode: Mode,
        context: &Context,
    ) -> Result<Source> {
        let is_remote = is_remote(&*store);
        if !is_remote && self.config.is_flag("cache") {
            self.printer.say(format_args!(
                "--cache is left aside: {} is a file system of this machine, and is read once",
                store.location()
            ));
        }
        self.source_behind(store, is_remote, mode, context).await
    }

    /// The same for what is read again and again: a cache that the command line names is put before file systems of this machine, too, which may be
    /// far away for all that.
    pub(crate) async fn source_read_often(
        &self,
        store: Arc<dyn Store>,
        mode: Mode,
        context: &Context,
    ) -> Result<Source> {
        let is_cached = is_remote(&*store) || self.config.is_flag("cache");
        self.source_behind(store, is_cached, mode, context).await
    }

    async fn source_behind(
        &self,
        store: Arc<dyn Store>,
        is_cached: bool,
        mode: Mode,
        context: &Context,
    ) -> Result<Source> {
        let cache = match self.config.cache()?.filter(|_| is_cached) {
            Some(config) => {
                let config = CacheConfig { mode, ..config };
                Some(Arc::new(Cache::open(Arc::clone(&store), config, context).await?))
            }
            None => None,
        };
        Ok(Source { store, cache })
    }

    /// Do `work`, unless Ctrl-C comes first: then it is dropped, which gives up what it had begun.
    pub(crate) async fn unless_cancelled<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(interrupted().into()),
            result = work => result,
        }
    }
}

/// True when the store is not on this machine, as far as its name tells.
fn is_remote(store: &dyn Store) -> bool {
    !matches!(store.location().scheme(), Scheme::File | Scheme::Mem)
}

/// A store to read from.
#[derive(Debug)]
pub(crate) struct Source {
    store: Arc<dyn Store>,
    cache: Option<Arc<Cache>>,
}

impl Source {
    /// The store, or the cache before it.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match &self.cache {
            Some(cache) => Arc::clone(cache) as Arc<dyn Store>,
            None => Arc::clone(&self.store),
        }
    }

    /// Let blocks that were handed out already reach the disk, and tell with `--verbose` where the bytes came from.
    pub(crate) async fn finish(&self, printer: &Printer) {
        if let Some(cache) = &self.cache {
            cache.settle().await;
            let stats = cache.stats();
            printer.detail(format_args!(
                "cache: {} blocks from the disk, {} fetched, {} of them in place of corrupt ones; {} kept",
                stats.hits,
                stats.misses,
                stats.corrupt,
                ByteSize(stats.bytes)
            ));
        }
    }
}

/// What Ctrl-C makes of a command.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Cancelled, "run", "interrupted")
}
