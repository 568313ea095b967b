//! Shards and indices of our own making: round trips, cuts, truncation, damage, absurd numbers, names that lead astray.

use bytes::Bytes;
use forebay_core::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::format::{SampleRef, ShardWriter, scan_bytes};
use crate::schema::{Dtype, Field, Kind};
use crate::table::Layout;

/// Fields of each sample.
type Rows = Vec<Vec<Vec<u8>>>;

fn fields() -> Vec<Field> {
    let number = |dtype| Kind::Array {
        dtype,
        shape: Vec::new(),
    };
    vec![
        Field::new("a", Kind::Bytes),
        Field::new("n", number(Dtype::Int64)),
        Field::new("t", Kind::Text),
        Field::new("w", number(Dtype::Uint16)),
    ]
}

fn shard(rows: &Rows) -> Vec<u8> {
    let fields = fields();
    let mut writer = Settings::for_fields(&fields).unwrap().writer().unwrap();
    for (number, row) in rows.iter().enumerate() {
        let key = number.to_string();
        // In another order than the columns have.
        let values = fields.iter().zip(row.iter().map(Vec::as_slice)).rev();
        let values: Vec<(&Field, &[u8])> = values.collect();
        let sample = SampleRef {
            key: &key,
            fields: &values,
        };
        let bytes = writer.bytes_with(sample);
        writer.add(sample).unwrap();
        let filled = Box::new(MdsWriter::clone(&writer)).finish().unwrap();
        assert_eq!(bytes, filled.len() as u64, "the accounting is exact");
    }
    Box::new(writer).finish().unwrap().to_vec()
}

fn small() -> Vec<u8> {
    shard(&vec![
        vec![b"one".to_vec(), vec![1; 8], b"first".to_vec(), vec![7, 0]],
        vec![Vec::new(), vec![2; 8], Vec::new(), vec![8, 0]],
        vec![vec![9; 40], vec![3; 8], b"last".to_vec(), vec![9, 0]],
    ])
}

fn scan(bytes: &[u8], step: usize) -> Result<Table> {
    let key = Key::parse("shard.00000.mds").unwrap();
    let scan = Mds::new().scan_file(&key, bytes.len() as u64)?;
    scan_bytes(Box::new(scan), &Bytes::copy_from_slice(bytes), step)
}

/// A scan of something compressed: nobody knows the size beforehand.
fn scan_blind(bytes: &[u8], step: usize) -> Result<Table> {
    let key = Key::parse("shard.00000.mds.gz").unwrap();
    let scan = Mds::new().scan_file(&key, 1)?;
    scan_bytes(Box::new(scan), &Bytes::copy_from_slice(bytes), step)
}

fn rows_of(table: &Table, bytes: &[u8]) -> Rows {
    let Layout::Samples(samples) = &table.layout else {
        unreachable!()
    };
    let value = |sample: usize, column: usize| {
        let start = samples.starts[sample] as usize;
        let span = samples.columns[column].get(sample).unwrap();
        bytes[start + span.start..start + span.end].to_vec()
    };
    (0..samples.len())
        .map(|sample| {
            (0..samples.columns.len())
                .map(|column| value(sample, column))
                .collect()
        })
        .collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read_however_it_is_cut(
        rows in prop::collection::vec(
            (
                prop::collection::vec(any::<u8>(), 0..50),
                any::<[u8; 8]>(),
                "\\PC{0,20}",
                any::<[u8; 2]>(),
            ),
            0..20,
        ),
        step in 1usize..400,
    ) {
        let rows: Rows = rows
            .into_iter()
            .map(|(bytes, number, text, word)| {
                vec![bytes, number.to_vec(), text.into_bytes(), word.to_vec()]
            })
            .collect();
        let bytes = shard(&rows);
        let table = scan(&bytes, step).unwrap();
        table.check(bytes.len() as u64).unwrap();
        prop_assert_eq!(&table.fields, &fields());
        prop_assert_eq!(rows_of(&table, &bytes), rows);
        prop_assert_eq!(&scan(&bytes, usize::MAX).unwrap(), &table);
    }

    #[test]
    fn damage_is_refused_or_harmless(at in any::<prop::sample::Index>(), bit in 0u8..8, step in 1usize..50) {
        let mut bytes = small();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let whole = scan_blind(&bytes, usize::MAX);
        let cut = scan_blind(&bytes, step);
        prop_assert_eq!(whole.is_ok(), cut.is_ok());
        if let (Ok(whole), Ok(cut)) = (whole, cut) {
            whole.check(bytes.len() as u64).unwrap();
            prop_assert_eq!(whole, cut);
        }
    }
}

