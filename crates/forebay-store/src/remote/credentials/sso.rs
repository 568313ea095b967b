//! Credentials of a role from AWS single sign-on: the session that `aws sso login` left in its cache is exchanged at the portal.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result, env};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::{Fetched, Sources, parse_time};
use crate::remote::environment::read_small;
use crate::remote::profile::{Profiles, Section};

/// The session in the cache of the AWS tools. No `Debug`: it is a credential.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Session {
    access_token: String,
    expires_at: String,
}

/// The portal's answer. No `Debug`: it is a credential.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reply {
    role_credentials: RoleCredentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleCredentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    /// Milliseconds since 1970.
    expiration: u64,
}

impl Sources {
    /// Exchange the session of a profile for credentials of its role.
    pub(super) async fn sso(&self, profiles: &Profiles, name: &str, profile: &Section) -> Result<Fetched> {
        let refuse = |what: &str| {
            let message = format!("single sign-on of profile '{}' {what}", name.escape_debug());
            Error::new(ErrorKind::Unauthenticated, "credentials", message)
                .with_hint(format!("run: aws sso login --profile {name}"))
        };
        let session = match profile.get("sso_session") {
            Some(session) => Some(
                profiles
                    .sso_session(session)
                    .ok_or_else(|| refuse("names a session that is not configured"))?,
            ),
            None => None,
        };
        let setting = |key: &str| {
            let value = session
                .and_then(|session| session.get(key))
                .or_else(|| profile.get(key));
            value.ok_or_else(|| refuse(&format!("has no {key}")))
        };
        let cache_name = match profile.get("sso_session") {
            Some(session) => session,
            None => setting("sso_start_url")?,
        };
        let path = self
            .sso_cache(cache_name)
            .ok_or_else(|| refuse("needs a home folder"))?;
        let Some(text) = read_small(&path).await? else {
            return Err(refuse("has no session"));
        };
        let session: Session =
            serde_json::from_str(&text).map_err(|_| refuse("has a session that does not parse"))?;
        if parse_time(&session.expires_at).is_none_or(|expires| expires <= self.clock.unix()) {
            return Err(refuse("has a session that has expired"));
        }
        let url = self
            .config
            .service_url("portal.sso", env::AWS_ENDPOINT_URL_SSO, setting("sso_region")?);
        let (role, account) = (setting("sso_role_name")?, setting("sso_account_id")?);
        let request = http::Request::get(format!(
            "{url}/federation/credentials?role_name={}&account_id={}",
            utf8_percent_encode(role, NON_ALPHANUMERIC),
            utf8_percent_encode(account, NON_ALPHANUMERIC)
        ))
        .header("x-amz-sso_bearer_token", &session.access_token)
        .body(Bytes::new())
        .map_err(|_| refuse("has settings that make no request"))?;
        let (_, body) = self
            .transport
            .fetch(request, &[session.access_token])
            .await
            .map_err(|failure| failure.to_error("credentials"))?;
        let reply: Reply =
            serde_json::from_slice(&body).map_err(|_| refuse("gave a reply that does not parse"))?;
        let role = reply.role_credentials;
        let expires = Duration::from_millis(role.expiration);
        Ok(Fetched::new(
            role.access_key_id,
            role.secret_access_key,
            Some(role.session_token),
            Some(expires),
        ))
    }

    /// The tools name the file by the SHA-1 of the session's name.
    fn sso_cache(&self, name: &str) -> Option<PathBuf> {
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, name.as_bytes());
        let hex = digest.as_ref().iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string does not fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let home = PathBuf::from(self.config.environment.get(env::HOME)?);
        Some(home.join(".aws/sso/cache").join(format!("{hex}.json")))
    }
}
