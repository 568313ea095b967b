//! Credentials that a profile describes: its keys, a role assumed with those of another profile, a web identity, single
//! sign-on, or a program.

use std::path::PathBuf;

use forebay_core::{Error, ErrorKind, Result};

use super::sts::Role;
use super::{Answer, Fetched, Sources};
use crate::remote::profile::{Profiles, Section};

/// Profiles that may name one another as source: more is a mistake.
const SOURCES_MAX: usize = 8;

impl Sources {
    /// The credentials of profile `name`.
    pub(super) async fn profile(&self, profiles: &Profiles, name: &str) -> Result<Answer> {
        // From the profile that was asked for down to the one that has credentials of its own.
        let mut roles = Vec::new();
        let mut name = name.to_owned();
        let found = loop {
            let Some(section) = profiles.profile(&name) else {
                return Err(wrong(&name, "is named as source, but does not exist"));
            };
            if roles.len() > SOURCES_MAX {
                return Err(wrong(&name, "is at the end of too long a chain of sources"));
            }
            // A profile that names itself has keys of its own.
            let is_source_of_itself = section.get("source_profile") == Some(&name) && !roles.is_empty();
            let Some(arn) = section.get("role_arn").filter(|_| !is_source_of_itself) else {
                break self.own(profiles, &name, section).await?;
            };
            let role = role(arn, section);
            if section.contains_key("mfa_serial") {
                return Err(wrong(
                    &name,
                    "asks for a code of a token device, which is not supported",
                ));
            }
            if let Some(file) = section.get("web_identity_token_file") {
                break Answer::Found(self.assume_with_token(&role, &PathBuf::from(file)).await?);
            }
            if let Some(source) = section.get("credential_source") {
                roles.push(role);
                break self.credential_source(&name, source).await?;
            }
            let Some(source) = section.get("source_profile") else {
                return Err(wrong(
                    &name,
                    "has role_arn, but no source_profile or credential_source",
                ));
            };
            roles.push(role);
            name.clone_from(source);
        };
        let mut found = match found {
            Answer::Found(found) => found,
            Answer::Absent(why) if roles.is_empty() => return Ok(Answer::Absent(why)),
            Answer::Absent(why) => {
                return Err(Error::new(ErrorKind::Unauthenticated, "credentials", why));
            }
        };
        while let Some(role) = roles.pop() {
            found = self.assume(&role, &found.credential).await?;
        }
        Ok(Answer::Found(found))
    }

    /// What a profile has without assuming a role.
    async fn own(&self, profiles: &Profiles, name: &str, section: &Section) -> Result<Answer> {
        let text = |key: &str| section.get(key).cloned();
        match (text("aws_access_key_id"), text("aws_secret_access_key")) {
            (Some(key), Some(secret)) => {
                let token = text("aws_session_token");
                return Ok(Answer::Found(Fetched::new(key, secret, token, None)));
            }
            (None, None) => {}
            _ => return Err(wrong(name, "has only one of the two keys")),
        }
        if section.contains_key("sso_session") || section.contains_key("sso_start_url") {
            return self.sso(profiles, name, section).await.map(Answer::Found);
        }
        if let Some(command) = section.get("credential_process") {
            return super::process::run(command, name).await.map(Answer::Found);
        }
        Ok(Answer::Absent(format!("profile '{name}' holds no credentials")))
    }

    async fn credential_source(&self, name: &str, source: &str) -> Result<Answer> {
        match source {
            "Environment" => self.variables(),
            "EcsContainer" => self.container().await,
            "Ec2InstanceMetadata" => self.instance().await,
            _ => Err(wrong(name, "has a credential_source that is not known")),
        }
    }
}

fn role(arn: &str, section: &Section) -> Role {
    Role {
        arn: arn.to_owned(),
        session_name: section.get("role_session_name").cloned(),
        external_id: section.get("external_id").cloned(),
        duration_seconds: section.get("duration_seconds").cloned(),
        region: section.get("region").cloned(),
    }
}

fn wrong(name: &str, what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "credentials",
        format!("profile '{}' {what}", name.escape_debug()),
    )
}
