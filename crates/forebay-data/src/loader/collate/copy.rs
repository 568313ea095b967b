//! Copying stored values into the buffer of a batch: all on one thread, or, where there are many bytes, pieces of them side by side.
//!
//! ```text
//! buffer --cut--> decoded fields | Copy: values of some rows, or offsets | Copy | ...  --groups, copy: on any threads--> --join--> buffer
//! ```

use std::ops::Range;

use forebay_core::Result;
use forebay_io::AlignedBuf;

use super::{Job, internal, put, scattered};
use crate::loader::batch::Part;

/// Where the fields of a batch lie in its buffer.
#[derive(Debug)]
pub(super) struct Laid {
    pub(super) parts: Vec<Part>,
    /// Bytes of the buffer.
    pub(super) len: usize,
    /// For each field, where the value of each row begins and the last one ends; nothing where all have the same width.
    pub(super) offsets: Vec<Vec<usize>>,
}

/// A piece of the buffer, and what goes there.
#[derive(Debug)]
pub(super) struct Copy {
    /// Number of the field among those wanted.
    field: usize,
    what: What,
    out: AlignedBuf,
    /// Values that samples did not have.
    missing: u64,
}

#[derive(Debug)]
enum What {
    /// Values of these rows.
    Rows(Range<usize>),
    /// Where the values of all rows begin.
    Offsets(Vec<usize>),
}

impl Job {
    /// Cut a buffer into what is decoded, which lies before everything else, and the places of stored fields: those with more bytes than that in pieces of as many.
    pub(super) fn cut(
        &self,
        mut buf: AlignedBuf,
        laid: &mut Laid,
        piece_bytes: usize,
    ) -> (AlignedBuf, Vec<Copy>) {
        let count = self.picks.len();
        let mut places = Vec::new();
        for (field, (wanted, part)) in self.fields.iter().zip(&laid.parts).enumerate() {
            if wanted.tool.is_some() {
                continue;
            }
            match part {
                Part::Fixed(range) => {
                    let width = wanted.width().unwrap_or_default();
                    let step = piece_bytes.div_ceil(width.max(1)).max(1);
                    let pieces = (0..count).step_by(step);
                    places.extend(pieces.map(|first| {
                        let rows = first..first.saturating_add(step).min(count);
                        (range.start + first * width, field, What::Rows(rows))
                    }));
                }
                Part::Ragged { offsets, bytes } => {
                    let ends = laid
                        .offsets
                        .get_mut(field)
                        .map(std::mem::take)
                        .unwrap_or_default();
                    for rows in pieces(&ends, piece_bytes) {
                        let start = ends.get(rows.start).copied().unwrap_or_default();
                        places.push((bytes.start + start, field, What::Rows(rows)));
                    }
                    places.push((offsets.start, field, What::Offsets(ends)));
                }
            }
        }
        // In the order of their places; what has no bytes is in front of what has them.
        places.sort_by_key(|(start, ..)| *start);
        let copies = places.into_iter().rev().map(|(start, field, what)| Copy {
            field,
            what,
            out: buf.split_off(start),
            missing: 0,
        });
        let mut copies: Vec<Copy> = copies.collect();
        copies.reverse();
        (buf, copies)
    }

    /// Fill a piece.
    pub(super) fn copy(&self, mut copy: Copy) -> Result<Copy> {
        let rows = match &copy.what {
            What::Rows(rows) => rows.clone(),
            What::Offsets(offsets) => {
                for (row, offset) in offsets.iter().enumerate() {
                    put(&mut copy.out, 8 * row, &(*offset as i64).to_le_bytes())?;
                }
                return Ok(copy);
            }
        };
        let wanted = self.fields.get(copy.field);
        let wanted = wanted.ok_or_else(|| internal("a field that nobody wants"))?;
        let mut at = 0;
        for pick in self.picks.get(rows).unwrap_or_default() {
            let value = pick.block.field(pick.sample, wanted.source);
            copy.missing += u64::from(value.is_none());
            if let Some(width) = wanted.width() {
                let value = value.or_else(|| wanted.fill_for(pick).ok());
                put(&mut copy.out, at, value.unwrap_or_default())?;
                at += width;
            } else {
                let place = copy.out.get_mut(at..);
                let place = place.ok_or_else(|| internal("a field does not fit its place"))?;
                at += wanted.put(value.unwrap_or_default(), place)?;
            }
        }
        Ok(copy)
    }
}

/// Rows that have at least so many bytes together, one run after the other; the last one may have less.
fn pieces(offsets: &[usize], piece_bytes: usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let (mut first, mut start) = (0, 0);
    let rows = offsets.len().saturating_sub(1);
    for (row, end) in offsets.iter().enumerate().skip(1) {
        if end - start >= piece_bytes || row == rows {
            pieces.push(first..row);
            (first, start) = (row, *end);
        }
    }
    pieces
}

/// Neighbours together, until they have so many bytes: one thread copies them.
pub(super) fn groups(copies: Vec<Copy>, bytes: usize) -> Vec<Vec<Copy>> {
    let mut groups = Vec::new();
    let (mut group, mut group_bytes) = (Vec::new(), 0);
    for copy in copies {
        group_bytes += copy.out.len();
        group.push(copy);
        if group_bytes >= bytes {
            groups.push(std::mem::take(&mut group));
            group_bytes = 0;
        }
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// The buffer out of its pieces, and how many values of each field are missing.
pub(super) fn join(mut buf: AlignedBuf, copies: Vec<Copy>, fields: usize) -> Result<(AlignedBuf, Vec<u64>)> {
    let mut missing = vec![0; fields];
    for copy in copies {
        buf.unsplit(copy.out).map_err(|_| scattered())?;
        if let Some(missing) = missing.get_mut(copy.field) {
            *missing += copy.missing;
        }
    }
    Ok((buf, missing))
}

#[cfg(test)]
mod tests {
    use forebay_io::Pages;

    use super::*;

    #[test]
    fn rows_are_cut_where_they_have_enough_bytes() {
        for (offsets, piece_bytes, expected) in [
            (&[0][..], 4, &[][..]),
            (&[0, 0], 4, &[1]),
            (&[0, 0, 0, 3], 4, &[3]),
            (&[0, 4, 8, 9], 4, &[1, 2, 3]),
            (&[0, 3, 6, 9, 9, 9], 4, &[2, 5]),
            (&[0, 100, 100, 101], 4, &[1, 3]),
            (&[0, 3, 6, 9], usize::MAX, &[3]),
        ] {
            let mut first = 0;
            for (rows, end) in pieces(offsets, piece_bytes).into_iter().zip(expected) {
                assert_eq!(rows, first..*end, "{offsets:?}");
                first = *end;
            }
            assert_eq!(first, offsets.len() - 1, "{offsets:?}");
        }
    }

    #[test]
    fn small_pieces_are_copied_together() {
        let copy = |len: &usize| {
            let mut out = AlignedBuf::alloc(8192, Pages::default()).unwrap();
            out.set_len(*len);
            Copy {
                field: 0,
                what: What::Rows(0..0),
                out,
                missing: 0,
            }
        };
        let lens = |lens: &[usize]| -> Vec<Vec<usize>> {
            let groups = groups(lens.iter().map(copy).collect(), 100).into_iter();
            let lens = groups.map(|group| group.iter().map(|copy| copy.out.len()).collect());
            lens.collect()
        };
        assert_eq!(lens(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(lens(&[8, 0, 100, 100, 8]), [vec![8, 0, 100], vec![100], vec![8]]);
        assert_eq!(lens(&[60, 60, 60]), [vec![60, 60], vec![60]]);
    }
}
