//! Objects written in parts: in any order, tried again, refused with a gap, given up without a trace.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, crc64nvme};
use forebay_io::Buf;
use futures::future::try_join_all;
use futures::stream::{self, StreamExt};

use super::{Miss, Suite, Verdict, ensure, expect_error, pattern};
use crate::ext::StoreExt;
use crate::store::{PutMode, PutOptions, Upload};

async fn begin(suite: &Suite, name: &str) -> Verdict<Arc<dyn Upload>> {
    let upload = suite
        .store
        .upload(&suite.key(name)?, &PutOptions::default())
        .await?;
    ensure!(upload.part_bytes() > 0, "parts of no size");
    Ok(upload.into())
}

/// Content of some parts and a bit, and its parts.
fn content(upload: &Arc<dyn Upload>, full_parts: usize, seed: u64) -> Verdict<(Vec<u8>, Vec<Buf>)> {
    let part_bytes = upload.part_bytes() as usize;
    let bytes = pattern(seed, full_parts * part_bytes + 12_345);
    let parts = bytes
        .chunks(part_bytes)
        .map(Buf::copy_of)
        .collect::<Result<_, Error>>()?;
    Ok((bytes, parts))
}

pub(super) async fn any_order(suite: &Suite) -> Verdict {
    let upload = begin(suite, "dir/object").await?;
    let (bytes, parts) = content(&upload, 3, 1)?;
    let mut ledger = upload.put_part(3, parts[3].clone().into()).await?;
    ensure!(
        suite.is_absent("dir/object").await?,
        "an upload is visible after its last part"
    );
    let rest = [1u32, 0, 2].into_iter().map(|index| {
        let (upload, part) = (Arc::clone(&upload), parts[index as usize].clone());
        async move { upload.put_part(index, part.into()).await }
    });
    for part in try_join_all(rest).await? {
        ledger.merge(&part);
    }
    ensure!(
        suite.is_absent("dir/object").await?,
        "an upload is visible before it is complete"
    );
    let done = upload.complete().await?;
    ensure!(
        done.size == bytes.len() as u64,
        "{} bytes reported of {}",
        done.size,
        bytes.len()
    );
    ensure!(
        done.crc64nvme == crc64nvme(&bytes),
        "wrong checksum of the parts together"
    );
    ledger.merge(&done.ledger);
    ensure!(
        ledger.bytes() == bytes.len() as u64,
        "the ledgers say {} bytes of {}",
        ledger.bytes(),
        bytes.len()
    );
    ensure!(
        suite.get("dir/object").await? == bytes,
        "the parts were not joined in order"
    );
    let head = suite.store.head(&suite.key("dir/object")?).await?;
    ensure!(
        done.version.is_none() || done.version == head.version,
        "complete says version {:?}, head says {:?}",
        done.version,
        head.version
    );
    Ok(())
}

pub(super) async fn one_small_part(suite: &Suite) -> Verdict {
    let upload = begin(suite, "object").await?;
    upload.put_part(0, Buf::copy_of(b"small")?.into()).await?;
    upload.complete().await?;
    ensure!(
        suite.get("object").await? == b"small",
        "one small part is not the object"
    );
    Ok(())
}

pub(super) async fn part_again(suite: &Suite) -> Verdict {
    let upload = begin(suite, "object").await?;
    let (bytes, parts) = content(&upload, 1, 2)?;
    let (_, others) = content(&upload, 1, 3)?;
    upload.put_part(0, others[0].clone().into()).await?;
    // The last part may even have been longer before.
    upload.put_part(1, others[0].clone().into()).await?;
    upload.put_part(1, parts[1].clone().into()).await?;
    upload.put_part(0, parts[0].clone().into()).await?;
    let done = upload.complete().await?;
    ensure!(
        done.crc64nvme == crc64nvme(&bytes),
        "the checksum is that of an earlier try"
    );
    ensure!(
        suite.get("object").await? == bytes,
        "an earlier try of a part is in the object"
    );
    Ok(())
}

pub(super) async fn gap(suite: &Suite) -> Verdict {
    let upload = begin(suite, "object").await?;
    let (_, parts) = content(&upload, 1, 4)?;
    upload.put_part(0, parts[0].clone().into()).await?;
    upload.put_part(2, parts[1].clone().into()).await?;
    expect_error(
        "completing with a gap",
        upload.complete().await,
        ErrorKind::InvalidInput,
        "object",
    )?;
    ensure!(
        suite.is_absent("object").await?,
        "an upload with a gap became visible"
    );
    upload.abort().await?;
    Ok(())
}

pub(super) async fn short_part(suite: &Suite) -> Verdict {
    let upload = begin(suite, "object").await?;
    let short = upload.put_part(0, Buf::copy_of(b"short")?.into()).await;
    let last = upload.put_part(1, Buf::copy_of(b"last")?.into()).await;
    let done = upload.complete().await;
    let results = [short.map(drop), last.map(drop), done.map(drop)];
    let refused = results.into_iter().find_map(Result::err).map_or(Ok(()), Err);
    expect_error(
        "a short part before the last",
        refused,
        ErrorKind::InvalidInput,
        "object",
    )?;
    ensure!(
        suite.is_absent("object").await?,
        "an upload with a short part became visible"
    );
    upload.abort().await?;
    Ok(())
}

pub(super) async fn long_part(suite: &Suite) -> Verdict {
    let upload = begin(suite, "object").await?;
    let long = Buf::copy_of(&pattern(5, upload.part_bytes() as usize + 1))?;
    expect_error(
        "a part that is too long",
        upload.put_part(0, long.into()).await,
        ErrorKind::InvalidInput,
        "object",
    )?;
    upload.abort().await?;
    Ok(())
}

