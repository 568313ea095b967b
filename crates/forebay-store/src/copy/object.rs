//! One object: in one piece when it is small, otherwise in parts that are read, checked and written side by side.

use std::sync::Arc;

use forebay_core::{Crc32c, Crc64Nvme, Error, ErrorKind, Ledger, Result, Scheme, Span, crc32c, crc64nvme};
use forebay_io::Buf;
use tokio::task::{JoinError, JoinSet};

use super::journal::ObjectJournal;
use super::report::{Copied, DestinationCheck, ObjectCopied, SourceCheck};
use super::{Job, Shared, stopped, verify};
use crate::store::{Body, Checksum, ObjectMeta, PutDone, Upload};

/// Checksums of one piece as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) crc64nvme: u64,
    /// Only where the source keeps a CRC-32C to compare with.
    pub(super) crc32c: Option<u32>,
    pub(super) len: u64,
}

impl Sums {
    fn of(bytes: &[u8], kept: Option<Checksum>) -> Self {
        Self {
            crc64nvme: crc64nvme(bytes),
            crc32c: matches!(kept, Some(Checksum::Crc32c(_))).then(|| crc32c(bytes)),
            len: bytes.len() as u64,
        }
    }

    /// The sums of all pieces in order.
    pub(super) fn join(pieces: impl IntoIterator<Item = Self>) -> Option<Self> {
        pieces.into_iter().reduce(|a, b| Self {
            crc64nvme: Crc64Nvme::combine(a.crc64nvme, b.crc64nvme, b.len),
            crc32c: a.crc32c.zip(b.crc32c).map(|(x, y)| Crc32c::combine(x, y, b.len)),
            len: a.len + b.len,
        })
    }
}

/// In a tree, objects from this size on are worth one more request for a checksum that the listing left out: it takes a small part of the
/// time that their bytes take. Below it, most of a copy is requests.
const CHECKSUM_ASKED_BYTES_MIN: u64 = 1 << 20;

/// Copy an object with one read and one write.
pub(super) async fn copy_small(shared: &Arc<Shared>, job: &Job) -> Result<ObjectCopied> {
    let is_known = job.from_head || !listing_hides_checksums(shared);
    let is_asked = !is_known && job.from.size >= CHECKSUM_ASKED_BYTES_MIN;
    let meta = &if is_asked {
        with_checksum(shared, job).await?
    } else {
        job.from.clone()
    };
    let (body, mut ledger) = read(shared, meta, Span::first(meta.size)).await?;
    let sums = Sums::of(&body, meta.checksum);
    let source = match compare_source(shared, meta, sums)? {
        // A listing gave no checksum, but the store compared what it sent with the one it keeps.
        SourceCheck::NoneKept if meta.size > 0 && ledger.verified_bytes >= meta.size => SourceCheck::Matched,
        SourceCheck::NoneKept if !is_known && !is_asked => SourceCheck::NotAsked,
        check => check,
    };
    account_source(&mut ledger, source, meta.size);
    let options = shared.put_options(meta);
    let done = shared
        .destination
        .put(&job.to, Body::from(body), &options)
        .await?;
    shared.progress.moved(meta.size);
    ledger.merge(&done.ledger);
    let destination = verify::destination(shared, &job.to, &done, &[sums], &mut ledger).await?;
    Ok(copied(
        job,
        &done,
        sums,
        (source, destination),
        Copied::Whole,
        ledger,
    ))
}

/// Copy an object in parts. Most stores tell only with the first part whether they still know an upload, so one that was resumed and turns out
/// to be gone is begun anew, once.
pub(super) async fn copy_large(shared: &Arc<Shared>, job: &Job) -> Result<ObjectCopied> {
    let meta = with_checksum(shared, job).await?;
    let journal = ObjectJournal::open(shared, &meta, &job.to).await;
    let mut transfer = Transfer::begin(shared, &meta, job, journal).await?;
    let mut sent = transfer.send().await;
    if let Err(Stopped::Here(error)) = &sent
        && transfer.bytes_before.is_some()
        && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput)
    {
        tracing::info!(%error, key = %job.to, "the upload cannot be resumed, beginning anew");
        let journal = transfer.forget().await;
        transfer = Transfer::begin(shared, &meta, job, journal).await?;
        sent = transfer.send().await;
    }
    let (done, sums, source) = match sent {
        Ok(sent) => sent,
        Err(Stopped::Here(error)) => return Err(transfer.give_up(error).await),
        Err(Stopped::ForGood(error)) => return Err(transfer.discard(error).await),
    };
    transfer.journal.remove().await;
    let copied_before = transfer.copied();
    let mut ledger = transfer.ledger;
    account_source(&mut ledger, source, meta.size);
    ledger.merge(&done.ledger);
    let destination = verify::destination(shared, &job.to, &done, &sums, &mut ledger).await?;
    let whole = Sums::join(sums).ok_or_else(no_parts)?;
    Ok(copied(
        job,
        &done,
        whole,
        (source, destination),
        copied_before,
        ledger,
    ))
}

