//! LitData: chunks, index.json, encoded values, frames, compressed items, rows of Arrow.
//!
//! Panics of the Arrow library are contained and become errors, so the hook that ends the process at a panic is taken out; one that gets through still
//! ends it.

#![no_main]

use std::sync::Once;

use libfuzzer_sys::fuzz_target;

static QUIET: Once = Once::new();

fuzz_target!(|bytes: &[u8]| {
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    forebay_data::format::litdata::fuzz(bytes);
});
