//! Parsers of untrusted bytes, opened to the targets in `fuzz/`. Compiled with `--cfg fuzzing` only.

/// Names, headers, records and the marker of a cache directory.
pub fn cache(bytes: &[u8]) {
    crate::cache::fuzz(bytes);
}

/// AWS profile files.
pub fn profile(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        crate::remote::fuzz::profile(text);
    }
}

/// What servers answer: heads, ranges, listings, errors, credential documents.
pub fn reply(bytes: &[u8]) {
    crate::remote::fuzz::reply(bytes);
}

/// Records of copies in progress.
pub fn journal(bytes: &[u8]) {
    crate::copy::fuzz(bytes);
}
