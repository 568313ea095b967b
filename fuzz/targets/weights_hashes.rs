//! Checksums beside files and in headers: no input panics, what is accepted says the same when it is written again, and comparing stays in bounds.

#![no_main]

use forebay_core::safetensors::Header;
use forebay_core::{Span, crc32c};
use forebay_weights::Hashes;
use libfuzzer_sys::fuzz_target;

/// Bytes of the file that is compared, which need not be as long as it should be.
const FILE: [u8; 4096] = [7; 4096];

fuzz_target!(|input: &[u8]| {
    let Some((told, bytes)) = input.split_first_chunk::<12>() else {
        return;
    };
    let (len, at) = told.split_at(4);
    let len = len.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    // Within the file: what is compared comes from a plan of it.
    let at = at.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)) % (len + 1);
    // With the checksum that a fuzzer does not guess.
    let mut whole = bytes.to_vec();
    whole.extend_from_slice(&crc32c(bytes).to_le_bytes());
    for side in [bytes, &whole[..]] {
        if let Ok(hashes) = Hashes::parse_side(side, len) {
            let again = Hashes::parse_side(&hashes.encode_side(), len).expect("what was written can be read");
            assert_eq!(again, hashes);
            compare(&hashes, at);
        }
    }
    if let Ok(header) = Header::parse(bytes, bytes.len() as u64)
        && let Ok(Some(hashes)) = Hashes::parse_header(&header, bytes)
    {
        compare(&hashes, at);
        let _ = hashes.check(Span::first(bytes.len() as u64), bytes);
    }
});

fn compare(hashes: &Hashes, at: u64) {
    if let Ok(span) = Span::at(at, FILE.len() as u64) {
        let _ = hashes.check(span, &FILE);
    }
}
