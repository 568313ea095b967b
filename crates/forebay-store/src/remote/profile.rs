//! The profile files of AWS: `~/.aws/config` and `~/.aws/credentials`.
//!
//! Both are INI files with sections (`[default]`, `[profile NAME]` or `[NAME]`, `[sso-session NAME]`, `[services NAME]`) and
//! keys that may hold indented sub-keys, kept here as `s3.endpoint_url`. What both files say of a profile is merged; the credentials file
//! wins.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_core::{Error, ErrorKind, Result, env};

use super::environment::{Environment, read_small};

/// Keys and values of one section.
pub(crate) type Section = BTreeMap<String, String>;

/// Both files, parsed.
#[derive(Default)]
pub(crate) struct Profiles {
    by_name: BTreeMap<String, Section>,
    sso_sessions: BTreeMap<String, Section>,
    services: BTreeMap<String, Section>,
    /// The files that were looked for, for messages.
    pub(crate) files: Vec<PathBuf>,
}

impl Profiles {
    /// Read what is there; files that are not there are fine.
    pub(crate) async fn load(environment: &Environment) -> Result<Self> {
        let mut profiles = Self::default();
        let config = environment.path(env::AWS_CONFIG_FILE, ".aws/config");
        let credentials = environment.path(env::AWS_SHARED_CREDENTIALS_FILE, ".aws/credentials");
        for (path, is_config) in [(config, true), (credentials, false)] {
            let Some(path) = path else { continue };
            if let Some(text) = read_small(&path).await? {
                let sections = parse(&text).map_err(|line| {
                    let message = format!("line {line} is neither a section, a key nor a comment");
                    Error::new(ErrorKind::InvalidInput, "read profile", message).at(path.display())
                })?;
                profiles.take(sections, is_config);
            }
            profiles.files.push(path);
        }
        Ok(profiles)
    }

    fn take(&mut self, sections: Vec<(String, Section)>, is_config: bool) {
        for (name, section) in sections {
            let words: Vec<&str> = name.split_whitespace().collect();
            let (table, name) = match words.as_slice() {
                [name] if !is_config || *name == "default" => (&mut self.by_name, *name),
                ["profile", name] if is_config => (&mut self.by_name, *name),
                ["sso-session", name] if is_config => (&mut self.sso_sessions, *name),
                ["services", name] if is_config => (&mut self.services, *name),
                _ => continue,
            };
            table.entry(name.to_owned()).or_default().extend(section);
        }
    }

    /// The profile of that name.
    pub(crate) fn profile(&self, name: &str) -> Option<&Section> {
        self.by_name.get(name)
    }

    /// The sign-on session of that name.
    pub(crate) fn sso_session(&self, name: &str) -> Option<&Section> {
        self.sso_sessions.get(name)
    }

    /// The S3 endpoint a profile names: its own `services` section first, then `endpoint_url`.
    pub(crate) fn s3_endpoint(&self, profile: &str) -> Option<&String> {
        let profile = self.profile(profile)?;
        let service = profile
            .get("services")
            .and_then(|name| self.services.get(name)?.get("s3.endpoint_url"));
        service.or_else(|| profile.get("endpoint_url"))
    }
}

/// Sections in file order, or the number of the line that makes no sense.
pub(super) fn parse(text: &str) -> Result<Vec<(String, Section)>, usize> {
    let mut sections: Vec<(String, Section)> = Vec::new();
    // The key whose indented sub-keys follow, when its own value was empty.
    let mut parent: Option<String> = None;
    for (index, raw) in text.lines().enumerate() {
        let line = uncomment(raw);
        if line.trim().is_empty() {
            continue;
        }
        if let Some(rest) = line.trim().strip_prefix('[') {
            let name = rest.split(']').next().unwrap_or(rest).trim();
            sections.push((name.to_owned(), Section::new()));
            parent = None;
            continue;
        }
        let (key, value) = line.split_once('=').ok_or(index + 1)?;
        let (_, section) = sections.last_mut().ok_or(index + 1)?;
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
        if let Some(parent) = parent.as_ref().filter(|_| line.starts_with([' ', '\t'])) {
            section.insert(format!("{parent}.{key}"), value);
            continue;
        }
        parent = value.is_empty().then(|| key.clone());
        section.insert(key, value);
    }
    Ok(sections)
}

/// The line without a comment: `#` or `;` at its start, or after white space.
fn uncomment(line: &str) -> &str {
    let mut before = b' ';
    for (at, byte) in line.bytes().enumerate() {
        if matches!(byte, b'#' | b';') && matches!(before, b' ' | b'\t') {
            return &line[..at];
        }
        before = byte;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
# a comment
[default]
region = eu-west-1 ; trailing

[profile train]
region=us-west-2
services = local
s3 =
    addressing_style = path
    max_concurrent_requests=20
role_arn = arn:aws:iam::1:role/r

[services local]
s3 =
  endpoint_url = http://127.0.0.1:9000
[sso-session corp]
sso_region = eu-north-1
[ignored]
x = 1
";

    #[test]
    fn sections_keys_and_sub_keys_are_found() {
        let mut profiles = Profiles::default();
        profiles.take(parse(CONFIG).unwrap(), true);
        profiles.take(
            parse("[train]\naws_secret_access_key = a/b+c#d==\nregion = override\n[ignored]\nx=2").unwrap(),
            false,
        );
        let train = profiles.profile("train").unwrap();
        assert_eq!(train["s3.addressing_style"], "path");
        assert_eq!(train["region"], "override");
        assert_eq!(train["aws_secret_access_key"], "a/b+c#d==");
        assert_eq!(train["role_arn"], "arn:aws:iam::1:role/r");
        assert_eq!(profiles.profile("default").unwrap()["region"], "eu-west-1");
        assert_eq!(profiles.s3_endpoint("train").unwrap(), "http://127.0.0.1:9000");
        assert_eq!(profiles.sso_session("corp").unwrap()["sso_region"], "eu-north-1");
        assert_eq!(profiles.profile("ignored").unwrap()["x"], "2");
    }

    #[test]
    fn nonsense_is_refused_by_line() {
        assert_eq!(parse("[a]\nno value\n").unwrap_err(), 2);
        assert_eq!(parse("key = outside\n").unwrap_err(), 1);
    }
}
