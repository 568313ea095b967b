//! Ceph: monitor, manager, one OSD that keeps objects in memory, and the RADOS gateway, on loopback.
//!
//! Start-up: make a key for every daemon, a map with one monitor, start the monitor, import the keys, start the
//! manager, register and start the OSD, start the gateway, create its user. The daemons run in the foreground as
//! our children (never detached), so that none outlives us.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::run;
use crate::servers::daemon::{Daemon, until_ok};
use crate::servers::{Access, Site, ports};
use crate::tools;

const ACCESS_KEY: &str = "forebay";
const SECRET_KEY: &str = "forebaysecret";

/// Debian and Ubuntu packages with the daemons; nothing they recommend is needed.
const PACKAGES: [&str; 5] = ["ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "ceph-common"];

/// All programs used, to notice an incomplete installation before half of it runs.
const PROGRAMS: [&str; 8] = [
    "ceph",
    "ceph-authtool",
    "ceph-mgr",
    "ceph-mon",
    "ceph-osd",
    "monmaptool",
    "radosgw",
    "radosgw-admin",
];

/// How long a daemon may take to answer; the whole start-up takes about 40 s.
const WAIT: Duration = Duration::from_secs(120);

/// Memory the OSD may fill with objects, twice what the tests write.
const STORE_BYTES_MAX: u64 = 4 << 30;

/// Name, and capabilities with the monitor, manager, OSDs and metadata servers, of every key.
const KEYS: [(&str, &[(&str, &str)]); 5] = [
    ("mon.", &[("mon", "allow *")]),
    (
        "client.admin",
        &[
            ("mon", "allow *"),
            ("osd", "allow *"),
            ("mgr", "allow *"),
            ("mds", "allow *"),
        ],
    ),
    ("mgr.x", &[("mon", "allow profile mgr"), ("osd", "allow *")]),
    (
        "osd.0",
        &[
            ("mon", "allow profile osd"),
            ("mgr", "allow profile osd"),
            ("osd", "allow *"),
        ],
    ),
    ("client.rgw.a", &[("mon", "allow rw"), ("osd", "allow rwx")]),
];

/// Starts the daemons and creates the user.
pub(super) fn start(site: &Site<'_>) -> Result<(Access, Vec<Daemon>)> {
    ensure_installed(site)?;
    let [mon_v2, mon_v1, gateway] = ports::free()?;
    let cluster = Cluster {
        site,
        fsid: uuid()?,
        mon_v2,
        mon_v1,
        gateway,
    };
    cluster.prepare()?;
    let mut daemons = Vec::new();
    cluster.start_monitor(&mut daemons)?;
    daemons.push(cluster.daemon("ceph-mgr", &["-i", "x"])?);
    cluster.start_osd(&mut daemons)?;
    daemons.push(cluster.daemon("radosgw", &["-n", "client.rgw.a"])?);
    cluster.create_user(&mut daemons)?;
    let access = Access {
        port: gateway,
        key: ACCESS_KEY,
        secret: SECRET_KEY,
        region: "us-east-1",
    };
    Ok((access, daemons))
}

fn ensure_installed(site: &Site<'_>) -> Result<()> {
    let missing = || PROGRAMS.into_iter().find(|program| !tools::on_path(program));
    let Some(first) = missing() else { return Ok(()) };
    let line = format!(
        "apt-get install -y --no-install-recommends {}",
        PACKAGES.join(" ")
    );
    if !site.install {
        bail!("{first} is not installed; run again as root with --install, or: {line}");
    }
    if !rustix::process::geteuid().is_root() {
        bail!("{first} is not installed and only root may install it: {line}");
    }
    let mut command = site.runner.command("apt-get");
    command
        .args(["install", "-y", "--no-install-recommends"])
        .args(PACKAGES);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    site.runner.run(&mut command)?;
    missing().map_or(Ok(()), |first| {
        Err(anyhow!("{first} is still missing after `{line}`"))
    })
}

fn uuid() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("cannot make a UUID")?;
    Ok(text.trim().to_owned())
}

/// One cluster and its files.
struct Cluster<'a> {
    site: &'a Site<'a>,
    fsid: String,
    mon_v2: u16,
    mon_v1: u16,
    gateway: u16,
}

