//! Tries what the file system below the root is good for: a real race, a stale version, a range, an upload in parts.
//!
//! Everything happens in a hidden directory below the root that is removed afterwards.

use std::sync::Arc;

use forebay_core::{ErrorKind, Key, Result, Span};
use forebay_io::{AlignedBuf, Buf, NameOp, Pages};
use futures::future::join_all;
use tokio::sync::OnceCell;

use super::draft::{Draft, Wanted};
use super::{LocalStore, Shared, TEMP_PREFIX, is_padded, runs};
use crate::store::{Body, Capabilities, Proof, PutMode, PutOptions, ReadOptions, Store};

/// Writers that race for one name.
const RACERS: u8 = 8;

/// What was found out, once.
#[derive(Debug, Default)]
pub(super) struct Probed(OnceCell<Capabilities>);

/// The abilities of the file system, tried the first time.
pub(super) async fn capabilities(shared: &Arc<Shared>) -> Result<Capabilities> {
    // A directory that cannot be written now may be later, so that answer is not kept.
    if let Some(why) = not_writable(shared).await {
        return Ok(Capabilities::untried(&why));
    }
    let probed = shared.probed.0.get_or_try_init(|| probe(shared)).await?;
    Ok(probed.clone())
}

async fn not_writable(shared: &Shared) -> Option<String> {
    match shared.disk().stat(&shared.root).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Some("the directory does not exist yet".to_owned())
        }
        Err(error) => Some(error.to_string()),
        Ok(_) => None,
    }
}

async fn probe(shared: &Arc<Shared>) -> Result<Capabilities> {
    let random = shared.context.seed().derive(u64::MAX).0 ^ shared.context.clock().unix().as_nanos() as u64;
    let name = Key::parse(&format!("{TEMP_PREFIX}probe-{}-{random:x}", std::process::id()))?;
    let store = LocalStore::open(&shared.location.join(&name), &shared.context)?;
    let found = try_all(&store).await;
    for name in [RACE, PARTS] {
        // Best effort: a leftover is hidden and tiny.
        drop(store.delete(&Key::parse(name)?).await);
    }
    let path = store.0.root.clone();
    drop(shared.disk().name(NameOp::RemoveDir { path }).await);
    match found {
        Ok(found) => Ok(found),
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnly) => {
            Ok(Capabilities::untried(&error.to_string()))
        }
        Err(error) => Err(error),
    }
}

const RACE: &str = "race";
const PARTS: &str = "parts";

async fn try_all(store: &LocalStore) -> Result<Capabilities> {
    let race = try_race(store).await?;
    let (range, version_match) = try_read(store).await?;
    let (multipart, upload_if_absent) = try_parts(store).await?;
    Ok(Capabilities {
        range,
        version_match,
        put_if_absent: race,
        upload_if_absent,
        multipart,
        probed: Some(store.0.context.clock().unix()),
        ..Capabilities::untried("files have no stored checksum")
    })
}

/// All racers have their content written; only then do they go for the name.
async fn try_race(store: &LocalStore) -> Result<Proof> {
    let shared = &store.0;
    let path = shared.root.join(RACE);
    let wanted = Wanted {
        size: Some(1),
        size_min: 1,
        policy: PutOptions::default().policy,
        permissions: None,
        can_repeat: false,
    };
    let mut drafts = Vec::new();
    for racer in 0..RACERS {
        let draft = Draft::create(shared, &path, wanted).await?;
        let body = Body::from(Buf::copy_of(&[racer])?);
        runs::write(shared.disk(), draft.file(), &body, PutOptions::default().class).await?;
        if is_padded(draft.file(), body.len()) {
            draft.trim(body.len()).await?;
        }
        drafts.push(draft);
    }
    let racers = drafts.into_iter().map(|draft| {
        let shared = Arc::clone(shared);
        tokio::spawn(async move { draft.commit(&shared, 1, PutMode::IfAbsent).await })
    });
    let mut winners = Vec::new();
    for (racer, outcome) in join_all(racers).await.into_iter().enumerate() {
        match outcome {
            Ok(Ok(_)) => winners.push(racer as u8),
            Ok(Err(error)) if error.kind() == ErrorKind::AlreadyExists => {}
            Ok(Err(error)) => return Err(error),
            Err(error) => return Ok(Proof::Untried(error.to_string())),
        }
    }
    let content = read(store, RACE, Span::first(1), None).await?[0];
    if winners == [content] {
        Ok(Proof::Shown)
    } else {
        Ok(Proof::Refuted(format!(
            "{} of {RACERS} writers won",
            winners.len()
        )))
    }
}

async fn try_read(store: &LocalStore) -> Result<(Proof, Proof)> {
    let key = Key::parse(RACE)?;
    let old = store.head(&key).await?.version;
    store
        .put(&key, Buf::copy_of(b"0123456789")?.into(), &PutOptions::default())
        .await?;
    let range = match read(store, RACE, Span::new(3, 7)?, None).await?.as_slice() {
        b"3456" => Proof::Shown,
        _ => Proof::Refuted("a range gave other bytes".to_owned()),
    };
    let version = match read(store, RACE, Span::first(1), old).await {
        Err(error) if error.kind() == ErrorKind::Precondition => Proof::Shown,
        Err(error) => return Err(error),
        Ok(_) => Proof::Refuted("a stale version was read".to_owned()),
    };
    Ok((range, version))
}

async fn try_parts(store: &LocalStore) -> Result<(Proof, Proof)> {
    let key = Key::parse(PARTS)?;
    let options = PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    };
    let (first, second) = (
        store.upload(&key, &options).await?,
        store.upload(&key, &options).await?,
    );
    for upload in [&first, &second] {
        upload.put_part(0, Buf::copy_of(b"parts")?.into()).await?;
    }
    let hidden = store.head(&key).await.is_err();
    let done = first.complete().await?;
    let multipart = if hidden && store.head(&key).await?.version == done.version {
        Proof::Shown
    } else {
        Proof::Refuted("an upload was visible before it was complete, or not after".to_owned())
    };
    let if_absent = match second.complete().await {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Proof::Shown,
        Err(error) => return Err(error),
        Ok(_) => Proof::Refuted("a second upload replaced the first".to_owned()),
    };
    Ok((multipart, if_absent))
}

async fn read(store: &LocalStore, name: &str, span: Span, version: Option<String>) -> Result<Vec<u8>> {
    let options = ReadOptions {
        version,
        ..ReadOptions::default()
    };
    let buf = AlignedBuf::alloc(span.len() as usize, Pages::Small)?;
    let done = store.read_into(&Key::parse(name)?, span, buf, &options).await?;
    Ok(done.buf[..span.len() as usize].to_vec())
}
