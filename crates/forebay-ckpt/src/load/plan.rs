//! Which chunks a wanted box needs, and which of their bytes go where. Arithmetic once the slices are found.

use forebay_core::{ErrorKind, Result, Span};

use super::{Area, Want, about};
use crate::entry::{ChunkRecord, Content, SliceSpec};
use crate::hash::Place;
use crate::index::Found;
use crate::open::{self, Checkpoint};
use crate::part::PayloadRow;

/// Some bytes of a slice that go to one place of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copy {
    /// In the slice.
    pub(super) from: Span,
    /// First byte in the memory.
    pub(super) to: u64,
}

/// A chunk that is needed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed {
    pub(super) record: ChunkRecord,
    pub(super) payload: PayloadRow,
    pub(super) place: Place,
    /// Its bytes in the slice.
    pub(super) span: Span,
    /// Chunks of its slice.
    pub(super) chunks: u64,
}

/// What one slice gives to a want.
#[derive(Debug)]
pub(super) struct Part {
    /// Ascending in the slice.
    pub(super) copies: Vec<Copy>,
    /// Ascending in the slice; together they have every byte of the copies.
    pub(super) chunks: Vec<Needed>,
}

/// Where everything that a want needs comes from.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) parts: Vec<Part>,
}

/// Most copies of one want: a column of a large tensor has as many as there are rows.
const COPIES_MAX: u64 = 1 << 28;

/// Plan the boxes of a tensor whose bytes lie one after the other in memory of so many bytes; the checkpoint has found its name at these entries. The boxes
/// ascend in the tensor and do not overlap, so that a chunk that several of them share is needed once.
pub(super) async fn plan(
    checkpoint: &Checkpoint,
    (name, memory_bytes): (&str, u64),
    areas: &[Area],
    found: Vec<Found>,
) -> Result<Plan> {
    let slices: Vec<(u32, SliceSpec, u64)> = found.into_iter().filter_map(as_slice).collect();
    let Some((_, first, _)) = slices.first() else {
        return Err(about(
            ErrorKind::NotFound,
            name,
            "there is no tensor of that name",
        ));
    };
    let is_alike = |spec: &SliceSpec| spec.dtype == first.dtype && spec.shape == first.shape;
    if !slices.iter().all(|(_, spec, _)| is_alike(spec)) {
        let message = "its slices differ in dtype or shape";
        return Err(about(ErrorKind::Corrupt, name, message));
    }
    let mut boxes = Boxes::new(name, first, areas, memory_bytes)?;
    let mut parts = Vec::new();
    for (rank, spec, first_chunk) in &slices {
        let copies = boxes.copies_of(name, spec)?;
        if copies.is_empty() {
            continue;
        }
        let chunks = chunks(checkpoint, name, *rank, spec, *first_chunk, &copies).await?;
        parts.push(Part { copies, chunks });
    }
    boxes.check_covered(name)?;
    Ok(Plan { parts })
}

/// What is wanted of one tensor.
#[derive(Debug)]
struct Boxes(Vec<Wanted>);

/// A box, and how much of it is covered.
#[derive(Debug)]
struct Wanted {
    spec: SliceSpec,
    /// Where in the memory it begins.
    to: u64,
    cover: Cover,
}

impl Boxes {
    fn new(name: &str, tensor: &SliceSpec, areas: &[Area], memory_bytes: u64) -> Result<Self> {
        let (mut boxes, mut to) = (Vec::with_capacity(areas.len()), 0u64);
        for (offsets, lengths) in areas {
            let spec = tensor.cut(offsets, lengths);
            spec.check()
                .map_err(|why| about(ErrorKind::InvalidInput, name, why))?;
            let bytes = spec.bytes();
            let cover = Cover::default();
            boxes.push(Wanted { spec, to, cover });
            to = to.saturating_add(bytes);
        }
        if to != memory_bytes {
            let message = format!("{memory_bytes} bytes of memory for {to} bytes");
            return Err(about(ErrorKind::InvalidInput, name, &message));
        }
        Ok(Self(boxes))
    }

