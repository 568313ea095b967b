//! Quantities in every unit: no text panics, and what is accepted is a number that can be shown.

#![no_main]

use forebay_plan::quantity::Unit;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for unit in Unit::ALL {
        match unit.parse(text) {
            Ok(value) => {
                assert!(value.is_finite() && value >= 0.0, "{unit:?}: {value}");
                assert!(!unit.show(value).text.is_empty());
            }
            Err(error) => assert!(error.hint().is_some()),
        }
    }
});
