//! Garage: a cluster of three nodes with three copies of everything, on loopback.
//!
//! Start-up: write each node's configuration, start the nodes, introduce them to the first one, give each a zone and
//! a capacity, apply that layout, import a key that may create buckets. Garage ignores conditional puts, which is why
//! it is here: a client that trusts them must notice.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::run;
use crate::servers::daemon::{Daemon, until_ok};
use crate::servers::{Access, Site, ports};
use crate::tools;

const NODES: usize = 3;
const ACCESS_KEY: &str = "GK31c2f218a2e44f485b94239e";
const SECRET_KEY: &str = "7d37d093435a41f2aab8f13c19ba067d9776c90215f56614adad6ece597dbb34";
const REGION: &str = "garage";

/// Shared by the nodes of one cluster; loopback only, so it need not be secret.
const RPC_SECRET: &str = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff000102030405060708090a0b0c0d0e0f";

/// How long the nodes may take to answer and to agree on the layout.
const WAIT: Duration = Duration::from_secs(60);

/// Starts the nodes and makes a cluster of them.
pub(super) fn start(site: &Site<'_>) -> Result<(Access, Vec<Daemon>)> {
    let program = if site.install {
        tools::GARAGE.find_or_install(site.runner)?
    } else {
        tools::GARAGE.find()?
    };
    let ports: [u16; NODES * 3] = ports::free()?;
    let nodes: Vec<Node> = ports
        .chunks_exact(3)
        .enumerate()
        .map(|(index, ports)| Node {
            index,
            s3: ports[0],
            rpc: ports[1],
            admin: ports[2],
        })
        .collect();
    let mut daemons = Vec::with_capacity(NODES);
    for node in &nodes {
        daemons.push(node.start(site, &program)?);
    }
    let cluster = Cluster {
        site,
        program: &program,
    };
    cluster.join(&nodes, &mut daemons)?;
    cluster.import_key(&mut daemons)?;
    let access = Access {
        port: nodes[0].s3,
        key: ACCESS_KEY,
        secret: SECRET_KEY,
        region: REGION,
    };
    Ok((access, daemons))
}

/// One process of the cluster.
#[derive(Debug)]
struct Node {
    index: usize,
    s3: u16,
    rpc: u16,
    admin: u16,
}

impl Node {
    fn start(&self, site: &Site<'_>, program: &Path) -> Result<Daemon> {
        let folder = node_folder(&site.data, self.index);
        std::fs::create_dir(&folder).context("cannot create a node's folder")?;
        let config = folder.join("garage.toml");
        std::fs::write(&config, self.config(&folder)).context("cannot write a node's configuration")?;
        make_private(&config)?;
        let mut command = run::bound_command(program);
        command
            .arg("-c")
            .arg(config)
            .arg("server")
            .env("RUST_LOG", "garage=warn");
        Daemon::start(&format!("garage-{}", self.index), &mut command, &site.data)
    }

    fn config(&self, folder: &Path) -> String {
        let (folder, Self { s3, rpc, admin, .. }) = (folder.display(), self);
        format!(
            r#"metadata_dir = "{folder}/meta"
data_dir = "{folder}/data"
db_engine = "lmdb"
replication_factor = {NODES}
compression_level = "none"
rpc_bind_addr = "127.0.0.1:{rpc}"
rpc_public_addr = "127.0.0.1:{rpc}"
rpc_secret = "{RPC_SECRET}"
[s3_api]
s3_region = "{REGION}"
api_bind_addr = "127.0.0.1:{s3}"
[admin]
api_bind_addr = "127.0.0.1:{admin}"
"#
        )
    }
}

/// Garage refuses a configuration that others could read, because of the secret in it.
fn make_private(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).context("cannot protect a file")
}

fn node_folder(data: &Path, index: usize) -> PathBuf {
    data.join(format!("node-{index}"))
}

/// The command line interface of the running nodes.
struct Cluster<'a> {
    site: &'a Site<'a>,
    program: &'a Path,
}

impl Cluster<'_> {
    /// Runs `garage` against one node.
    fn ask(&self, node: usize, args: &[&str]) -> Result<String> {
        let mut command = Command::new(self.program);
        command
            .arg("-c")
            .arg(node_folder(&self.site.data, node).join("garage.toml"))
            .args(args);
        self.site.runner.output(&mut command)
    }

    fn join(&self, nodes: &[Node], daemons: &mut [Daemon]) -> Result<()> {
        for node in nodes {
            // `status` answers once the node serves requests, which `node id` (read from disk) does not show.
            until_ok(self.site.runner, WAIT, daemons, || {
                self.ask(node.index, &["status"])
            })?;
            let id = self.ask(node.index, &["node", "id", "-q"])?;
            let id = id.trim();
            if node.index > 0 {
                self.ask(0, &["node", "connect", id])?;
            }
            let zone = format!("z{}", node.index);
            let short = id.split('@').next().unwrap_or(id);
            let assign = ["layout", "assign", "-z", &zone, "-c", "4G", short];
            until_ok(self.site.runner, WAIT, daemons, || self.ask(0, &assign))?;
        }
        self.ask(0, &["layout", "apply", "--version", "1"])?;
        Ok(())
    }

    /// Works once the nodes have agreed on the layout.
    fn import_key(&self, daemons: &mut [Daemon]) -> Result<()> {
        let import = ["key", "import", "--yes", "-n", "test", ACCESS_KEY, SECRET_KEY];
        until_ok(self.site.runner, WAIT, daemons, || match self.ask(0, &import) {
            // An earlier try may have got through although its answer did not.
            Err(error) if format!("{error:#}").contains("already exists") => Ok(String::new()),
            other => other,
        })?;
        let allow = ["key", "allow", "--create-bucket", ACCESS_KEY];
        until_ok(self.site.runner, WAIT, daemons, || self.ask(0, &allow))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_listens_on_loopback_only() {
        let config = Node {
            index: 0,
            s3: 1,
            rpc: 2,
            admin: 3,
        }
        .config(Path::new("/data"));
        let addresses: Vec<&str> = config.lines().filter(|line| line.contains("_addr")).collect();
        assert_eq!(addresses.len(), 4);
        assert!(
            addresses.iter().all(|line| line.contains("\"127.0.0.1:")),
            "{addresses:?}"
        );
        assert!(config.contains("replication_factor = 3"));
    }
}
