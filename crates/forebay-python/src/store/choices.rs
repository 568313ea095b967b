//! Options a store is opened with.

use std::path::Path;

use forebay_core::{Location, PathPolicy, Result, env};
use forebay_io::Class;
use forebay_store::Context;
use forebay_store::cache::{CacheConfig, Mode};

/// All of them.
#[derive(Debug, Clone)]
pub(crate) struct Choices {
    /// What is read is kept there.
    pub(super) cache: Option<CacheConfig>,
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
    /// Only the settings of an S3 store.
    pub(crate) fn of_store(
        endpoint: Option<String>,
        region: Option<String>,
        addressing: Option<String>,
    ) -> Self {
        Self {
            cache: None,
            policy: PathPolicy::Fastest,
            class: Class::Data,
            endpoint,
            region,
            addressing,
        }
    }

    /// With the cache that an argument or the environment asks for.
    pub(crate) fn with_cache(
        self,
        text: Option<&str>,
        mode: Mode,
        location: &Location,
        base: &Path,
    ) -> Result<Self> {
        let cache = super::cache_of(text, false, location, base)?;
        let cache = cache.map(|config| CacheConfig { mode, ..config });
        Ok(Self { cache, ..self })
    }

    /// The process's context, with the settings of this store before those of the environment.
    pub(crate) fn context(&self, context: &Context) -> Context {
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
