//! How a remote store is reached, resolved in one place from everything that may say so.
//!
//! Precedence: [`RemoteConfig`]'s own fields as the caller sets them, then `FOREBAY_S3_*` variables, then `AWS_*` variables, then the
//! profile in the AWS files, then defaults. Buckets behind a custom endpoint are addressed by path, those of AWS by host name.

use std::path::PathBuf;

use forebay_core::{Error, ErrorKind, Location, Result, env};

use super::environment::Environment;
use super::profile::Profiles;

/// What requests are signed for when nothing names a region: what S3-compatible servers accept and AWS answers by
/// naming the right one.
const REGION_DEFAULT: &str = "us-east-1";

/// How the bucket is named in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// `host/bucket/key`.
    Path,
    /// `bucket.host/key`.
    Virtual,
}

/// How a remote store is reached.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// Endpoint URL; `None` for the cloud's own.
    pub endpoint: Option<String>,
    /// Region that S3 requests are signed for.
    pub region: String,
    /// How the bucket is named in a URL.
    pub addressing: Addressing,
    /// Send requests without a signature.
    pub unsigned: bool,
    /// Profile of the AWS files, when one is named.
    pub profile: Option<String>,
    /// Certificates to trust besides those of the system.
    pub ca_bundle: Option<PathBuf>,
    /// Where credentials are looked up.
    pub environment: Environment,
}

impl RemoteConfig {
    /// Resolve the settings for `location` from `environment`.
    pub async fn resolve(location: &Location, environment: Environment) -> Result<Self> {
        let profiles = Profiles::load(&environment).await?;
        Self::resolve_with(location, environment, &profiles)
    }

    pub(crate) fn resolve_with(
        location: &Location,
        environment: Environment,
        profiles: &Profiles,
    ) -> Result<Self> {
        let profile = environment.get(env::AWS_PROFILE);
        let name = profile.as_deref().unwrap_or("default");
        let in_profile = |key: &str| profiles.profile(name)?.get(key).cloned();
        let endpoint = environment
            .first(&[env::S3_ENDPOINT, env::AWS_ENDPOINT_URL_S3, env::AWS_ENDPOINT_URL])
            .or_else(|| profiles.s3_endpoint(name).cloned())
            .map(|endpoint| Self::check_endpoint(&endpoint).map_err(|error| error.at(location)))
            .transpose()?;
        let region = environment
            .first(&[env::S3_REGION, env::AWS_REGION, env::AWS_DEFAULT_REGION])
            .or_else(|| in_profile("region"))
            .unwrap_or_else(|| REGION_DEFAULT.to_owned());
        let addressing = match environment
            .get(env::S3_ADDRESSING)
            .or_else(|| in_profile("s3.addressing_style"))
            .as_deref()
        {
            Some("path") => Addressing::Path,
            Some("virtual") => Addressing::Virtual,
            Some("auto") | None => default_addressing(endpoint.is_some(), location.authority()),
            Some(other) => {
                let message = format!("addressing '{}' is not known", other.escape_debug());
                return Err(Error::new(ErrorKind::InvalidInput, "open", message)
                    .at(location)
                    .with_hint("one of: path, virtual, auto"));
            }
        };
        Ok(Self {
            endpoint,
            region: check_region(region, location)?,
            addressing,
            unsigned: environment.is_on(env::S3_UNSIGNED),
            profile,
            ca_bundle: environment.get(env::AWS_CA_BUNDLE).map(PathBuf::from),
            environment,
        })
    }

    /// An endpoint as it is used, without slashes at its end, or why it is none.
    pub fn check_endpoint(endpoint: &str) -> Result<String> {
        let refuse = |why: &str| {
            Err(
                Error::new(ErrorKind::InvalidInput, "open", format!("endpoint URL {why}"))
                    .with_hint("an endpoint is https://host or http://host:port"),
            )
        };
        // The URL itself is not repeated: people put keys into it.
        let Ok(url) = endpoint.parse::<http::Uri>() else {
            return refuse("does not parse");
        };
        let Some(authority) = url.authority() else {
            return refuse("has no host");
        };
        if authority.as_str().contains('@') {
            return refuse("holds credentials");
        }
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return refuse("is neither http:// nor https://");
        }
        if url.query().is_some() {
            return refuse("has a query");
        }
        Ok(endpoint.trim_end_matches('/').to_owned())
    }

    /// URL of a bucket, without a slash at its end.
    pub(crate) fn bucket_url(&self, bucket: &str) -> String {
        let endpoint = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("https://s3.{}.{}", self.region, domain(&self.region)),
        };
        match self.addressing {
            Addressing::Path => format!("{endpoint}/{bucket}"),
            Addressing::Virtual => endpoint.replacen("://", &format!("://{bucket}."), 1),
        }
    }

    /// URL of another AWS service that credentials come from.
    pub(crate) fn service_url(&self, service: &str, own: env::EnvVar, region: &str) -> String {
        self.environment
            .first(&[own, env::AWS_ENDPOINT_URL])
            .unwrap_or_else(|| format!("https://{service}.{region}.{}", domain(region)))
    }
}

