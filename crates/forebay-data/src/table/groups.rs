//! Samples that are rows of groups: where each group lies, and a checksum for each column of each.
//!
//! ```text
//! shard: .. | group 0: chunk of field 0, chunk of field 1, .. | group 1: .. | .. | footer
//!                      `-- chunk_crcs[0]     `-- chunk_crcs[1]                     `-- says where the chunks lie; has a checksum of its own
//! ```
//!
//! A reader that wants few columns reads their chunks alone, and compares each of them. The places of chunks are not kept here: the footer has them, and
//! whoever opens it compares it first. So a chunk takes 4 bytes.

use forebay_core::{Result, Span};

use super::{check_order, corrupt, limit};

/// Most column chunks (fields times groups) of one shard: the longest footer that is read describes fewer, and their checksums take 16 MiB.
pub const CHUNKS_MAX: usize = 1 << 22;

/// The groups of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups {
    /// Where the shard itself says where columns lie and how they are decoded.
    pub footer: Footer,
    /// The groups, in order.
    pub list: Vec<Group>,
    /// CRC-32C of each column chunk: of the first group one for each field of the table, then those of the second, and so on.
    pub chunk_crcs: Vec<u32>,
}

/// Rows that are read and decoded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Its bytes in the shard.
    pub extent: Span,
    /// Rows.
    pub samples: u64,
}

/// What a shard says of its groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// Its bytes in the shard.
    pub extent: Span,
    /// CRC-32C of them.
    pub crc: u32,
}

impl Default for Footer {
    fn default() -> Self {
        Self {
            extent: Span::first(0),
            crc: 0,
        }
    }
}

impl Groups {
    /// CRC-32C of the chunk of field `column` in group `group`.
    pub fn chunk_crc(&self, group: usize, column: usize) -> Option<u32> {
        let columns = self.chunk_crcs.len().checked_div(self.list.len())?;
        if column >= columns {
            return None;
        }
        let index = group.checked_mul(columns)?.checked_add(column)?;
        self.chunk_crcs.get(index).copied()
    }

    /// Refuse what does not hold together, or does not fit a shard of that many bytes with that many fields.
    pub(super) fn check(&self, fields: usize, shard_bytes: u64) -> Result<()> {
        if self.chunk_crcs.len() != chunks(self.list.len(), fields)? {
            return Err(corrupt(
                "a shard has another number of chunks than of columns in groups",
            ));
        }
        if self.footer.extent.end() > shard_bytes {
            return Err(corrupt("the footer lies outside its shard"));
        }
        check_order(self.list.iter().map(|group| group.extent), shard_bytes)
    }
}

/// Column chunks of so many groups, where a shard may have that many.
pub(crate) fn chunks(groups: usize, fields: usize) -> Result<usize> {
    let count = groups.checked_mul(fields).filter(|count| *count <= CHUNKS_MAX);
    count.ok_or_else(|| {
        limit(&format!(
            "{groups} groups of {fields} fields; a shard may have {CHUNKS_MAX} column chunks"
        ))
        .with_hint("write files with fewer or larger row groups, or name the columns that are needed")
    })
}

#[cfg(test)]
mod tests {
    use forebay_core::ErrorKind;

    use super::*;

    fn groups(extents: &[(u64, u64)], crcs: usize) -> Groups {
        let list = extents.iter().map(|(start, len)| Group {
            extent: Span::at(*start, *len).unwrap(),
            samples: 1,
        });
        Groups {
            footer: Footer {
                extent: Span::at(90, 10).unwrap(),
                crc: 1,
            },
            list: list.collect(),
            chunk_crcs: (0..crcs as u32).collect(),
        }
    }

    #[test]
    fn each_chunk_has_its_checksum() {
        let two = groups(&[(4, 20), (24, 30)], 6);
        two.check(3, 100).unwrap();
        let crcs = |group| [0, 1, 2, 3].map(|column| two.chunk_crc(group, column));
        assert_eq!(crcs(0), [Some(0), Some(1), Some(2), None]);
        assert_eq!(crcs(1), [Some(3), Some(4), Some(5), None]);
        assert_eq!(crcs(2), [None; 4]);
        assert_eq!(two.chunk_crc(usize::MAX, 1), None);
        assert_eq!(groups(&[], 0).chunk_crc(0, 0), None);
        groups(&[], 0).check(3, 100).unwrap();
    }

    #[test]
    fn groups_that_do_not_hold_together_are_refused() {
        let kind = |groups: &Groups, fields, bytes| groups.check(fields, bytes).map_err(|error| error.kind());
        let good = groups(&[(4, 20), (24, 30)], 6);
        assert_eq!(kind(&good, 2, 100), Err(ErrorKind::Corrupt), "fewer fields");
        assert_eq!(kind(&good, 4, 100), Err(ErrorKind::Corrupt), "more fields");
        assert_eq!(kind(&good, 3, 99), Err(ErrorKind::Corrupt), "the footer");
        let over = groups(&[(4, 20), (23, 30)], 6);
        assert_eq!(kind(&over, 3, 100), Err(ErrorKind::Corrupt), "over each other");
    }

    #[test]
    fn chunks_without_end_are_refused() {
        assert_eq!(chunks(1 << 10, 1 << 12).unwrap(), CHUNKS_MAX);
        for (groups, fields) in [((1 << 10) + 1, 1 << 12), (usize::MAX, 2), (usize::MAX, 4096)] {
            let error = chunks(groups, fields).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        }
    }
}
