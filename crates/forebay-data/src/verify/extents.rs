//! Compares the bytes of a shard, as they come, with the checksum of each sample or column chunk.

use forebay_core::{Crc32c, Result, Span, crc32c};

use crate::format::GroupDecoder;
use crate::table::{Groups, Samples};

/// What has a checksum, in order, against bytes in order.
#[derive(Debug)]
pub(super) struct Extents<'a> {
    parts: Parts<'a>,
    /// Part that is next or open.
    next: usize,
    /// Offset of the next byte that will be fed.
    at: u64,
    crc: Crc32c,
}

#[derive(Debug)]
enum Parts<'a> {
    Samples(&'a Samples),
    /// By their places in the shard.
    Chunks(Vec<Chunk>),
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    span: Span,
    crc: u32,
    group: u32,
    column: u32,
}

/// What it is that has a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Sample { number: usize },
    Chunk { group: u32, column: u32 },
}

/// A part that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) part: Part,
    pub(super) start: u64,
    pub(super) is_whole: bool,
    /// The bytes ended before it did.
    pub(super) is_cut_off: bool,
}

impl<'a> Extents<'a> {
    /// The samples of a table that was checked: their extents ascend and do not overlap.
    pub(super) fn of_samples(samples: &'a Samples) -> Self {
        Self::new(Parts::Samples(samples))
    }

    /// The column chunks of a table that was checked, at the places that the footer gives them: they do not overlap.
    pub(super) fn of_chunks(groups: &Groups, fields: usize, decoder: &dyn GroupDecoder) -> Result<Self> {
        let mut chunks = Vec::with_capacity(groups.chunk_crcs.len());
        for group in 0..groups.list.len() {
            for column in 0..fields {
                if let Some(crc) = groups.chunk_crc(group, column) {
                    chunks.push(Chunk {
                        span: decoder.span(group, column)?,
                        crc,
                        group: group as u32,
                        column: column as u32,
                    });
                }
            }
        }
        chunks.sort_unstable_by_key(|chunk| (chunk.span.start(), chunk.span.end()));
        Ok(Self::new(Parts::Chunks(chunks)))
    }

    /// Nothing is known of what has a checksum.
    pub(super) fn unknown() -> Self {
        Self::new(Parts::Unknown)
    }

    pub(super) fn are_known(&self) -> bool {
        !matches!(self.parts, Parts::Unknown)
    }

    fn new(parts: Parts<'a>) -> Self {
        Self {
            parts,
            next: 0,
            at: 0,
            crc: Crc32c::default(),
        }
    }

    fn next(&self) -> Option<(Part, Span, u32)> {
        let number = self.next;
        match &self.parts {
            Parts::Samples(samples) => {
                let (extent, crc) = (samples.extent(number)?, *samples.crcs.get(number)?);
                Some((Part::Sample { number }, extent, crc))
            }
            Parts::Chunks(chunks) => {
                let Chunk {
                    span,
                    crc,
                    group,
                    column,
                } = *chunks.get(number)?;
                Some((Part::Chunk { group, column }, span, crc))
            }
            Parts::Unknown => None,
        }
    }

    /// The next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8], judge: &mut dyn FnMut(Checked)) {
        let Ok(fed) = Span::at(self.at, bytes.len() as u64) else {
            return;
        };
        while let Some((part, extent, crc)) = self.next() {
            if let Some(passing) = extent.intersect(fed) {
                let part_bytes = bytes.get(passing.relative_to(fed.start())).unwrap_or_default();
                self.crc.update(part_bytes);
            }
            if extent.end() > fed.end() {
                break;
            }
            self.judge(part, extent, crc, false, judge);
        }
        self.at = fed.end();
    }

    /// There are no more bytes.
    pub(super) fn finish(&mut self, judge: &mut dyn FnMut(Checked)) {
        while let Some((part, extent, crc)) = self.next() {
            self.judge(part, extent, crc, extent.end() > self.at, judge);
        }
    }

    fn judge(
        &mut self,
        part: Part,
        extent: Span,
        crc: u32,
        is_cut_off: bool,
        judge: &mut dyn FnMut(Checked),
    ) {
        let found = std::mem::take(&mut self.crc).value();
        let found = if extent.is_empty() { crc32c(b"") } else { found };
        judge(Checked {
            part,
            start: extent.start(),
            is_whole: !is_cut_off && found == crc,
            is_cut_off,
        });
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn samples(extents: &[(u64, &[u8])]) -> Samples {
        Samples {
            starts: extents.iter().map(|(start, _)| *start).collect(),
            lens: extents.iter().map(|(_, bytes)| bytes.len() as u32).collect(),
            crcs: extents.iter().map(|(_, bytes)| crc32c(bytes)).collect(),
            ..Samples::default()
        }
    }

    fn run(samples: &Samples, bytes: &[u8], step: usize) -> Vec<(bool, bool)> {
        let mut found = Vec::new();
        let mut extents = Extents::of_samples(samples);
        let mut judge = |checked: Checked| {
            let number = found.len();
            assert_eq!(checked.part, Part::Sample { number });
            found.push((checked.is_whole, checked.is_cut_off));
        };
        for piece in bytes.chunks(step) {
            extents.feed(piece, &mut judge);
        }
        extents.finish(&mut judge);
        found
    }

    #[test]
    fn every_extent_is_judged_however_bytes_are_cut() {
        let table = samples(&[(1, b"abc"), (4, b""), (4, b"d"), (7, b"efgh"), (11, b"")]);
        for step in [1, 2, 3, 5, 100] {
            let good = run(&table, b".abcd..efgh...", step);
            assert_eq!(good, [(true, false); 5], "{step}");
            let bad = run(&table, b".aXcd..efgY", step);
            assert_eq!(
                bad,
                [
                    (false, false),
                    (true, false),
                    (true, false),
                    (false, false),
                    (true, false)
                ],
                "{step}"
            );
            let short = run(&table, b".abcd..ef", step);
            assert_eq!(
                short[2..],
                [(true, false), (false, true), (false, true)],
                "{step}"
            );
        }
    }
}