/// Domain of AWS services in that region.
fn domain(region: &str) -> &'static str {
    if region.starts_with("cn-") {
        "amazonaws.com.cn"
    } else {
        "amazonaws.com"
    }
}

/// By path behind a custom endpoint, which seldom has a name per bucket; also for names with dots, which no wildcard
/// certificate covers.
fn default_addressing(custom: bool, bucket: &str) -> Addressing {
    if custom || bucket.contains('.') {
        Addressing::Path
    } else {
        Addressing::Virtual
    }
}

/// A region becomes part of a host name and of a signature.
fn check_region(region: String, location: &Location) -> Result<String> {
    if region.len() <= 64
        && region
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    {
        return Ok(region);
    }
    let message = format!("region '{}' is not a name", region.escape_debug());
    Err(Error::new(ErrorKind::InvalidInput, "open", message).at(location))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    async fn resolve(vars: &[(&str, &str)], url: &str) -> Result<RemoteConfig> {
        let location = Location::parse(url, Path::new("/"))?;
        RemoteConfig::resolve(&location, Environment::fixed(vars.iter().copied())).await
    }

    #[tokio::test]
    async fn our_variables_win_over_those_of_aws_and_those_over_profiles() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(
            home.path().join(".aws/config"),
            "[default]\nregion = eu-west-1\nendpoint_url = http://profile:1/\n[profile two]\nregion = two-1\n",
        )
        .unwrap();
        let home = ("HOME", home.path().to_str().unwrap());
        let config = resolve(&[home], "s3://b/k").await.unwrap();
        assert_eq!(config.region, "eu-west-1");
        assert_eq!(config.bucket_url("b"), "http://profile:1/b");
        let config = resolve(
            &[
                home,
                ("AWS_ENDPOINT_URL", "http://all:2"),
                ("AWS_DEFAULT_REGION", "x-1"),
            ],
            "s3://b",
        )
        .await
        .unwrap();
        assert_eq!(
            (config.region.as_str(), config.bucket_url("b").as_str()),
            ("x-1", "http://all:2/b")
        );
        let config = resolve(
            &[
                home,
                ("AWS_ENDPOINT_URL", "http://all:2"),
                ("AWS_ENDPOINT_URL_S3", "http://s3:3"),
                ("FOREBAY_S3_ADDRESSING", "virtual"),
                ("AWS_REGION", "y-1"),
                ("AWS_DEFAULT_REGION", "x-1"),
                ("FOREBAY_S3_REGION", "z-1"),
            ],
            "s3://b",
        )
        .await
        .unwrap();
        assert_eq!(
            (config.region.as_str(), config.bucket_url("b").as_str()),
            ("z-1", "http://b.s3:3")
        );
        let config = resolve(&[home, ("AWS_PROFILE", "two")], "s3://b").await.unwrap();
        assert_eq!(config.bucket_url("b"), "https://b.s3.two-1.amazonaws.com");
    }

    #[tokio::test]
    async fn aws_is_addressed_by_host_name_unless_the_bucket_has_dots() {
        let config = resolve(&[("AWS_REGION", "cn-north-1")], "s3://a.b/k")
            .await
            .unwrap();
        assert_eq!(
            config.bucket_url("a.b"),
            "https://s3.cn-north-1.amazonaws.com.cn/a.b"
        );
    }

    #[tokio::test]
    async fn wrong_settings_are_refused_without_repeating_secrets() {
        for (name, value) in [
            ("AWS_ENDPOINT_URL", "http://user:canarysecret@host"),
            ("AWS_ENDPOINT_URL", "ftp://host"),
            ("AWS_ENDPOINT_URL", "host"),
            ("AWS_ENDPOINT_URL", "http://h?sig=canarysecret"),
            ("AWS_REGION", "us east"),
            ("FOREBAY_S3_ADDRESSING", "dns"),
        ] {
            let error = resolve(&[(name, value)], "s3://b/k").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}={value}");
            assert!(!format!("{error} {error:?}").contains("canarysecret"), "{error}");
        }
    }
}
