//! AWS credentials: the ordinary chain, cached, refreshed before they expire.
//!
//! Tried in this order, and the first that is configured decides: variables, a web identity (`sts.rs`), the profile in the
//! AWS files (`from_profile.rs`: keys, an assumed role, single sign-on, a program), the container's endpoint and the instance's metadata service
//! (`machine.rs`). A source that is configured but fails is an error, never a reason to go on silently; when none is
//! configured the error lists what was tried.
//!
//! `object_store` signs S3 requests with what [`Chain`] gives it; requests to the token service are signed by the same code.

mod from_profile;
mod machine;
mod process;
mod sso;
mod sts;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{Clock, Error, ErrorKind, Result, env};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;

use super::config::RemoteConfig;
use super::profile::Profiles;
use super::transport::Transport;

/// Temporary credentials are renewed this long before they expire: a request that was just signed must still arrive.
const REFRESH_AHEAD: Duration = Duration::from_secs(300);

/// After a renewal that failed, the next one waits this long while the old credentials hold: a source that is down is not asked by every request.
const RENEW_PAUSE: Duration = Duration::from_secs(10);

/// Credentials with the time they expire. No `Debug`: nothing should ever print them.
#[derive(Clone)]
pub(crate) struct Fetched {
    credential: Arc<AwsCredential>,
    expires: Option<Duration>,
}

/// Credentials in use.
struct Cached {
    fetched: Fetched,
    /// From then on they are worth renewing; `None` when they do not expire.
    renew_at: Option<Duration>,
}

/// Where credentials may come from.
#[derive(Debug, Clone, Copy)]
enum Source {
    Variables,
    WebIdentity,
    Profile,
    Container,
    Instance,
}

impl Source {
    /// In the order they are asked.
    const ORDER: [Self; 5] = [
        Self::Variables,
        Self::WebIdentity,
        Self::Profile,
        Self::Container,
        Self::Instance,
    ];
}

/// What one source says.
enum Answer {
    Found(Fetched),
    /// Not configured here, and why.
    Absent(String),
}

/// What the sources need.
pub(crate) struct Sources {
    config: RemoteConfig,
    transport: Arc<Transport>,
    clock: Arc<dyn Clock>,
}

/// The chain, as `object_store` wants it.
pub(crate) struct Chain {
    sources: Sources,
    cached: Mutex<Option<Cached>>,
    /// Held while fetching, so that many requests ask once.
    fetching: tokio::sync::Mutex<()>,
}

impl Chain {
    pub(crate) fn new(config: RemoteConfig, transport: Arc<Transport>, clock: Arc<dyn Clock>) -> Self {
        Self {
            sources: Sources {
                config,
                transport,
                clock,
            },
            cached: Mutex::new(None),
            fetching: tokio::sync::Mutex::new(()),
        }
    }

    /// Forget what is cached: the server said it has expired.
    pub(crate) fn forget(&self) {
        *self.cached() = None;
    }

    /// Credentials that will not expire soon. While those we have hold, one request renews them and the others go on.
    pub(crate) async fn get(&self) -> Result<Arc<AwsCredential>> {
        let (held, due) = self.held();
        let Some(held) = held else {
            let _fetching = self.fetching.lock().await;
            // Somebody else may have fetched them while we waited.
            return match self.held() {
                (Some(held), _) => Ok(held),
                (None, _) => self.fetch().await,
            };
        };
        if !due {
            return Ok(held);
        }
        let Ok(_fetching) = self.fetching.try_lock() else {
            return Ok(held);
        };
        // The winner before us may just be done.
        if let (Some(held), false) = self.held() {
            return Ok(held);
        }
        match self.fetch().await {
            Ok(credential) => Ok(credential),
            Err(error) => {
                tracing::warn!(%error, "credentials could not be renewed yet");
                let again = self.sources.clock.unix() + RENEW_PAUSE;
                if let Some(cached) = self.cached().as_mut() {
                    cached.renew_at = Some(again);
                }
                Ok(held)
            }
        }
    }

    async fn fetch(&self) -> Result<Arc<AwsCredential>> {
        let fetched = self.sources.fetch().await?;
        let credential = Arc::clone(&fetched.credential);
        let now = self.sources.clock.unix();
        // What lives shorter than the margin is renewed at half its life, and not at every request.
        let renew_at = fetched.expires.map(|expires| {
            let half = now + expires.saturating_sub(now) / 2;
            expires.saturating_sub(REFRESH_AHEAD).max(half)
        });
        *self.cached() = Some(Cached { fetched, renew_at });
        Ok(credential)
    }

    /// What is cached, as long as it holds, and whether it is time to renew it.
    fn held(&self) -> (Option<Arc<AwsCredential>>, bool) {
        let now = self.sources.clock.unix();
        let cached = self.cached();
        let Some(Cached { fetched, renew_at }) = cached.as_ref() else {
            return (None, true);
        };
        let holds = fetched.expires.is_none_or(|expires| now < expires);
        let due = renew_at.is_some_and(|renew_at| now >= renew_at);
        (holds.then(|| Arc::clone(&fetched.credential)), due)
    }

