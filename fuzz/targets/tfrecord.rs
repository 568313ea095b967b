//! TFRecord: whatever is accepted holds together, does not depend on how the bytes were cut, and its fields decode.

#![no_main]

use bytes::Bytes;
use forebay_core::{Key, crc32c};
use forebay_data::format::{Format, scan_bytes};
use forebay_data::format::tfrecord::{Records, TfRecord, decode};
use forebay_data::{Kind, Layout, Table};
use libfuzzer_sys::fuzz_target;

fn masked(bytes: &[u8]) -> [u8; 4] {
    let crc = crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8);
    crc.to_le_bytes()
}

/// Records with the checksums that no fuzzer would find: the input is cut at every byte that follows a marker.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut shard = Vec::new();
    for data in bytes.split(|byte| *byte == 0xfe) {
        let length = (data.len() as u64).to_le_bytes();
        shard.extend_from_slice(&length);
        shard.extend_from_slice(&masked(&length));
        shard.extend_from_slice(data);
        shard.extend_from_slice(&masked(data));
    }
    shard
}

/// What the scan accepted as a list decodes as that list.
fn decodes(table: &Table, bytes: &[u8]) {
    let Layout::Samples(samples) = &table.layout else {
        panic!("records are samples");
    };
    let encoding = |kind: &Kind| match kind {
        Kind::Encoded { encoding } => encoding.clone(),
        Kind::Varints => "varints".to_owned(),
        _ => String::new(),
    };
    for index in 0..samples.len() {
        let extent = samples.extent(index).unwrap();
        let extent = &bytes[extent.start() as usize..extent.end() as usize];
        assert_eq!(crc32c(extent), samples.crcs[index]);
        for (field, column) in table.fields.iter().zip(&samples.columns) {
            let Some(range) = column.get(index) else {
                continue;
            };
            let value = &extent[range];
            let (mut ints, mut floats, mut slices) = (Vec::new(), Vec::new(), Vec::new());
            match encoding(&field.kind).as_str() {
                "varints" => decode::varints(value, &mut ints).unwrap(),
                "tf:int64_list" => decode::int64_list(value, &mut ints).unwrap(),
                "tf:float_list" => decode::float_list(value, &mut floats).unwrap(),
                "tf:bytes_list" => decode::bytes_list(value, &mut slices).unwrap(),
                "tf:feature_list" => drop(decode::feature_list(value).unwrap()),
                _ => {}
            }
        }
    }
}

fn check(format: TfRecord, bytes: &Bytes, step: usize) {
    let whole = scan_bytes(format.start(), bytes, usize::MAX);
    let cut = scan_bytes(format.start(), bytes, step);
    match (whole, cut) {
        (Ok(whole), Ok(cut)) => {
            assert_eq!(whole, cut);
            whole.check(bytes.len() as u64).unwrap();
            decodes(&whole, bytes);
        }
        (Err(whole), Err(cut)) => assert_eq!(whole.to_string(), cut.to_string()),
        (whole, cut) => panic!("whole: {whole:?}, cut: {cut:?}"),
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((bytes, [step])) = input.split_last_chunk() else {
        return;
    };
    let step = usize::from(*step) + 1;
    check(TfRecord::default(), &Bytes::copy_from_slice(bytes), step);
    let shard = Bytes::from(with_checksums(bytes));
    check(TfRecord::default(), &shard, step);
    check(TfRecord::default().with_lists(), &shard, step);
    check(TfRecord::new(Records::Examples), &shard, step);
    let mut ints = Vec::new();
    let _ = decode::varints(bytes, &mut ints);
    let _ = decode::feature_list(bytes);
    let _ = TfRecord::default().codec(&Key::parse("a").expect("a name"), bytes);
});
