//! Parsers of untrusted bytes, opened to the targets in `fuzz/`. Compiled with `--cfg fuzzing` only.
//!
//! Beside not panicking, whatever is accepted has exactly one encoding: what is read and written again is the same bytes.

use crate::codec::Decoder;
use crate::entry::{ChunkRecord, Codec, Entry};
use crate::index::{Found, IndexHead};
use crate::manifest::Manifest;
use crate::part::{NAME_BYTES_MAX, PartHead, split_tail};
use crate::seal::slots;
use crate::sign;
use crate::tree::{Kind, named_children, numbered_children, open_page};
use crate::value::Value;
use crate::wire::cursor;

/// Manifests: as they are, and bodies by themselves, since nothing that is fuzzed would hold a hash; and key slots and signatures.
pub fn manifest(bytes: &[u8]) {
    drop(Manifest::decode(bytes));
    if let Ok(manifest) = Manifest::take_body(bytes) {
        assert_eq!(manifest.body().ok().as_deref(), Some(bytes));
    }
    if let Ok(signatures) = sign::decode(bytes) {
        assert_eq!(sign::encode(&signatures), bytes);
    }
    if let Ok(slots) = slots::decode(bytes) {
        assert_eq!(slots::encode(&slots), bytes);
    }
}

/// Heads, trailers, pages and records of parts and indexes.
pub fn part(bytes: &[u8]) {
    drop(split_tail(bytes, bytes.len() as u64));
    if let Ok(head) = PartHead::parse(bytes) {
        let mut again = Vec::new();
        head.put(&mut again);
        assert_eq!(again, bytes);
    }
    drop(IndexHead::parse(bytes));
    for kind in [Kind::Entries, Kind::Index] {
        drop(named_children(bytes, kind, 1, NAME_BYTES_MAX));
        if let Ok((mut cursor, records)) = open_page(bytes, kind, 0) {
            for _ in 0..records {
                if Found::take(&mut cursor).is_err() {
                    break;
                }
            }
        }
    }
    drop(numbered_children(bytes, Kind::Chunks, 1, 3));
    let mut at = cursor(bytes, "fuzz");
    if let Ok(entry) = Entry::take(&mut at) {
        let mut again = Vec::new();
        entry.put(&mut again);
        assert_eq!(bytes.get(..at.at()), Some(&again[..]));
    }
    let mut at = cursor(bytes, "fuzz");
    if let Ok(chunk) = ChunkRecord::take(&mut at) {
        let mut again = Vec::new();
        chunk.put(&mut again);
        assert_eq!(bytes.get(..at.at()), Some(&again[..]));
    }
}

/// Decoders of chunks: whatever bytes say, they fill the memory of the chunk and nothing else. The first bytes say codec, parameter and length.
pub fn codec(bytes: &[u8]) {
    let mut cursor = cursor(bytes, "fuzz");
    let (Ok(codec), Ok(parameter), Ok(len)) = (cursor.u8(), cursor.u16(), cursor.u16()) else {
        return;
    };
    let Some(codec) = Codec::ALL.get(usize::from(codec % 5)) else {
        return;
    };
    let stored = bytes.get(cursor.at()..).unwrap_or_default();
    let mut raw = vec![0; usize::from(len)];
    if Decoder::new()
        .decode((*codec, parameter), stored, &mut raw)
        .is_ok()
    {
        let mut again = vec![1; raw.len()];
        assert_eq!(
            Decoder::new().decode((*codec, parameter), stored, &mut again),
            Ok(())
        );
        assert_eq!(raw, again);
    }
}

/// Typed values.
pub fn value(bytes: &[u8]) {
    if let Ok(value) = Value::decode(bytes) {
        assert_eq!(value.encode().ok().as_deref(), Some(bytes));
    }
}
