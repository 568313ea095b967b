//! Which crate may use which: the one place where the plan of the house is written as a table.
//!
//! ```text
//! faces    cli  python  mount
//! jobs     data  ckpt  weights          plan   watch
//! places   store
//! machine  io  nvme
//! words    core
//! ```
//!
//! Uses point downward; never upward, never sideways between jobs. A third-party crate listed in [`OWNED`] belongs to
//! the crates named there, so that nobody else pays for it or couples to it. Development dependencies count too: a
//! test that needs a higher layer belongs into that layer.

use std::path::Path;

use anyhow::{Context as _, Result};
use cargo_metadata::MetadataCommand;

use crate::tidy::Finding;

/// Each crate of the workspace with the crates of the workspace it may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("forebay-core", &[]),
    ("forebay-io", &["forebay-core"]),
    ("forebay-nvme", &["forebay-core"]),
    ("forebay-plan", &["forebay-core"]),
    ("forebay-watch", &["forebay-core", "forebay-io"]),
    ("forebay-store", &["forebay-core", "forebay-io", "forebay-nvme"]),
    ("forebay-data", &["forebay-core", "forebay-io", "forebay-store"]),
    ("forebay-ckpt", &["forebay-core", "forebay-io", "forebay-store"]),
    (
        "forebay-weights",
        &["forebay-core", "forebay-io", "forebay-store"],
    ),
    ("forebay-mount", &["forebay-core", "forebay-io", "forebay-store"]),
    ("forebay-cli", EVERYTHING_BELOW_FACES),
    ("forebay-python", EVERYTHING_BELOW_FACES),
    // Checks the others, so it must build when they do not.
    ("xtask", &[]),
];

/// What the command line and the Python module may use; the former also starts mounts.
const EVERYTHING_BELOW_FACES: &[&str] = &[
    "forebay-core",
    "forebay-io",
    "forebay-nvme",
    "forebay-store",
    "forebay-data",
    "forebay-ckpt",
    "forebay-weights",
    "forebay-plan",
    "forebay-watch",
    "forebay-mount",
];

/// Third-party crates with owners.
const OWNED: &[(&str, &[&str])] = &[
    ("aes-gcm", &["forebay-ckpt"]),
    ("arrow", &["forebay-data"]),
    ("chacha20poly1305", &["forebay-ckpt"]),
    ("clap", &["forebay-cli", "xtask"]),
    ("clap_complete", &["forebay-cli"]),
    ("clap_mangen", &["forebay-cli"]),
    ("cudarc", &["forebay-io"]),
    ("fuser", &["forebay-mount"]),
    ("indicatif", &["forebay-cli"]),
    ("io-uring", &["forebay-io"]),
    ("libbpf-rs", &["forebay-watch"]),
    ("libloading", &["forebay-io"]),
    ("object_store", &["forebay-store"]),
    ("parquet", &["forebay-data"]),
    ("pyo3", &["forebay-python"]),
    ("reed-solomon-simd", &["forebay-ckpt"]),
    ("reqwest", &["forebay-store"]),
    ("syn", &["xtask"]),
    ("tracing-subscriber", &["forebay-cli", "forebay-python"]),
    // Shards come compressed by it, and checkpoints are.
    ("zstd", &["forebay-ckpt", "forebay-data"]),
];

/// Crates that do no I/O and start no runtime, and what would break that promise.
const PURE: &[&str] = &["forebay-core", "forebay-nvme", "forebay-plan"];
const IMPURE: &[&str] = &["io-uring", "libc", "mio", "nix", "rayon", "rustix", "tokio"];

/// A crate of the workspace as cargo sees it.
#[derive(Debug)]
pub(super) struct Package {
    name: String,
    /// Path of its `Cargo.toml`, relative to the checkout.
    manifest: String,
    dependencies: Vec<String>,
}

