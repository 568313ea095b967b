//! Writes an object whose length is known only at its end: bytes are gathered into parts of leased memory, which go out side by side while the next are made.

use std::sync::Arc;

use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result};
use forebay_io::AlignedBuf;
use forebay_store::{PutOptions, Upload, WriteCheck};
use tokio::task::JoinSet;

use super::write;
use crate::pages::Source;

/// Bytes of parts in flight: enough for the fastest disk and for the round trips of an object store, and with what encoding holds below what a save may take.
const FLIGHT_BYTES_MAX: u64 = 96 << 20;

/// Parts in flight, however small they are.
const FLIGHT_PARTS_MAX: u64 = 16;

/// An object in the making.
#[derive(Debug)]
pub(super) struct PartWriter<'a> {
    source: &'a Source,
    key: Key,
    options: PutOptions,
    /// `None` where one part is enough for everything.
    upload: Option<Arc<dyn Upload>>,
    part_bytes: usize,
    part: Option<AlignedBuf>,
    /// Bytes of the part that are written.
    at: usize,
    /// Bytes of the object so far.
    end: u64,
    parts: u32,
    flight: JoinSet<Result<Ledger>>,
    ledger: Ledger,
}

impl<'a> PartWriter<'a> {
    /// Begin an object of at most `bytes_max` bytes.
    pub(super) async fn begin(
        source: &'a Source,
        key: Key,
        bytes_max: u64,
        options: PutOptions,
    ) -> Result<Self> {
        let mut part_bytes = source.context.limits().part_bytes;
        let mut upload: Option<Arc<dyn Upload>> = None;
        if bytes_max > part_bytes {
            let options = PutOptions {
                size_hint: Some(bytes_max),
                ..options.clone()
            };
            let begun = source.store.upload(&key, &options).await?;
            part_bytes = begun.part_bytes();
            upload = Some(Arc::from(begun));
        }
        Ok(Self {
            source,
            key,
            options,
            upload,
            part_bytes: usize::try_from(part_bytes).unwrap_or(usize::MAX),
            part: None,
            at: 0,
            end: 0,
            parts: 0,
            flight: JoinSet::new(),
            ledger: Ledger::default(),
        })
    }

    /// Zeros up to a multiple of `align`; gives where the next byte goes.
    pub(super) async fn pad(&mut self, align: u64) -> Result<u64> {
        while !self.end.is_multiple_of(align) {
            let missing = self.end.next_multiple_of(align) - self.end;
            let room = self.room().await?;
            let len = room.len().min(missing as usize);
            if let Some(room) = room.get_mut(..len) {
                room.fill(0);
            }
            self.advance(len);
        }
        Ok(self.end)
    }

    /// Bytes behind what is there.
    pub(super) async fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = self.room().await?;
            let len = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(len);
            if let Some(room) = room.get_mut(..len) {
                room.copy_from_slice(now);
            }
            self.advance(len);
            bytes = later;
        }
        Ok(())
    }

    fn advance(&mut self, len: usize) {
        self.at += len;
        self.end += len as u64;
    }

    /// The free end of the part, which has some.
    async fn room(&mut self) -> Result<&mut [u8]> {
        if self.at == self.part_bytes {
            self.send().await?;
        }
        if self.part.is_none() {
            self.part = Some(self.source.memory(self.part_bytes).await?);
        }
        let at = self.at;
        let room = self.part.as_mut().and_then(|part| part.get_mut(at..));
        room.ok_or_else(|| Error::new(ErrorKind::Internal, "save", "a part has no room"))
    }

    /// Send the part off; waits while enough are on their way.
    async fn send(&mut self) -> Result<()> {
        let (Some(part), Some(upload)) = (self.part.take(), self.upload.clone()) else {
            return Err(Error::new(
                ErrorKind::Internal,
                "save",
                "a payload is longer than was said",
            ));
        };
        let flight_max = (FLIGHT_BYTES_MAX / (self.part_bytes as u64).max(1)).clamp(1, FLIGHT_PARTS_MAX);
        while self.flight.len() as u64 >= flight_max {
            self.land().await?;
        }
        let (index, body) = (self.parts, part.freeze().slice(..self.at));
        // A task of its own, so that it goes on while nobody asks: memory for the next part may be what it holds.
        self.flight.spawn(async move {
            let len = body.len() as u64;
            let mut ledger = upload.put_part(index, body.into()).await?;
            let path = ledger.paths.keys().next().copied();
            ledger.record_copy(path.unwrap_or(DataPath::Memory), len);
            Ok(ledger)
        });
        self.parts += 1;
        self.at = 0;
        Ok(())
    }

    /// Wait for one part.
    async fn land(&mut self) -> Result<()> {
        if let Some(landed) = self.flight.join_next().await {
            self.ledger.merge(&write::landed(landed)?);
        }
        Ok(())
    }

    /// Make the object visible; gives its length, and how far it was checked.
    pub(super) async fn finish(mut self) -> Result<(u64, WriteCheck, Ledger)> {
        let finished = self.complete().await;
        if finished.is_err() {
            self.abort().await;
        }
        Ok((self.end, finished?, self.ledger))
    }

    async fn complete(&mut self) -> Result<WriteCheck> {
        let Some(upload) = self.upload.clone() else {
            let part = match self.part.take() {
                Some(part) => part.freeze().slice(..self.at),
                None => forebay_io::Buf::copy_of(&[])?,
            };
            let put = self
                .source
                .store
                .put(&self.key, part.into(), &self.options)
                .await?;
            self.ledger.merge(&put.ledger);
            return Ok(put.check);
        };
        if self.at > 0 || self.parts == 0 {
            self.send().await?;
        }
        while !self.flight.is_empty() {
            self.land().await?;
        }
        let put = upload.complete().await?;
        self.ledger.merge(&put.ledger);
        Ok(put.check)
    }

    /// Give up: nothing of it stays.
    pub(super) async fn abort(&mut self) {
        self.flight.shutdown().await;
        if let Some(upload) = self.upload.take()
            && let Err(error) = upload.abort().await
        {
            tracing::warn!(%error, "cannot give up an upload");
        }
    }
}
