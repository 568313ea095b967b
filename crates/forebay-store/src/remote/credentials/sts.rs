//! Temporary credentials of a role, from the AWS security token service.
//!
//! A role is assumed with other credentials (the request is signed by `object_store`'s own signer) or with the token of a web identity.

use std::path::PathBuf;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result, env};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Answer, Fetched, Sources, parse_time};
use crate::remote::environment::read_small;
use crate::remote::failure::xml_texts;

/// Name of the session in the cloud's audit log, when the user names none.
const SESSION_NAME: &str = "forebay";

/// A role to assume.
#[derive(Debug, Clone, Default)]
pub(super) struct Role {
    pub(super) arn: String,
    pub(super) session_name: Option<String>,
    pub(super) external_id: Option<String>,
    pub(super) duration_seconds: Option<String>,
    pub(super) region: Option<String>,
}

impl Sources {
    /// The web identity that variables name.
    pub(super) async fn web_identity(&self) -> Result<Answer> {
        let environment = &self.config.environment;
        let Some(file) = environment.get(env::AWS_WEB_IDENTITY_TOKEN_FILE) else {
            return Ok(Answer::Absent(
                "variable AWS_WEB_IDENTITY_TOKEN_FILE is not set".to_owned(),
            ));
        };
        let Some(arn) = environment.get(env::AWS_ROLE_ARN) else {
            let message = "AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not";
            return Err(Error::new(ErrorKind::Unauthenticated, "credentials", message));
        };
        let role = Role {
            arn,
            session_name: environment.get(env::AWS_ROLE_SESSION_NAME),
            ..Role::default()
        };
        self.assume_with_token(&role, &PathBuf::from(file))
            .await
            .map(Answer::Found)
    }

    /// Assume a role with the token in a file.
    pub(super) async fn assume_with_token(&self, role: &Role, file: &std::path::Path) -> Result<Fetched> {
        let Some(token) = read_small(file).await? else {
            let message = "file of the web identity token does not exist";
            return Err(Error::new(ErrorKind::Unauthenticated, "credentials", message).at(file.display()));
        };
        let token = token.trim().to_owned();
        let form = form(
            "AssumeRoleWithWebIdentity",
            role,
            &[("WebIdentityToken", Some(&token))],
        );
        self.ask(role, form, None, vec![token]).await
    }

    /// Assume a role with other credentials.
    pub(super) async fn assume(&self, role: &Role, with: &AwsCredential) -> Result<Fetched> {
        let form = form("AssumeRole", role, &[("ExternalId", role.external_id.as_ref())]);
        self.ask(role, form, Some(with), Vec::new()).await
    }

    async fn ask(
        &self,
        role: &Role,
        form: String,
        signer: Option<&AwsCredential>,
        secrets: Vec<String>,
    ) -> Result<Fetched> {
        let region = role.region.as_deref().unwrap_or(&self.config.region);
        let url = self.config.service_url("sts", env::AWS_ENDPOINT_URL_STS, region);
        let refuse =
            |message: String| Error::new(ErrorKind::Unauthenticated, "assume role", message).at(&role.arn);
        let mut request: HttpRequest = http::Request::post(format!("{}/", url.trim_end_matches('/')))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/xml")
            .body(HttpRequestBody::from(form.clone()))
            .map_err(|_| refuse("endpoint of the token service does not parse".to_owned()))?;
        if let Some(credential) = signer {
            AwsAuthorizer::new(credential, "sts", region)
                .try_authorize(&mut request, None)
                .map_err(|_| refuse("request could not be signed".to_owned()))?;
        }
        let request = request.map(|_| Bytes::from(form));
        let (_, body) = self
            .transport
            .fetch(request, &secrets)
            .await
            .map_err(|failure| failure.to_error("assume role").at(&role.arn))?;
        let [key, secret, token, expires] = xml_texts(
            &String::from_utf8_lossy(&body),
            ["AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"],
        );
        let (Some(key), Some(secret), Some(token)) = (key, secret, token) else {
            return Err(refuse(
                "reply of the token service holds no credentials".to_owned(),
            ));
        };
        let expires = expires.as_deref().and_then(parse_time);
        Ok(Fetched::new(key, secret, Some(token), expires))
    }
}

fn form(action: &str, role: &Role, extra: &[(&str, Option<&String>)]) -> String {
    let session = role
        .session_name
        .clone()
        .unwrap_or_else(|| SESSION_NAME.to_owned());
    let (action, version) = (action.to_owned(), "2011-06-15".to_owned());
    let fields = [
        ("Action", Some(&action)),
        ("Version", Some(&version)),
        ("RoleArn", Some(&role.arn)),
        ("RoleSessionName", Some(&session)),
        ("DurationSeconds", role.duration_seconds.as_ref()),
    ];
    fields
        .iter()
        .chain(extra)
        .filter_map(|(name, value)| {
            let value = utf8_percent_encode((*value)?, NON_ALPHANUMERIC);
            Some(format!("{name}={value}"))
        })
        .collect::<Vec<_>>()
        .join("&")
}
