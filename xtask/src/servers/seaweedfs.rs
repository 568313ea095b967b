//! SeaweedFS: master, volume server, filer and S3 gateway in one process, from the wheel pinned in the requirements.
//!
//! Two defaults are wrong for tests and set explicitly: telemetry is on, and the server binds the host's address.
//! Every listener gets a port of its own or is switched off, so that two runs do not meet.

use anyhow::{Context as _, Result};

use crate::run;
use crate::servers::daemon::Daemon;
use crate::servers::{Access, Site, ports};

const ACCESS_KEY: &str = "forebay";
const SECRET_KEY: &str = "forebaysecret";

/// One volume is one file that grows; tests hold a few GiB at most.
const VOLUME_BYTES_MAX_MIB: u32 = 1024;

/// Each bucket takes several volumes; the server refuses writes once it has none left.
const VOLUMES_MAX: u32 = 20;

/// Starts the process; the S3 port answers a few seconds later.
pub(super) fn start(site: &Site<'_>) -> Result<(Access, Vec<Daemon>)> {
    let ports = ports::free::<8>()?;
    let config = site.data.join("s3.json");
    std::fs::write(&config, identities()).context("cannot write the S3 identities")?;
    let volumes = site.data.join("volumes");
    std::fs::create_dir(&volumes).context("cannot create the volume folder")?;
    let mut command = run::bound_command(site.runner.workspace().venv_bin("weed"));
    command.current_dir(&site.data).arg("server").args(flags(&ports));
    command.arg(format!("-dir={}", volumes.display()));
    command.arg(format!("-s3.config={}", config.display()));
    command.arg(format!(
        "-filer.localSocket={}",
        site.data.join("filer.sock").display()
    ));
    command.arg(format!("-s3.localSocket={}", site.data.join("s3.sock").display()));
    let daemon = Daemon::start("seaweedfs", &mut command, &site.data)?;
    let access = Access {
        port: ports[0],
        key: ACCESS_KEY,
        secret: SECRET_KEY,
        region: "us-east-1",
    };
    Ok((access, vec![daemon]))
}

fn flags(ports: &[u16; 8]) -> Vec<String> {
    let [
        s3,
        s3_grpc,
        master,
        master_grpc,
        volume,
        volume_grpc,
        filer,
        filer_grpc,
    ] = ports;
    vec![
        "-ip=127.0.0.1".to_owned(),
        "-ip.bind=127.0.0.1".to_owned(),
        "-master.telemetry=false".to_owned(),
        format!("-master.volumeSizeLimitMB={VOLUME_BYTES_MAX_MIB}"),
        format!("-volume.max={VOLUMES_MAX}"),
        "-s3".to_owned(),
        format!("-s3.port={s3}"),
        format!("-s3.port.grpc={s3_grpc}"),
        "-s3.port.iceberg=0".to_owned(),
        "-s3.port.lance=0".to_owned(),
        format!("-master.port={master}"),
        format!("-master.port.grpc={master_grpc}"),
        format!("-volume.port={volume}"),
        format!("-volume.port.grpc={volume_grpc}"),
        format!("-filer.port={filer}"),
        format!("-filer.port.grpc={filer_grpc}"),
    ]
}

fn identities() -> String {
    format!(
        r#"{{"identities":[{{"name":"test","credentials":[{{"accessKey":"{ACCESS_KEY}","secretKey":"{SECRET_KEY}"}}],
        "actions":["Admin","Read","Write","List","Tagging"]}}]}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_is_ours_and_nothing_leaves_the_machine() {
        let flags = flags(&[1, 2, 3, 4, 5, 6, 7, 8]);
        for port in 1..=8 {
            assert_eq!(
                flags
                    .iter()
                    .filter(|flag| flag.ends_with(&format!("={port}")))
                    .count(),
                1,
                "port {port}"
            );
        }
        for flag in ["-master.telemetry=false", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"] {
            assert!(flags.iter().any(|have| have == flag), "{flag}");
        }
    }
}
