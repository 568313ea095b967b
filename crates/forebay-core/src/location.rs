//! Where an object or a prefix lives, as people write it: `/data/x`, `s3://bucket/key`, `https://host/path`.
//!
//! A [`Location`] is a scheme, an authority (bucket, container, host) and a [`Key`]. It never holds credentials: a URL
//! with user information is refused, so whatever prints a location prints no secret.
//!
//! Names of objects and files are taken as they are: `%20` in them is three characters. Only web addresses are written in the encoding of the
//! web, since they are copied from browsers and servers' pages.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Key, Result};

/// The kind of store a location points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// Local file system.
    File,
    /// Process memory (tests, staging).
    Mem,
    /// S3-compatible object store.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
    /// NVMe over TCP.
    #[serde(rename = "nvme+tcp")]
    NvmeTcp,
}

impl Scheme {
    /// All schemes with their spelling in URLs.
    pub const ALL: [(&'static str, Self); 8] = [
        ("file", Self::File),
        ("mem", Self::Mem),
        ("s3", Self::S3),
        ("gs", Self::Gs),
        ("az", Self::Az),
        ("http", Self::Http),
        ("https", Self::Https),
        ("nvme+tcp", Self::NvmeTcp),
    ];

    /// The spelling in URLs.
    pub fn as_str(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, scheme)| *scheme == self)
            .map_or("", |(name, _)| name)
    }

    /// Plain web servers, whose addresses are percent-encoded.
    fn is_web(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }
}

/// What cannot stand in the path of a web address as it is. Characters beyond ASCII are always encoded.
const WEB_ESCAPED: AsciiSet = CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The name that the path of a web address stands for.
fn decode(path: &str) -> Result<String> {
    if path.to_ascii_lowercase().contains("%2f") {
        return Err(invalid(
            "an encoded slash cannot be told from a slash in a name",
            path,
        ));
    }
    percent_decode_str(path)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| invalid("name is not valid UTF-8", path))
}

/// Parsed URI of an object or prefix.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    scheme: Scheme,
    authority: String,
    key: Key,
}

impl Location {
    /// Parse a URL or a local path (anything without `scheme://`); relative paths are taken from `base`.
    pub fn parse(text: &str, base: &Path) -> Result<Self> {
        if text.is_empty() {
            return Err(invalid("location is empty", text));
        }
        match text.split_once("://") {
            None => match text.split_once(":/") {
                Some((scheme, _)) if Scheme::ALL.iter().any(|(name, _)| *name == scheme) => {
                    Err(
                        invalid("a URL has two slashes after its scheme", text).with_hint(format!(
                            "write {scheme}://, or ./{scheme}: for a local file of that name"
                        )),
                    )
                }
                _ => Self::from_path(Path::new(text), base),
            },
            Some(("file", rest)) => Self::parse_file_url(text, rest),
            Some((scheme, rest)) => Self::parse_remote(text, scheme, rest),
        }
    }

    /// Like [`Location::parse`] for an argument of the command line, which may not be UTF-8.
    pub fn parse_os(text: &OsStr, base: &Path) -> Result<Self> {
        match text.to_str() {
            Some(text) => Self::parse(text, base),
            None => Err(invalid("name is not valid UTF-8", &text.to_string_lossy())
                .with_hint("rename the file, or use a UTF-8 link to it")),
        }
    }

    /// A local path; `.` and `..` are resolved lexically against `base`, which must be absolute.
    pub fn from_path(path: &Path, base: &Path) -> Result<Self> {
        let mut parts: Vec<&str> = Vec::new();
        let absolute = base.join(path);
        if !absolute.is_absolute() {
            return Err(invalid("base directory is not absolute", &base.to_string_lossy()));
        }
        for component in absolute.components() {
            match component {
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
                Component::ParentDir => {
                    parts.pop();
                }
                Component::Normal(part) => match part.to_str() {
                    Some(part) => parts.push(part),
                    None => return Err(invalid("name is not valid UTF-8", &part.to_string_lossy())),
                },
            }
        }
        // Local paths may be longer than an object name; PATH_MAX is the operating system's business.
        Ok(Self {
            scheme: Scheme::File,
            authority: format!("/{}", parts.join("/")),
            key: Key::ROOT,
        })
    }

