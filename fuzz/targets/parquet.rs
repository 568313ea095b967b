//! Parquet files: whatever the bytes, reading ends with rows or an error.

#![no_main]

#[path = "../panics.rs"]
mod panics;

use std::sync::Arc;

use forebay_data::filter::{Bound, Filter};
use forebay_data::format::parquet::File;
use forebay_data::format::scan_bytes;
use forebay_data::{Field, Table};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    panics::tell_places();
    forebay_data::fuzz::footer(bytes);
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    let Ok(file) = File::from_bytes(&bytes, None) else {
        return;
    };
    let Ok(table) = scan_bytes(file.clone().scan(), &bytes, 100) else {
        return;
    };
    table.check(bytes.len() as u64).unwrap();
    let table = Arc::new(table);
    for (index, group) in file.groups().iter().enumerate().take(4) {
        // Limits are for files of gigabytes; here they would only be slow.
        if group.rows > 1 << 16 {
            return;
        }
        let extent = bytes.slice(group.extent.start() as usize..group.extent.end() as usize);
        for column in 0..table.fields.len() {
            if let Ok(decoded) = file.decode_bytes(&extent, &table, index, Some(&[column]), None) {
                assert_eq!(decoded.block.len() as u64, group.rows);
                for row in 0..decoded.block.len() {
                    std::hint::black_box(decoded.block.field(row, column));
                }
            }
        }
        // What a filter rules out by statistics is not decoded; what it keeps is some of the rows.
        for filter in filters(&table) {
            if !file.may_keep(index, &filter) {
                continue;
            }
            if let Ok(decoded) = file.decode_bytes(&extent, &table, index, None, Some(&filter)) {
                assert!(decoded.block.len() as u64 <= group.rows);
            }
        }
    }
});

/// Two for each of the first columns: one that numbers go with, one that text does.
fn filters(table: &Table) -> Vec<Bound> {
    let texts = |field: &Field| [format!("{} >= 1", field.name), format!("{} < 'm'", field.name)];
    let texts = table.fields.iter().take(4).flat_map(texts);
    texts
        .filter_map(|text| Filter::parse(&text).ok()?.bind(&table.fields).ok())
        .collect()
}
