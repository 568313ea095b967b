//! MDS: shards, index.json, encoded values, whole-shard compressions.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_data::format::mds::fuzz(bytes));