    /// Memory of this process that nobody else can name.
    pub fn private_memory() -> Self {
        Self {
            scheme: Scheme::Mem,
            authority: "private".to_owned(),
            key: Key::ROOT,
        }
    }

    fn parse_file_url(text: &str, rest: &str) -> Result<Self> {
        let path = rest
            .strip_prefix("localhost")
            .filter(|path| path.starts_with('/'))
            .unwrap_or(rest);
        if !path.starts_with('/') {
            return Err(invalid("file URL must be file:///absolute/path", text));
        }
        Self::from_path(Path::new(path), Path::new("/"))
    }

    fn parse_remote(text: &str, scheme: &str, rest: &str) -> Result<Self> {
        let Some(scheme) = Scheme::ALL
            .iter()
            .find(|(name, _)| *name == scheme)
            .map(|(_, scheme)| *scheme)
        else {
            return Err(unknown_scheme(scheme));
        };
        refuse_credentials(scheme, rest)?;
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() && scheme != Scheme::Mem {
            return Err(invalid("bucket or host is missing", text));
        }
        let key = if scheme.is_web() {
            Key::parse(&decode(key)?)?
        } else {
            Key::parse(key)?
        };
        Ok(Self {
            scheme,
            authority: authority.to_owned(),
            key,
        })
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Bucket, container or host; for local paths the absolute path.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The object or prefix below the authority; always the root for local paths.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The absolute path, for local locations.
    pub fn to_path(&self) -> Option<PathBuf> {
        (self.scheme == Scheme::File).then(|| PathBuf::from(&self.authority))
    }

    /// The location of `key` below this one.
    pub fn join(&self, key: &Key) -> Self {
        let mut joined = self.clone();
        match (self.scheme, key.is_root()) {
            (_, true) => {}
            (Scheme::File, false) => {
                joined.authority = format!("{}/{key}", self.authority.trim_end_matches('/'));
            }
            _ => joined.key = self.key.join(key),
        }
        joined
    }

    /// Split into the parent prefix and the last name; `None` where there is no last name (a bare bucket, `/`).
    pub fn split_last(&self) -> Option<(Self, Key)> {
        let mut parent = self.clone();
        if self.scheme == Scheme::File {
            let (head, last) = self.authority.rsplit_once('/')?;
            parent.authority = if head.is_empty() {
                "/".to_owned()
            } else {
                head.to_owned()
            };
            return Key::parse(last)
                .ok()
                .filter(|key| !key.is_root())
                .map(|key| (parent, key));
        }
        if self.key.is_root() {
            return None;
        }
        parent.key = self.key.parent();
        Some((parent, Key::parse(self.key.file_name()).ok()?))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::File => f.write_str(&self.authority),
            scheme if self.key.is_root() => write!(f, "{}://{}", scheme.as_str(), self.authority),
            scheme if scheme.is_web() => {
                let key = utf8_percent_encode(self.key.as_str(), &WEB_ESCAPED);
                write!(f, "{}://{}/{key}", scheme.as_str(), self.authority)
            }
            scheme => write!(f, "{}://{}/{}", scheme.as_str(), self.authority, self.key),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Words in a query that mean that the URL is itself a credential.
const QUERY_CREDENTIALS: [&str; 6] = [
    "x-amz-",
    "x-goog-",
    "awsaccesskeyid",
    "signature=",
    "sig=",
    "token=",
];

/// Refuse a URL that holds a credential, without repeating it. Object names may have `?` and `#` in them; web addresses may not, since there
/// they begin a query.
fn refuse_credentials(scheme: Scheme, rest: &str) -> Result<()> {
    let (plain, query) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, ""),
    };
    let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidInput, "location", message));
    if plain.split('/').next().unwrap_or("").contains('@') {
        return refuse("URL holds credentials").map_err(|error: Error| {
            error.with_hint("give credentials by environment or profile, never inside a URL")
        });
    }
    let web = scheme.is_web();
    let query = query.to_ascii_lowercase();
    if (web && plain.len() < rest.len()) || QUERY_CREDENTIALS.iter().any(|word| query.contains(word)) {
        return refuse("URL has a query or fragment").map_err(|error: Error| {
            error
                .at(format!("{}://{plain}", scheme.as_str()))
                .with_hint("signed URLs are not accepted, since their query is a credential")
        });
    }
    Ok(())
}

