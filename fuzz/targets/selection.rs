//! What filters keep, between runs: no file panics, and what is believed is the same when it is written again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_data::fuzz::selection(bytes));
