//! From tensors to a file: pieces are loaded and verified some ahead, and gathered into the parts of an upload.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result};
use forebay_io::{AlignedBuf, Class, Pages};
use forebay_store::{Context, PutOptions, Upload};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::task::JoinSet;

use super::tensors::{Piece, Tensor};
use super::{ExportedFile, Job};
use crate::load::Want;

/// Bytes of a piece of a tensor; of several chunks where chunks are larger, so that few are read twice.
const PIECE_BYTES: u64 = 16 << 20;
const CHUNKS_A_PIECE: u64 = 4;
/// Most bytes of a piece, whatever the chunks.
const PIECE_BYTES_MAX: u64 = 256 << 20;

/// Pieces loaded ahead of the one that is written.
const PIECES_AHEAD: usize = 2;

/// Parts on their way at once.
const PARTS_AT_ONCE: usize = 4;

/// A file being written.
pub(super) struct Writer {
    upload: Arc<dyn Upload>,
    context: Context,
    part: Option<AlignedBuf>,
    filled: usize,
    index: u32,
    sends: JoinSet<Result<Ledger>>,
    pub(super) bytes: u64,
    ledger: Ledger,
}

impl Writer {
    /// Write as it is, behind what was written.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        let part_bytes = usize::try_from(self.upload.part_bytes()).unwrap_or(usize::MAX);
        while !bytes.is_empty() {
            let mut part = match self.part.take() {
                Some(part) => part,
                None => self.context.pool().lease(part_bytes).await??,
            };
            let (now, rest) = bytes.split_at(bytes.len().min(part_bytes - self.filled));
            if let Some(place) = part.get_mut(self.filled..self.filled + now.len()) {
                place.copy_from_slice(now);
            }
            self.filled += now.len();
            self.part = Some(part);
            if self.filled == part_bytes {
                self.send().await?;
            }
            bytes = rest;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        let Some(part) = self.part.take() else {
            return Ok(());
        };
        while self.sends.len() >= PARTS_AT_ONCE {
            self.join().await?;
        }
        let (upload, index) = (Arc::clone(&self.upload), self.index);
        let buf = part.freeze().slice(..self.filled);
        self.sends
            .spawn(async move { upload.put_part(index, buf.into()).await });
        self.index = self.index.checked_add(1).ok_or_else(|| {
            Error::new(
                ErrorKind::LimitExceeded,
                "export",
                "more parts than can be numbered",
            )
        })?;
        self.filled = 0;
        Ok(())
    }

    async fn join(&mut self) -> Result<()> {
        match self.sends.join_next().await {
            None => Ok(()),
            Some(Ok(sent)) => {
                self.ledger.merge(&sent?);
                Ok(())
            }
            Some(Err(error)) => {
                let message = "writing was broken off";
                Err(Error::new(ErrorKind::Internal, "export", message).with_source(error))
            }
        }
    }

    /// Make it visible.
    async fn finish(&mut self) -> Result<()> {
        self.send().await?;
        while !self.sends.is_empty() {
            self.join().await?;
        }
        let done = self.upload.complete().await?;
        self.ledger.merge(&done.ledger);
        Ok(())
    }
}

impl Job<'_> {
    /// Begin a file of about so many bytes.
    pub(super) async fn begin(&self, name: &str, bytes: u64) -> Result<Writer> {
        let options = PutOptions {
            size_hint: Some(bytes),
            class: Class::Data,
            ..PutOptions::default()
        };
        let upload = self.to.upload(&Key::parse(name)?, &options).await?;
        Ok(Writer {
            upload: upload.into(),
            context: self.checkpoint.source().context.clone(),
            part: None,
            filled: 0,
            index: 0,
            sends: JoinSet::new(),
            bytes: 0,
            ledger: Ledger::default(),
        })
    }

    /// End a file: visible when its content was written without a fault, given up otherwise.
    pub(super) async fn end(&mut self, name: &str, mut writer: Writer, written: Result<()>) -> Result<()> {
        let done = match written {
            Ok(()) => writer.finish().await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            writer.sends.abort_all();
            if let Err(abort) = writer.upload.abort().await {
                tracing::warn!(error = %abort, "cannot give up an upload");
            }
            return Err(error);
        }
        self.done.ledger.merge(&writer.ledger);
        self.done.files.push(ExportedFile {
            name: name.to_owned(),
            bytes: writer.bytes,
        });
        Ok(())
    }

    /// Write all bytes of a tensor; `each` sees them as they go by.
    pub(super) async fn write_tensor(
        &self,
        writer: &mut Writer,
        tensor: &Tensor,
        each: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<Ledger> {
        let pieces = tensor.pieces(self.piece_bytes())?;
        let loads = stream::iter(pieces).map(|piece| self.load(tensor, piece));
        let mut loads = std::pin::pin!(loads.buffered(PIECES_AHEAD));
        let mut ledger = Ledger::default();
        let mut written = 0;
        while let Some((memory, read)) = loads.try_next().await? {
            ledger.merge(&read);
            each(&memory);
            writer.write(&memory).await?;
            written += memory.len() as u64;
            (self.tell)(memory.len() as u64);
        }
        if written == tensor.bytes {
            return Ok(ledger);
        }
        let message = format!("{:?} has {written} bytes, not {}", tensor.name, tensor.bytes);
        Err(Error::new(ErrorKind::Corrupt, "export", message))
    }

    fn piece_bytes(&self) -> u64 {
        let of_chunks = u64::from(self.checkpoint.manifest().chunk_bytes) * CHUNKS_A_PIECE;
        PIECE_BYTES.max(of_chunks).min(PIECE_BYTES_MAX)
    }

    async fn load(&self, tensor: &Tensor, piece: Piece) -> Result<(AlignedBuf, Ledger)> {
        let bytes = tensor.dtype.bytes_of(&piece.lengths).unwrap_or(0);
        let want = Want {
            name: tensor.target.clone(),
            offsets: piece.offsets,
            lengths: piece.lengths,
            memory: AlignedBuf::alloc(usize::try_from(bytes).unwrap_or(usize::MAX), Pages::default())?,
        };
        let mut loaded = self.checkpoint.load(vec![want]).await?;
        let memory = match loaded.memory.pop() {
            Some(memory) => memory,
            None => AlignedBuf::alloc(0, Pages::default())?,
        };
        let memory = match piece.gather {
            Some(gather) => AlignedBuf::copy_of(&gather.take(&memory)?)?,
            None => memory,
        };
        Ok((memory, loaded.ledger))
    }
}
