//! Plans, carried out on plain memory and compared with what the tensors hold.

use forebay_core::safetensors::{Encoded, HeaderBuilder, Order};
use forebay_io::PAGE;
use proptest::prelude::*;

use super::*;
use crate::select::Slice;

/// A file of tensors whose bytes all differ from their neighbours'.
fn file(tensors: &[(Dtype, Vec<u64>)], align: u64) -> (Encoded, Vec<u8>) {
    let mut builder = HeaderBuilder::new().order(Order::Given).align(align);
    for (index, (dtype, shape)) in tensors.iter().enumerate() {
        builder.tensor(format!("t{index}"), *dtype, shape.clone());
    }
    let encoded = builder.encode().unwrap();
    let mut bytes = encoded.bytes.clone();
    let len = encoded.header.file_len();
    bytes.extend((bytes.len() as u64..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8));
    (encoded, bytes)
}

/// The bytes of a slice, element by element.
fn expected(header: &Header, bytes: &[u8], wanted: &Wanted) -> Vec<u8> {
    let info = &header.tensors()[wanted.tensor];
    let whole = &bytes[info.span.relative_to(0)];
    let Some(slice) = wanted.slice else {
        return whole.to_vec();
    };
    let element = (info.dtype.bits() / 8) as usize;
    let inner: usize = info.shape[slice.dim + 1..].iter().product::<u64>() as usize * element;
    let dim = info.shape[slice.dim] as usize;
    if whole.is_empty() {
        return Vec::new();
    }
    let mut out = Vec::new();
    for row in whole.chunks(dim * inner) {
        out.extend_from_slice(&row[slice.start as usize * inner..(slice.start + slice.len) as usize * inner]);
    }
    out
}

/// Do what a plan says, and check what it promises; a file with edges of its own is read at any byte.
fn carry_out(plan: &Plan, files: &[Vec<u8>], piece_bytes: u64, with_edges: Option<usize>) -> Vec<u8> {
    let mut dest = vec![0; plan.dest_bytes() as usize];
    let mut filled = vec![false; dest.len()];
    for (index, piece) in plan.pieces().iter().enumerate() {
        let bytes = &files[piece.file];
        assert_eq!(piece.index, index);
        assert!(piece.span.len() <= piece_bytes, "{piece:?}");
        if with_edges != Some(piece.file) {
            assert!(piece.span.start().is_multiple_of(PAGE as u64), "{piece:?}");
            assert!(piece.span.end().is_multiple_of(PAGE as u64) || piece.span.end() == bytes.len() as u64);
        }
        for at in piece.dest.relative_to(0) {
            assert!(
                !std::mem::replace(&mut filled[at], true),
                "two pieces fill byte {at}"
            );
        }
        let read = &bytes[piece.span.relative_to(0)];
        match &piece.moves {
            Moves::Whole => dest[piece.dest.relative_to(0)].copy_from_slice(read),
            Moves::Cuts(cuts) => {
                for cut in cuts {
                    for row in 0..cut.rows {
                        let from = (cut.from + row * cut.from_stride) as usize;
                        let to = (cut.to + row * cut.to_stride) as usize;
                        let len = cut.bytes as usize;
                        assert!(piece.dest.contains(Span::at(to as u64, cut.bytes).unwrap()));
                        dest[to..to + len].copy_from_slice(&read[from..from + len]);
                    }
                }
            }
        }
    }
    for (number, region) in plan.regions().iter().enumerate() {
        assert!(region.dest.start().is_multiple_of(PAGE as u64));
        for piece in &plan.pieces()[region.pieces.clone()] {
            assert!(region.dest.contains(piece.dest), "{number}");
        }
    }
    dest
}

fn any_tensor() -> impl Strategy<Value = (Dtype, Vec<u64>)> {
    let dtype = prop::sample::select(&[Dtype::U8, Dtype::Bf16, Dtype::F32, Dtype::F64][..]);
    let shape = prop_oneof![
        prop::collection::vec(0u64..20, 0..4),
        (1u64..40, 1u64..3000).prop_map(|(rows, columns)| vec![rows, columns]),
        (1u64..200_000).prop_map(|len| vec![len]),
    ];
    (dtype, shape)
}

type Choice = (bool, u64, prop::sample::Index, u64);

