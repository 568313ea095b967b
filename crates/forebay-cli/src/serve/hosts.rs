//! Whom a request must be addressed to.
//!
//! A page elsewhere may point its own name at this machine; the browser then takes our answers for its own. So requests must name
//! this machine by an address, which nobody else can point anywhere, as `localhost`, or by a name that was allowed when the server was
//! started. What is ambiguous (no host, two of them, a target that names another) is refused before anything else is looked at.

use std::net::IpAddr;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use http::header;
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri};

use super::api::Failure;

/// Names that are allowed beside addresses and `localhost`; cheap to copy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hosts(Arc<[String]>);

impl Hosts {
    /// Reads the names somebody wrote; a name with a port, a scheme or a path is refused.
    pub(crate) fn parse(names: &[String]) -> Result<Self> {
        let plain = |name: &String| -> Result<String> {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if !name.is_empty() && name.chars().all(is_plain) {
                return Ok(name.to_ascii_lowercase());
            }
            let message = format!("'{}' is not the name of a machine", name.escape_debug());
            Err(Error::new(ErrorKind::InvalidInput, "serve", message)
                .with_hint("write it without scheme, port and path, such as planner.example.org"))
        };
        let names: Result<Vec<String>> = names.iter().map(plain).collect();
        Ok(Self(names?.into()))
    }

    /// Refuses a request that names another machine, or not exactly one.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
        let mut named = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (named.next(), named.next()) else {
            return Err(bad_host("the request does not name exactly one host"));
        };
        let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
        let Some(host) = host.filter(|host| !host.as_str().contains('@')) else {
            return Err(bad_host("the host of the request is not a name with a port"));
        };
        // A target with a host of its own is for proxies; it may say what the header says and nothing else.
        if uri.authority().is_some_and(|target| *target != host) {
            return Err(bad_host("the target of the request names another host"));
        }
        if self.knows(host.host()) {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::InvalidInput,
            "serve",
            "the host of the request is not this machine",
        )
        .with_hint("open the page by an address such as http://127.0.0.1, or allow the name with --host");
        Err(Failure::new(StatusCode::MISDIRECTED_REQUEST, error))
    }

    fn knows(&self, host: &str) -> bool {
        let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_named = || self.0.iter().any(|name| host.eq_ignore_ascii_case(name));
        is_address || host.eq_ignore_ascii_case("localhost") || is_named()
    }
}

fn bad_host(message: &str) -> Failure {
    let error = Error::new(ErrorKind::InvalidInput, "serve", message)
        .with_hint("send one Host header with the address of this server");
    Failure::new(StatusCode::BAD_REQUEST, error)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// The status of the refusal, if it is one.
    fn refused(hosts: &Hosts, target: &str, named: &[&str]) -> Option<u16> {
        let mut headers = HeaderMap::new();
        for host in named {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        let failure = hosts.check(&target.parse().unwrap(), &headers).err();
        failure.map(|failure| failure.status().as_u16())
    }

    #[test]
    fn only_addresses_and_names_of_this_machine_are_served() {
        let hosts = Hosts::parse(&["Planner.example.org".to_owned()]).unwrap();
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1",
            "127.0.0.1:7070",
            "[::1]:80",
            "[::1]",
            "10.0.0.1:1",
            "planner.EXAMPLE.org:7070",
        ] {
            assert_eq!(refused(&hosts, "/plan", &[host]), None, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.evil.example",
            "planner.example.org.evil",
        ] {
            assert_eq!(refused(&hosts, "/plan", &[host]), Some(421), "{host}");
        }
        let nobody = Hosts::default();
        assert_eq!(refused(&nobody, "/plan", &["planner.example.org"]), Some(421));
    }

    #[test]
    fn what_is_ambiguous_is_refused() {
        let hosts = Hosts::default();
        for named in [
            &[][..],
            &["localhost", "localhost"],
            &["localhost", "evil.example"],
            &[""],
            &["localhost@evil.example"],
            &["local host"],
            &["localhost/path"],
        ] {
            assert_eq!(refused(&hosts, "/plan", named), Some(400), "{named:?}");
        }
        let absolute = |target: &str| refused(&hosts, target, &["localhost:7070"]);
        assert_eq!(absolute("http://localhost:7070/plan"), None);
        assert_eq!(absolute("http://evil.example/plan"), Some(400));
        assert_eq!(absolute("http://localhost:7070@evil.example/plan"), Some(400));
    }

    #[test]
    fn names_to_allow_are_plain() {
        for name in ["", "a:80", "http://a", "a/b", "*", "a b"] {
            let error = Hosts::parse(&[name.to_owned()]).unwrap_err();
            assert!(error.hint().is_some(), "{name}");
        }
    }
}
