//! AWS KMS: small secrets are wrapped by a key that never leaves the service, and unwrapped by it for whoever may.
//!
//! ```text
//! encrypt: secret, context -> POST TrentService.Encrypt, signed by the same chain as S3 -> (ARN of the key, wrapped)
//! decrypt: wrapped, context -> POST TrentService.Decrypt                                 -> secret
//! ```
//!
//! The context is bound to what is wrapped: without the same one it does not open. Requests name the key also when they decrypt, so the service refuses
//! what another key has wrapped.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Location, Result, Retry, env};
use object_store::aws::AwsAuthorizer;
use object_store::client::{HttpRequest, HttpRequestBody};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::config::RemoteConfig;
use super::credentials::Chain;
use super::transport::Transport;
use crate::context::Context;

/// Most bytes that the service encrypts.
const PLAIN_BYTES_MAX: usize = 4096;

/// Tries of one request: the service throttles accounts, and a save should outlive that.
const TRIES_MAX: u32 = 5;

/// Pause before the second try; doubled before each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(200);

const OP: &str = "ask AWS KMS";

/// A key of AWS KMS.
pub struct Kms {
    key: String,
    context: Context,
    reached: OnceCell<Reached>,
}

/// How the service is reached.
struct Reached {
    region: String,
    url: String,
    chain: Chain,
    transport: Arc<Transport>,
}

impl fmt::Debug for Kms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aws-kms {}", self.key)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Question<'a> {
    key_id: &'a str,
    encryption_context: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plaintext: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ciphertext_blob: Option<&'a str>,
}

/// No `Debug`: it may hold the secret.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    key_id: String,
    plaintext: Option<String>,
    ciphertext_blob: Option<String>,
}

impl Kms {
    /// The key of that ARN, id or alias (`alias/NAME`). Nothing is asked before it is used.
    pub fn new(key: &str, context: &Context) -> Result<Self> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:/.".contains(&byte);
        if key.is_empty() || !key.bytes().all(is_word) {
            let message = "this names no key of AWS KMS";
            return Err(Error::new(ErrorKind::InvalidInput, "read key", message)
                .with_hint("a key is an ARN, an id, or alias/NAME"));
        }
        Ok(Self {
            key: key.to_owned(),
            context: context.clone(),
            reached: OnceCell::new(),
        })
    }

    /// Wrap a secret; gives the ARN of the key that did, and what was wrapped.
    pub async fn encrypt(&self, secret: &[u8], bound: &[(&str, &str)]) -> Result<(String, Vec<u8>)> {
        if secret.len() > PLAIN_BYTES_MAX {
            let message = format!("{} bytes are more than AWS KMS wraps", secret.len());
            return Err(self.error(ErrorKind::LimitExceeded, &message));
        }
        let plain = BASE64_STANDARD.encode(secret);
        let question = Question {
            key_id: &self.key,
            encryption_context: bound.iter().copied().collect(),
            plaintext: Some(&plain),
            ciphertext_blob: None,
        };
        let secrets = [plain.clone()];
        let answer = self.ask("TrentService.Encrypt", &question, &secrets).await?;
        let wrapped = answer
            .ciphertext_blob
            .and_then(|blob| BASE64_STANDARD.decode(blob).ok());
        let wrapped = wrapped.filter(|wrapped| !wrapped.is_empty() && !answer.key_id.is_empty());
        let wrapped = wrapped.ok_or_else(|| self.unexpected())?;
        Ok((answer.key_id, wrapped))
    }

    /// Unwrap what was wrapped with the same context.
    pub async fn decrypt(&self, wrapped: &[u8], bound: &[(&str, &str)]) -> Result<Vec<u8>> {
        let blob = BASE64_STANDARD.encode(wrapped);
        let question = Question {
            key_id: &self.key,
            encryption_context: bound.iter().copied().collect(),
            plaintext: None,
            ciphertext_blob: Some(&blob),
        };
        let answer = self.ask("TrentService.Decrypt", &question, &[]).await?;
        let secret = answer
            .plaintext
            .and_then(|plain| BASE64_STANDARD.decode(plain).ok());
        secret.ok_or_else(|| self.unexpected())
    }

    async fn ask(&self, target: &'static str, question: &Question<'_>, secrets: &[String]) -> Result<Answer> {
        let body = serde_json::to_string(question).map_err(|error| {
            self.error(ErrorKind::Internal, "the request cannot be written")
                .with_source(error)
        })?;
        let reached = self.reached.get_or_try_init(|| self.reach()).await?;
        let mut pause = PAUSE_FIRST;
        for _ in 1..TRIES_MAX {
            match self.ask_once(reached, target, &body, secrets).await {
                Err(error) if error.retry() != Retry::Never => {
                    tokio::time::sleep(error.retry_after().unwrap_or(pause)).await;
                    pause *= 2;
                }
                Err(error) if error.kind() == ErrorKind::Unauthenticated => {
                    // They may have been renewed elsewhere.
                    reached.chain.forget();
                    return Err(error);
                }
                answered => return answered,
            }
        }
        self.ask_once(reached, target, &body, secrets).await
    }

    async fn ask_once(
        &self,
        reached: &Reached,
        target: &'static str,
        body: &str,
        secrets: &[String],
    ) -> Result<Answer> {
        let mut request: HttpRequest = http::Request::post(&reached.url)
            .header("content-type", "application/x-amz-json-1.1")
            .header("x-amz-target", target)
            .body(HttpRequestBody::from(body.to_owned()))
            .map_err(|_| self.error(ErrorKind::InvalidInput, "the endpoint does not parse"))?;
        let credential = reached.chain.get().await?;
        AwsAuthorizer::new(&credential, "kms", &reached.region)
            .try_authorize(&mut request, None)
            .map_err(|_| self.error(ErrorKind::Internal, "the request could not be signed"))?;
        let request = request.map(|_| Bytes::from(body.to_owned()));
        let (_, reply) = reached
            .transport
            .fetch(request, secrets)
            .await
            .map_err(|failure| failure.to_error(OP).at(&self.key))?;
        serde_json::from_slice(&reply).map_err(|_| self.unexpected())
    }

    async fn reach(&self) -> Result<Reached> {
        let environment = self.context.environment().clone();
        // The settings are those of S3, except for the endpoint; the place is named in messages about them.
        let place = Location::parse("s3://aws-kms", Path::new("/"))?;
        let config = RemoteConfig::resolve(&place, environment).await?;
        let of_arn = self
            .key
            .strip_prefix("arn:")
            .and_then(|rest| rest.split(':').nth(2));
        let region = of_arn
            .filter(|region| !region.is_empty())
            .unwrap_or(&config.region);
        let region = region.to_owned();
        let url = config.service_url("kms", env::AWS_ENDPOINT_URL_KMS, &region);
        let transport = self
            .context
            .transports()
            .get(self.context.limits(), config.ca_bundle.as_ref())?;
        let clock = Arc::clone(self.context.clock());
        Ok(Reached {
            region,
            url: format!("{}/", url.trim_end_matches('/')),
            chain: Chain::new(config, Arc::clone(&transport), clock),
            transport,
        })
    }

    fn unexpected(&self) -> Error {
        self.error(ErrorKind::InvalidInput, "the reply is not one of AWS KMS")
            .with_hint("check the endpoint")
    }

    fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, OP, message).at(&self.key)
    }
}