fn wanted_of(headers: &[&Header], choices: &[Choice]) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    let mut choices = choices.iter().cycle();
    for (file, header) in headers.iter().enumerate() {
        for (tensor, info) in header.tensors().iter().enumerate() {
            let (is_wanted, world, dim, rank) = choices.next().unwrap();
            if !is_wanted {
                continue;
            }
            let slice = (*world > 1 && !info.shape.is_empty()).then(|| {
                let dim = dim.index(info.shape.len());
                let part = info.shape[dim].div_ceil(*world);
                let start = (part * (rank % world)).min(info.shape[dim]);
                let len = part.min(info.shape[dim] - start);
                Slice { dim, start, len }
            });
            wanted.push(Wanted { file, tensor, slice });
        }
    }
    wanted
}

/// Every tensor has edges of its own.
const EDGE_STEP: u64 = 10_000;

fn edges_of(header: &Header) -> Edges {
    let tensors = header.tensors().iter().filter(|tensor| !tensor.span.is_empty());
    let spans: Vec<(Span, u64)> = tensors.map(|tensor| (tensor.span, EDGE_STEP)).collect();
    Edges::new(&spans).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn every_wanted_byte_arrives_where_it_is_wanted(
        tensors in prop::collection::vec(prop::collection::vec(any_tensor(), 0..8), 1..3),
        choices in prop::collection::vec((any::<bool>(), 1u64..5, any::<prop::sample::Index>(), 0u64..5), 1..9),
        align in prop::sample::select(&[8u64, 4096][..]),
        packed: bool,
        with_grid: bool,
        with_edges: bool,
    ) {
        let made: Vec<(Encoded, Vec<u8>)> = tensors.iter().map(|tensors| file(tensors, align)).collect();
        let headers: Vec<&Header> = made.iter().map(|(encoded, _)| &encoded.header).collect();
        let grid = Grid { origin: if align == 4096 { made[0].0.header.data_start() } else { 0 }, chunk_bytes: 65_536 };
        let edges = edges_of(headers[0]);
        let with_grid = with_grid && !with_edges;
        let cuts_of = |index: usize| match index {
            0 if with_edges => Cuts::Edges { edges: &edges, piece_bytes_max: 512 << 10 },
            0 if with_grid => Cuts::Chunks(grid),
            _ => Cuts::Pages,
        };
        let files: Vec<PlanFile<'_>> = headers
            .iter()
            .enumerate()
            .map(|(index, header)| PlanFile { header, cuts: cuts_of(index) })
            .collect();
        let placement = if packed { Placement::Packed { align: 256 } } else { Placement::AsInFile };
        let wanted = wanted_of(&headers, &choices);
        let piece_bytes = 512 << 10;
        let plan = Plan::new(&files, &wanted, placement, piece_bytes).unwrap();
        let bytes: Vec<Vec<u8>> = made.iter().map(|(_, bytes)| bytes.clone()).collect();
        let dest = carry_out(&plan, &bytes, piece_bytes, with_edges.then_some(0));
        prop_assert_eq!(plan.tensors().len(), wanted.len());
        for (tensor, wanted) in plan.tensors().iter().zip(&wanted) {
            let found = &dest[tensor.place.relative_to(0)];
            prop_assert_eq!(found, &expected(headers[wanted.file], &bytes[wanted.file], wanted)[..]);
            let align = if packed { 256 } else { tensor.dtype.align() };
            prop_assert!(tensor.region.is_none() || tensor.place.start().is_multiple_of(align));
        }
        if with_grid {
            for piece in plan.pieces().iter().filter(|piece| piece.file == 0) {
                let is_edge = |at: u64| at <= grid.origin || (at - grid.origin).is_multiple_of(grid.chunk_bytes) || at == bytes[0].len() as u64;
                prop_assert!(is_edge(piece.span.start()) && is_edge(piece.span.end()), "{:?}", piece);
            }
        }
    }
}

fn one(dtype: Dtype, shape: &[u64], slice: Option<Slice>) -> (Plan, u64) {
    let mut builder = HeaderBuilder::new().align(4096);
    builder.tensor("t", dtype, shape.to_vec());
    let encoded = builder.encode().unwrap();
    let file = PlanFile {
        header: &encoded.header,
        cuts: Cuts::Pages,
    };
    let wanted = [Wanted {
        file: 0,
        tensor: 0,
        slice,
    }];
    let plan = Plan::new(&[file], &wanted, Placement::AsInFile, 32 << 20).unwrap();
    (plan, encoded.header.file_len())
}

