//! Files of a cache directory: names, headers, records, the marker.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_store::fuzz::cache(bytes));
