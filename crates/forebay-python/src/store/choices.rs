//! Options a store is opened with.

use std::path::Path;

use forebay_core::{ByteSize, Error, ErrorKind, PathPolicy, Result, env};
use forebay_io::Class;
use forebay_store::Context;
use forebay_store::cache::{CacheConfig, Freshness};

/// All of them.
#[derive(Debug, Clone)]
pub(crate) struct Choices {
    /// What is read is kept there.
    pub(super) cache: Option<CacheChoice>,
    /// Which data paths are acceptable.
    pub(super) policy: PathPolicy,
    /// Class of service for local I/O.
    pub(super) class: Class,
    /// Settings of an S3 store.
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
    pub(super) addressing: Option<String>,
}

impl Choices {
    /// The process's context, with the settings of this store before those of the environment.
    pub(super) fn context(&self, context: &Context) -> Context {
        let settings = [
            (env::S3_ENDPOINT, &self.endpoint),
            (env::S3_REGION, &self.region),
            (env::S3_ADDRESSING, &self.addressing),
        ];
        let given = settings
            .into_iter()
            .filter_map(|(variable, value)| Some((variable, value.clone()?)));
        let environment = context.environment().clone().with(given);
        context.clone().with_environment(environment)
    }
}

/// A cache, as people write it: `directory:size`.
#[derive(Debug, Clone)]
pub(crate) struct CacheChoice {
    config: CacheConfig,
}

impl CacheChoice {
    /// Parse; a relative directory is taken from `base`.
    pub(super) fn parse(text: &str, immutable: bool, base: &Path) -> Result<Self> {
        let refuse = || {
            let message = format!("'{}' is not a cache", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, "open", message)
                .with_hint("write directory:size, such as /nvme/cache:200GiB")
        };
        let (root, size) = text
            .rsplit_once(':')
            .filter(|(root, _)| !root.is_empty())
            .ok_or_else(refuse)?;
        let ByteSize(bytes_max) = size.parse().map_err(|_| refuse())?;
        let mut config = CacheConfig::new(base.join(root), bytes_max);
        if immutable {
            config.freshness = Freshness::Immutable;
        }
        Ok(Self { config })
    }

    /// In the words of the crate below.
    pub(super) fn config(&self) -> CacheConfig {
        self.config.clone()
    }

    /// As it is written.
    pub(super) fn as_text(&self) -> String {
        format!("{}:{}", self.config.root.display(), self.config.bytes_max)
    }

    /// True when the store is not asked again for what is cached.
    pub(super) fn is_immutable(&self) -> bool {
        self.config.freshness == Freshness::Immutable
    }
}
