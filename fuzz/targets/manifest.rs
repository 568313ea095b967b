//! Manifests of data sets: directories, trailers and tables.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_data::fuzz::manifest(bytes));
