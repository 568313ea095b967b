//! Parsers of untrusted bytes, opened to the targets in `fuzz/`. Compiled with `--cfg fuzzing` only.

/// Sections, directories and trailers of manifests.
pub fn manifest(bytes: &[u8]) {
    crate::manifest::fuzz(bytes);
}

/// What a filter keeps, as it is between runs.
pub fn selection(bytes: &[u8]) {
    crate::loader::fuzz_selection(bytes);
}

/// Columns that the folders of shards say: every line is the name of one.
pub fn folders(text: &str) {
    crate::format::parquet::fuzz_folders(text);
}

/// What is found out of a listing: every line is the name of an object.
pub fn listing(text: &str) {
    crate::dataset::fuzz_listing(text);
}

/// The metadata in the footer of a Parquet file.
pub fn footer(bytes: &[u8]) {
    crate::format::parquet::fuzz_footer(bytes);
}

/// What packing notes beside shards: every line is a note or a plan.
pub fn pack_notes(text: &str) {
    crate::pack::fuzz_notes(text);
}
