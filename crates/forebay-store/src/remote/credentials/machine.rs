//! Credentials of the machine we run on: from the container's endpoint (ECS, EKS pod identity), or the instance's metadata service.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result, env};

use super::{Answer, Sources, parse_document};
use crate::remote::environment::read_small;

/// Where a relative container URI points.
const CONTAINER_HOST: &str = "http://169.254.170.2";

/// Hosts that a container URI may name without TLS, besides this machine: those of ECS and EKS.
const CONTAINER_HOSTS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];

/// The metadata service of an instance.
const INSTANCE_HOST: &str = "http://169.254.169.254";

/// Time for one answer of the metadata service. On its own link it answers in milliseconds; elsewhere packets to it vanish.
const INSTANCE_MS_MAX: u64 = 1_000;

/// Time for one answer of the container endpoint.
const CONTAINER_MS_MAX: u64 = 5_000;

impl Sources {
    /// The container's endpoint.
    pub(super) async fn container(&self) -> Result<Answer> {
        let environment = &self.config.environment;
        let relative = environment.get(env::AWS_CONTAINER_CREDENTIALS_RELATIVE_URI);
        let full = environment.get(env::AWS_CONTAINER_CREDENTIALS_FULL_URI);
        let url = match (relative, full) {
            (Some(path), _) => format!("{CONTAINER_HOST}{path}"),
            (None, Some(url)) => check_container_url(url)?,
            (None, None) => {
                return Ok(Answer::Absent(
                    "variable AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is not set".to_owned(),
                ));
            }
        };
        let mut request = http::Request::get(url);
        let token = self.container_token().await?;
        if let Some(token) = &token {
            request = request.header("authorization", token);
        }
        let request = request
            .body(Bytes::new())
            .map_err(|_| refuse("container endpoint or its token does not make a request"))?;
        let secrets: Vec<String> = token.into_iter().collect();
        let reply = self.transport.fetch(request, &secrets);
        let limit = Duration::from_millis(CONTAINER_MS_MAX);
        match tokio::time::timeout(limit, reply).await {
            Ok(Ok((_, body))) => parse_document(&body, "container endpoint").map(Answer::Found),
            Ok(Err(failure)) => {
                let message = format!("container endpoint: {}", failure.message);
                Err(Error::new(ErrorKind::Unauthenticated, "credentials", message))
            }
            Err(_) => Err(refuse("container endpoint did not answer")),
        }
    }

    async fn container_token(&self) -> Result<Option<String>> {
        let environment = &self.config.environment;
        let Some(file) = environment.get(env::AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE) else {
            return Ok(environment.get(env::AWS_CONTAINER_AUTHORIZATION_TOKEN));
        };
        match read_small(&PathBuf::from(&file)).await? {
            Some(token) => Ok(Some(token.trim().to_owned())),
            None => Err(refuse("file of the container token does not exist").at(file)),
        }
    }

    /// The instance's metadata service: a token, the name of the role, its credentials. One try, short patience.
    pub(super) async fn instance(&self) -> Result<Answer> {
        let environment = &self.config.environment;
        if environment.is_on(env::AWS_EC2_METADATA_DISABLED) {
            return Ok(Answer::Absent(
                "instance metadata is turned off by AWS_EC2_METADATA_DISABLED".to_owned(),
            ));
        }
        let host = environment
            .get(env::AWS_EC2_METADATA_SERVICE_ENDPOINT)
            .unwrap_or_else(|| INSTANCE_HOST.to_owned());
        let host = host.trim_end_matches('/');
        let request = http::Request::put(format!("{host}/latest/api/token"))
            .header("x-aws-ec2-metadata-token-ttl-seconds", "300");
        let Some(token) = self.metadata(request, &[]).await? else {
            return Ok(Answer::Absent(
                "no instance metadata service answered within a second".to_owned(),
            ));
        };
        let token = String::from_utf8_lossy(&token).trim().to_owned();
        let secrets = [token.clone()];
        let base = format!("{host}/latest/meta-data/iam/security-credentials/");
        let get = |url: String| http::Request::get(url).header("x-aws-ec2-metadata-token", &token);
        let Some(role) = self.metadata(get(base.clone()), &secrets).await? else {
            return Ok(Answer::Absent("this instance has no role".to_owned()));
        };
        let role = String::from_utf8_lossy(&role).trim().to_owned();
        match self.metadata(get(format!("{base}{role}")), &secrets).await? {
            Some(body) => parse_document(&body, "instance metadata service").map(Answer::Found),
            None => Err(refuse(
                "instance metadata service gave no credentials for its role",
            )),
        }
    }

    /// One answer, or `None` when there is no service or no such thing.
    async fn metadata(&self, request: http::request::Builder, secrets: &[String]) -> Result<Option<Bytes>> {
        let request = request
            .body(Bytes::new())
            .map_err(|_| refuse("metadata endpoint or token does not make a request"))?;
        let limit = Duration::from_millis(INSTANCE_MS_MAX);
        match tokio::time::timeout(limit, self.transport.fetch(request, secrets)).await {
            Ok(Ok((_, body))) => Ok(Some(body)),
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }
}

fn refuse(message: &str) -> Error {
    Error::new(ErrorKind::Unauthenticated, "credentials", message)
}

/// Credentials and the token must not travel in the clear, but to this machine or the container host.
fn check_container_url(url: String) -> Result<String> {
    let parsed: http::Uri = url
        .parse()
        .map_err(|_| refuse("AWS_CONTAINER_CREDENTIALS_FULL_URI does not parse"))?;
    let host = parsed.host().unwrap_or("").trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if parsed.scheme_str() == Some("https") || is_here || CONTAINER_HOSTS.contains(&host) {
        return Ok(url);
    }
    Err(refuse(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI names a host that credentials must not be fetched from without TLS",
    ))
}
