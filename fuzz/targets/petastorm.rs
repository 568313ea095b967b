//! Pickled schemas of Petastorm, and the arrays in its columns.

#![no_main]

use forebay_data::format::petastorm::{Unischema, fuzz};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Unischema::from_pickle(bytes);
    fuzz::unpack(bytes);
});
