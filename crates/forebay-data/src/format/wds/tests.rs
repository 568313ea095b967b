//! Archives made by hand, block by block: what no ordinary tool writes, and what damage leaves.

use bytes::Bytes;
use forebay_core::ErrorKind::{Corrupt, LimitExceeded, Unsupported};
use forebay_core::{ErrorKind, Result, crc32c};

use super::header::Written;
use super::pax::record;
use super::{BLOCK_BYTES, WdsScan, WdsWriter};
use crate::format::{SampleRef, ShardWriter, scan_bytes};
use crate::schema::{Field, Kind};
use crate::table::{Layout, Samples, Table};

/// Key, and fields with their bytes.
type Plain = (String, Vec<(String, Vec<u8>)>);

/// A header and its data.
fn member(flag: u8, name: &str, data: &[u8]) -> Vec<u8> {
    let header = Written {
        flag,
        prefix: b"",
        name: name.as_bytes(),
        size: data.len() as u64,
        is_file: true,
    };
    let mut bytes = header.block().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes
}

fn file(name: &str, data: &str) -> Vec<u8> {
    member(b'0', name, data.as_bytes())
}

/// The member with other bytes in its header, and the checksum made anew.
fn patched(mut member: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    member[at..at + bytes.len()].copy_from_slice(bytes);
    member[148..156].fill(b' ');
    let sum: u32 = member[..BLOCK_BYTES].iter().map(|byte| u32::from(*byte)).sum();
    member[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    member
}

fn end() -> Vec<u8> {
    vec![0; 2 * BLOCK_BYTES]
}

fn scan(bytes: &[u8], step: usize) -> Result<Table> {
    let bytes = Bytes::copy_from_slice(bytes);
    let table = scan_bytes(Box::<WdsScan>::default(), &bytes, step)?;
    table.check(bytes.len() as u64).unwrap();
    Ok(table)
}

/// However the bytes are cut, the table or the error is the same.
fn scanned(bytes: &[u8]) -> Result<Table> {
    let whole = scan(bytes, usize::MAX);
    for step in [1, 3, 511, 512, 513, 1024] {
        match (&whole, scan(bytes, step)) {
            (Ok(table), Ok(cut)) => assert_eq!(*table, cut, "step {step}"),
            (Err(error), Err(cut)) => assert_eq!(error.to_string(), cut.to_string(), "step {step}"),
            (whole, cut) => panic!("step {step}: {whole:?}, but {cut:?}"),
        }
    }
    whole
}

fn rows(table: &Table) -> &Samples {
    match &table.layout {
        Layout::Samples(samples) => samples,
        Layout::Groups(_) => unreachable!(),
    }
}

fn plain(table: &Table, bytes: &[u8]) -> Vec<Plain> {
    let samples = rows(table);
    let sample = |index: usize| {
        let extent = samples.extent(index).unwrap();
        let bytes = &bytes[extent.start() as usize..extent.end() as usize];
        assert_eq!(crc32c(bytes), samples.crcs[index]);
        let fields = table.fields.iter().zip(&samples.columns);
        let fields = fields.filter_map(|(field, column)| {
            let span = column.get(index)?;
            Some((field.name.clone(), bytes[span].to_vec()))
        });
        (samples.keys.get(index).unwrap().to_owned(), fields.collect())
    };
    (0..samples.len()).map(sample).collect()
}

/// What an archive of these members and end blocks holds, as `key: field=data ...` lines.
fn read(members: &[Vec<u8>]) -> Result<Vec<String>> {
    let bytes = [members.concat(), end()].concat();
    let table = scanned(&bytes)?;
    let line = |(key, fields): Plain| {
        let fields = fields.iter();
        let fields = fields.map(|(name, data)| format!(" {name}={}", String::from_utf8_lossy(data)));
        format!("{key}:{}", fields.collect::<String>())
    };
    Ok(plain(&table, &bytes).into_iter().map(line).collect())
}

#[test]
fn consecutive_members_of_one_key_are_one_sample() {
    let members = [
        file("a/b.JPG", "image"),
        file("a/b.seg.png", ""),
        file("a/b.cls", "7"),
        file("c.cls", "8"),
        file("a/b.cls", "9"),
    ];
    let expected = ["a/b: jpg=image seg.png= cls=7", "c: cls=8", "a/b: cls=9"];
    assert_eq!(read(&members).unwrap(), expected);
    let table = scanned(&[members.concat(), end()].concat()).unwrap();
    let kinds: Vec<_> = table.fields.iter().map(|field| field.kind.clone()).collect();
    assert_eq!(kinds, [Kind::Image, Kind::Image, Kind::Decimal]);
}

#[test]
fn what_is_no_field_is_passed_over_and_never_followed() {
    let members = [
        file("__meta__", "x"),
        file("__meta__/a.txt", "x"),
        file("no-dot", "x"),
        file(".hidden", "x"),
        member(b'5', "dir.d/", b""),
        member(b'2', "link.txt", b""),
        member(b'1', "hard.txt", b""),
        patched(member(b'1', "sized.txt", b""), 124, b"00000001000\0"),
        member(b'3', "device.txt", b""),
        member(b'6', "fifo.txt", b""),
        member(b'D', "dump.txt", b"what others put there"),
        member(0, "old/dir.d/", b""),
        file("../../etc/passwd.txt", "up"),
        file("/etc/passwd.txt", "root"),
    ];
    let expected = ["../../etc/passwd: txt=up", "/etc/passwd: txt=root"];
    assert_eq!(read(&members).unwrap(), expected);
}

#[test]
fn extents_hold_what_is_between_fields_but_not_what_is_between_samples() {
    let (skip, dir) = (file("__x__", "skip"), member(b'5', "d/", b""));
    let global = member(b'g', "g", record("comment", "c").as_bytes());
    let long = member(b'L', "././@LongLink", b"b.txt\0");
    let members = [
        skip.clone(),
        file("a.txt", "1"),
        global.clone(),
        dir.clone(),
        file("a.cls", "2"),
        dir.clone(),
        global.clone(),
        long,
        file("short", "3"),
        skip,
    ];
    let bytes = [members.concat(), end()].concat();
    let table = scanned(&bytes).unwrap();
    assert_eq!(plain(&table, &bytes).len(), 2);
    let samples = rows(&table);
    let starts_of = |index: usize| members[..index].concat().len() as u64;
    assert_eq!(samples.starts, [starts_of(1), starts_of(7)]);
    let len_of = |from: usize, to: usize| (starts_of(to) - starts_of(from)) as u32;
    assert_eq!(samples.lens, [len_of(1, 5), len_of(7, 9)]);
}

#[test]
fn names_and_sizes_may_be_said_elsewhere() {
    let records = |text: String| member(b'x', "x", text.as_bytes());
    let long = "d".repeat(300) + "/f.txt";
    let gnu = format!("{long}\0junk");
    let size = [
        record("path", "p.txt//"),
        record("size", "3"),
        record("mtime", "1.5"),
    ]
    .concat();
    let short = patched(file("short", "abc"), 124, b"00000000000\0");
    let binary = [&b"\x80\0\0\0\0\0\0\0\0\0\0"[..], &[3]].concat();
    let members = [
        member(b'K', "././@LongLink", b"target\0"),
        member(b'L', "././@LongLink", gnu.as_bytes()),
        file("short", "1"),
        records(size.clone()),
        short.clone(),
        member(b'X', "x", size.replace("p.txt", "q.txt").as_bytes()),
        member(b'7', "short", b"xyz"),
        patched(file("binary.txt", "abc"), 124, &binary),
        patched(file("name.txt", "pre"), 345, b"some/prefix"),
        patched(member(0, "v7.txt", b"old"), 257, b"\0\0\0\0\0\0\0\0"),
    ];
    let expected = [
        &format!("{}: txt=1", long.trim_end_matches(".txt")),
        "p: txt=abc",
        "q: txt=xyz",
        "binary: txt=abc",
        "some/prefix/name: txt=pre",
        "v7: txt=old",
    ];
    assert_eq!(read(&members).unwrap(), expected);
}

#[test]
fn global_records_hold_for_all_members_behind_them() {
    let global = |keyword, value| member(b'g', "g", record(keyword, value).as_bytes());
    let unsized_file = |name| patched(file(name, "abc"), 124, b"00000000000\0");
    let members = [
        file("a.txt", "1"),
        global("size", "3"),
        unsized_file("b.txt"),
        member(b'x', "x", record("path", "c.txt").as_bytes()),
        global("path", "d.txt"),
        unsized_file("x"),
        unsized_file("x"),
    ];
    let expected = ["a: txt=1", "b: txt=abc", "c: txt=abc", "d: txt=abc"];
    assert_eq!(read(&members).unwrap(), expected);
}

#[test]
fn a_sample_marked_bad_is_dropped() {
    let members = [
        file("a.txt", "1"),
        file("b.txt", "2"),
        file("b.__bad__", "1"),
        file("c.__bad__", ""),
        file("c.txt", "3"),
    ];
    assert_eq!(read(&members).unwrap(), ["a: txt=1", "c: txt=3 __bad__="]);
    assert_eq!(read(&members[1..3]).unwrap(), [""; 0]);
}

#[test]
fn an_empty_archive_is_an_empty_shard_but_nothing_at_all_is_not() {
    assert_eq!(read(&[]).unwrap(), [""; 0]);
    assert_eq!(scanned(&[0; BLOCK_BYTES]).unwrap().samples(), 0);
    assert_eq!(scanned(&[0; 10_240]).unwrap().samples(), 0);
    assert_eq!(scanned(&[]).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn the_end_may_be_missing_or_have_anything_but_members_behind_it() {
    let one = file("a.txt", "1");
    assert_eq!(scanned(&one).unwrap().samples(), 1);
    let behind = |bytes: &[u8]| scanned(&[&one, &end()[..], bytes].concat());
    assert_eq!(behind(&[7; 2000]).unwrap().samples(), 1);
    assert_eq!(behind(&vec![0; 20_000]).unwrap().samples(), 1);
    let error = behind(&one).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("at byte 2048"), "{error}");
    for lone in [&one[..], &[1; 512], &[1]] {
        let error = scanned(&[&one, &[0; BLOCK_BYTES][..], lone].concat()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("a single block of zeros before byte 1536"),
            "{error}"
        );
    }
}

fn assert_refused(members: &[&[u8]], kind: ErrorKind, message: &str) {
    let error = read(&[members.concat()]).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(message), "{error}");
}

#[test]
fn damaged_headers_are_refused_with_their_place() {
    let one = file("a.txt", "1");
    let mut spoilt = one.clone();
    spoilt[3] ^= 1;
    assert_refused(
        &[&one, &spoilt],
        Corrupt,
        "the header at byte 1024 does not have its checksum",
    );
    assert_refused(
        &[&b"<html>".repeat(100)],
        Corrupt,
        "the header at byte 0 does not have its checksum",
    );
    let junk = member(b'x', "x", b"junk");
    assert_refused(
        &[&one, &junk],
        Corrupt,
        "the extended header at byte 1024 has a damaged record",
    );
}

#[test]
fn fields_that_clash_are_refused_by_name() {
    let one = file("a.txt", "1");
    let twice = "at byte 1024 is in its sample twice";
    assert_refused(&[&one, &one], Corrupt, &format!("member 'a.txt' {twice}"));
    assert_refused(
        &[&one, &file("a.TXT", "")],
        Corrupt,
        &format!("member 'a.TXT' {twice}"),
    );
    for name in ["a.__key__", "a.__URL__"] {
        let message = format!("member '{name}' at byte 0 is a field of a name that is reserved");
        assert_refused(&[&file(name, "")], Corrupt, &message);
    }
}

#[test]
fn members_that_are_described_twice_or_not_there_are_refused() {
    let one = file("a.txt", "1");
    let long = member(b'L', "L", b"a.txt\0");
    let link = member(b'K', "K", b"a\0");
    let records = member(b'x', "x", record("path", "b.txt").as_bytes());
    for twice in [&long, &link, &records] {
        assert_refused(
            &[twice, twice, &one],
            Corrupt,
            "the header at byte 1024 says again",
        );
        let message = "the header at byte 2048 is the end of the archive, but";
        assert_refused(&[&one, twice], Corrupt, message);
    }
    assert_refused(
        &[&long, &records, &one],
        Corrupt,
        "the header at byte 2048 has two names",
    );
}

#[test]
fn sparse_files_and_foreign_names_are_not_supported() {
    let sparse = member(b'S', "s.txt", b"");
    assert_refused(
        &[&sparse],
        Unsupported,
        "member 's.txt' at byte 0 is a sparse file",
    );
    let records = member(b'x', "x", record("GNU.sparse.major", "1").as_bytes());
    let message = "member 'a.txt' at byte 0 is a sparse file";
    assert_refused(&[&records, &file("a.txt", "1")], Unsupported, message);
    let name = patched(file("name.txt", ""), 0, b"caf\xe9");
    let message = "the name of member 'caf\u{fffd}.txt' at byte 0 is not UTF-8";
    assert_refused(&[&name], Unsupported, message);
    let no_field = patched(file("no-field", "x"), 0, b"\xe9");
    assert_eq!(read(&[no_field, file("a.txt", "1")]).unwrap(), ["a: txt=1"]);
}

#[test]
fn absurd_sizes_are_refused() {
    let sized = |size: &[u8]| patched(file("big.txt", ""), 124, size);
    for size in [&b"00000000009\0"[..], &[0xff; 12]] {
        let message = "the header at byte 0 has a size that is no number";
        assert_refused(&[&sized(size)], Corrupt, message);
    }
    let message = "member 'big.txt' at byte 0 cannot have 18446744073709551615 bytes";
    let most = sized(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    assert_refused(&[&most], Corrupt, message);
    let large = sized(b"\x80\0\0\0\0\0\0\x01\0\0\0\0");
    assert_refused(&[&large], LimitExceeded, "has more than 4 GiB");
    let long = patched(member(b'x', "x", b""), 124, b"00077777777\0");
    assert_refused(
        &[&long],
        LimitExceeded,
        "the extended header at byte 0 is too long",
    );
    // Large, but possible: it is only not there.
    let absent = sized(b"37777770000\0");
    assert_eq!(scanned(&absent).unwrap_err().kind(), Corrupt);
}

/// A small shard as we write it, and what it holds.
fn shard() -> (Vec<u8>, Vec<Plain>) {
    let mut writer = Box::<WdsWriter>::default();
    let mut samples = Vec::new();
    let fields = ["cls", "jpg", "json"].map(|name| Field::new(name, Kind::Bytes));
    let long = "folder/".repeat(20);
    for (index, key) in [
        "a",
        "b/c",
        &format!("{long}d"),
        &format!("caf\u{e9}{}", "e".repeat(200)),
    ]
    .iter()
    .enumerate()
    {
        let data = [vec![b'0' + index as u8], vec![0xff; 500 + 20 * index], Vec::new()];
        let sample: Vec<_> = fields.iter().zip(data.iter().map(Vec::as_slice)).collect();
        let bytes = writer.bytes_with(SampleRef { key, fields: &sample });
        writer.add(SampleRef { key, fields: &sample }).unwrap();
        let named = fields.iter().map(|field| field.name.clone());
        samples.push(((*key).to_owned(), named.zip(data.clone()).collect()));
        assert!(bytes >= writer.bytes_with(SampleRef { key, fields: &[] }));
    }
    (writer.finish().unwrap().to_vec(), samples)
}

#[test]
fn every_truncation_is_seen_or_leaves_whole_samples() {
    let (bytes, samples) = shard();
    assert_eq!(plain(&scanned(&bytes).unwrap(), &bytes), samples);
    let mut prefixes = 0;
    // Cut behind one of the first sample's fields, nothing tells that others followed.
    let first_len = 3 * BLOCK_BYTES + 2 * BLOCK_BYTES;
    let ambiguous = [2 * BLOCK_BYTES, 4 * BLOCK_BYTES];
    for len in 0..bytes.len() {
        match scan(&bytes[..len], 700) {
            Ok(table) if ambiguous.contains(&len) => assert_eq!(table.samples(), 1),
            Ok(table) => {
                let found = plain(&table, &bytes[..len]);
                assert!(len >= first_len && samples.starts_with(&found), "cut at {len}");
                prefixes += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "cut at {len}");
                let text = error.to_string();
                assert!(
                    len == 0 || text.contains(&format!("ends at byte {len}")),
                    "{text}"
                );
            }
        }
    }
    let members_end = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
    assert!(prefixes > samples.len() && prefixes < bytes.len() - members_end + samples.len());
}

#[test]
fn every_flipped_bit_in_headers_is_seen_or_changes_nothing() {
    let (bytes, samples) = shard();
    let table = scanned(&bytes).unwrap();
    let starts = rows(&table).starts.clone();
    let mut seen = 0;
    for start in starts {
        for bit in 0..BLOCK_BYTES * 8 {
            let mut damaged = bytes.clone();
            damaged[start as usize + bit / 8] ^= 1 << (bit % 8);
            match scan(&damaged, usize::MAX) {
                Ok(table) => assert_eq!(plain(&table, &damaged), samples, "bit {bit} at {start}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > samples.len() * (BLOCK_BYTES - 8) * 8, "{seen}");
}

#[test]
fn a_member_in_truncated_data_is_named() {
    let bytes = [file("a.txt", "1"), file("b.txt", &"x".repeat(600))].concat();
    for (len, left) in [(1536, 1024), (2200, 360), (2559, 1)] {
        let error = scanned(&bytes[..len]).unwrap_err();
        let message = format!("ends at byte {len}, inside member 'b.txt', {left} bytes before its end");
        assert!(error.to_string().contains(&message), "{error}");
        assert!(error.hint().is_some());
    }
    let long = member(b'L', "L", &[b'x'; 600]);
    for (len, message) in [
        (1100, "inside an extended header"),
        (1536, "inside a header"),
        (2000, "inside a header"),
    ] {
        let bytes = [long.clone(), file("b.txt", "")].concat();
        let error = scanned(&bytes[..len]).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn keys_and_fields_that_would_not_come_back_are_refused() {
    let cases: [(&str, &[&str], &str); 21] = [
        ("", &["txt"], "key '' is empty"),
        ("a.b", &["txt"], "key 'a.b' would be cut"),
        ("a/.b", &["txt"], "would be cut"),
        ("a.d/", &["txt"], "would be cut"),
        ("a\0b", &["txt"], "holds a NUL"),
        ("/a", &["txt"], "leads out"),
        ("a/../b", &["txt"], "leads out"),
        ("..", &["txt"], "leads out"),
        ("__x__/a", &["txt"], "taken for metadata"),
        ("__x", &["y__"], "taken for metadata"),
        ("a", &["TXT"], "field 'TXT' of sample 'a' has upper-case"),
        ("a", &["b/txt"], "holds a slash"),
        ("a", &["b\0"], "a NUL"),
        ("a", &["__key__"], "means something else"),
        ("a", &["__url__"], "means something else"),
        ("a", &["__bad__"], "means something else"),
        ("a", &["__local_path__"], "means something else"),
        ("a", &["txt", "cls", "txt"], "field 'txt' is in sample 'a' twice"),
        ("a", &[], "has no fields"),
        (&"k".repeat(5000), &["txt"], "too long a name"),
        ("before", &["txt"], "two samples with key 'before' in a row"),
    ];
    for (key, names, message) in cases {
        let mut writer = Box::<WdsWriter>::default();
        let text = Field::new("txt", Kind::Text);
        let before = SampleRef {
            key: "before",
            fields: &[(&text, b"x")],
        };
        writer.add(before).unwrap();
        let fields: Vec<_> = names.iter().map(|name| Field::new(*name, Kind::Bytes)).collect();
        let fields: Vec<_> = fields.iter().map(|field| (field, &b"x"[..])).collect();
        let error = writer.add(SampleRef { key, fields: &fields }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(message), "{error}");
        // Nothing of it was written.
        let bytes = writer.finish().unwrap();
        assert_eq!(scanned(&bytes).unwrap().samples(), 1);
        assert_eq!(bytes.len(), 10_240);
    }
}

#[test]
fn keys_that_look_odd_but_come_back_are_written() {
    let keys = ["./a", "a b", "a.d/b", "__a__", "a/", "a\nb", "..a", "\u{e9}"];
    let keys = keys
        .iter()
        .filter(|key| super::names::split(&format!("{key}.x")).is_some());
    let mut writer = Box::<WdsWriter>::default();
    let text = Field::new("", Kind::Text);
    let mut expected = Vec::new();
    for key in keys {
        writer
            .add(SampleRef {
                key,
                fields: &[(&text, b"x")],
            })
            .unwrap();
        expected.push(((*key).to_owned(), vec![(String::new(), b"x".to_vec())]));
    }
    let bytes = writer.finish().unwrap();
    assert_eq!(plain(&scanned(&bytes).unwrap(), &bytes), expected);
    assert_eq!(expected.len(), 7, "all but the one that begins with dots");
}

#[test]
fn too_many_fields_are_refused() {
    let members: Vec<u8> = (0..5000)
        .flat_map(|index| file(&format!("a.f{index}"), ""))
        .collect();
    let error = scan(&members, usize::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}
