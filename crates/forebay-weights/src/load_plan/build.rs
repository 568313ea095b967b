//! Makes the plan, file by file: extents of what is wanted, runs of extents, pieces of runs.

use forebay_core::safetensors::TensorInfo;
use forebay_core::{Error, ErrorKind, Result, Span};
use forebay_io::PAGE;

use super::{Cut, Cuts, Grid, Moves, Piece, Placement, Plan, PlanFile, PlanTensor, Region};
use crate::select::{Slice, Wanted};

/// Bytes between two wanted tensors that are read along rather than left out: reading them takes less time than another request, and they stay in memory
/// for nothing.
const GAP_BYTES_MAX: u64 = 256 << 10;

/// Strips of at least this length are read one by one. Below, the requests would cost more than the bytes between strips.
const STRIP_BYTES_MIN: u64 = 512 << 10;

/// Least size of a piece, in units (pages, or chunks with a checksum): the ends of a piece are widened to whole ones.
const PIECE_UNITS_MIN: u64 = 4;

const PAGE_BYTES: u64 = PAGE as u64;

pub(super) fn plan(
    files: &[PlanFile<'_>],
    wanted: &[Wanted],
    placement: Placement,
    piece_bytes: u64,
) -> Result<Plan> {
    let mut plan = Plan::default();
    for (index, file) in files.iter().enumerate() {
        let mut builder = FileBuilder::new(&mut plan, index, file, placement, piece_bytes)?;
        let mut items = Vec::new();
        for wanted in wanted.iter().filter(|wanted| wanted.file == index) {
            let Some(info) = file.header.tensors().get(wanted.tensor) else {
                let message = format!("file {index} has no tensor {}", wanted.tensor);
                return Err(Error::new(ErrorKind::Internal, "plan", message));
            };
            let extent = extent(info, wanted.slice)?;
            items.push(builder.item(info, wanted.slice, extent));
        }
        builder.add(&items)?;
    }
    plan.dest_bytes = plan.dest_bytes.next_multiple_of(PAGE_BYTES);
    Ok(plan)
}

/// Where the wanted bytes of a tensor are in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// One after the other.
    Run(Span),
    /// A strip of each row.
    Rows {
        first: u64,
        strip: u64,
        stride: u64,
        rows: u64,
    },
}

impl Extent {
    fn bytes(self) -> u64 {
        match self {
            Self::Run(span) => span.len(),
            Self::Rows { strip, rows, .. } => strip * rows,
        }
    }
}

fn extent(info: &TensorInfo, slice: Option<Slice>) -> Result<Extent> {
    let Some(slice) = slice else {
        return Ok(Extent::Run(info.span));
    };
    // Nothing overflows: the bits of the whole tensor fit, and a tensor without elements is dealt with first.
    if info.span.is_empty() || slice.len == 0 {
        return Ok(Extent::Run(Span::at(info.span.start(), 0)?));
    }
    let product = |lens: &[u64]| lens.iter().product::<u64>();
    let rows = product(&info.shape[..slice.dim]);
    let index_bits = product(&info.shape[slice.dim + 1..]) * info.dtype.bits();
    let bits = [
        slice.start * index_bits,
        slice.len * index_bits,
        info.shape[slice.dim] * index_bits,
    ];
    if bits.iter().any(|bits| !bits.is_multiple_of(8)) {
        let message = format!(
            "{} of tensor '{}' of {} do not end at whole bytes",
            format_args!("indices {}..{}", slice.start, slice.start + slice.len),
            info.name,
            info.dtype
        );
        return Err(Error::new(ErrorKind::Unsupported, "shard", message)
            .with_hint("divide it along another dimension, or among fewer ranks"));
    }
    let [start, strip, stride] = bits.map(|bits| bits / 8);
    let first = info.span.start() + start;
    Ok(if rows == 1 || strip == stride {
        Extent::Run(Span::at(first, strip * rows)?)
    } else {
        Extent::Rows {
            first,
            strip,
            stride,
            rows,
        }
    })
}

/// A wanted tensor on its way into the plan.
#[derive(Debug, Clone, Copy)]
struct Item {
    /// Its number in the plan.
    tensor: usize,
    extent: Extent,
}

/// Adds one file to a plan.
struct FileBuilder<'a> {
    plan: &'a mut Plan,
    file: usize,
    file_len: u64,
    placement: Placement,
    piece_bytes: u64,
    cuts: Cuts<'a>,
    /// Reads begin and end at multiples of this, counted from `origin`; not where the file has edges.
    unit: u64,
    origin: u64,
}

