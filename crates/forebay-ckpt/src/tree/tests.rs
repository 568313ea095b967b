//! Trees against a plain list: every record is found, by number and by name, and nothing else is.

use proptest::prelude::*;

use super::*;

fn page<'a>(file: &'a [u8], pointer: &Pointer) -> &'a [u8] {
    let bytes = &file[pointer.offset as usize..][..pointer.len as usize];
    check_page(bytes, pointer).unwrap();
    bytes
}

/// The record of a number, as `pages.rs` goes for it.
fn numbered(file: &[u8], kind: Kind, root: &Root, number: u64) -> Vec<u8> {
    let bytes = kind.record_bytes().unwrap();
    let levels = pages_by_level(root.records, bytes);
    assert_eq!(levels.len(), usize::from(root.levels));
    let leaf = number / leaf_records(bytes);
    let mut pointer = root.top.unwrap();
    for level in (1..root.levels).rev() {
        let at = page_above(leaf, level);
        let expected = children_of(at, levels[usize::from(level) - 1]);
        let children = numbered_children(page(file, &pointer), kind, level, expected).unwrap();
        pointer = children[(page_above(leaf, level - 1) - at * FANOUT) as usize];
    }
    let (mut cursor, records) = open_page(page(file, &pointer), kind, 0).unwrap();
    let content = cursor.take(records as usize * bytes).unwrap();
    cursor.finish().unwrap();
    content[(number % leaf_records(bytes)) as usize * bytes..][..bytes].to_vec()
}

#[test]
fn numbered_records_are_found_at_every_size() {
    for kind in [Kind::Chunks, Kind::Values, Kind::ContentIds] {
        let bytes = kind.record_bytes().unwrap();
        let leaf = leaf_records(bytes);
        for records in [
            1,
            leaf - 1,
            leaf,
            leaf + 1,
            leaf * FANOUT,
            leaf * FANOUT + 1,
            leaf * (FANOUT + 3),
        ] {
            let content: Vec<u8> = (0..records * bytes as u64).map(|at| (at % 251) as u8).collect();
            let mut file = b"something before".to_vec();
            let root = put_numbered(&mut file, kind, &content);
            assert_eq!(root.records, records);
            for number in [0, records / 2, records - 1, leaf.min(records - 1)] {
                let expected = &content[number as usize * bytes..][..bytes];
                assert_eq!(
                    numbered(&file, kind, &root, number),
                    expected,
                    "{kind:?} {records} {number}"
                );
            }
        }
        assert_eq!(put_numbered(&mut Vec::new(), kind, &[]), Root::default());
    }
    assert_eq!(
        (leaf_records(64), leaf_records(1), leaf_records(32), FANOUT),
        (255, 16_368, 511, 372)
    );
}

/// All records of a name, by the way down and not by looking at everything.
fn named(file: &[u8], root: &Root, name: &str) -> (Vec<String>, usize) {
    let (mut found, mut read) = (Vec::new(), 0);
    let mut level_pages: Vec<Pointer> = root.top.into_iter().collect();
    for level in (0..root.levels).rev() {
        let mut below = Vec::new();
        for pointer in level_pages {
            read += 1;
            let bytes = page(file, &pointer);
            if level > 0 {
                let children = named_children(bytes, Kind::Entries, level, 4096).unwrap();
                let range = children_with(&children, name);
                below.extend(children[range].iter().map(|child| child.pointer));
                continue;
            }
            let (mut cursor, records) = open_page(bytes, Kind::Entries, 0).unwrap();
            for _ in 0..records {
                let record = cursor.text(5000).unwrap().to_owned();
                if record.split(' ').next() == Some(name) {
                    found.push(record);
                }
            }
            cursor.finish().unwrap();
        }
        level_pages = below;
    }
    (found, read)
}

fn build_named(records: &[(String, String)]) -> (Vec<u8>, Root) {
    let mut file = Vec::new();
    let mut builder = NamedBuilder::new(&mut file, Kind::Entries);
    for (name, record) in records {
        let mut bytes = Vec::new();
        bytes.put_text(record);
        builder.push(name, &bytes);
    }
    let root = builder.finish();
    (file, root)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn named_records_are_found(names in prop::collection::btree_map("[a-c]{1,5}", 1usize..40, 0..60), pad in 1usize..900) {
        let mut records = Vec::new();
        for (name, count) in &names {
            for index in 0..*count {
                records.push((name.clone(), format!("{name} {index:03} {}", "x".repeat(pad))));
            }
        }
        let (file, root) = build_named(&records);
        prop_assert_eq!(root.records, records.len() as u64);
        for name in names.keys().map(String::as_str).chain(["", "zz", "abcab"]) {
            let expected: Vec<_> = records.iter().filter(|(of, _)| of == name).map(|(_, record)| record.clone()).collect();
            prop_assert_eq!(named(&file, &root, name).0, expected);
        }
    }
}

#[test]
fn a_name_among_a_million_takes_a_page_of_each_level() {
    let records: Vec<_> = (0..1_000_000)
        .map(|index| format!("model.layers.{index:07}.weight"))
        .map(|name| (name.clone(), format!("{name} {}", "x".repeat(40))))
        .collect();
    let (file, root) = build_named(&records);
    assert_eq!(root.levels, 3);
    let (found, read) = named(&file, &root, "model.layers.0777777.weight");
    assert_eq!(found.len(), 1);
    assert!(read <= 4, "{read} pages of {} bytes", file.len());
}

#[test]
fn pages_of_other_trees_and_levels_are_refused() {
    let mut file = Vec::new();
    let root = put_numbered(&mut file, Kind::Chunks, &[0; 128]);
    let bytes = page(&file, &root.top.unwrap()).to_vec();
    assert!(open_page(&bytes, Kind::Values, 0).is_err());
    assert!(open_page(&bytes, Kind::Chunks, 1).is_err());
    assert!(open_page(&bytes[..bytes.len() - 1], Kind::Chunks, 0).is_err());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(check_page(&changed, &root.top.unwrap()).is_err(), "byte {at}");
    }
}
