//! The clients of `object_store` behind a remote store, built in one place.
//!
//! One store needs several clients that differ in a header or in what the transport does to their requests; they are thin and share the
//! transport and the credentials. `object_store`'s own retries are off everywhere: retries have one home, the retry
//! wrapper.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Clock, Error, ErrorKind, Location, Result, Scheme, env};
use http::{HeaderMap, HeaderValue};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider};

use super::config::RemoteConfig;
use super::credentials::Chain;
use super::failure::explain;
use super::list::{Lister, S3Lister};
use super::transport::{Alter, Service, Transport};

/// Clients for the different needs of one store.
pub(crate) struct Backend {
    /// Reads, whole writes, deletes.
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// HEAD that asks for the checksum too.
    pub(crate) heads: Arc<dyn ObjectStore>,
    /// Uploads in parts, where the store has them.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    /// Uploads whose completion must not replace an object.
    pub(crate) parts_if_absent: Option<Arc<dyn MultipartStore>>,
    /// Writes whose bytes do not match their checksum, for the probe.
    pub(crate) spoiled: Option<Arc<dyn ObjectStore>>,
    /// The same for parts.
    pub(crate) spoiled_parts: Option<Arc<dyn MultipartStore>>,
    pub(crate) lister: Lister,
    /// The credentials, to be forgotten when the server says they have expired.
    pub(crate) chain: Option<Arc<Chain>>,
    /// Names endpoint and bucket, for caching what was probed.
    pub(crate) identity: String,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Backend {
    pub(crate) fn build(
        location: &Location,
        config: &RemoteConfig,
        transport: &Arc<Transport>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        match location.scheme() {
            Scheme::S3 => Self::s3(location, config, transport, clock),
            Scheme::Gs => Self::gs(location, config, transport),
            Scheme::Az => Self::az(location, config, transport),
            Scheme::Http | Scheme::Https => Self::http(location, transport),
            other => Err(Error::new(
                ErrorKind::Internal,
                "open",
                format!("{} is not remote", other.as_str()),
            )),
        }
        .map_err(|error| error.at(location))
    }

    fn s3(
        location: &Location,
        config: &RemoteConfig,
        transport: &Arc<Transport>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let bucket = location.authority();
        let chain = Arc::new(Chain::new(
            config.clone(),
            Arc::clone(transport),
            Arc::clone(clock),
        ));
        let client = |alter, headers| s3_client(bucket, config, &chain, service(transport, alter), headers);
        let plain = Arc::new(client(Alter::Nothing, HeaderMap::new())?);
        let mut ask_checksum = HeaderMap::new();
        ask_checksum.insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
        let heads = Arc::new(client(Alter::Nothing, ask_checksum)?);
        let if_absent = Arc::new(client(Alter::CompleteIfAbsent, HeaderMap::new())?);
        let spoiled = Arc::new(client(Alter::SpoilBody, HeaderMap::new())?);
        let url = config.bucket_url(bucket);
        let lister = S3Lister {
            url: url.clone(),
            region: config.region.clone(),
            chain: (!config.unsigned).then(|| Arc::clone(&chain)),
            transport: Arc::clone(transport),
        };
        Ok(Self {
            parts: Some(Arc::clone(&plain) as _),
            objects: plain,
            heads,
            parts_if_absent: Some(if_absent),
            spoiled: Some(Arc::clone(&spoiled) as _),
            spoiled_parts: Some(spoiled),
            lister: Lister::S3(Arc::new(lister)),
            chain: Some(chain),
            identity: url,
        })
    }

    fn gs(location: &Location, config: &RemoteConfig, transport: &Arc<Transport>) -> Result<Self> {
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(location.authority())
            .with_retry(no_retry())
            .with_client_options(options(HeaderMap::new()))
            .with_http_connector(service(transport, Alter::Nothing));
        if let Some(path) = config.environment.get(env::GOOGLE_APPLICATION_CREDENTIALS) {
            builder = builder.with_application_credentials(path);
        }
        let emulator = config.environment.get(env::STORAGE_EMULATOR_HOST);
        if let Some(host) = &emulator {
            let url = if host.contains("://") {
                host.clone()
            } else {
                format!("http://{host}")
            };
            builder = builder.with_config(GoogleConfigKey::BaseUrl, url);
        }
        if config.unsigned || emulator.is_some() {
            // Not signing is not enough: writes would still ask the metadata service for a token.
            let nobody = GcpCredential {
                bearer: String::new(),
            };
            builder = builder
                .with_skip_signature(true)
                .with_credentials(Arc::new(StaticCredentialProvider::new(nobody)));
        }
        let store = Arc::new(builder.build().map_err(unbuilt)?);
        let host = emulator.unwrap_or_else(|| "gs".to_owned());
        Ok(Self {
            parts: Some(Arc::clone(&store) as _),
            heads: Arc::clone(&store) as _,
            lister: Lister::Pages(Arc::clone(&store) as _),
            objects: store,
            parts_if_absent: None,
            spoiled: None,
            spoiled_parts: None,
            chain: None,
            identity: format!("{host}/{}", location.authority()),
        })
    }

    fn az(location: &Location, config: &RemoteConfig, transport: &Arc<Transport>) -> Result<Self> {
        let environment = &config.environment;
        let Some(account) = environment.get(env::AZURE_STORAGE_ACCOUNT_NAME) else {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "open",
                "the Azure storage account is not named",
            )
            .with_hint("set AZURE_STORAGE_ACCOUNT_NAME"));
        };
        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(&account)
            .with_container_name(location.authority())
            .with_retry(no_retry())
            .with_client_options(options(HeaderMap::new()))
            .with_http_connector(service(transport, Alter::Nothing))
            .with_skip_signature(config.unsigned);
        for (var, key) in [
            (env::AZURE_STORAGE_ACCOUNT_KEY, AzureConfigKey::AccessKey),
            (env::AZURE_STORAGE_SAS_TOKEN, AzureConfigKey::SasKey),
            (env::AZURE_STORAGE_ENDPOINT, AzureConfigKey::Endpoint),
            (env::AZURE_CLIENT_ID, AzureConfigKey::ClientId),
            (env::AZURE_CLIENT_SECRET, AzureConfigKey::ClientSecret),
            (env::AZURE_TENANT_ID, AzureConfigKey::AuthorityId),
            (
                env::AZURE_FEDERATED_TOKEN_FILE,
                AzureConfigKey::FederatedTokenFile,
            ),
        ] {
            if let Some(value) = environment.get(var) {
                builder = builder.with_config(key, value);
            }
        }
        let store = Arc::new(builder.build().map_err(unbuilt)?);
        Ok(Self {
            parts: Some(Arc::clone(&store) as _),
            heads: Arc::clone(&store) as _,
            lister: Lister::Pages(Arc::clone(&store) as _),
            objects: store,
            parts_if_absent: None,
            spoiled: None,
            spoiled_parts: None,
            chain: None,
            identity: format!("az/{account}/{}", location.authority()),
        })
    }

    fn http(location: &Location, transport: &Arc<Transport>) -> Result<Self> {
        let url = format!("{}://{}", location.scheme().as_str(), location.authority());
        let store = HttpBuilder::new()
            .with_url(&url)
            .with_retry(no_retry())
            .with_client_options(options(HeaderMap::new()))
            .with_http_connector(service(transport, Alter::Webdav))
            .build()
            .map_err(unbuilt)?;
        let store = Arc::new(store);
        Ok(Self {
            heads: Arc::clone(&store) as _,
            lister: Lister::Webdav(Arc::clone(&store) as _),
            objects: store,
            parts: None,
            parts_if_absent: None,
            spoiled: None,
            spoiled_parts: None,
            chain: None,
            identity: url,
        })
    }
}