impl<'a> FileBuilder<'a> {
    fn new(
        plan: &'a mut Plan,
        file: usize,
        from: &PlanFile<'a>,
        placement: Placement,
        piece_bytes: u64,
    ) -> Result<Self> {
        let (unit, origin) = match from.cuts {
            Cuts::Pages => (PAGE_BYTES, 0),
            Cuts::Chunks(Grid { origin, chunk_bytes }) => (chunk_bytes.max(PAGE_BYTES), origin),
            Cuts::Edges { .. } => (1, 0),
        };
        if piece_bytes < unit.saturating_mul(PIECE_UNITS_MIN) {
            let message = format!("pieces of {piece_bytes} bytes cannot hold whole chunks of {unit}");
            return Err(Error::new(ErrorKind::InvalidInput, "plan", message));
        }
        Ok(Self {
            plan,
            file,
            file_len: from.header.file_len(),
            placement,
            piece_bytes: piece_bytes - piece_bytes % unit,
            cuts: from.cuts,
            unit,
            origin,
        })
    }

    /// Enter a tensor into the plan; where it goes is settled later.
    fn item(&mut self, info: &TensorInfo, slice: Option<Slice>, extent: Extent) -> Item {
        let mut shape = info.shape.clone();
        if let Some(slice) = slice
            && let Some(len) = shape.get_mut(slice.dim)
        {
            *len = slice.len;
        }
        self.plan.tensors.push(PlanTensor {
            name: info.name.clone(),
            dtype: info.dtype,
            shape,
            file: self.file,
            place: Span::first(0),
            region: None,
        });
        let is_askew = |span: Span| {
            self.placement == Placement::AsInFile && !span.start().is_multiple_of(info.dtype.align())
        };
        // Where it is in the file it could not be used: it is copied to a place where it can.
        let extent = match extent {
            Extent::Run(span) if is_askew(span) && !span.is_empty() => Extent::Rows {
                first: span.start(),
                strip: span.len(),
                stride: span.len(),
                rows: 1,
            },
            extent => extent,
        };
        Item {
            tensor: self.plan.tensors.len() - 1,
            extent,
        }
    }

    fn add(&mut self, items: &[Item]) -> Result<()> {
        let mut run: Vec<(usize, Span)> = Vec::new();
        let mut around = Span::first(0);
        for item in items.iter().filter(|item| item.extent.bytes() > 0) {
            match item.extent {
                Extent::Rows {
                    first,
                    strip,
                    stride,
                    rows,
                } => self.add_rows(item.tensor, first, strip, stride, rows)?,
                Extent::Run(span) => {
                    let wide = self.widen(span)?;
                    if !run.is_empty() && wide.start() > around.end().saturating_add(self.gap_bytes_max()) {
                        self.add_run(&run, around)?;
                        run.clear();
                    }
                    around = if run.is_empty() {
                        wide
                    } else {
                        Span::new(around.start(), around.end().max(wide.end()))?
                    };
                    run.push((item.tensor, span));
                }
            }
        }
        if !run.is_empty() {
            self.add_run(&run, around)?;
        }
        self.sort_pieces();
        Ok(())
    }

    /// What lies between edges costs more than to read it.
    fn gap_bytes_max(&self) -> u64 {
        match self.cuts {
            Cuts::Edges { .. } => 0,
            _ => GAP_BYTES_MAX,
        }
    }

    /// The smallest span around `span` whose ends are at units, or at the end of the file; its start is at a page. With edges, what is wanted itself.
    fn widen(&self, span: Span) -> Result<Span> {
        if matches!(self.cuts, Cuts::Edges { .. }) {
            return Ok(span);
        }
        let start = span
            .start()
            .checked_sub(self.origin)
            .map_or(span.start(), |over| span.start() - over % self.unit);
        let over = span.end().saturating_sub(self.origin);
        let end = self.origin + over.next_multiple_of(self.unit);
        let end = end
            .max(span.end())
            .next_multiple_of(PAGE_BYTES)
            .min(self.file_len);
        Span::new(start - start % PAGE_BYTES, end)
    }

    /// Cut where pieces end: at multiples of the size of a piece from the origin, or at edges, so that no chunk is in two of them.
    fn pieces(&self, span: Span) -> Result<Vec<Span>> {
        if let Cuts::Edges {
            edges,
            piece_bytes_max,
        } = self.cuts
        {
            return edges.pieces(span, self.piece_bytes, piece_bytes_max);
        }
        let base = self.origin % self.piece_bytes;
        let base = if base == 0 { 0 } else { self.piece_bytes - base };
        let shifted = Span::new(span.start() + base, span.end() + base)?;
        shifted
            .pieces(self.piece_bytes)
            .map(|piece| Span::new(piece.start() - base, piece.end() - base))
            .collect()
    }

