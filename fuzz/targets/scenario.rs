//! Files of scenarios: no text panics, and what is accepted is answered with finite numbers or a hint.

#![no_main]

use forebay_plan::{expand, parse_toml, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // A simulation of many events is slow on purpose.
    if text.contains("events") {
        return;
    }
    let Ok(requests) = parse_toml(text).and_then(|file| expand(&file)) else {
        return;
    };
    for (name, request) in requests {
        match run("cluster", &request) {
            Ok(report) => {
                let mut figures = report.figures.iter();
                assert!(
                    figures.all(|figure| figure.value.is_finite() && figure.value >= 0.0),
                    "{name}"
                );
            }
            Err(error) => assert!(error.hint().is_some(), "{error}"),
        }
    }
});
