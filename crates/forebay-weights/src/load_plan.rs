//! From what is wanted to few, large, aligned reads, and where each of them goes. Pure: headers in, numbers out.
//!
//! - Tensors that lie close together in a file become one *run*, read in aligned *pieces* in file order. A host places a run as it is in the file
//!   ([`Placement::AsInFile`]): every address is as far from a page boundary as the offset is, so direct reads land where they stay and
//!   nothing is copied. A device that copies anyway packs tensors at an alignment of its own ([`Placement::Packed`]).
//! - A slice of a tensor along its first dimension is a run. Along another one it is a strip of every row: strips that are long are read
//!   one by one, short ones together with what is between them, and are cut out ([`Moves::Cuts`]).
//! - Where checksums of chunks are compared, reads are widened to whole chunks. A file may say where else it is best cut ([`Edges`]): reads end there, and
//!   begin and end at the bytes that are wanted.
//!
//! The destination is one range of bytes from 0 on, made of [`Region`]s that begin at pages. Every piece fills one range of one region that no
//! other piece touches.

mod build;
mod edges;
#[cfg(test)]
mod tests;

use forebay_core::safetensors::{Dtype, Header};
use forebay_core::{Result, Span};

pub use self::edges::Edges;
use crate::select::Wanted;

/// How tensors lie in the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// As far from a page boundary as in the file, so that direct reads need no copy.
    AsInFile,
    /// Each at a multiple of `align`, a power of two.
    Packed {
        /// In bytes.
        align: u64,
    },
}

/// Where checksums of chunks are: the chunk boundaries of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Where the first chunk begins.
    pub origin: u64,
    /// Bytes of a chunk, a power of two.
    pub chunk_bytes: u64,
}

/// Where reads of a file begin and end.
#[derive(Debug, Clone, Copy, Default)]
pub enum Cuts<'a> {
    /// At pages, as direct reads like it.
    #[default]
    Pages,
    /// At chunks, which are going to be compared.
    Chunks(Grid),
    /// At what is wanted; in between at edges, where a piece has at most `piece_bytes_max` by then.
    Edges {
        /// Of the file.
        edges: &'a Edges,
        /// In bytes, at least that of usual pieces.
        piece_bytes_max: u64,
    },
}

/// A file as the plan sees it.
#[derive(Debug, Clone, Copy)]
pub struct PlanFile<'a> {
    /// What it holds.
    pub header: &'a Header,
    /// Where it is cut.
    pub cuts: Cuts<'a>,
}

/// One tensor in the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanTensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of what is loaded: of the slice, where it is one.
    pub shape: Vec<u64>,
    /// Which file it comes from.
    pub file: usize,
    /// Where it goes, in bytes of the destination.
    pub place: Span,
    /// The region that holds it; `None` when it has no bytes.
    pub region: Option<usize>,
}

/// A run of the destination that pieces fill in their order, without gaps between those of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Where it is in the destination; begins at a page.
    pub dest: Span,
    /// Which file it comes from.
    pub file: usize,
    /// Its pieces.
    pub pieces: std::ops::Range<usize>,
    /// True when its pieces are read straight into it.
    pub is_in_place: bool,
}

/// One read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Its number in [`Plan::pieces`].
    pub index: usize,
    /// Which file.
    pub file: usize,
    /// What is read of it; begins at a page, and ends at one or at the end of the file, unless the file has edges of its own.
    pub span: Span,
    /// The part of the destination that it fills, which no other piece touches.
    pub dest: Span,
    /// How the bytes read go there.
    pub moves: Moves,
}

/// How the bytes of a piece go to the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moves {
    /// As they are: byte `i` of the piece is byte `dest.start() + i`.
    Whole,
    /// These parts of them.
    Cuts(Vec<Cut>),
}

/// Equal strips at equal distances: what a two-dimensional copy takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Offset of the first strip in the piece.
    pub from: u64,
    /// Where it goes in the destination.
    pub to: u64,
    /// Bytes of a strip.
    pub bytes: u64,
    /// How many.
    pub rows: u64,
    /// From the start of a strip to that of the next, in the piece.
    pub from_stride: u64,
    /// The same in the destination.
    pub to_stride: u64,
}

/// Everything that is read and where it goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    tensors: Vec<PlanTensor>,
    regions: Vec<Region>,
    pieces: Vec<Piece>,
    dest_bytes: u64,
}

impl Plan {
    /// Plan to read what is wanted, in pieces of at most `piece_bytes`. `Unsupported` names a slice that does not end at whole bytes.
    pub fn new(
        files: &[PlanFile<'_>],
        wanted: &[Wanted],
        placement: Placement,
        piece_bytes: u64,
    ) -> Result<Self> {
        build::plan(files, wanted, placement, piece_bytes)
    }

    /// The tensors, in file order.
    pub fn tensors(&self) -> &[PlanTensor] {
        &self.tensors
    }

    /// The regions, in the order of the destination.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The reads, in file order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes of the destination, padding included.
    pub fn dest_bytes(&self) -> u64 {
        self.dest_bytes
    }

    /// Bytes that are read.
    pub fn read_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.span.len()).sum()
    }

    /// Bytes of the tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.place.len()).sum()
    }
}
