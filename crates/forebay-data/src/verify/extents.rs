//! Compares the bytes of a shard, as they come, with the checksum of each sample or group.

use forebay_core::{Crc32c, Span, crc32c};

use crate::table::{Layout, Table};

/// The extents of a table, in order, against bytes in order.
#[derive(Debug)]
pub(super) struct Extents<'a> {
    table: &'a Table,
    /// Extent that is next or open.
    number: usize,
    /// Offset of the next byte that will be fed.
    at: u64,
    crc: Crc32c,
}

/// An extent that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) is_whole: bool,
    /// The bytes ended before it did.
    pub(super) is_cut_off: bool,
}

impl<'a> Extents<'a> {
    /// For a table that was checked: its extents ascend and do not overlap.
    pub(super) fn new(table: &'a Table) -> Self {
        Self {
            table,
            number: 0,
            at: 0,
            crc: Crc32c::default(),
        }
    }

    fn next(&self) -> Option<(Span, u32)> {
        match &self.table.layout {
            Layout::Samples(samples) => Some((samples.extent(self.number)?, *samples.crcs.get(self.number)?)),
            Layout::Groups(groups) => groups.get(self.number).map(|group| (group.extent, group.crc)),
        }
    }

    /// The next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8], judge: &mut dyn FnMut(Checked)) {
        let Ok(fed) = Span::at(self.at, bytes.len() as u64) else {
            return;
        };
        while let Some((extent, crc)) = self.next() {
            if let Some(part) = extent.intersect(fed) {
                let part_bytes = bytes.get(part.relative_to(fed.start())).unwrap_or_default();
                self.crc.update(part_bytes);
            }
            if extent.end() > fed.end() {
                break;
            }
            self.judge(extent, crc, false, judge);
        }
        self.at = fed.end();
    }

    /// There are no more bytes.
    pub(super) fn finish(&mut self, judge: &mut dyn FnMut(Checked)) {
        while let Some((extent, crc)) = self.next() {
            self.judge(extent, crc, extent.end() > self.at, judge);
        }
    }

    fn judge(&mut self, extent: Span, crc: u32, is_cut_off: bool, judge: &mut dyn FnMut(Checked)) {
        let found = std::mem::take(&mut self.crc).value();
        let found = if extent.is_empty() { crc32c(b"") } else { found };
        judge(Checked {
            number: self.number as u64,
            start: extent.start(),
            is_whole: !is_cut_off && found == crc,
            is_cut_off,
        });
        self.number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Group;

    fn table(extents: &[(u64, &[u8])]) -> Table {
        let groups = extents.iter().map(|(start, bytes)| Group {
            extent: Span::at(*start, bytes.len() as u64).unwrap(),
            crc: crc32c(bytes),
            samples: 1,
        });
        Table {
            fields: Vec::new(),
            layout: Layout::Groups(groups.collect()),
        }
    }

    fn run(table: &Table, bytes: &[u8], step: usize) -> Vec<(bool, bool)> {
        let mut found = Vec::new();
        let mut extents = Extents::new(table);
        let mut judge = |checked: Checked| {
            assert_eq!(checked.number, found.len() as u64);
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
        let table = table(&[(1, b"abc"), (4, b""), (4, b"d"), (7, b"efgh"), (11, b"")]);
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
