//! Keys, sizes, data paths and cache settings: no input panics, and what is accepted reads back as itself.

#![no_main]

use std::path::Path;

use forebay_core::{ByteSize, DataPath, Key};
use forebay_store::cache::CacheConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(key) = Key::parse(text) {
        assert_eq!(Key::parse(&key.to_string()).expect("a key"), key);
    }
    if let Ok(size) = text.parse::<ByteSize>() {
        assert_eq!(size.0.to_string().parse::<ByteSize>().expect("a size"), size);
    }
    if let Ok(path) = DataPath::parse(text) {
        assert_eq!(DataPath::parse(path.name()).expect("a path"), path);
    }
    if let Ok(config) = CacheConfig::parse(text, Path::new("/base")) {
        assert_eq!(
            CacheConfig::parse(&config.to_string(), Path::new("/base")).expect("a cache"),
            config
        );
    }
});