    fn add_run(&mut self, run: &[(usize, Span)], around: Span) -> Result<()> {
        match self.placement {
            Placement::AsInFile => self.add_in_place(run, around),
            Placement::Packed { align } => self.add_packed(run, around, align),
        }
    }

    fn add_in_place(&mut self, run: &[(usize, Span)], around: Span) -> Result<()> {
        let base = self.plan.dest_bytes.next_multiple_of(PAGE_BYTES);
        let region = self.plan.regions.len();
        // As far from a page as in the file, so that elements are where they can be used.
        let lead = around.start() % PAGE_BYTES;
        let to_dest = |span: Span| Span::at(base + lead + (span.start() - around.start()), span.len());
        for (tensor, span) in run {
            let place = to_dest(*span)?;
            self.settle(*tensor, place, region);
        }
        let first = self.plan.pieces.len();
        for span in self.pieces(around)? {
            self.push(span, to_dest(span)?, Moves::Whole);
        }
        let dest = Span::at(base, (lead + around.len()).next_multiple_of(PAGE_BYTES))?;
        self.close_region(dest, first, true);
        Ok(())
    }

    fn add_packed(&mut self, run: &[(usize, Span)], around: Span, align: u64) -> Result<()> {
        let region = self.plan.regions.len();
        let base = self.plan.dest_bytes.next_multiple_of(align.max(PAGE_BYTES));
        let mut end = base;
        let mut places = Vec::with_capacity(run.len());
        for (tensor, span) in run {
            let place = Span::at(end.next_multiple_of(align.max(1)), span.len())?;
            end = place.end();
            self.settle(*tensor, place, region);
            places.push((*span, place));
        }
        let first = self.plan.pieces.len();
        let mut next = 0;
        for span in self.pieces(around)? {
            while places
                .get(next)
                .is_some_and(|(from, _)| from.end() <= span.start())
            {
                next += 1;
            }
            let cuts: Vec<Cut> = places[next..]
                .iter()
                .take_while(|(from, _)| from.start() < span.end())
                .filter_map(|(from, place)| {
                    let part = from.intersect(span)?;
                    Some(one_strip(
                        part.start() - span.start(),
                        place.start() + (part.start() - from.start()),
                        part.len(),
                    ))
                })
                .collect();
            if let (Some(head), Some(tail)) = (cuts.first(), cuts.last()) {
                let dest = Span::new(head.to, tail.to + tail.bytes)?;
                self.push(span, dest, Moves::Cuts(cuts));
            }
        }
        self.close_region(Span::new(base, end)?, first, false);
        Ok(())
    }

    /// A tensor of which every row gives a strip.
    fn add_rows(&mut self, tensor: usize, first: u64, strip: u64, stride: u64, rows: u64) -> Result<()> {
        let strips = Strips {
            first,
            strip,
            stride,
            rows,
        };
        let align = match self.placement {
            Placement::AsInFile => PAGE_BYTES,
            Placement::Packed { align } => align.max(PAGE_BYTES),
        };
        let base = self.plan.dest_bytes.next_multiple_of(align);
        let dest = Span::at(base, strip * rows)?;
        self.settle(tensor, dest, self.plan.regions.len());
        let first_piece = self.plan.pieces.len();
        if let Cuts::Edges { edges, .. } = self.cuts {
            // Parts of one chunk are read together, whatever is between them.
            let is_near = edges.step_at(first).is_none_or(|step| stride - strip < step);
            self.add_strips(&strips, base, is_near)?;
            self.close_region(dest, first_piece, false);
            return Ok(());
        }
        // What a piece can hold when both its ends are widened.
        let usable = self.piece_bytes - 2 * self.unit;
        if strip >= STRIP_BYTES_MIN || stride > usable {
            for row in 0..rows {
                let from = Span::at(first + row * stride, strip)?;
                for part in from.pieces(usable) {
                    let to = base + row * strip + (part.start() - from.start());
                    let span = self.widen(part)?;
                    let cut = one_strip(part.start() - span.start(), to, part.len());
                    self.push(span, Span::at(to, part.len())?, Moves::Cuts(vec![cut]));
                }
            }
        } else {
            let at_once = (usable / stride).max(1);
            for row in (0..rows).step_by(at_once as usize) {
                let count = at_once.min(rows - row);
                let start = first + row * stride;
                let span = self.widen(Span::new(start, start + (count - 1) * stride + strip)?)?;
                let to = base + row * strip;
                let cut = Cut {
                    from: start - span.start(),
                    to,
                    bytes: strip,
                    rows: count,
                    from_stride: stride,
                    to_stride: strip,
                };
                self.push(span, Span::at(to, count * strip)?, Moves::Cuts(vec![cut]));
            }
        }
        self.close_region(dest, first_piece, false);
        Ok(())
    }