#[test]
fn a_shard_without_samples_has_a_table_without_samples() {
    let bytes = shard(&Vec::new());
    for step in [1, usize::MAX] {
        let table = scan(&bytes, step).unwrap();
        assert_eq!((table.samples(), table.fields.len()), (0, 4));
    }
}

#[test]
fn truncation_is_seen_at_every_byte() {
    let bytes = small();
    for len in 0..bytes.len() {
        for step in [1, 7, usize::MAX] {
            let error = scan_blind(&bytes[..len], step).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
            assert!(
                error.to_string().contains(&format!("ends at byte {len}")),
                "{error}"
            );
        }
    }
    let longer = [&bytes[..], b"x"].concat();
    let error = scan_blind(&longer, 5).unwrap_err();
    assert!(error.to_string().contains("after byte"), "{error}");
    // Where the size is known, the table of offsets is enough to know.
    let error = scan(&bytes[..bytes.len() - 1], 5).unwrap_err();
    assert!(error.to_string().contains("the object has"), "{error}");
}

#[test]
fn bits_of_counts_offsets_and_lengths_are_all_of_consequence() {
    let bytes = small();
    let header = 4 + 4 * 4;
    let first = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    for at in (0..header).chain(first..first + 8) {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let error = scan_blind(&bytes, 11).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::LimitExceeded),
                "{at} {bit} {error}"
            );
        }
    }
}