pub(super) async fn give_up(suite: &Suite) -> Verdict {
    let upload = begin(suite, "dir/object").await?;
    let (_, parts) = content(&upload, 1, 6)?;
    for (index, part) in parts.iter().enumerate() {
        upload.put_part(index as u32, part.clone().into()).await?;
    }
    upload.abort().await?;
    ensure!(
        suite.is_absent("dir/object").await?,
        "an upload that was given up is visible"
    );
    let part = upload.put_part(0, parts[0].clone().into()).await;
    ensure!(
        part.is_err(),
        "a part was taken after the upload was given up: {part:?}"
    );
    let done = upload.complete().await;
    ensure!(
        done.is_err(),
        "an upload was completed after it was given up: {done:?}"
    );
    upload.abort().await?;
    ensure!(
        suite.is_absent("dir/object").await?,
        "an upload that was given up is visible"
    );
    Ok(())
}

pub(super) async fn dropped(suite: &Suite) -> Verdict {
    suite.put("kept", b"old").await?;
    for name in ["object", "kept"] {
        let upload = begin(suite, name).await?;
        upload
            .put_part(0, Buf::copy_of(b"never completed")?.into())
            .await?;
        drop(upload);
    }
    ensure!(
        suite.is_absent("object").await?,
        "an upload that was dropped is visible"
    );
    ensure!(
        suite.get("kept").await? == b"old",
        "an upload that was dropped changed the object"
    );
    Ok(())
}

pub(super) async fn replaces_at_the_end(suite: &Suite) -> Verdict {
    suite.put("object", b"old").await?;
    let upload = begin(suite, "object").await?;
    let (bytes, parts) = content(&upload, 1, 7)?;
    for (index, part) in parts.into_iter().enumerate() {
        upload.put_part(index as u32, part.into()).await?;
        ensure!(
            suite.get("object").await? == b"old",
            "an upload shows before it is complete"
        );
    }
    upload.complete().await?;
    ensure!(
        suite.get("object").await? == bytes,
        "a completed upload did not replace the object"
    );
    Ok(())
}

pub(super) async fn absent(suite: &Suite) -> Verdict {
    let options = PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    };
    let upload_new = async |name: &str| -> Result<(), Error> {
        let key = suite.base.join(&forebay_core::Key::parse(name)?);
        let upload = suite.store.upload(&key, &options).await?;
        upload.put_part(0, Buf::copy_of(b"new")?.into()).await?;
        upload.complete().await.map(drop)
    };
    suite.put("object", b"old").await?;
    match upload_new("object").await {
        Err(error)
            if error.kind() == ErrorKind::Unsupported && !suite.capabilities.upload_if_absent.is_shown() =>
        {
            return Err(Miss::Skipped(format!(
                "uploads if absent are refused: {:?}",
                suite.capabilities.upload_if_absent
            )));
        }
        result => expect_error(
            "an upload over an object",
            result,
            ErrorKind::AlreadyExists,
            "object",
        )?,
    }
    ensure!(
        suite.get("object").await? == b"old",
        "a refused upload changed the object"
    );
    upload_new("other").await?;
    ensure!(
        suite.get("other").await? == b"new",
        "an upload if absent wrote nothing"
    );
    Ok(())
}

pub(super) async fn over(suite: &Suite) -> Verdict {
    let upload = begin(suite, "object").await?;
    upload.put_part(0, Buf::copy_of(b"content")?.into()).await?;
    upload.complete().await?;
    let again = upload.put_part(0, Buf::copy_of(b"changed")?.into()).await;
    ensure!(
        again.is_err(),
        "a part was taken after the upload was complete: {again:?}"
    );
    // Completing twice may be told apart or not, giving up afterwards likewise; neither may harm the object.
    drop((upload.complete().await, upload.abort().await));
    drop(upload);
    ensure!(
        suite.get("object").await? == b"content",
        "the object changed after its upload was over"
    );
    Ok(())
}

pub(super) async fn from_a_stream(suite: &Suite) -> Verdict {
    let key = suite.key("object")?;
    let mut bytes = Vec::new();
    let done = suite
        .store
        .upload_all(
            &key,
            &PutOptions::default(),
            &suite.context,
            Box::new(|part_bytes| {
                bytes = pattern(8, 2 * part_bytes as usize + 99);
                let parts: Vec<_> = bytes.chunks(part_bytes as usize).map(Buf::copy_of).collect();
                stream::iter(parts).boxed()
            }),
        )
        .await?;
    ensure!(
        suite.get("object").await? == bytes,
        "a stream of parts did not arrive in order"
    );
    ensure!(
        done.ledger.bytes() == bytes.len() as u64,
        "the ledger says {} bytes",
        done.ledger.bytes()
    );
    let broken = suite
        .store
        .upload_all(
            &suite.key("broken")?,
            &PutOptions::default(),
            &suite.context,
            Box::new(|part_bytes| {
                let first = Buf::copy_of(&pattern(9, part_bytes as usize));
                let fault = Err(Error::new(ErrorKind::Corrupt, "read", "the source broke"));
                stream::iter([first, fault]).boxed()
            }),
        )
        .await;
    ensure!(
        matches!(&broken, Err(error) if error.kind() == ErrorKind::Corrupt),
        "a stream that fails gave {broken:?}"
    );
    ensure!(
        suite.is_absent("broken").await?,
        "a stream that fails left an object behind"
    );
    let _: Ledger = done.ledger;
    Ok(())
}