    /// Read strips in pieces that end at edges: with what is between them, or one by one.
    fn add_strips(&mut self, strips: &Strips, base: u64, is_near: bool) -> Result<()> {
        let Strips {
            first,
            strip,
            stride,
            rows,
        } = *strips;
        let spans = if is_near {
            vec![Span::new(first, first + (rows - 1) * stride + strip)?]
        } else {
            let of_row = |row: u64| Span::at(first + row * stride, strip);
            (0..rows).map(of_row).collect::<Result<_>>()?
        };
        for span in spans {
            for piece in self.pieces(span)? {
                let cuts = strips.cuts_of(piece, base);
                if let (Some(head), Some(tail)) = (cuts.first(), cuts.last()) {
                    let end = tail.to + (tail.rows - 1) * tail.to_stride + tail.bytes;
                    self.push(piece, Span::new(head.to, end)?, Moves::Cuts(cuts));
                }
            }
        }
        Ok(())
    }

    fn settle(&mut self, tensor: usize, place: Span, region: usize) {
        if let Some(tensor) = self.plan.tensors.get_mut(tensor) {
            tensor.place = place;
            tensor.region = Some(region);
        }
    }

    fn push(&mut self, span: Span, dest: Span, moves: Moves) {
        self.plan.pieces.push(Piece {
            index: self.plan.pieces.len(),
            file: self.file,
            span,
            dest,
            moves,
        });
    }

    fn close_region(&mut self, dest: Span, first: usize, is_in_place: bool) {
        self.plan.dest_bytes = dest.end();
        self.plan.regions.push(Region {
            dest,
            file: self.file,
            pieces: first..self.plan.pieces.len(),
            is_in_place,
        });
    }

    /// Regions are in file order but for those of rows, which come before the run they interrupt: order them by where they are read.
    fn sort_pieces(&mut self) {
        let file = self.file;
        let Some(first) = self.plan.regions.iter().position(|region| region.file == file) else {
            return;
        };
        let starts: Vec<u64> = self.plan.regions[first..]
            .iter()
            .map(|region| {
                self.plan.pieces[region.pieces.clone()]
                    .first()
                    .map_or(0, |piece| piece.span.start())
            })
            .collect();
        let mut order: Vec<usize> = (0..starts.len()).collect();
        order.sort_by_key(|index| starts[*index]);
        let mut pieces = Vec::new();
        let base = self.plan.regions[first].pieces.start;
        for index in order {
            let region = &mut self.plan.regions[first + index];
            let start = base + pieces.len();
            pieces.extend_from_slice(&self.plan.pieces[region.pieces.clone()]);
            region.pieces = start..base + pieces.len();
        }
        self.plan.pieces.truncate(base);
        self.plan.pieces.extend(pieces);
        for (index, piece) in self.plan.pieces.iter_mut().enumerate().skip(base) {
            piece.index = index;
        }
    }
}

/// Where the strips of a tensor are in its file.
#[derive(Debug, Clone, Copy)]
struct Strips {
    first: u64,
    strip: u64,
    stride: u64,
    rows: u64,
}

impl Strips {
    /// What a piece has of them, for a destination where they lie one after the other from `base` on: the rest of one, whole ones, the start of one.
    fn cuts_of(&self, piece: Span, base: u64) -> Vec<Cut> {
        let Self {
            first,
            strip,
            stride,
            rows,
        } = *self;
        let of_row = |row: u64| {
            let own = Span::at(first + row * stride, strip).ok()?;
            let part = own.intersect(piece)?;
            let to = base + row * strip + (part.start() - own.start());
            Some(one_strip(part.start() - piece.start(), to, part.len()))
        };
        let row_of = |byte: u64| (byte.saturating_sub(first) / stride).min(rows - 1);
        let (head, tail) = (row_of(piece.start()), row_of(piece.end().saturating_sub(1)));
        let mut cuts: Vec<Cut> = of_row(head).into_iter().collect();
        if tail > head + 1 {
            cuts.push(Cut {
                from: first + (head + 1) * stride - piece.start(),
                to: base + (head + 1) * strip,
                bytes: strip,
                rows: tail - head - 1,
                from_stride: stride,
                to_stride: strip,
            });
        }
        if tail > head {
            cuts.extend(of_row(tail));
        }
        cuts
    }
}

fn one_strip(from: u64, to: u64, bytes: u64) -> Cut {
    Cut {
        from,
        to,
        bytes,
        rows: 1,
        from_stride: bytes,
        to_stride: bytes,
    }
}
