//! Results of probes between runs: one small JSON file per endpoint and bucket in the state folder.
//!
//! A file that is missing, stale, damaged or of another version only means that the probe runs again, so nothing here fails.
//! Files appear by renaming: a reader sees a whole one or none.

use std::path::PathBuf;
use std::time::Duration;

use forebay_core::crc64nvme;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::store::Capabilities;

/// How long a result is believed: servers are upgraded, and this is how long it may take to notice.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Version of the file.
const FORMAT: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    format: u32,
    identity: String,
    capabilities: Capabilities,
    /// CRC-64/NVME of identity and capabilities as JSON.
    crc64nvme: String,
}

pub(super) async fn load(context: &Context, identity: &str) -> Option<Capabilities> {
    let text = tokio::fs::read(path(context, identity)?).await.ok()?;
    let record: Record = serde_json::from_slice(&text).ok()?;
    let is_ours = record.format == FORMAT && record.identity == identity;
    if !is_ours || record.crc64nvme != sum(identity, &record.capabilities)? {
        return None;
    }
    let age = context.clock().unix().checked_sub(record.capabilities.probed?)?;
    (age < AGE_MAX).then_some(record.capabilities)
}

pub(super) async fn save(context: &Context, identity: &str, capabilities: &Capabilities) {
    if let Err(error) = try_save(context, identity, capabilities).await {
        // It only costs another probe next time.
        tracing::debug!(%error, "result of the store's probe was not kept");
    }
}

async fn try_save(context: &Context, identity: &str, capabilities: &Capabilities) -> std::io::Result<()> {
    let (Some(path), Some(sum)) = (path(context, identity), sum(identity, capabilities)) else {
        return Ok(());
    };
    let record = Record {
        format: FORMAT,
        identity: identity.to_owned(),
        capabilities: capabilities.clone(),
        crc64nvme: sum,
    };
    let text = serde_json::to_vec_pretty(&record)?;
    if let Some(folder) = path.parent() {
        tokio::fs::create_dir_all(folder).await?;
    }
    let draft = path.with_extension(format!("{:016x}.tmp", forebay_core::Seed::fresh().0));
    let moved = match tokio::fs::write(&draft, text).await {
        Ok(()) => tokio::fs::rename(&draft, &path).await,
        Err(error) => Err(error),
    };
    if moved.is_err() {
        let _ = tokio::fs::remove_file(&draft).await;
    }
    moved
}

fn path(context: &Context, identity: &str) -> Option<PathBuf> {
    let name = format!("{:016x}.json", crc64nvme(identity.as_bytes()));
    Some(context.state_dir()?.join("probes").join(name))
}

fn sum(identity: &str, capabilities: &Capabilities) -> Option<String> {
    let text = serde_json::to_string(&(identity, capabilities)).ok()?;
    Some(format!("{:016x}", crc64nvme(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_core::{ManualClock, Seed};
    use forebay_io::DiskConfig;

    use super::*;
    use crate::store::Proof;

    fn context(folder: &std::path::Path) -> (Context, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(1_000_000));
        let context = Context::open(DiskConfig::default())
            .unwrap()
            .with_time(Arc::clone(&clock) as _, Seed(1))
            .with_state_dir(Some(folder.to_owned()));
        (context, clock)
    }

    fn found(context: &Context) -> Capabilities {
        Capabilities {
            range: Proof::Shown,
            checksum: Proof::Refuted("it took them".to_owned()),
            probed: Some(context.clock().unix()),
            ..Capabilities::untried("no need")
        }
    }

    #[tokio::test]
    async fn results_are_kept_for_a_week_and_per_bucket() {
        let folder = tempfile::tempdir().unwrap();
        let (context, clock) = context(folder.path());
        let capabilities = found(&context);
        save(&context, "http://h/b", &capabilities).await;
        assert_eq!(load(&context, "http://h/b").await, Some(capabilities));
        assert_eq!(load(&context, "http://h/c").await, None);
        clock.advance(AGE_MAX);
        assert_eq!(load(&context, "http://h/b").await, None);
        let files = std::fs::read_dir(folder.path().join("probes")).unwrap().count();
        assert_eq!(files, 1, "drafts are left behind");
    }

    #[tokio::test]
    async fn damaged_files_are_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let (context, _) = context(folder.path());
        save(&context, "http://h/b", &found(&context)).await;
        let path = path(&context, "http://h/b").unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        for damaged in [
            whole[..whole.len() / 2].to_owned(),
            whole.replace("it took them", "it refused them"),
            whole.replace("\"shown\"", "{\"refuted\":\"x\"}"),
            whole.replace("\"format\": 2", "\"format\": 1"),
            String::new(),
        ] {
            assert_ne!(damaged, whole);
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(load(&context, "http://h/b").await, None);
        }
        std::fs::write(&path, whole).unwrap();
        assert!(load(&context, "http://h/b").await.is_some());
    }
}
