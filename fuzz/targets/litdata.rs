//! LitData: chunks, index.json, encoded values, frames.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_data::format::litdata::fuzz(bytes));
