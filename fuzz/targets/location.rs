//! Locations: no input panics, and what is accepted reads back as itself.

#![no_main]

use std::path::Path;

use forebay_core::Location;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let base = Path::new("/base");
    if let Ok(location) = Location::parse(text, base) {
        let shown = location.to_string();
        let again = Location::parse(&shown, base).expect("what is shown is a location");
        assert_eq!(again, location, "{shown}");
        if let Some((parent, name)) = location.split_last() {
            assert_eq!(parent.join(&name), location);
        }
    }
});
