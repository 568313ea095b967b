//! Parquet against files that others wrote, against damage, and against itself.

#[path = "parquet/common.rs"]
mod common;
#[path = "parquet/damage.rs"]
mod damage;
#[path = "parquet/lent.rs"]
mod lent;
#[path = "parquet/made.rs"]
mod made;
#[path = "parquet/written.rs"]
mod written;

use std::sync::Arc;

use common::{Expected, expected, file_bytes, names, source};
use forebay_core::{ErrorKind, Span, crc32c};
use forebay_data::filter::Filter;
use forebay_data::format::parquet::{File, Parquet};
use forebay_data::format::{GroupDecoder, scan_bytes, tabulate};
use forebay_data::{Block, Layout};

fn compare(name: &str, block: &Block, expected: &Expected) {
    for row in 0..block.len() {
        let wanted = &expected.rows[block.first() as usize + row];
        for (column, wanted) in wanted.iter().enumerate() {
            let found = block.field(row, column).map(common::hex);
            let field = &expected.fields[column].name;
            assert_eq!(
                found,
                *wanted,
                "{name}: row {row} of {}, field {field}",
                block.first()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_pyarrow_writes_is_read() {
    let names = names();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let expected = expected(&name);
        let (source, bytes) = source(&name).await;
        let format = Parquet::default();
        let tabulated = tabulate(&format, &source).await.unwrap();
        let table = Arc::new(tabulated.table);
        table.check(bytes.len() as u64).unwrap();
        assert_eq!(table.fields, expected.fields, "{name}");
        let Layout::Groups(groups) = &table.layout else {
            panic!("{name}")
        };
        let rows: Vec<u64> = groups.list.iter().map(|group| group.samples).collect();
        let slice = |span: Span| bytes.slice(span.relative_to(0));
        assert_eq!(crc32c(&slice(groups.footer.extent)), groups.footer.crc, "{name}");
        assert_eq!(groups.footer.extent.end() + 8, bytes.len() as u64, "{name}");
        assert_eq!(rows, expected.groups, "{name}");
        let (file, _) = File::open(&source, &Parquet::default()).await.unwrap();
        for (index, group) in groups.list.iter().enumerate() {
            let extent = slice(group.extent);
            for column in 0..table.fields.len() {
                let chunk = slice(file.span(index, column).unwrap());
                assert_eq!(groups.chunk_crc(index, column), Some(crc32c(&chunk)), "{name}");
            }
            let decoded = file.decode_bytes(&extent, &table, index, None, None).unwrap();
            assert!(decoded.rows.is_none());
            compare(&name, &decoded.block, &expected);
            let decoded = file
                .decode_group(&source, &table, index, None, None)
                .await
                .unwrap();
            assert_eq!(decoded.block.len() as u64, group.samples);
            compare(&name, &decoded.block, &expected);
        }
    }
}

#[test]
fn the_table_does_not_depend_on_how_the_bytes_are_cut() {
    let bytes = file_bytes("ranges");
    let scan = || File::from_bytes(&bytes, None).unwrap().scan();
    let whole = scan_bytes(scan(), &bytes, bytes.len()).unwrap();
    for step in [1, 2, 3, 7, 100] {
        assert_eq!(scan_bytes(scan(), &bytes, step).unwrap(), whole);
    }
    assert!(scan_bytes(scan(), &bytes.slice(..200), 10).is_err(), "ends early");
    let mut other = bytes.to_vec();
    other[2] ^= 1;
    for step in [1, 100] {
        let error = scan_bytes(scan(), &other.clone().into(), step).unwrap_err();
        assert!(error.message().contains("PAR1"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_chunks_that_are_needed_are_read() {
    let (source, bytes) = source("codec-none-v1").await;
    let table = Arc::new(tabulate(&Parquet::default(), &source).await.unwrap().table);
    let (file, _) = File::open(&source, &Parquet::default()).await.unwrap();
    let all = file.decode_group(&source, &table, 0, None, None).await.unwrap();
    let one = file
        .decode_group(&source, &table, 0, Some(&[2]), None)
        .await
        .unwrap();
    assert!(
        one.ledger.bytes() * 2 < all.ledger.bytes(),
        "{} {}",
        one.ledger,
        bytes.len()
    );
    assert_eq!(one.block.field(3, 2), all.block.field(3, 2));
    assert!(all.block.field(3, 0).is_some() && one.block.field(3, 0).is_none());
    let error = file
        .decode_group(&source, &table, 0, Some(&[3]), None)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_rule_out_row_groups_and_choose_rows() {
    let (source, _) = source("ranges").await;
    let table = Arc::new(tabulate(&Parquet::default(), &source).await.unwrap().table);
    let (file, _) = File::open(&source, &Parquet::default()).await.unwrap();
    // Row groups that may be read, and rows that remain in each.
    for (text, groups, rows) in [
        ("n < 3", [true, false, false], [3, 0, 0]),
        ("n >= 2147483648", [false, true, false], [0, 10, 0]),
        ("n in (5, 105, 7)", [true, false, true], [2, 0, 1]),
        ("s = 'k' or x = 0.1", [true, false, true], [1, 0, 1]),
        ("s is null", [false, true, false], [0, 10, 0]),
        ("s is not null and s > 'i'", [true, false, true], [1, 0, 10]),
        ("not (n < 1000)", [false, true, false], [0, 10, 0]),
        ("x > 100", [false; 3], [0; 3]),
        ("s = 'ab'", [true, false, false], [0; 3]),
    ] {
        let filter = Filter::parse(text).unwrap().bind(file.fields()).unwrap();
        for index in 0..3 {
            assert_eq!(file.may_keep(index, &filter), groups[index], "{text}: {index}");
            let decoded = file
                .decode_group(&source, &table, index, Some(&[0]), Some(&filter))
                .await
                .unwrap();
            let kept = decoded.rows.unwrap();
            assert_eq!(kept.len(), rows[index], "{text}: {index}");
            assert_eq!(decoded.ledger.bytes() == 0, !groups[index], "{text}: {index}");
            for row in kept {
                assert!(decoded.block.field(row as usize, 0).is_some(), "{text}");
            }
        }
    }
}

#[test]
fn columns_are_chosen_by_name() {
    let bytes = file_bytes("nested");
    let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let some = File::from_bytes(&bytes, Some(&columns(&["s.t", "list"]))).unwrap();
    let names: Vec<&str> = some.fields().iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["list", "s.t.c"]);
    let error = File::from_bytes(&bytes, Some(&columns(&["list", "s.x"]))).unwrap_err();
    assert_eq!(
        (error.kind(), error.field()),
        (ErrorKind::InvalidInput, Some("s.x"))
    );
}
