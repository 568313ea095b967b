//! Token files: raw, `.npy`, and Megatron's index. Whatever is accepted holds together and does not depend on how the bytes were cut.

#![no_main]

use bytes::Bytes;
use forebay_core::{Result, crc32c};
use forebay_data::format::tokens::{Cut, Tokens};
use forebay_data::format::{Scan, scan_bytes};
use forebay_data::{Dtype, Layout};
use libfuzzer_sys::fuzz_target;

/// Longest `.bin` that is made up for an index.
const BIN_BYTES_MAX: u64 = 1 << 20;

fn check(start: impl Fn() -> Result<Box<dyn Scan>>, bytes: &Bytes, step: usize) {
    let (Ok(whole), Ok(cut)) = (start(), start()) else {
        return;
    };
    match (scan_bytes(whole, bytes, usize::MAX), scan_bytes(cut, bytes, step)) {
        (Ok(whole), Ok(cut)) => {
            assert_eq!(whole, cut);
            whole.check(bytes.len() as u64).unwrap();
            let Layout::Samples(samples) = &whole.layout else {
                panic!("tokens are in samples");
            };
            for index in 0..samples.len() {
                let extent = samples.extent(index).unwrap();
                let extent = &bytes[extent.start() as usize..extent.end() as usize];
                assert_eq!(crc32c(extent), samples.crcs[index]);
                assert_eq!(samples.columns[0].get(index), Some(0..extent.len()));
            }
        }
        (Err(whole), Err(cut)) => assert_eq!(whole.to_string(), cut.to_string()),
        (whole, cut) => panic!("whole: {whole:?}, cut: {cut:?}"),
    }
}

/// Where the last sequence ends by its lengths, so that an index gets the `.bin` it wants.
fn bin_bytes(idx: &[u8]) -> u64 {
    let count = idx
        .get(18..26)
        .map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()));
    let width = match idx.get(17) {
        Some(1 | 2) => 1,
        Some(3 | 8) => 2,
        Some(4 | 7) => 4,
        _ => 8,
    };
    let lens = idx.get(34..).unwrap_or_default().chunks_exact(4);
    let tokens: u64 = lens
        .take(usize::try_from(count).unwrap_or(usize::MAX))
        .map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())))
        .sum();
    tokens.saturating_mul(width)
}

fuzz_target!(|input: &[u8]| {
    let Some((bytes, [window, step])) = input.split_last_chunk() else {
        return;
    };
    let (window, step) = (u64::from(*window % 64) + 1, usize::from(*step) + 1);
    let windows = |dtype| Tokens::new(dtype, Cut::Windows(window)).unwrap();
    let bytes = Bytes::copy_from_slice(bytes);
    check(|| windows(Some(Dtype::Uint16)).start_raw(), &bytes, step);
    check(|| windows(None).start_npy(), &bytes, step);
    // Behind a header whose first bytes are right.
    let magic = Bytes::from([b"\x93NUMPY\x01\x00", &bytes[..]].concat());
    check(|| windows(None).start_npy(), &magic, step);
    let idx = [b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0", &bytes[..]].concat();
    for idx in [&bytes[..], &idx] {
        let len = bin_bytes(idx).min(BIN_BYTES_MAX);
        let bin = Bytes::from(vec![7; len as usize]);
        check(|| windows(None).start_megatron(idx, len), &bin, step);
        let documents = Tokens::new(None, Cut::Documents).unwrap();
        check(|| documents.start_megatron(idx, len), &bin, step);
    }
});