/// Why an upload was not completed.
enum Stopped {
    /// What has arrived may be of use to the next try.
    Here(Error),
    /// Trying again cannot cure it.
    ForGood(Error),
}

/// A part that has arrived.
type Part = (u32, Sums, Ledger);

/// An object on its way, in parts.
struct Transfer {
    shared: Arc<Shared>,
    meta: Arc<ObjectMeta>,
    upload: Arc<dyn Upload>,
    part_bytes: u64,
    parts: Vec<Option<Sums>>,
    /// What was there already, when this goes on with an earlier upload.
    bytes_before: Option<u64>,
    journal: ObjectJournal,
    ledger: Ledger,
}

impl Transfer {
    /// Go on with an upload that was interrupted, or begin one.
    async fn begin(
        shared: &Arc<Shared>,
        meta: &ObjectMeta,
        job: &Job,
        journal: ObjectJournal,
    ) -> Result<Self> {
        let options = shared.put_options(meta);
        let resumed = match journal.state() {
            Some(state) => {
                let upload = shared.destination.resume_upload(&job.to, state.clone(), &options);
                upload
                    .await
                    .inspect_err(|error| tracing::debug!(%error, "the upload cannot be resumed"))
                    .ok()
            }
            None => None,
        };
        let resumed = resumed.filter(|upload| journal.part_bytes() == Some(upload.part_bytes()));
        let is_resumed = resumed.is_some();
        let upload: Arc<dyn Upload> = match resumed {
            Some(upload) => upload.into(),
            None => shared.destination.upload(&job.to, &options).await?.into(),
        };
        let part_bytes = upload.part_bytes().max(1);
        let mut parts = vec![None; meta.size.div_ceil(part_bytes) as usize];
        let mut bytes_before = None;
        if is_resumed {
            let mut bytes = 0;
            for (index, sums) in journal.parts() {
                if let Some(part) = parts.get_mut(index as usize) {
                    *part = Some(sums);
                    bytes += sums.len;
                }
            }
            shared.progress.moved(bytes);
            bytes_before = Some(bytes);
        }
        Ok(Self {
            shared: Arc::clone(shared),
            meta: Arc::new(meta.clone()),
            upload,
            part_bytes,
            parts,
            bytes_before,
            journal,
            ledger: Ledger::default(),
        })
    }

    fn copied(&self) -> Copied {
        match self.bytes_before {
            Some(bytes_before) => Copied::Resumed { bytes_before },
            None => Copied::Whole,
        }
    }

    /// Move what is missing, compare, and make it visible.
    async fn send(&mut self) -> Result<(PutDone, Vec<Sums>, SourceCheck), Stopped> {
        self.move_parts().await.map_err(Stopped::Here)?;
        let sums = self.sums().map_err(Stopped::Here)?;
        let compared = compare_whole(&self.shared, &self.meta, &sums).await;
        let source = compared.map_err(Stopped::ForGood)?;
        let done = self.upload.complete().await.map_err(Stopped::Here)?;
        Ok((done, sums, source))
    }

    /// Move the parts that are missing, within the bound of requests that all objects share.
    async fn move_parts(&mut self) -> Result<()> {
        let missing: Vec<u32> = (0u32..)
            .zip(&self.parts)
            .filter(|(_, part)| part.is_none())
            .map(|(index, _)| index)
            .collect();
        let mut missing = missing.into_iter();
        let window = self.shared.context.limits().store_requests_max.max(1) as usize;
        let cancel = self.shared.cancel.clone();
        let mut tasks = JoinSet::new();
        let failed = loop {
            while tasks.len() < window
                && let Some(index) = missing.next()
            {
                tasks.spawn(self.part(index));
            }
            let joined = tokio::select! {
                biased;
                () = cancel.cancelled() => break stopped(),
                joined = tasks.join_next() => joined,
            };
            let Some(joined) = joined else { return Ok(()) };
            if let Err(error) = self.take(joined) {
                break error;
            }
            self.journal.record(&*self.upload, &self.parts).await;
        };
        // What had arrived by then need not be sent again.
        tasks.abort_all();
        while let Some(joined) = tasks.join_next().await {
            let _ = self.take(joined);
        }
        Err(failed)
    }