    /// What a slice gives that no slice before it has given; ascending in the slice, since both ascend in the tensor.
    fn copies_of(&mut self, name: &str, slice: &SliceSpec) -> Result<Vec<Copy>> {
        let mut all: Vec<Copy> = Vec::new();
        for Wanted { spec, to, cover } in &mut self.0 {
            let Some((offsets, lengths)) = slice.intersect(&spec.offsets, &spec.lengths) else {
                continue;
            };
            // Replicated tensors have the same bytes several times: the first will do.
            match cover.add(&offsets, &lengths) {
                Added::Again => continue,
                Added::New => {}
                Added::Overlaps => {
                    let message = "its slices overlap in part, so nothing says which of them is right";
                    return Err(about(ErrorKind::Corrupt, name, message));
                }
            }
            let message = "elements of less than a byte cannot be cut there";
            let here = copies(slice, spec, &offsets, &lengths);
            for copy in here.ok_or_else(|| about(ErrorKind::Unsupported, name, message))? {
                let to = copy.to + *to;
                push(&mut all, Copy { to, ..copy });
            }
        }
        Ok(all)
    }

    fn check_covered(&self, name: &str) -> Result<()> {
        let is_covered = |wanted: &Wanted| {
            let elements = wanted.spec.lengths.iter().product::<u64>();
            wanted.cover.elements == elements
        };
        if self.0.iter().all(is_covered) {
            return Ok(());
        }
        let message = "no slice has some of its elements";
        Err(about(ErrorKind::Corrupt, name, message))
    }
}

/// Neighbours on both sides are one run.
fn push(copies: &mut Vec<Copy>, copy: Copy) {
    if let Some(last) = copies.last_mut()
        && last.from.end() == copy.from.start()
        && last.to + last.from.len() == copy.to
        && let Ok(joined) = Span::new(last.from.start(), copy.from.end())
    {
        last.from = joined;
        return;
    }
    copies.push(copy);
}

/// True when these entries have all that is wanted: an alias, or slices with every element of the box.
pub(super) fn is_enough(found: &[Found], want: &Want) -> bool {
    let mut cover = Cover::default();
    for found in found {
        let spec = match &found.entry.content {
            Content::Alias(_) => return true,
            Content::Slice { spec, .. } => spec,
            _ => continue,
        };
        if let Some((offsets, lengths)) = spec.intersect(&want.offsets, &want.lengths)
            && cover.add(&offsets, &lengths) == Added::Overlaps
        {
            return false;
        }
    }
    !found.is_empty() && cover.elements == want.lengths.iter().copied().fold(1, u64::saturating_mul)
}

fn as_slice(found: Found) -> Option<(u32, SliceSpec, u64)> {
    match found.entry.content {
        Content::Slice { spec, first_chunk } => Some((found.rank, spec, first_chunk)),
        _ => None,
    }
}

/// Boxes that are covered so far: disjoint ones, or again the same.
#[derive(Debug, Default)]
struct Cover {
    boxes: Vec<(Vec<u64>, Vec<u64>)>,
    elements: u64,
}

/// What a box adds to what is covered.
#[derive(Debug, PartialEq, Eq)]
enum Added {
    New,
    Again,
    Overlaps,
}

impl Cover {
    fn add(&mut self, offsets: &[u64], lengths: &[u64]) -> Added {
        for (of, len) in &self.boxes {
            let dims = || of.iter().zip(len).zip(offsets.iter().zip(lengths));
            let is_within =
                dims().all(|((of, len), (offset, length))| of <= offset && offset + length <= of + len);
            if is_within {
                return Added::Again;
            }
            if dims().all(|((of, len), (offset, length))| *of < offset + length && *offset < of + len) {
                return Added::Overlaps;
            }
        }
        self.elements = self.elements.saturating_add(lengths.iter().product());
        self.boxes.push((offsets.to_vec(), lengths.to_vec()));
        Added::New
    }
}

