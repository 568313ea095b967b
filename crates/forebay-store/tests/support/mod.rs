//! What tests of remote stores share: the servers they talk to and the stores they open.
//!
//! - [`wire`]: just enough HTTP/1.1 to read and write whole messages;
//! - [`fake`]: answers with whatever a function says;
//! - [`origin`]: a small S3 server of our own, well-behaved unless it is told a quirk;
//! - [`proxy`]: stands between a store and a server and injects faults by rule; [`tls`] speaks TLS before either.

#![expect(dead_code, reason = "each test binary uses its own part of this module")]

pub(crate) mod fake;
pub(crate) mod origin;
pub(crate) mod proxy;
pub(crate) mod tls;
pub(crate) mod wire;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Key, Limits, Location, env};
use forebay_io::{AlignedBuf, Buf, DiskConfig, EngineChoice, Pages};
use forebay_store::remote::{Environment, RemoteConfig, open_with};
use forebay_store::{Body, Context, PutOptions, ReadOptions, Store};

/// Bounds that make a failing test fail soon: short pauses and a short stall.
pub(crate) fn limits() -> Limits {
    Limits {
        buffer_bytes_max: 64 << 20,
        tries_max: 4,
        retry_budget_percent: 100_000,
        retry_pause_ms: 1,
        retry_pause_ms_max: 20,
        stall_ms_max: 700,
        connect_ms_max: 2_000,
        ..Limits::default()
    }
}

/// A context that keeps nothing between tests.
pub(crate) fn context() -> Context {
    context_with(limits())
}

pub(crate) fn context_with(limits: Limits) -> Context {
    let config = DiskConfig {
        limits,
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

pub(crate) fn location(url: &str) -> Location {
    Location::parse(url, Path::new("/")).unwrap()
}

pub(crate) fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

/// Open a store in a world that has exactly these variables.
pub(crate) async fn open(
    url: &str,
    vars: &[(&str, &str)],
    context: &Context,
) -> forebay_core::Result<Arc<dyn Store>> {
    let location = location(url);
    let environment = Environment::fixed(vars.iter().copied());
    let config = RemoteConfig::resolve(&location, environment).await?;
    open_with(&location, context, &config)
}

/// An S3 server and how to get in.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) kind: String,
    pub(crate) endpoint: String,
    pub(crate) bucket: String,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    pub(crate) region: String,
}

impl Server {
    /// The server that the variables name; `None`, with a word, when they name none.
    pub(crate) fn from_env() -> Option<Self> {
        let Some(endpoint) = env::TEST_S3_ENDPOINT.get() else {
            assert!(
                !env::TEST_REQUIRE_SERVERS.is_on(),
                "FOREBAY_TEST_S3_ENDPOINT is not set, but servers are required"
            );
            // Tests may print, but this is no test.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: no S3 server (FOREBAY_TEST_S3_ENDPOINT is not set)"
            );
            return None;
        };
        let need = |var: env::EnvVar| var.get().unwrap_or_else(|| panic!("{} is not set", var.name));
        Some(Self {
            kind: env::TEST_S3_SERVER
                .get()
                .unwrap_or_else(|| "seaweedfs".to_owned()),
            endpoint,
            bucket: need(env::TEST_S3_BUCKET),
            access_key: need(env::TEST_S3_ACCESS_KEY),
            secret_key: need(env::TEST_S3_SECRET_KEY),
            region: env::TEST_S3_REGION
                .get()
                .unwrap_or_else(|| "us-east-1".to_owned()),
        })
    }

    /// The origin, which takes any credentials.
    pub(crate) fn of_origin(origin: &origin::Origin) -> Self {
        Self {
            kind: "origin".to_owned(),
            endpoint: origin.url(),
            bucket: "bucket".to_owned(),
            access_key: "AKIACANARYACCESS".to_owned(),
            secret_key: "canarySecretKey0123456789".to_owned(),
            region: "us-east-1".to_owned(),
        }
    }

    /// The same server by another way, such as a proxy.
    pub(crate) fn through(&self, endpoint: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            ..self.clone()
        }
    }

    pub(crate) fn address(&self) -> String {
        self.endpoint.trim_start_matches("http://").to_owned()
    }

    pub(crate) fn vars(&self) -> Vec<(&str, &str)> {
        vec![
            ("FOREBAY_S3_ENDPOINT", &self.endpoint),
            ("FOREBAY_S3_REGION", &self.region),
            ("AWS_ACCESS_KEY_ID", &self.access_key),
            ("AWS_SECRET_ACCESS_KEY", &self.secret_key),
        ]
    }

    /// A store below a prefix of its own in the bucket.
    pub(crate) async fn store(&self, prefix: &str, context: &Context) -> Arc<dyn Store> {
        let unique = forebay_core::Seed::fresh().0;
        let url = format!("s3://{}/{prefix}-{unique:016x}", self.bucket);
        open(&url, &self.vars(), context).await.unwrap()
    }
}

/// Bytes that are different everywhere.
pub(crate) fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    forebay_core::Seed(salt).rng().fill(&mut bytes);
    bytes
}

pub(crate) async fn put(
    store: &dyn Store,
    name: &str,
    bytes: &[u8],
) -> forebay_core::Result<forebay_store::PutDone> {
    let body = Body::from(Buf::copy_of(bytes).unwrap());
    store.put(&key(name), body, &PutOptions::default()).await
}

pub(crate) async fn read(
    store: &dyn Store,
    name: &str,
    range: std::ops::Range<u64>,
) -> forebay_core::Result<Vec<u8>> {
    let span = forebay_core::Span::new(range.start, range.end).unwrap();
    let buf = AlignedBuf::alloc(span.len() as usize, Pages::Small).unwrap();
    let done = store
        .read_into(&key(name), span, buf, &ReadOptions::default())
        .await?;
    Ok(done.buf[..span.len() as usize].to_vec())
}
