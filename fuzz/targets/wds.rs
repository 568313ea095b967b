//! WebDataset tars: whatever is accepted holds together, and does not depend on how the bytes were cut.

#![no_main]

use bytes::Bytes;
use forebay_data::Layout;
use forebay_data::format::scan_bytes;
use forebay_data::format::wds::WdsScan;
use libfuzzer_sys::fuzz_target;

const BLOCK_BYTES: usize = 512;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const MAGIC: std::ops::Range<usize> = 257..262;

/// Give each block that looks like a header, or asks for it by an odd byte at its end, the checksum of one: no fuzzer would find it, and
/// without it nothing behind the first changed byte is reached.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        if block[MAGIC] == *b"ustar" || block[BLOCK_BYTES - 1] % 2 == 1 {
            block[CHECKSUM].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    bytes
}

fn check(bytes: Bytes, step: usize) {
    let whole = scan_bytes(Box::<WdsScan>::default(), &bytes, usize::MAX);
    let cut = scan_bytes(Box::<WdsScan>::default(), &bytes, step);
    match (whole, cut) {
        (Ok(whole), Ok(cut)) => {
            assert_eq!(whole, cut);
            whole.check(bytes.len() as u64).unwrap();
            let Layout::Samples(samples) = &whole.layout else {
                panic!("a tar has samples");
            };
            for index in 0..samples.len() {
                let extent = samples.extent(index).unwrap();
                let extent = &bytes[extent.start() as usize..extent.end() as usize];
                assert_eq!(forebay_core::crc32c(extent), samples.crcs[index]);
                assert!(samples.columns.iter().any(|column| column.get(index).is_some()));
            }
        }
        (Err(whole), Err(cut)) => assert_eq!(whole.to_string(), cut.to_string()),
        (whole, cut) => panic!("whole: {whole:?}, cut: {cut:?}"),
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((bytes, step)) = input.split_last_chunk() else {
        return;
    };
    let step = usize::from(u16::from_le_bytes(*step)) + 1;
    check(Bytes::copy_from_slice(bytes), step);
    check(with_checksums(bytes).into(), step);
});
