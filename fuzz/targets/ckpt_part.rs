//! Parts and indexes of checkpoints.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_ckpt::fuzz::part(bytes));
