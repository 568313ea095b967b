//! How the files of a checkpoint are read and written: [`Cursor`] and [`Wire`] of the core, with our name for errors.

pub(crate) use forebay_core::wire::{Cursor, Wire};

/// A cursor at the start of `bytes`, the `what` of a checkpoint.
pub(crate) fn cursor<'a>(bytes: &'a [u8], what: &'static str) -> Cursor<'a> {
    Cursor::new(bytes, "read checkpoint", what)
}
