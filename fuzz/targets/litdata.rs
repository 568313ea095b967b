//! LitData: chunks, index.json, encoded values, frames, compressed items, rows of Arrow.

#![no_main]

#[path = "../panics.rs"]
mod panics;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    panics::tell_places();
    forebay_data::format::litdata::fuzz(bytes);
});