fn invalid(why: &str, text: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "location",
        format!("{why}: '{}'", text.escape_debug()),
    )
}

fn unknown_scheme(scheme: &str) -> Error {
    let known: Vec<&str> = Scheme::ALL.iter().map(|(name, _)| *name).collect();
    let near = known.iter().find(|name| near(name, scheme));
    let hint = match near {
        Some(name) => format!("did you mean {name}://"),
        None => format!("known schemes: {}", known.join(", ")),
    };
    Error::new(
        ErrorKind::InvalidInput,
        "location",
        format!("unknown scheme '{}'", scheme.escape_debug()),
    )
    .with_hint(hint)
}

/// Same letters in another case, one letter more or less, or one letter changed.
fn near(known: &str, given: &str) -> bool {
    let given = given.to_ascii_lowercase();
    let (short, long) = if known.len() <= given.len() {
        (known, given.as_str())
    } else {
        (given.as_str(), known)
    };
    if !short.is_ascii() || !long.is_ascii() {
        return false;
    }
    let same_head = short
        .bytes()
        .zip(long.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    match long.len() - short.len() {
        0 => short == long || short[same_head + 1..] == long[same_head + 1..],
        1 => short[same_head..] == long[same_head + 1..],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Location> {
        Location::parse(text, Path::new("/home/u"))
    }

    #[test]
    fn urls_and_paths_print_as_they_mean() {
        for (text, printed) in [
            ("a/b", "/home/u/a/b"),
            ("/x/../y/./z", "/y/z"),
            ("file:///d/a b", "/d/a b"),
            ("file://localhost/d", "/d"),
            ("s3://bucket/a/b.tar", "s3://bucket/a/b.tar"),
            ("s3://bucket/", "s3://bucket"),
            ("https://host:8080/x", "https://host:8080/x"),
            ("https://host/a%20b/%C3%A9%25", "https://host/a%20b/%C3%A9%25"),
            ("https://host/a b/\u{e9}", "https://host/a%20b/%C3%A9"),
            ("s3://bucket/a%20b", "s3://bucket/a%20b"),
            ("mem:///k", "mem:///k"),
            ("../../../..", "/"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn typos_are_refused_with_a_hint() {
        for (text, hint) in [
            ("s4://b/k", "s3://"),
            ("S3://b/k", "s3://"),
            ("htps://h/k", "https://"),
            ("ftp://h/k", "known"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.hint().unwrap().contains(hint), "{text}: {:?}", error.hint());
        }
        for text in [
            "s3:/b/k",
            "file:/etc/x",
            "",
            "s3://",
            "s3:///k",
            "file://relative",
            "s3://b/../c",
            "s3://b//k",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        for text in [
            "s3://AKIA:canarysecret@bucket/k",
            "https://h/k?X-Amz-Signature=canarysecret",
            "https://h?X-Amz-Signature=canarysecret",
            "https:///k?X-Amz-Signature=canarysecret",
            "az://c/b?sv=1&sig=canarysecret",
            "s3://b/k?AWSAccessKeyId=canarysecret",
            "s3://b//k?sig=canarysecret",
            "gs://b/k#x-goog-signature=canarysecret",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canarysecret"), "{error}");
        }
    }

    #[test]
    fn web_addresses_are_encoded_and_names_are_not() {
        assert_eq!(parse("https://h/a%20b").unwrap().key().as_str(), "a b");
        assert_eq!(parse("s3://b/a%20b").unwrap().key().as_str(), "a%20b");
        for text in [
            "https://h/a%2Fb",
            "https://h/%FF",
            "https://h/a%00b%2e%2E/%2e%2e/x",
        ] {
            assert_eq!(parse(text).unwrap_err().kind(), ErrorKind::InvalidInput, "{text}");
        }
    }

    #[test]
    fn split_last_undoes_join() {
        for text in ["s3://b/a/c", "/a/c", "/c"] {
            let location = parse(text).unwrap();
            let (parent, last) = location.split_last().unwrap();
            assert_eq!(parent.join(&last), location);
        }
        assert!(parse("s3://b").unwrap().split_last().is_none());
        assert!(parse("/").unwrap().split_last().is_none());
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_parses_prints_back(text in ".{0,60}") {
            if let Ok(location) = parse(&text) {
                prop_assert_eq!(parse(&location.to_string()).unwrap(), location);
            }
        }
    }
}