/// The bytes of a box (given in the tensor) as runs, in the slice and in what is wanted; `None` where an element would be cut.
pub(super) fn copies(
    slice: &SliceSpec,
    wanted: &SliceSpec,
    offsets: &[u64],
    lengths: &[u64],
) -> Option<Vec<Copy>> {
    let bits = slice.dtype.bits();
    let dims = lengths.len();
    // Dimensions from the right that are whole in both lie in one run.
    let mut inner = dims;
    let mut run_elements: u64 = 1;
    while inner > 0 {
        let length = *lengths.get(inner - 1)?;
        run_elements = run_elements.checked_mul(length)?;
        inner -= 1;
        if length != *slice.lengths.get(inner)? || length != *wanted.lengths.get(inner)? {
            break;
        }
    }
    let run_bits = run_elements.checked_mul(bits)?;
    let runs: u64 = lengths.get(..inner)?.iter().product();
    if !run_bits.is_multiple_of(8) || runs > COPIES_MAX {
        return None;
    }
    let run_bytes = run_bits / 8;
    if run_bytes == 0 {
        return Some(Vec::new());
    }
    let mut copies: Vec<Copy> = Vec::new();
    let mut at = offsets.to_vec();
    for _ in 0..runs {
        let from = byte_of(&at, slice, bits)?;
        let to = byte_of(&at, wanted, bits)?;
        let from = Span::at(from, run_bytes).ok()?;
        push(&mut copies, Copy { from, to });
        for dim in (0..inner).rev() {
            let (index, offset, length) = (at.get_mut(dim)?, *offsets.get(dim)?, *lengths.get(dim)?);
            *index += 1;
            if *index < offset + length {
                break;
            }
            *index = offset;
        }
    }
    Some(copies)
}

/// The byte of an element (given in the tensor) within a box.
fn byte_of(at: &[u64], within: &SliceSpec, bits: u64) -> Option<u64> {
    let mut element: u64 = 0;
    for ((index, offset), length) in at.iter().zip(&within.offsets).zip(&within.lengths) {
        element = element
            .checked_mul(*length)?
            .checked_add(index.checked_sub(*offset)?)?;
    }
    let bit = element.checked_mul(bits)?;
    bit.is_multiple_of(8).then_some(bit / 8)
}

async fn chunks(
    checkpoint: &Checkpoint,
    name: &str,
    rank: u32,
    spec: &SliceSpec,
    first_chunk: u64,
    copies: &[Copy],
) -> Result<Vec<Needed>> {
    let part = checkpoint.part(rank).await?;
    let chunk_bytes = checkpoint.manifest().chunk_bytes;
    chunks_of(&part, chunk_bytes, (name, spec, first_chunk), copies).await
}

/// Chunks of a slice of a part that copies touch.
pub(super) async fn chunks_of(
    part: &open::Part,
    chunk_bytes: u32,
    (name, spec, first_chunk): (&str, &SliceSpec, u64),
    copies: &[Copy],
) -> Result<Vec<Needed>> {
    let id = spec.id(name);
    let mut needed: Vec<Needed> = Vec::new();
    for numbers in chunk_ranges(copies, u64::from(chunk_bytes)) {
        let first = first_chunk.saturating_add(numbers.start());
        let records = part.chunks(first, numbers.len()).await?;
        for (number, record) in (numbers.start()..).zip(records) {
            let span = spec.chunk_span(number, chunk_bytes);
            if u64::from(record.raw_bytes) != span.len() {
                return Err(about(
                    ErrorKind::Corrupt,
                    name,
                    "a chunk has another length than its place",
                ));
            }
            needed.push(Needed {
                payload: *part.payload(&record)?,
                place: spec.place(&id, number, chunk_bytes),
                record,
                span,
                chunks: spec.chunks(chunk_bytes),
            });
        }
    }
    Ok(needed)
}

/// Numbers of the chunks that copies touch, as ranges; copies ascend.
fn chunk_ranges(copies: &[Copy], chunk_bytes: u64) -> Vec<Span> {
    let mut ranges: Vec<Span> = Vec::new();
    for copy in copies {
        let start = copy.from.start() / chunk_bytes;
        let end = copy.from.end().div_ceil(chunk_bytes);
        match ranges.last_mut() {
            Some(last) if start <= last.end() => {
                *last = Span::new(last.start(), end.max(last.end())).unwrap_or(*last);
            }
            _ => ranges.extend(Span::new(start, end)),
        }
    }
    ranges
}
