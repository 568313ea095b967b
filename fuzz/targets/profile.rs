//! AWS profile and credentials files.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_store::fuzz::profile(bytes));