    fn cached(&self) -> MutexGuard<'_, Option<Cached>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}

#[async_trait]
impl CredentialProvider for Chain {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.get().await.map_err(|error| object_store::Error::Generic {
            store: "credentials",
            source: Box::new(error),
        })
    }
}

impl Sources {
    /// Ask the sources in order.
    async fn fetch(&self) -> Result<Fetched> {
        let mut tried = Vec::new();
        for source in Source::ORDER {
            let answer = match source {
                Source::Variables => self.variables()?,
                Source::WebIdentity => self.web_identity().await?,
                Source::Profile => self.default_profile().await?,
                Source::Container => self.container().await?,
                Source::Instance => self.instance().await?,
            };
            match answer {
                Answer::Found(fetched) => return self.check(fetched),
                Answer::Absent(why) => tried.push(why),
            }
        }
        Err(Error::new(
            ErrorKind::Unauthenticated,
            "credentials",
            "no AWS credentials were found",
        )
        .with_hint(format!(
            "tried: {}; set FOREBAY_S3_UNSIGNED=1 for public buckets",
            tried.join("; ")
        )))
    }

    /// Keys in variables.
    fn variables(&self) -> Result<Answer> {
        let environment = &self.config.environment;
        let key = environment.get(env::AWS_ACCESS_KEY_ID);
        let secret = environment.get(env::AWS_SECRET_ACCESS_KEY);
        match (key, secret) {
            (Some(key), Some(secret)) => {
                let token = environment.get(env::AWS_SESSION_TOKEN);
                Ok(Answer::Found(Fetched::new(key, secret, token, None)))
            }
            (None, None) => Ok(Answer::Absent("variable AWS_ACCESS_KEY_ID is not set".to_owned())),
            _ => Err(Error::new(
                ErrorKind::Unauthenticated,
                "credentials",
                "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set",
            )),
        }
    }

    /// The profile that is named, or `default` where there is one.
    async fn default_profile(&self) -> Result<Answer> {
        let profiles = Profiles::load(&self.config.environment).await?;
        let named = self.config.profile.as_deref();
        let name = named.unwrap_or("default");
        if profiles.profile(name).is_none() {
            let files: Vec<String> = profiles
                .files
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            let message = format!(
                "profile '{}' is not in {}",
                name.escape_debug(),
                files.join(" or ")
            );
            return match named {
                None => Ok(Answer::Absent(message)),
                Some(_) => Err(Error::new(ErrorKind::InvalidInput, "credentials", message)),
            };
        }
        self.profile(&profiles, name).await
    }

    /// Credentials become header values, and expired ones only cost a round trip.
    fn check(&self, fetched: Fetched) -> Result<Fetched> {
        let refuse = |message: &str, hint: &str| {
            Err(Error::new(ErrorKind::Unauthenticated, "credentials", message).with_hint(hint))
        };
        let AwsCredential {
            key_id,
            secret_key,
            token,
        } = &*fetched.credential;
        let texts = [Some(key_id), Some(secret_key), token.as_ref()];
        let is_word = |text: &String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !texts.into_iter().flatten().all(is_word) {
            return refuse(
                "a key or token is empty or has characters that cannot be in one",
                "look for quotes, spaces and line ends around it",
            );
        }
        if fetched
            .expires
            .is_some_and(|expires| expires <= self.clock.unix())
        {
            return refuse(
                "credentials have expired",
                "renew them: log in again, or export fresh ones",
            );
        }
        Ok(fetched)
    }
}

impl Fetched {
    fn new(key_id: String, secret_key: String, token: Option<String>, expires: Option<Duration>) -> Self {
        Self {
            credential: Arc::new(AwsCredential {
                key_id,
                secret_key,
                token,
            }),
            expires,
        }
    }
}

/// The JSON that container and instance endpoints and credential programs answer with. No `Debug`: it is a credential.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "SessionToken")]
    token: Option<String>,
    expiration: Option<String>,
}

/// Parse a credential document; what does not parse is not repeated.
pub(super) fn parse_document(bytes: &[u8], source: &str) -> Result<Fetched> {
    let refuse = |what: &str| {
        let message = format!("{source} gave {what}");
        Error::new(ErrorKind::Unauthenticated, "credentials", message)
    };
    let document: Document =
        serde_json::from_slice(bytes).map_err(|_| refuse("a reply that is not a credential document"))?;
    let expires = match &document.expiration {
        Some(text) => Some(parse_time(text).ok_or_else(|| refuse("a time of expiry that does not parse"))?),
        None => None,
    };
    Ok(Fetched::new(
        document.access_key_id,
        document.secret_access_key,
        document.token,
        expires,
    ))
}

/// RFC 3339 as time since 1970.
pub(crate) fn parse_time(text: &str) -> Option<Duration> {
    let time = chrono::DateTime::parse_from_rfc3339(text).ok()?;
    let millis = u64::try_from(time.timestamp_millis()).ok()?;
    Some(Duration::from_millis(millis))
}