fn s3_client(
    bucket: &str,
    config: &RemoteConfig,
    chain: &Arc<Chain>,
    service: Service,
    headers: HeaderMap,
) -> Result<AmazonS3> {
    AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(&config.region)
        // The endpoint names the bucket already, in whichever style: `object_store` takes it as it is.
        .with_endpoint(config.bucket_url(bucket))
        .with_virtual_hosted_style_request(true)
        .with_credentials(Arc::clone(chain) as _)
        .with_skip_signature(config.unsigned)
        .with_retry(no_retry())
        // The body is covered by its CRC-64, which is signed; hashing it by SHA-256 as well would cost three times the rest.
        .with_unsigned_payload(true)
        .with_checksum_algorithm(Checksum::CRC64NVME)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        // One DELETE per object: bulk deletion is not everywhere.
        .with_disable_bulk_delete(true)
        .with_client_options(options(headers))
        .with_http_connector(service)
        .build()
        .map_err(unbuilt)
}

fn service(transport: &Arc<Transport>, alter: Alter) -> Service {
    Service {
        transport: Arc::clone(transport),
        alter,
    }
}

fn options(headers: HeaderMap) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(true)
        .with_default_headers(headers)
}

fn no_retry() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: Duration::ZERO,
        ..RetryConfig::default()
    }
}

/// A client that cannot be built has settings that make no sense; `object_store` may repeat them, so its words are not used.
fn unbuilt(error: object_store::Error) -> Error {
    let error = explain("open", error);
    Error::new(
        ErrorKind::InvalidInput,
        "open",
        "the settings or credential files of this store make no sense",
    )
    .with_hint(error.hint().map_or_else(
        || "see the reference page about credentials for what is read".to_owned(),
        str::to_owned,
    ))
}
