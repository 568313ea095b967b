//! Parsers of untrusted bytes, opened to the targets in `fuzz/`. Compiled with `--cfg fuzzing` only.

/// Sections, directories and trailers of manifests.
pub fn manifest(bytes: &[u8]) {
    crate::manifest::fuzz(bytes);
}
