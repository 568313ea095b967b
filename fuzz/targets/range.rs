//! Ranges of sweeps, of a quantity, of a count and of a word: no text panics, and what is accepted has values.

#![no_main]

use std::cell::Cell;

use forebay_core::ErrorKind;
use forebay_plan::{SweepRequest, parse_toml, sweep};
use libfuzzer_sys::fuzz_target;

/// Values that are computed: the range is what is tried, not the model.
const POINTS_MAX: u32 = 3;

fuzz_target!(|range: &str| {
    let request = parse_toml("params = '70B'\nstorage = '1TB/s'").expect("a request");
    for field in ["interval", "gpus", "mode"] {
        let asked = SweepRequest {
            model: "checkpoint",
            request: &request,
            field,
            range,
            figures: &[],
            is_rest_kept: true,
        };
        let points = Cell::new(0);
        let keep_going = || points.replace(points.get() + 1) < POINTS_MAX;
        match sweep(&asked, &keep_going, &|_| {}) {
            Ok(found) => assert!(!found.values.is_empty()),
            Err(error) => assert!(error.kind() == ErrorKind::Cancelled || error.hint().is_some()),
        }
    }
});
