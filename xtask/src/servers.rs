//! Real S3 servers for tests and benchmarks, started on loopback with free ports and stopped with whoever holds them.
//!
//! - [`seaweedfs`]: one process from a pinned wheel; runs in every lane;
//! - [`garage`]: a real cluster of three nodes that ignores conditional puts; slow lane;
//! - [`ceph`]: monitor, manager, one in-memory OSD and the RADOS gateway; slow lane.
//!
//! Each start-up ends the same way: [`s3`] creates the bucket with a signed request, again and again until the server
//! accepts it, which is also the proof that the server works. [`daemon`] holds the processes, [`ports`] finds ports.

mod ceph;
mod daemon;
mod garage;
mod ports;
mod s3;
mod seaweedfs;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tempfile::TempDir;

use crate::args::ServersOptions;
use crate::env;
use crate::run::Runner;
use crate::servers::daemon::Daemon;
use crate::venv;

/// Name of the bucket every server starts with.
const BUCKET: &str = "forebay-test";

/// Starts tried before giving up: a port found free can be taken before the server binds it.
const STARTS_MAX: u32 = 3;

/// The servers we know how to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    SeaweedFs,
    Garage,
    Ceph,
}

impl ServerKind {
    /// The name on the command line and in the tests' environment.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SeaweedFs => "seaweedfs",
            Self::Garage => "garage",
            Self::Ceph => "ceph",
        }
    }
}

impl FromStr for ServerKind {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::SeaweedFs, Self::Garage, Self::Ceph]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| anyhow!("unknown server `{text}`: seaweedfs, garage or ceph"))
    }
}

/// What a client needs to use a server. The keys are for loopback tests and open nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) port: u16,
    pub(crate) key: &'static str,
    pub(crate) secret: &'static str,
    pub(crate) region: &'static str,
}

/// A server that answers; dropping it stops its processes, then deletes its data.
#[derive(Debug)]
pub(crate) struct Server {
    kind: ServerKind,
    access: Access,
    // Declared before the folder: fields are dropped in order, and processes must end before their files go.
    daemons: Vec<Daemon>,
    _data: TempDir,
}

impl Server {
    /// Starts a server and waits until its bucket exists.
    pub(crate) fn start(runner: &Runner, kind: ServerKind, install: bool) -> Result<Self> {
        let mut attempt = 1;
        loop {
            match Self::start_once(runner, kind, install) {
                Err(error) if attempt < STARTS_MAX && !runner.interrupted() && is_port_clash(&error) => {
                    eprintln!("{} lost a port to another process, trying again", kind.name());
                    attempt += 1;
                }
                other => return other.with_context(|| format!("cannot start {}", kind.name())),
            }
        }
    }

    fn start_once(runner: &Runner, kind: ServerKind, install: bool) -> Result<Self> {
        let data = tempfile::Builder::new().prefix("forebay-server-").tempdir()?;
        let site = Site {
            runner,
            install,
            data: data.path().to_path_buf(),
        };
        let (access, daemons) = match kind {
            ServerKind::SeaweedFs => seaweedfs::start(&site)?,
            ServerKind::Garage => garage::start(&site)?,
            ServerKind::Ceph => ceph::start(&site)?,
        };
        let mut server = Self {
            kind,
            access,
            daemons,
            _data: data,
        };
        server.create_bucket(runner)?;
        Ok(server)
    }

    fn create_bucket(&mut self, runner: &Runner) -> Result<()> {
        let access = self.access.clone();
        let wait = match self.kind {
            ServerKind::Ceph => Duration::from_secs(180),
            ServerKind::SeaweedFs | ServerKind::Garage => Duration::from_secs(60),
        };
        daemon::until_ok(runner, wait, &mut self.daemons, || {
            s3::create_bucket(&access, BUCKET)
        })
    }

    /// The variables through which tests find the server.
    pub(crate) fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            (env::TEST_S3_SERVER, self.kind.name().to_owned()),
            (
                env::TEST_S3_ENDPOINT,
                format!("http://127.0.0.1:{}", self.access.port),
            ),
            (env::TEST_S3_BUCKET, BUCKET.to_owned()),
            (env::TEST_S3_ACCESS_KEY, self.access.key.to_owned()),
            (env::TEST_S3_SECRET_KEY, self.access.secret.to_owned()),
            (env::TEST_S3_REGION, self.access.region.to_owned()),
        ]
    }

    /// An error if one of the processes has ended, with the end of its log.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.daemons.iter_mut().try_for_each(Daemon::check)
    }
}

/// Where and with what a server is started.
#[derive(Debug)]
struct Site<'a> {
    runner: &'a Runner,
    /// May the tools it needs be installed?
    install: bool,
    /// An empty folder of its own.
    data: PathBuf,
}

fn is_port_clash(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}").to_lowercase();
    text.contains("address already in use") || text.contains("address in use")
}

/// `cargo xtask servers NAME`: runs until Ctrl-C.
pub(crate) fn run_foreground(runner: &Runner, options: &ServersOptions) -> Result<bool> {
    if options.kind == ServerKind::SeaweedFs {
        venv::ensure(runner, false)?;
    }
    let mut server = Server::start(runner, options.kind, options.install)?;
    for (name, value) in server.env() {
        println!("export {name}={value}");
    }
    eprintln!("{} is up; Ctrl-C stops it", options.kind.name());
    while !runner.interrupted() {
        server.check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in [ServerKind::SeaweedFs, ServerKind::Garage, ServerKind::Ceph] {
            assert_eq!(kind.name().parse::<ServerKind>().unwrap(), kind);
        }
        assert!("minio".parse::<ServerKind>().is_err());
    }

    #[test]
    fn a_lost_port_is_told_from_other_failures() {
        let clash =
            anyhow!("listen tcp 127.0.0.1:8333: bind: address already in use").context("cannot start");
        assert!(is_port_clash(&clash));
        assert!(!is_port_clash(&anyhow!("permission denied")));
    }
}