#[test]
fn absurd_counts_and_offsets_cost_nothing() {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    for (bytes, kind, says) in [
        (words(&[u32::MAX]), ErrorKind::Corrupt, "would not fit"),
        (words(&[1 << 27]), ErrorKind::LimitExceeded, "more than"),
        (words(&[1 << 26, 0]), ErrorKind::Corrupt, "earliest place"),
        (words(&[1, u32::MAX]), ErrorKind::LimitExceeded, "header"),
        (words(&[1, 12, 11]), ErrorKind::Corrupt, "offset 1"),
        (words(&[0, 8]), ErrorKind::Corrupt, "configuration"),
        (words(&[1 << 25]), ErrorKind::Corrupt, "ends at byte 4"),
    ] {
        let error = scan_blind(&bytes, 3).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn headers_are_held_to_the_format() {
    let with = |config: &str| {
        let mut bytes = Vec::new();
        bytes.extend(0u32.to_le_bytes());
        bytes.extend((8 + config.len() as u32).to_le_bytes());
        bytes.extend(config.as_bytes());
        scan_blind(&bytes, usize::MAX)
    };
    let config = |text: &str, from: &str, to: &str| text.replace(from, to);
    let good = r#"{"column_encodings": ["int"], "column_names": ["x"], "column_sizes": [8], "compression": null, "format": "mds", "hashes": [], "size_limit": null, "version": 2}"#;
    with(good).unwrap();
    for (from, to, kind, says) in [
        (
            "\"version\": 2",
            "\"version\": 3",
            ErrorKind::Unsupported,
            "version 3",
        ),
        ("\"mds\"", "\"json\"", ErrorKind::Unsupported, "'json'"),
        ("[8]", "[null]", ErrorKind::Corrupt, "'x'"),
        ("[8]", "[4]", ErrorKind::Corrupt, "4 bytes"),
        ("[8]", "[8, 8]", ErrorKind::Corrupt, "as many"),
        ("[\"int\"]", "[\"integer\"]", ErrorKind::Unsupported, "integer"),
        ("[\"x\"]", "[\"x\", \"x\"]", ErrorKind::Corrupt, "as many"),
        (
            "[8]",
            "[18446744073709551616]",
            ErrorKind::Corrupt,
            "configuration",
        ),
        ("{", "{{", ErrorKind::Corrupt, "configuration"),
    ] {
        let error = with(&config(good, from, to)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let empty = good.replace("\"int\"", "").replace("\"x\"", "").replace('8', "");
    assert!(with(&empty).unwrap_err().to_string().contains("no columns"));
    let twice = good
        .replace("[\"int\"]", "[\"int\", \"int\"]")
        .replace("[\"x\"]", "[\"x\", \"x\"]")
        .replace("[8]", "[8, 8]");
    assert!(with(&twice).unwrap_err().to_string().contains("twice"));
    let names: Vec<String> = (0..5000).map(|number| format!("\"{number}\"")).collect();
    let many = good
        .replace("[\"int\"]", &format!("[{}]", vec!["\"str\""; 5000].join(",")))
        .replace("[\"x\"]", &format!("[{}]", names.join(",")))
        .replace("[8]", &format!("[{}]", vec!["null"; 5000].join(",")));
    assert_eq!(with(&many).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn names_cannot_lead_out_of_the_data_set() {
    let index = |basename: &str| {
        let text = format!(
            r#"{{"version": 2, "shards": [{{"column_encodings": ["int"], "column_names": ["x"], "column_sizes": [8],
            "compression": null, "format": "mds", "hashes": [], "raw_data": {{"basename": {basename}, "bytes": 1, "hashes": {{}}}},
            "samples": 1, "size_limit": null, "version": 2, "zip_data": null}}]}}"#
        );
        Index::parse(text.as_bytes())
    };
    let merged = index(r#""17/shard.00085.mds""#).unwrap();
    assert_eq!(merged.shards[0].raw.key.as_str(), "17/shard.00085.mds");
    for name in [
        r#""../shard.00000.mds""#,
        r#""a/../../b""#,
        r#""/etc/passwd""#,
        r#""a\u0000b""#,
        r#""""#,
        r#"".""#,
        r#""a/""#,
        r#""a//b""#,
    ] {
        let error = index(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
        assert!(error.to_string().contains("no place"), "{error}");
    }
}

#[test]
fn an_index_is_held_to_the_format() {
    let good = include_str!("../../../../../fixtures/mds/compressed/gz/index.json");
    let index = Index::parse(good.as_bytes()).unwrap();
    assert!(Arc::ptr_eq(&index.shards[0].columns, &index.shards[1].columns));
    assert_eq!(index.to_json().unwrap(), good.as_bytes());
    for (from, to, kind, says) in [
        (
            "\"version\": 2}",
            "\"version\": 1}",
            ErrorKind::Unsupported,
            "version 1",
        ),
        (
            "\"format\": \"mds\"",
            "\"format\": \"csv\"",
            ErrorKind::Unsupported,
            "csv",
        ),
        (
            "\"compression\": \"gz\"",
            "\"compression\": null",
            ErrorKind::Corrupt,
            "compress",
        ),
        (
            "\"compression\": \"gz\"",
            "\"compression\": \"xz\"",
            ErrorKind::Unsupported,
            "xz",
        ),
        ("shard.00001", "shard.00000", ErrorKind::Corrupt, "twice"),
        ("\"md5\": \"", "\"md5\": \"z", ErrorKind::Corrupt, "md5"),
        ("\"md5\"", "\"md7\"", ErrorKind::Unsupported, "md7"),
        (
            "\"column_sizes\": [8,",
            "\"column_sizes\": [",
            ErrorKind::Corrupt,
            "as many",
        ),
        ("\"samples\": ", "\"samples\": -", ErrorKind::Corrupt, "list"),
        ("\"shards\": [", "\"shards\": {", ErrorKind::Corrupt, "list"),
    ] {
        let error = Index::parse(good.replace(from, to).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), kind, "{from} {error}");
        assert!(error.to_string().contains(says), "{from} {error}");
    }
    let large = regex_free_bytes(good);
    assert!(
        Index::parse(large.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("4 GiB")
    );
    for len in 0..good.len() {
        assert!(Index::parse(&good.as_bytes()[..len]).is_err());
    }
    let deep = "[".repeat(100_000);
    assert_eq!(
        Index::parse(deep.as_bytes()).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

/// Every size of the index multiplied beyond 4 GiB.
fn regex_free_bytes(index: &str) -> String {
    index.replace("\"bytes\": ", "\"bytes\": 99999999")
}

#[test]
fn the_number_of_samples_is_never_taken_for_a_compression() {
    let key = Key::parse("shard.00000.mds").unwrap();
    for magic in [559_903u32.to_le_bytes(), 0xfd2f_b528u32.to_le_bytes()] {
        assert_ne!(Codec::of(&key, &magic), Codec::None, "it would be");
        assert_eq!(Mds::new().codec(&key, &magic), Codec::None);
    }
    let zipped = Key::parse("shard.00000.mds.br").unwrap();
    assert_eq!(Mds::new().codec(&zipped, &[]), Codec::Brotli);
}
