//! `forebay serve`: the planner in a browser, computed by this program.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use forebay_core::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::ServeArgs;
use crate::printer::Printed;
use crate::serve::{Hosts, Limits, Server};

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Row {
    url: String,
    address: SocketAddr,
}

/// Serve until Ctrl-C.
pub(super) async fn run(args: &ServeArgs, app: &App) -> Printed<Exit> {
    let address = parse_address(&args.listen)?;
    if !address.ip().is_loopback() && !args.allow_remote {
        return Err(remote_refused(address).into());
    }
    let hosts = Hosts::parse(&args.host)?;
    let server = Server::bind(address).await?;
    let address = server.address();
    let url = format!("http://{address}/plan");
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&Row { url, address })?;
    } else {
        printer.data(url)?;
    }
    // Whoever started us waits for the address, perhaps in a pipe.
    printer.flush()?;
    if !address.ip().is_loopback() {
        printer.say("everybody who reaches this address can use the planner; there is no password");
    }
    printer.say("Ctrl-C ends it");
    server.run(hosts, Limits::default(), app.cancel()).await;
    printer.say("stopped");
    // Only a signal ends a server, and the status says which, as everywhere; nothing failed that would need a word.
    Ok(Exit::Failed)
}

fn remote_refused(address: SocketAddr) -> Error {
    let message = format!("{} can be reached from other machines", address.ip());
    Error::new(ErrorKind::InvalidInput, "listen", message)
        .at(address)
        .with_hint("listen on 127.0.0.1, or add --allow-remote: there is no password and no encryption")
}

/// An address with its port; `localhost` is this machine, and so is a port alone.
fn parse_address(text: &str) -> Result<SocketAddr> {
    let local = |port: &str| {
        let port = port.parse::<u16>().ok()?;
        Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    };
    let named = text.strip_prefix("localhost:").unwrap_or(text);
    let found = text.parse().ok().or_else(|| local(named));
    found.ok_or_else(|| {
        let message = format!("'{}' is not an address with a port", text.escape_debug());
        Error::new(ErrorKind::InvalidInput, "listen", message)
            .with_hint("write 127.0.0.1:7070, [::1]:7070, localhost:7070 or 7070")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, address) in [
            ("127.0.0.1:7070", "127.0.0.1:7070"),
            ("localhost:80", "127.0.0.1:80"),
            ("0", "127.0.0.1:0"),
            ("[::1]:7070", "[::1]:7070"),
            ("0.0.0.0:1", "0.0.0.0:1"),
        ] {
            assert_eq!(parse_address(text).unwrap(), address.parse().unwrap(), "{text}");
        }
        for text in ["", "127.0.0.1", "70700", "example.org:80", ":80", "localhost"] {
            assert!(parse_address(text).unwrap_err().hint().is_some(), "{text}");
        }
    }
}
