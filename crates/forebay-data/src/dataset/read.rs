//! Single ranges of shards, for looking at them; streaming reads ahead and has its own ways.

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result, Span};
use futures::TryStreamExt;

use super::Dataset;
use crate::codec::{Codec, Decoder};

impl Dataset {
    /// A range of a shard as it is after decompression. A shard that is compressed as a whole is decompressed up to the end of the range.
    pub async fn read(&self, shard: usize, span: Span) -> Result<Bytes> {
        let source = self.source(shard).await?;
        let codec = self.shards().get(shard).map_or(Codec::None, |row| row.codec);
        if codec == Codec::None {
            return Ok(source.read(span).await?.0);
        }
        let mut decoder = Decoder::new(codec);
        let (mut at, mut found) = (0u64, Vec::new());
        let mut pieces = source.pieces();
        while let Some((piece, _)) = pieces.try_next().await? {
            decoder.feed(&piece, &mut |raw| {
                let here = Span::at(at, raw.len() as u64)?;
                at = here.end();
                if let Some(part) = here.intersect(span) {
                    found.extend_from_slice(raw.get(part.relative_to(here.start())).unwrap_or_default());
                }
                Ok(())
            })?;
            if at >= span.end() {
                return Ok(found.into());
            }
        }
        if found.len() as u64 == span.len() {
            return Ok(found.into());
        }
        let message = format!("the shard ends at byte {at}, before byte {}", span.end());
        Err(source.name_in(Error::new(ErrorKind::Corrupt, "read shard", message)))
    }
}
