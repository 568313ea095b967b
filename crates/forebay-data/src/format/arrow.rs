//! What Arrow's schemas and arrays become: fields, and columns of blocks. Shared by the formats that decode to Arrow, Parquet and LitData's rows.
//!
//! ```text
//! schema --columns.rs--> Leaf: field, type                          (what has no kind of its own is JSON)
//! arrays --convert.rs--> Column, without a copy where it can be     json.rs writes values as JSON
//! calls of the libraries --contain.rs--> their errors and panics are errors of ours
//! ```

mod columns;
mod contain;
mod convert;
mod json;

pub(super) use columns::{Leaf, decoded_schema, leaves};
pub(super) use contain::contained;
pub(super) use convert::{Joined, absent, innermost, too_large};
pub(super) use json::unreadable;

/// What errors say was being done. Callers say where.
const OP: &str = "read columns";
