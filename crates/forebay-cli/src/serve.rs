//! A small web server: the planner's page and the JSON interface behind it.
//!
//! [`Server::bind`] takes the address, [`Server::run`] serves until it is told to stop. A connection is one task: hyper parses
//! requests, [`routes`] answers them from [`assets`] (files compiled into the program) or [`api`] (the planner). Nothing is read from the disk and
//! nothing is kept between requests.
//!
//! Everything a client can make us hold has a limit in [`Limits`]: connections, header bytes, body bytes, plans at a time, and the
//! time for each of them. A client that sends slowly holds its own connection and nobody else's; when all are taken, new ones wait in the
//! kernel's queue until the slowest has run out of time.

mod api;
mod assets;
mod hosts;
mod limits;
mod planner;
mod routes;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Result};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

pub(crate) use hosts::Hosts;
pub(crate) use limits::Limits;
use routes::Site;

/// Pause after a connection that could not be taken (no file descriptors left), instead of a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening server.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Takes the address; a busy port and an address of another machine are errors that say so.
    pub(crate) async fn bind(address: SocketAddr) -> Result<Self> {
        let refuse = |error: io::Error| refused(address, error);
        let listener = TcpListener::bind(address).await.map_err(refuse)?;
        let address = listener.local_addr().map_err(refuse)?;
        Ok(Self { listener, address })
    }

    /// Where it listens, with the port the system chose when asked for port 0.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then lets answers under way end.
    pub(crate) async fn run(self, hosts: Hosts, limits: Limits, stop: &CancellationToken) {
        let site = Site::new(hosts, limits);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = connections.join_next() => note_end(ended),
                accepted = self.listener.accept(), if connections.len() < limits.connections_max => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(serve(stream, site.clone(), limits, stop.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot take a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        // Connections know of `stop` themselves, and end within their grace.
        while let Some(ended) = connections.join_next().await {
            note_end(ended);
        }
    }
}

/// A connection that ended by a fault of ours must not go unseen: its client saw nothing but a closed socket.
fn note_end(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection was dropped by a fault of the server");
    }
}

/// One connection to its end.
async fn serve(stream: TcpStream, site: Site, limits: Limits, stop: CancellationToken) {
    let service = service_fn(|request| site.answer(request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time_max)
        .max_headers(limits.headers_max)
        .max_buf_size(limits.head_bytes_max)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = tokio::time::sleep(limits.connection_time_max) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(limits.grace_time_max, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

fn refused(address: SocketAddr, error: io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program listens there: stop it, or give another port with --listen, such as 127.0.0.1:7071"
        }
        io::ErrorKind::AddrNotAvailable => "no network interface of this machine has that address",
        io::ErrorKind::PermissionDenied => "ports below 1024 belong to the system; take one above",
        _ => "give an address of this machine with --listen, such as 127.0.0.1:7070",
    };
    let message = match error.kind() {
        io::ErrorKind::AddrInUse => format!("port {} is taken", address.port()),
        _ => error.to_string(),
    };
    Error::new(ErrorKind::InvalidInput, "listen", message)
        .at(address)
        .with_hint(hint)
        .with_source(error)
}
