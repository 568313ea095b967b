//! What servers answer: heads, ranges, listings, errors, credential documents.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_store::fuzz::reply(bytes));