impl Cluster<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.site.data.join(name)
    }

    /// Runs one of Ceph's tools with our configuration.
    fn ask(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.env("CEPH_CONF", self.file("ceph.conf")).args(args);
        self.site.runner.output(&mut command)
    }

    /// Starts one of Ceph's daemons, not detached.
    fn daemon(&self, program: &str, args: &[&str]) -> Result<Daemon> {
        let mut command = run::bound_command(program);
        command.arg("-c").arg(self.file("ceph.conf")).arg("-f").args(args);
        Daemon::start(program, &mut command, &self.site.data)
    }

    /// Folders, configuration, keys and the map of monitors.
    fn prepare(&self) -> Result<()> {
        for folder in ["mon", "mgr", "osd0", "rgw", "log"] {
            std::fs::create_dir(self.file(folder)).context("cannot create a daemon's folder")?;
        }
        std::fs::write(self.file("ceph.conf"), self.config()).context("cannot write the configuration")?;
        let keyring = self.file("keyring").display().to_string();
        self.ask("ceph-authtool", &["--create-keyring", &keyring])?;
        for (name, capabilities) in KEYS {
            let mut args = vec![keyring.as_str(), "--gen-key", "-n", name];
            for (service, capability) in capabilities {
                args.extend(["--cap", service, capability]);
            }
            self.ask("ceph-authtool", &args)?;
        }
        let addresses = format!("[v2:127.0.0.1:{},v1:127.0.0.1:{}]", self.mon_v2, self.mon_v1);
        let map = self.file("monmap").display().to_string();
        self.ask(
            "monmaptool",
            &["--create", "--addv", "a", &addresses, "--fsid", &self.fsid, &map],
        )?;
        Ok(())
    }

    fn start_monitor(&self, daemons: &mut Vec<Daemon>) -> Result<()> {
        let (map, keyring) = (self.file("monmap"), self.file("keyring"));
        let (map, keyring) = (map.display().to_string(), keyring.display().to_string());
        self.ask(
            "ceph-mon",
            &["--mkfs", "-i", "a", "--monmap", &map, "--keyring", &keyring],
        )?;
        daemons.push(self.daemon("ceph-mon", &["-i", "a"])?);
        let import = ["--connect-timeout", "10", "auth", "import", "-i", &keyring];
        until_ok(self.site.runner, WAIT, daemons, || self.ask("ceph", &import))?;
        self.ask(
            "ceph",
            &[
                "config",
                "set",
                "mon",
                "auth_allow_insecure_global_id_reclaim",
                "false",
            ],
        )?;
        Ok(())
    }

    fn start_osd(&self, daemons: &mut Vec<Daemon>) -> Result<()> {
        let uuid = uuid()?;
        self.ask("ceph", &["osd", "new", &uuid, "0"])?;
        self.ask("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &uuid])?;
        daemons.push(self.daemon("ceph-osd", &["-i", "0"])?);
        until_ok(self.site.runner, WAIT, daemons, || {
            let answer = self.ask("ceph", &["osd", "stat"])?;
            if answer.contains("1 up") {
                Ok(())
            } else {
                Err(anyhow!("the OSD is not up: {}", answer.trim()))
            }
        })
    }

    /// Repeated until the pools are there; a try that failed late may have left the user behind.
    fn create_user(&self, daemons: &mut [Daemon]) -> Result<()> {
        let access_key = format!("--access-key={ACCESS_KEY}");
        let secret_key = format!("--secret={SECRET_KEY}");
        let args = [
            "user",
            "create",
            "--uid=test",
            "--display-name=test",
            &access_key,
            &secret_key,
        ];
        until_ok(self.site.runner, WAIT, daemons, || {
            match self.ask("radosgw-admin", &args) {
                Err(error) if !format!("{error:#}").contains("exists") => Err(error),
                _ => Ok(()),
            }
        })
    }

    fn config(&self) -> String {
        let data = self.site.data.display();
        let Self {
            fsid,
            mon_v2,
            mon_v1,
            gateway,
            ..
        } = self;
        format!(
            "[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon_v2},v1:127.0.0.1:{mon_v1}]
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {data}/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
osd max object name len = 256
osd max object namespace len = 64
memstore device bytes = {STORE_BYTES_MAX}
mon allow pool size one = true
mon warn on pool no redundancy = false
run dir = {data}
admin socket = {data}/$name.asok
log file = {data}/log/$name.log
mon data = {data}/mon
mgr data = {data}/mgr
osd data = {data}/osd0
rgw data = {data}/rgw
rgw frontends = beast endpoint=127.0.0.1:{gateway}
rgw max chunk size = 4194304
rgw enable usage log = false
telemetry = false
"
        )
    }
}
