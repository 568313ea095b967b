//! Cuts the pieces of a body into writes a file can take.
//!
//! Direct files take only aligned writes, and every write costs a trip to the engine, so small and odd pieces are joined (copied, and
//! the ledger says so) while large aligned ones go as they are.
//!
//! ```text
//! pieces  |----- 20 MiB -----|3|3|3|--- 9 MiB, odd address ---|
//! runs    |8 MiB|8 MiB|4 MiB |1 MiB|1 MiB| ...              |x|
//! ```

use std::sync::Arc;

use forebay_core::{Crc64Nvme, Ledger, Result, crc64nvme};
use forebay_io::{Access, AlignedBuf, Buf, Class, Disk, File, Pages};
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::store::Body;

/// Largest run: what the disk hands to the engine at once.
const RUN_BYTES_MAX: usize = 8 << 20;

/// Size of a run that was joined from pieces: a copy within the second-level cache, and few requests.
const JOIN_BYTES: usize = 1 << 20;

/// Pieces smaller than this are joined even where they could go alone: copying them is cheaper than a request each.
const ALONE_BYTES_MIN: usize = 64 << 10;

/// Runs in flight: one is hashed while others are being written.
const RUNS_IN_FLIGHT: usize = 4;

/// One write.
#[derive(Debug)]
struct Run {
    offset: u64,
    len: usize,
    pieces: Vec<Buf>,
}

impl Run {
    /// As one buffer, and whether that took a copy.
    fn into_buf(mut self) -> Result<(Buf, bool)> {
        if self.pieces.len() == 1
            && let Some(piece) = self.pieces.pop()
        {
            return Ok((piece, false));
        }
        let mut joined = AlignedBuf::alloc(self.len, Pages::Small)?;
        let mut at = 0;
        for piece in &self.pieces {
            joined[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Ok((joined.freeze(), true))
    }
}

/// Write a whole body from offset 0; gives its CRC-64/NVME.
pub(super) async fn write(disk: &Disk, file: &Arc<File>, body: &Body, class: Class) -> Result<(u64, Ledger)> {
    let align = match *file.access() {
        Access::Direct { align } => align as usize,
        Access::Buffered { .. } => 1,
    };
    let path = disk.path_of(file);
    let writes = cut(body.pieces(), align).into_iter().map(|run| {
        let (disk, file) = (disk.clone(), Arc::clone(file));
        async move {
            let (offset, len) = (run.offset, run.len as u64);
            let (buf, copied) = run.into_buf()?;
            let crc = crc64nvme(&buf);
            let mut ledger = disk.write_at(&file, offset, buf, class).await?;
            if copied {
                ledger.record_copy(path, len);
            }
            Ok((crc, len, ledger))
        }
    });
    let mut writes = stream::iter(writes).buffered(RUNS_IN_FLIGHT);
    let mut whole = crc64nvme(b"");
    let mut ledger = Ledger::default();
    while let Some((crc, len, part)) = writes.try_next().await? {
        whole = Crc64Nvme::combine(whole, crc, len);
        ledger.merge(&part);
    }
    Ok((whole, ledger))
}

/// Cut pieces into runs that begin at multiples of `align`.
fn cut(pieces: &[Buf], align: usize) -> Vec<Run> {
    let mut runs = Runs::default();
    let alone = pieces.len() == 1;
    for piece in pieces {
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let fits = runs.end.is_multiple_of(align as u64)
                && rest.is_aligned(align)
                && (alone || rest.len() >= ALONE_BYTES_MIN);
            let take = if fits {
                runs.close();
                // Only the very last run may end off the alignment.
                let whole = if rest.len() <= RUN_BYTES_MAX && alone {
                    rest.len()
                } else {
                    rest.len() - rest.len() % align
                };
                whole.min(RUN_BYTES_MAX)
            } else {
                rest.len().min(JOIN_BYTES - runs.open_len())
            };
            runs.add(rest.slice(..take));
            rest = rest.slice(take..);
            if fits || runs.open_len() == JOIN_BYTES {
                runs.close();
            }
        }
    }
    runs.close();
    runs.done
}

#[derive(Debug, Default)]
struct Runs {
    done: Vec<Run>,
    open: Option<Run>,
    end: u64,
}

impl Runs {
    fn open_len(&self) -> usize {
        self.open.as_ref().map_or(0, |run| run.len)
    }

    fn add(&mut self, piece: Buf) {
        let offset = self.end;
        let run = self.open.get_or_insert_with(|| Run {
            offset,
            len: 0,
            pieces: Vec::new(),
        });
        run.len += piece.len();
        self.end += piece.len() as u64;
        run.pieces.push(piece);
    }

    fn close(&mut self) {
        self.done.extend(self.open.take());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn runs_are_aligned_and_say_the_same_bytes(
            pieces in prop::collection::vec((0usize..300_000, 0usize..5_000), 0..12),
            align in prop::sample::select(vec![1usize, 512, 4096]),
        ) {
            let bytes: Vec<u8> = (0..400_000u32).map(|index| ((index * 31) >> 3) as u8).collect();
            let whole = Buf::copy_of(&bytes).unwrap();
            let pieces: Vec<Buf> = pieces.into_iter().map(|(len, at)| whole.slice(at..at + len)).collect();
            let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            let runs = cut(&pieces, align);
            let count = runs.len();
            let mut written = Vec::new();
            for (index, run) in runs.into_iter().enumerate() {
                prop_assert_eq!(run.offset, written.len() as u64);
                prop_assert!(run.offset.is_multiple_of(align as u64));
                prop_assert!(run.len <= RUN_BYTES_MAX && run.len > 0);
                prop_assert!(index + 1 == count || run.len.is_multiple_of(align));
                written.extend_from_slice(&run.into_buf().unwrap().0);
            }
            prop_assert_eq!(written, expected);
        }
    }

    #[test]
    fn one_large_piece_is_not_copied() {
        let piece = Buf::copy_of(&vec![7; (20 << 20) + 5]).unwrap();
        let runs = cut(&[piece], 4096);
        assert_eq!(
            runs.iter().map(|run| run.len).collect::<Vec<_>>(),
            [8 << 20, 8 << 20, (4 << 20) + 5]
        );
        assert!(runs.into_iter().all(|run| !run.into_buf().unwrap().1));
    }
}