    fn take(&mut self, joined: Result<Result<Part>, JoinError>) -> Result<()> {
        let (index, sums, ledger) = joined.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, "copy", "a task of the copy panicked").with_source(error))
        })?;
        self.ledger.merge(&ledger);
        self.parts[index as usize] = Some(sums);
        Ok(())
    }

    /// Read one part, sum it and write it.
    fn part(&self, index: u32) -> impl Future<Output = Result<Part>> + Send + 'static {
        let (shared, meta, upload) = (
            Arc::clone(&self.shared),
            Arc::clone(&self.meta),
            Arc::clone(&self.upload),
        );
        let start = u64::from(index) * self.part_bytes;
        let end = start.saturating_add(self.part_bytes).min(meta.size);
        async move {
            let _permit = shared.requests.acquire().await.map_err(|_| stopped())?;
            let (body, mut ledger) = read(&shared, &meta, Span::new(start, end)?).await?;
            let sums = Sums::of(&body, meta.checksum);
            ledger.merge(&upload.put_part(index, body.into()).await?);
            shared.progress.moved(sums.len);
            Ok((index, sums, ledger))
        }
    }

    fn sums(&self) -> Result<Vec<Sums>> {
        let sums: Option<Vec<Sums>> = self.parts.iter().copied().collect();
        sums.ok_or_else(no_parts)
    }

    /// Stop with an error: keep what can be resumed, remove the rest.
    async fn give_up(&mut self, error: Error) -> Error {
        if !self.journal.keep(&*self.upload, &self.parts).await {
            drop(self.upload.abort().await);
        }
        error
    }

    /// Drop an upload that cannot be completed, with all that was remembered of it; gives the empty journal.
    async fn forget(self) -> ObjectJournal {
        let Self {
            upload, mut journal, ..
        } = self;
        journal.remove().await;
        drop(upload.abort().await);
        journal
    }

    /// Stop with an error that trying again cannot cure.
    async fn discard(&mut self, error: Error) -> Error {
        self.journal.remove().await;
        drop(self.upload.abort().await);
        error
    }
}

/// Read a range of the source into leased memory.
async fn read(shared: &Shared, meta: &ObjectMeta, span: Span) -> Result<(Buf, Ledger)> {
    if span.is_empty() {
        return Ok((Buf::copy_of(&[])?, Ledger::default()));
    }
    let buf = shared.context.pool().lease(span.len() as usize).await??;
    let options = shared.read_options(meta.version.as_ref());
    let done = shared.source.read_into(&meta.key, span, buf, &options).await?;
    Ok((done.buf.freeze().slice(..span.len() as usize), done.ledger))
}

/// Whether the source may keep checksums that its listing does not tell. Files have none, and memory tells all it knows.
fn listing_hides_checksums(shared: &Shared) -> bool {
    !matches!(shared.source.location().scheme(), Scheme::File | Scheme::Mem)
}

/// A large object is worth one request for the checksum that listings leave out.
async fn with_checksum(shared: &Shared, job: &Job) -> Result<ObjectMeta> {
    if job.from_head || job.from.checksum.is_some() {
        return Ok(job.from.clone());
    }
    let meta = shared.source.head(&job.from.key).await?;
    if meta.version != job.from.version || meta.size != job.from.size {
        return Err(changed(shared, &meta));
    }
    Ok(meta)
}

/// Compare the sum of all parts with the source's; without versions to pin, see that the source did not change meanwhile.
async fn compare_whole(shared: &Shared, meta: &ObjectMeta, sums: &[Sums]) -> Result<SourceCheck> {
    let whole = Sums::join(sums.iter().copied()).ok_or_else(no_parts)?;
    let check = compare_source(shared, meta, whole)?;
    if meta.version.is_none() && check == SourceCheck::NoneKept {
        let after = shared.source.head(&meta.key).await?;
        if (after.size, after.modified) != (meta.size, meta.modified) {
            return Err(changed(shared, meta));
        }
    }
    Ok(check)
}

fn compare_source(shared: &Shared, meta: &ObjectMeta, sums: Sums) -> Result<SourceCheck> {
    let matches = match (meta.checksum, sums.crc32c) {
        (None, _) | (Some(Checksum::Crc32c(_)), None) => return Ok(SourceCheck::NoneKept),
        (Some(Checksum::Crc64Nvme(kept)), _) => kept == sums.crc64nvme,
        (Some(Checksum::Crc32c(kept)), Some(found)) => kept == found,
    };
    if matches {
        return Ok(SourceCheck::Matched);
    }
    let message = "the bytes read do not have the checksum that the source keeps";
    Err(Error::new(ErrorKind::Corrupt, "copy", message)
        .at(shared.source.location().join(&meta.key))
        .with_hint("nothing was written; read it again, and replace the object at the source if it stays so"))
}

fn account_source(ledger: &mut Ledger, check: SourceCheck, size: u64) {
    if check == SourceCheck::Matched {
        // The store may have counted some of these bytes already.
        ledger.verified_bytes = ledger.verified_bytes.max(size);
    }
}

fn changed(shared: &Shared, meta: &ObjectMeta) -> Error {
    Error::new(
        ErrorKind::Precondition,
        "copy",
        "the object changed while it was copied",
    )
    .at(shared.source.location().join(&meta.key))
    .with_hint("copy it again when nobody writes to it")
}

fn no_parts() -> Error {
    Error::new(ErrorKind::Internal, "copy", "a part is missing at the end")
}

fn copied(
    job: &Job,
    done: &PutDone,
    sums: Sums,
    (source, destination): (SourceCheck, DestinationCheck),
    copied: Copied,
    ledger: Ledger,
) -> ObjectCopied {
    ObjectCopied {
        from: job.from.key.clone(),
        from_version: job.from.version.clone(),
        to: job.to.clone(),
        to_version: done.version.clone(),
        size: sums.len,
        crc64nvme: sums.crc64nvme,
        source,
        destination,
        copied,
        ledger,
    }
}
