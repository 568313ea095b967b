//! What is printed of panics that are contained and become errors: where each of them is, once.
//!
//! The hook of libFuzzer ends the process at a panic, so targets whose libraries panic take it out. A panic that gets through still ends the process, and
//! without a word nobody would know where it was.

use std::collections::HashSet;
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

static HOOK: Once = Once::new();

pub fn tell_places() {
    HOOK.call_once(|| {
        let told = Mutex::new(HashSet::new());
        panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.insert(place.clone()) {
                eprintln!("panic at {place}");
            }
        }));
    });
}