/// Asks cargo for the crates of the workspace.
pub(super) fn load(root: &Path) -> Result<Vec<Package>> {
    let mut command = MetadataCommand::new();
    command.manifest_path(root.join("Cargo.toml")).no_deps();
    let metadata = command.exec().context("cannot read the workspace")?;
    let package = |package: cargo_metadata::Package| {
        let manifest = package
            .manifest_path
            .strip_prefix(root)
            .unwrap_or(&package.manifest_path)
            .to_string();
        let dependencies = package
            .dependencies
            .iter()
            .map(|dependency| dependency.name.clone())
            .collect();
        Package {
            name: package.name.to_string(),
            manifest,
            dependencies,
        }
    };
    Ok(metadata.packages.into_iter().map(package).collect())
}

/// Compares every dependency with the tables.
pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let Some(allowed) = find(LAYERS, &package.name) else {
            let message = format!(
                "{} is not in LAYERS of xtask/src/tidy/layers.rs: give it a layer",
                package.name
            );
            findings.push(Finding::new(&package.manifest, 1, message));
            continue;
        };
        for dependency in &package.dependencies {
            findings.extend(
                forbidden(&package.name, allowed, dependency)
                    .map(|message| Finding::new(&package.manifest, 1, message)),
            );
        }
    }
    findings
}

/// Why a crate may not have a dependency, if so.
fn forbidden(package: &str, allowed: &[&str], dependency: &str) -> Option<String> {
    if find(LAYERS, dependency).is_some() && !allowed.contains(&dependency) {
        return Some(format!(
            "{package} must not use {dependency}, which is not below it: move the code down or pass it in"
        ));
    }
    let owners = find(OWNED, dependency).filter(|owners| !owners.contains(&package));
    if let Some(owners) = owners {
        return Some(format!(
            "{dependency} belongs to {}: use what it offers, or change OWNED in xtask/src/tidy/layers.rs and say why",
            owners.join(" and ")
        ));
    }
    (PURE.contains(&package) && IMPURE.contains(&dependency))
        .then(|| format!("{package} does no I/O and has no runtime: {dependency} belongs above it"))
}

fn find<'a>(table: &'a [(&str, &[&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(name: &str, dependencies: &[&str]) -> Vec<String> {
        let dependencies = dependencies.iter().map(ToString::to_string).collect();
        let package = Package {
            name: name.to_owned(),
            manifest: format!("crates/{name}/Cargo.toml"),
            dependencies,
        };
        check(&[package])
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn downward_is_fine() {
        assert!(
            messages(
                "forebay-store",
                &["forebay-core", "forebay-io", "object_store", "tokio"]
            )
            .is_empty()
        );
        assert!(messages("forebay-cli", &["forebay-store", "forebay-io", "clap"]).is_empty());
    }

    #[test]
    fn upward_and_sideways_are_not() {
        assert!(messages("forebay-io", &["forebay-store"])[0].contains("not below it"));
        assert!(messages("forebay-data", &["forebay-ckpt"])[0].contains("not below it"));
        assert!(messages("xtask", &["forebay-core"])[0].contains("not below it"));
    }

    #[test]
    fn owned_crates_stay_with_their_owner() {
        assert!(messages("forebay-cli", &["object_store"])[0].contains("belongs to forebay-store"));
        assert!(messages("forebay-store", &["io-uring", "pyo3"]).len() == 2);
        assert!(messages("forebay-core", &["tokio"])[0].contains("no runtime"));
    }

    #[test]
    fn a_new_crate_needs_a_layer() {
        assert!(messages("forebay-gateway", &[])[0].contains("give it a layer"));
    }

    #[test]
    fn the_table_itself_only_points_downward() {
        for (index, (name, uses)) in LAYERS.iter().enumerate() {
            for used in *uses {
                let place = LAYERS.iter().position(|(key, _)| key == used);
                assert!(
                    place.is_some_and(|place| place < index),
                    "{name} uses {used}, which is not listed above it"
                );
            }
        }
    }
}
