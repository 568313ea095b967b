//! Arrays, opened to the targets in `fuzz/`. Compiled with `--cfg fuzzing` only.

use bytes::Bytes;

use super::arrays::{Packing, unpack as unpack_column};
use crate::block::{Column, Shape};
use crate::schema::{Dtype, Kind};

/// Take an array out of its packing, as each kind it can become.
pub fn unpack(bytes: &[u8]) {
    let packed = Column {
        data: Bytes::copy_from_slice(bytes),
        shape: Shape::Ends(vec![0, bytes.len() as u64]),
        present: None,
    };
    let dtype = Dtype::Int16;
    for kind in [
        Kind::List { dtype },
        Kind::Array {
            dtype,
            shape: vec![2, 3],
        },
        Kind::Bytes,
    ] {
        for packing in [Packing::Npy, Packing::Npz] {
            let _ = unpack_column(&packed, 1, &kind, packing);
        }
    }
}