/// What lies between two edges is in one piece, whatever is wanted of a tensor; and nothing is read that nobody wants.
#[test]
fn no_chunk_between_edges_is_in_two_pieces() {
    let (encoded, _) = file(
        &[
            (Dtype::U8, vec![1000]),
            (Dtype::F32, vec![999, 251]),
            (Dtype::U8, vec![77]),
        ],
        4096,
    );
    let edges = edges_of(&encoded.header);
    let slice = |dim, start, len| Some(Slice { dim, start, len });
    for (tensor, slice) in [
        (1, None),
        (1, slice(0, 3, 500)),
        (1, slice(1, 3, 100)),
        (1, slice(1, 0, 1)),
        (0, None),
    ] {
        for placement in [Placement::AsInFile, Placement::Packed { align: 256 }] {
            let cuts = Cuts::Edges {
                edges: &edges,
                piece_bytes_max: 64 << 10,
            };
            let header = &encoded.header;
            let wanted = [Wanted {
                file: 0,
                tensor,
                slice,
            }];
            let plan = Plan::new(&[PlanFile { header, cuts }], &wanted, placement, 32 << 10).unwrap();
            let start = header.tensors()[tensor].span.start();
            let mut last = None;
            for piece in plan.pieces() {
                assert!(header.tensors()[tensor].span.contains(piece.span));
                let chunk = |byte: u64| (byte - start) / EDGE_STEP;
                assert!(last < Some(chunk(piece.span.start())), "{piece:?}");
                last = Some(chunk(piece.span.end() - 1));
            }
            if slice.is_none() {
                assert_eq!(plan.read_bytes(), header.tensors()[tensor].span.len());
            }
        }
    }
}

#[test]
fn a_whole_file_is_read_in_few_pieces_and_nothing_is_copied() {
    let (plan, len) = one(Dtype::Bf16, &[1 << 14, 1 << 13], None);
    assert_eq!(plan.pieces().len(), 9);
    assert_eq!(plan.read_bytes(), len - 4096);
    assert!(plan.pieces().iter().all(|piece| piece.moves == Moves::Whole));
    assert_eq!(plan.dest_bytes(), 256 << 20);
}

#[test]
fn rows_read_only_themselves_and_columns_only_where_that_pays() {
    let slice = |dim, start, len| Some(Slice { dim, start, len });
    let (rows, _) = one(Dtype::Bf16, &[1 << 14, 1 << 13], slice(0, 4096, 4096));
    assert_eq!(rows.read_bytes(), 64 << 20);
    assert!(rows.pieces().iter().all(|piece| piece.moves == Moves::Whole));
    // Strips of 4 KiB: all is read, and three quarters are cut away.
    let (columns, len) = one(Dtype::Bf16, &[1 << 14, 1 << 13], slice(1, 0, 2048));
    assert!(columns.read_bytes() > len * 9 / 10);
    assert_eq!(columns.tensor_bytes(), 64 << 20);
    // Strips of 1 MiB: only they are read.
    let (wide, _) = one(Dtype::Bf16, &[16, 1 << 21], slice(1, 1 << 19, 1 << 19));
    assert_eq!(wide.read_bytes(), 16 << 20);
    assert_eq!(wide.pieces().len(), 16);
}

#[test]
fn halves_of_bytes_are_refused_by_name() {
    let mut builder = HeaderBuilder::new();
    builder.tensor("t", Dtype::F4, [4, 6]);
    let encoded = builder.encode().unwrap();
    let file = PlanFile {
        header: &encoded.header,
        cuts: Cuts::Pages,
    };
    let slice = Some(Slice {
        dim: 1,
        start: 0,
        len: 3,
    });
    let wanted = [Wanted {
        file: 0,
        tensor: 0,
        slice,
    }];
    let error = Plan::new(&[file], &wanted, Placement::AsInFile, 32 << 20).unwrap_err();
    assert!(
        error.to_string().contains("'t'") && error.to_string().contains("whole bytes"),
        "{error}"
    );
}
