//! Manifests: pinned, round trips, hostile bytes, and how little of them is read.

use forebay_core::{Limits, Rng, Seed, crc32c};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::wrap::{Counted, Op};
use forebay_store::{MemoryStore, ObjectMeta, PutOptions, StoreExt};
use proptest::prelude::*;

use super::*;
use crate::codec::Codec;
use crate::format::Tabulated;
use crate::schema::{Dtype, Field, Kind};
use crate::table::{CHUNKS_MAX, Footer, Group, Groups, Keys, Samples, Spans, TableBuilder};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/manifest/v2.fbi");

/// Of a format that was never released.
const UNRELEASED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/manifest/v1.fbi");

fn context() -> Context {
    let config = DiskConfig {
        limits: Limits {
            buffer_bytes_max: 64 << 20,
            ..Limits::default()
        },
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

fn meta(key: &str, size: u64) -> ObjectMeta {
    ObjectMeta {
        key: Key::parse(key).unwrap(),
        size,
        version: Some("v1".to_owned()),
        modified: None,
        checksum: None,
        permissions: None,
    }
}

fn tabulated(table: Table, raw_bytes: u64, codec: Codec) -> Tabulated {
    let sha256 = [raw_bytes as u8; 32];
    let ledger = Ledger::default();
    Tabulated {
        has_sums: false,
        are_types_inferred: false,
        table,
        sha256,
        raw_bytes,
        codec,
        ledger,
    }
}

/// Two samples with keys, three fields, one of which is absent in one of them.
fn samples_table() -> Table {
    let label = Kind::Array {
        dtype: Dtype::Int64,
        shape: vec![2, 3],
    };
    let mut builder = TableBuilder::new(vec![Field::new("jpg", Kind::Image), Field::new("cls", label)]);
    builder.begin(512, Some("a/0001")).unwrap();
    builder.absorb(b"header..pixels..12");
    builder.field(0, 520, 8).unwrap();
    builder.field(1, 528, 2).unwrap();
    builder.end().unwrap();
    builder.begin(600, Some("b\u{e9}")).unwrap();
    builder.absorb(b"xyz");
    builder.field(0, 600, 3).unwrap();
    builder.end().unwrap();
    builder.finish().unwrap()
}

fn groups_table() -> Table {
    let group = |start, len, samples| Group {
        extent: Span::at(start, len).unwrap(),
        samples,
    };
    Table {
        fields: samples_table().fields,
        layout: Layout::Groups(Groups {
            footer: Footer {
                extent: Span::at((1 << 34) - 508, 500).unwrap(),
                crc: 0x0102_0304,
            },
            list: vec![group(4, 100, 1000), group(104, 1 << 33, 17)],
            chunk_crcs: vec![77, 0, u32::MAX, 0x8040_2010],
        }),
    }
}

fn empty_table() -> Table {
    TableBuilder::new(Vec::new()).finish().unwrap()
}

async fn golden() -> Manifest {
    let spec = FormatSpec::new("test")
        .with("tokens", 2048)
        .with("dtype", "uint16");
    let mut writer = ManifestWriter::in_memory(spec, "mem://golden");
    let add = [
        (
            meta("train/000000.tar", 700),
            tabulated(samples_table(), 700, Codec::None),
        ),
        (
            meta("train/odd \\ name.tar.gz", 60),
            tabulated(samples_table(), 1024, Codec::Gzip),
        ),
        (
            meta("groups.parquet", 1 << 34),
            tabulated(groups_table(), 1 << 34, Codec::None),
        ),
        (meta("empty", 0), tabulated(empty_table(), 0, Codec::None)),
    ];
    for (meta, tabulated) in &add {
        writer.add(meta, tabulated).await.unwrap();
    }
    writer.finish().await.unwrap()
}

fn bytes_of(manifest: &Manifest) -> Bytes {
    match &*manifest.0.sections {
        Sections::Memory(pieces) => pieces.concat().into(),
        Sections::Object { .. } => unreachable!(),
    }
}

/// Everything a manifest says.
async fn contents(manifest: &Manifest) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for number in 0..manifest.shards().len() {
        tables.push(Table::clone(&*manifest.table(number).await?));
    }
    Ok(tables)
}

#[tokio::test]
async fn a_file_of_format_2_is_readable_for_ever() {
    let bytes = std::fs::read(GOLDEN).unwrap();
    let manifest = Manifest::from_bytes(bytes.into()).await.unwrap();
    let expected = golden().await;
    assert_eq!(manifest.0.directory.spec, expected.0.directory.spec);
    assert_eq!(manifest.schema(), expected.schema());
    assert_eq!(manifest.samples(), 2 + 2 + 1017);
    let sums = sha256sums(&[Shard {
        sha256: manifest.fingerprint(),
        ..manifest.shards()[0].clone()
    }]);
    assert_eq!(
        &sums[..64],
        "3cca1c7d1d3848d81e3b5ec6d47b1f471dd5c29dff84d1162af283330bda208a"
    );
    assert_eq!(manifest.fingerprint(), expected.fingerprint());
    assert_eq!(manifest.origin(), digest_u64("mem://golden"));
    assert_eq!(
        contents(&manifest).await.unwrap(),
        [samples_table(), samples_table(), groups_table(), empty_table()]
    );
    for (shard, expected) in manifest.shards().iter().zip(expected.shards()) {
        // How a section compresses may change; what is in it may not.
        let section = expected.section;
        assert_eq!(
            *expected,
            Shard {
                section,
                ..shard.clone()
            }
        );
    }
    assert_eq!(manifest.shards()[1].codec, Codec::Gzip);
    assert_eq!(manifest.shards()[2].groups, [1000, 17]);
}

/// Writes the pinned file. Run by hand, once for each format.
#[tokio::test]
#[ignore = "writes the pinned file"]
async fn write_golden() {
    std::fs::write(GOLDEN, bytes_of(&golden().await)).unwrap();
}

#[tokio::test]
async fn a_file_of_format_1_is_refused_by_name() {
    let bytes = std::fs::read(UNRELEASED).unwrap();
    let error = Manifest::from_bytes(bytes.into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(
        error.message(),
        "this manifest has format 1, and this version of Forebay knows format 2"
    );
    assert!(error.hint().unwrap().contains("forebay index --force"), "{error}");
}

#[tokio::test]
async fn another_format_is_refused_with_advice() {
    let bytes = bytes_of(&golden().await);
    for format in [0u32, 1, 3, u32::MAX] {
        let mut changed = bytes.to_vec();
        let at = changed.len() - TRAILER_BYTES as usize;
        changed[at + 8..at + 12].copy_from_slice(&format.to_le_bytes());
        let error = Manifest::from_bytes(changed.into()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("format {format}")), "{error}");
        assert!(error.hint().unwrap().contains("forebay index"));
    }
}

#[tokio::test]
async fn every_truncation_and_every_kind_of_flip_is_seen() {
    let manifest = golden().await;
    let bytes = bytes_of(&manifest);
    let expected = contents(&manifest).await.unwrap();
    for len in 0..bytes.len() {
        assert!(
            Manifest::from_bytes(bytes.slice(..len)).await.is_err(),
            "cut to {len}"
        );
    }
    let (mut refused, mut identical) = (0, 0);
    let mut rng = Seed(1).rng();
    for _ in 0..2000 {
        let mut changed = bytes.to_vec();
        let bit = below(&mut rng, changed.len() as u64 * 8);
        changed[(bit / 8) as usize] ^= 1 << (bit % 8);
        let opened = match Manifest::from_bytes(changed.into()).await {
            Ok(opened) => contents(&opened).await.map(|tables| (opened, tables)),
            Err(error) => Err(error),
        };
        match opened {
            Err(_) => refused += 1,
            Ok((opened, tables)) => {
                assert_eq!(opened.0.directory, manifest.0.directory, "bit {bit}");
                assert_eq!(tables, expected, "bit {bit}");
                identical += 1;
            }
        }
    }
    println!("of 2000 flipped bits, {refused} were refused and {identical} changed nothing");
    assert_eq!((refused, identical), (2000, 0), "every byte is under a checksum");
}

fn below(rng: &mut Rng, bound: u64) -> u64 {
    let mut bytes = [0; 8];
    rng.fill(&mut bytes);
    u64::from_le_bytes(bytes) % bound
}

/// The golden manifest with a change of its directory that has all its checksums right.
async fn forged(change: impl FnOnce(&mut Directory)) -> Result<Manifest> {
    let manifest = golden().await;
    let mut directory = manifest.0.directory.clone();
    let old_end = directory.encode(0)?.len();
    change(&mut directory);
    let bytes = bytes_of(&manifest);
    let at = bytes.len() - old_end;
    let mut forged = bytes[..at].to_vec();
    forged.extend(directory.encode(at as u64)?);
    Manifest::from_bytes(forged.into()).await
}

#[tokio::test]
async fn a_directory_that_lies_is_refused() {
    assert!(forged(|_| {}).await.is_ok());
    let refused = [
        forged(|directory| directory.shards[1].key = directory.shards[0].key.clone()).await,
        forged(|directory| directory.shards[0].key = Key::ROOT).await,
        forged(|directory| directory.shards[2].groups[0] = 1).await,
        forged(|directory| directory.shards[0].section.span = Span::at(0, 30).unwrap()).await,
        forged(|directory| directory.shards[0].section.span = Span::at(16, 1 << 40).unwrap()).await,
        forged(|directory| directory.shards[0].section.raw_bytes = u32::MAX).await,
    ];
    for (number, result) in refused.into_iter().enumerate() {
        assert!(result.is_err(), "{number}");
    }
    // What only shows when a section is read.
    let late = [
        forged(|directory| directory.shards[0].samples = 3).await,
        forged(|directory| {
            (directory.shards[0].raw_bytes, directory.shards[0].stored_bytes) = (602, 602);
        })
        .await,
        forged(|directory| directory.shards[0].section.raw_bytes += 1).await,
        forged(|directory| directory.shards[0].section.raw_bytes -= 1).await,
        forged(|directory| directory.schema = Schema::default()).await,
        forged(|directory| directory.shards[0].section = directory.shards[2].section).await,
    ];
    for (number, result) in late.into_iter().enumerate() {
        let error = result.unwrap().table(0).await.unwrap_err();
        assert!(
            error.to_string().contains("train/000000.tar"),
            "{number}: {error}"
        );
    }
}

#[tokio::test]
async fn counts_that_claim_too_much_are_refused_without_memory() {
    let bytes = bytes_of(&golden().await);
    // Shards and samples in the trailer, with its checksum made right.
    for (offset, value) in [
        (40, u64::MAX),
        (40, 1 << 40),
        (40, 5),
        (48, 0),
        (32, 1 << 50),
        (24, u64::MAX),
    ] {
        let mut changed = bytes.to_vec();
        let at = changed.len() - TRAILER_BYTES as usize;
        changed[at + offset..at + offset + 8].copy_from_slice(&value.to_le_bytes());
        let crc = crc32c(&changed[at..at + 92]);
        changed[at + 92..].copy_from_slice(&crc.to_le_bytes());
        assert!(Manifest::from_bytes(changed.into()).await.is_err(), "{offset}");
    }
    // A section that claims four billion samples, groups, and bytes of keys.
    for layout in [0u8, 1] {
        let mut raw = vec![layout];
        raw.extend(2u32.to_le_bytes());
        raw.extend(b"[]");
        raw.extend(u32::MAX.to_le_bytes());
        raw.extend([0; 64]);
        assert!(section::decode_raw(&raw).is_err());
    }
}

/// A section of groups, with whatever it claims.
fn groups_section(fields: &[u8], groups: u32, footer: (u64, u64), rest: usize) -> Vec<u8> {
    let mut raw = vec![1];
    raw.extend((fields.len() as u32).to_le_bytes());
    raw.extend(fields);
    raw.extend(groups.to_le_bytes());
    raw.extend(footer.0.to_le_bytes());
    raw.extend(footer.1.to_le_bytes());
    raw.extend([0; 4]);
    raw.extend(vec![0; rest]);
    raw
}

#[test]
fn chunks_that_are_not_there_are_refused() {
    let fields = serde_json::to_vec(&samples_table().fields).unwrap();
    let read = |groups, footer, rest| section::decode_raw(&groups_section(&fields, groups, footer, rest));
    // Two groups of two fields.
    assert!(read(2, (0, 5), 2 * 24 + 4 * 4).is_ok());
    for rest in [0, 24, 2 * 24, 2 * 24 + 4 * 4 - 1, 2 * 24 + 4 * 4 + 1, 4 * 24] {
        let error = read(2, (0, 5), rest).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{rest}");
    }
    let error = read(2, (u64::MAX, 2), 2 * 24 + 4 * 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "the footer");
    for groups in [(CHUNKS_MAX / 2 + 1) as u32, u32::MAX] {
        let error = read(groups, (0, 5), 1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{groups}");
        assert!(error.message().contains("column chunks"), "{error}");
    }
    // What is readable but lies outside of its shard.
    let mut table = groups_table();
    table.check(1 << 34).unwrap();
    assert!(table.check((1 << 34) - 9).is_err());
    table.fields.pop();
    assert!(table.check(1 << 34).is_err());
}

#[test]
fn a_section_that_is_a_bomb_is_refused() {
    let zeros = vec![0; 1 << 20];
    let stored = zstd::encode_all(&zeros[..], 19).unwrap();
    let section = |raw_bytes| section::Section {
        span: Span::first(stored.len() as u64),
        raw_bytes,
        crc: crc32c(&stored),
    };
    // Decompression stops at what the directory says, which must be plausible.
    assert!(section::decode(&stored, &section(1 << 10)).is_err());
    let error = section::decode(&stored, &section(1 << 31)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[tokio::test]
async fn a_billion_samples_open_with_two_reads_and_no_section() {
    const SHARDS: u64 = 15_000;
    const SAMPLES: u64 = 1_000_000_000;
    let samples = (SAMPLES / SHARDS) as usize;
    let table = Table {
        fields: vec![Field::new("tokens", Kind::Bytes)],
        layout: Layout::Samples(Samples {
            starts: (0..samples as u64).map(|index| index * 4096).collect(),
            lens: vec![4096; samples],
            crcs: (0..samples as u32)
                .map(|index| index.wrapping_mul(2_654_435_761))
                .collect(),
            keys: Keys::Numbered,
            columns: vec![Spans::from_parts(vec![0; samples], vec![4096; samples]).unwrap()],
        }),
    };
    let raw_bytes = samples as u64 * 4096;
    let mut writer = ManifestWriter::in_memory(FormatSpec::new("tokens"), "test");
    let first = meta("000000.bin", raw_bytes);
    writer
        .add(&first, &tabulated(table.clone(), raw_bytes, Codec::None))
        .await
        .unwrap();
    let one = writer.finish().await.unwrap();
    // All shards share the section of the first, which makes the file small; opening does not look at any.
    let mut directory = one.0.directory.clone();
    let shard = directory.shards[0].clone();
    directory.shards = (0..SHARDS)
        .map(|number| {
            let mut shard = shard.clone();
            shard.key = Key::parse(&format!("train/shard-{number:06}.bin")).unwrap();
            shard.samples += u64::from(number < SAMPLES % SHARDS);
            shard
        })
        .collect();
    let end = shard.section.span.end();
    let mut bytes = bytes_of(&one).slice(..end as usize).to_vec();
    let tail = directory.encode(end).unwrap();
    let directory_bytes = tail.len() as u64;
    bytes.extend(tail);
    let (store, context) = (MemoryStore::new(), context());
    let key = Key::parse(MANIFEST_NAME).unwrap();
    store
        .put_bytes(&key, &bytes, &PutOptions::default())
        .await
        .unwrap();
    let counted = Counted::new(Arc::new(store));
    let manifest = Manifest::open(Arc::new(counted.clone()), &key, &context)
        .await
        .unwrap();
    assert_eq!((manifest.samples(), manifest.shards().len()), (SAMPLES, 15_000));
    let counts = counted.counts();
    assert_eq!(counts.of(Op::Read).requests, 2);
    assert_eq!(counts.of(Op::Read).bytes, directory_bytes);
    assert!(directory_bytes < 3 << 20, "{directory_bytes}");
    assert_eq!(counts.total().requests, 3, "and one look at its size");
    // One section is one read.
    assert_eq!(*manifest.table(14_999).await.unwrap(), table);
    assert_eq!(counted.counts().of(Op::Read).requests, 3);
    manifest.table(14_999).await.unwrap();
    assert_eq!(counted.counts().of(Op::Read).requests, 3, "kept");
    println!(
        "directory {directory_bytes} bytes, section {} bytes for {samples} samples",
        shard.section.span.len()
    );
}

#[test]
fn tables_are_kept_within_their_bound() {
    let table = Arc::new(samples_table());
    let one = memory_bytes(&table);
    let tables = Kept::within(3 * one);
    let has = |shard| tables.cell(shard).initialized();
    let load = |shard| {
        let cell = tables.cell(shard);
        cell.set(Arc::clone(&table)).unwrap();
        tables.used(shard, one);
        tables.used(shard, one);
    };
    (0..3).for_each(load);
    assert_eq!(tables.bytes(), 3 * one);
    assert!(has(0), "used again, so it stays");
    load(3);
    assert_eq!(tables.bytes(), 3 * one);
    assert!(
        has(0) && has(2) && has(3) && !has(1),
        "the one used longest ago went"
    );
    // One that is being read is not let go, nor is the one that was just asked for.
    let small = Kept::within(1);
    let cell = small.cell(7);
    cell.set(Arc::clone(&table)).unwrap();
    small.used(7, one);
    assert_eq!(small.bytes(), one);
}

#[tokio::test]
async fn a_part_of_a_data_set_is_one_of_its_own() {
    let manifest = golden().await;
    let part = manifest.select(&[2, 0]).unwrap();
    assert_eq!(part.shards()[1], manifest.shards()[0]);
    assert_eq!(contents(&part).await.unwrap(), [groups_table(), samples_table()]);
    assert_ne!(part.fingerprint(), manifest.fingerprint());
    assert_eq!(
        manifest.select(&[0, 1, 2, 3]).unwrap().fingerprint(),
        manifest.fingerprint()
    );
    assert!(manifest.select(&[4]).is_err());
}

#[test]
fn names_in_sums_are_escaped_as_coreutils_do() {
    let shard = |key: &str| Shard {
        key: Key::parse(key).unwrap(),
        stored_bytes: 0,
        raw_bytes: 0,
        codec: Codec::None,
        sha256: [0xab; 32],
        samples: 0,
        groups: Vec::new(),
        version: 0,
        section: section::Section {
            span: Span::first(0),
            raw_bytes: 0,
            crc: 0,
        },
    };
    let hex = "ab".repeat(32);
    let text = sha256sums(&[shard("a b"), shard("x\\y\nz\r")]);
    assert_eq!(text, format!("{hex}  a b\n\\{hex}  x\\\\y\\nz\\r\n"));
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Bytes),
        Just(Kind::Varints),
        Just(Kind::List {
            dtype: Dtype::Bfloat16
        }),
        prop::collection::vec(0u64..5, 0..3).prop_map(|shape| Kind::Array {
            dtype: Dtype::Uint16,
            shape
        }),
        "[a-z:]{0,8}".prop_map(|encoding| Kind::Encoded { encoding }),
    ]
}

fn any_samples(fields: Vec<Kind>) -> impl Strategy<Value = Table> {
    let width = fields.len();
    let sample = (
        0u64..1 << 40,
        any::<u16>(),
        any::<u32>(),
        ".{0,6}",
        prop::collection::vec(prop::option::of((any::<u16>(), any::<u16>())), width),
    );
    let samples = prop::collection::vec(sample, 0..20);
    (samples, any::<bool>()).prop_map(move |(rows, has_keys)| {
        let mut samples = Samples::default();
        let mut columns = vec![(Vec::new(), Vec::new()); width];
        let (mut at, mut text, mut ends) = (0, String::new(), Vec::new());
        for (gap, len, crc, key, cells) in rows {
            samples.starts.push(at + gap);
            samples.lens.push(u32::from(len));
            samples.crcs.push(crc);
            at += gap + u64::from(len);
            text += &key;
            ends.push(text.len() as u32);
            for (column, cell) in columns.iter_mut().zip(cells) {
                let (start, len) = cell.map_or((0, u32::MAX), |(start, field_len)| {
                    let start = start.min(len);
                    (u32::from(start), u32::from(field_len.min(len - start)))
                });
                column.0.push(start);
                column.1.push(len);
            }
        }
        if has_keys {
            samples.keys = Keys::Named { text, ends };
        }
        samples.columns = columns
            .into_iter()
            .map(|(starts, lens)| Spans::from_parts(starts, lens).unwrap())
            .collect();
        let named = fields.iter().enumerate();
        Table {
            fields: named
                .map(|(index, kind)| Field::new(format!("f{index}"), kind.clone()))
                .collect(),
            layout: Layout::Samples(samples),
        }
    })
}

fn any_groups(fields: Vec<Kind>) -> impl Strategy<Value = Table> {
    let crcs = prop::collection::vec(any::<u32>(), fields.len());
    let group = (0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 50, crcs);
    let footer = (0u64..1 << 58, 0u64..1 << 30, any::<u32>());
    (prop::collection::vec(group, 0..12), footer).prop_map(move |(list, (start, len, crc))| {
        let mut groups = Groups {
            footer: Footer {
                extent: Span::at(start, len).unwrap(),
                crc,
            },
            ..Groups::default()
        };
        let mut at = 0;
        for (gap, len, samples, crcs) in list {
            let extent = Span::at(at + gap, len).unwrap();
            at = extent.end();
            groups.list.push(Group { extent, samples });
            groups.chunk_crcs.extend(crcs);
        }
        let named = fields.iter().enumerate();
        Table {
            fields: named
                .map(|(index, kind)| Field::new(format!("f{index}"), kind.clone()))
                .collect(),
            layout: Layout::Groups(groups),
        }
    })
}

/// Sizes that would make whoever believes them ask for more memory than there is.
#[tokio::test]
async fn sizes_that_no_shard_can_have_are_refused() {
    for (codec, stored_bytes, raw_bytes) in [
        (Codec::Gzip, 1 << 10, 15 << 40),
        (Codec::Zstd, 1 << 10, (256 << 20) + 1),
        (Codec::Zstd, 1 << 40, (64 << 30) + 1),
        (Codec::Gzip, 1 << 63, 1 << 20),
        (Codec::Gzip, 1 << 10, 1 << 63),
        (Codec::None, 1 << 63, 1 << 63),
        (Codec::None, u64::MAX, u64::MAX),
        (Codec::None, 1 << 10, 2 << 10),
        (Codec::None, 2 << 10, 1 << 10),
    ] {
        let mut writer = ManifestWriter::in_memory(FormatSpec::new("wds"), "test");
        let tabulated = tabulated(samples_table(), raw_bytes, codec);
        writer.add(&meta("a", stored_bytes), &tabulated).await.unwrap();
        let written = bytes_of(&writer.finish().await.unwrap());
        let error = Manifest::from_bytes(written).await.unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Corrupt,
            "{codec:?} {stored_bytes} {raw_bytes}"
        );
        assert!(error.to_string().contains("\"a\""), "{error}");
    }
}

fn any_tables() -> impl Strategy<Value = Vec<Table>> {
    let kinds = prop::collection::vec(any_kind(), 0..4);
    kinds.prop_flat_map(|kinds| {
        let table = prop_oneof![any_samples(kinds.clone()), any_groups(kinds)];
        prop::collection::vec(table, 0..4)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_written_is_read_again(tables in any_tables(), names in "[a-z]{1,4}") {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut writer = ManifestWriter::in_memory(FormatSpec::new(names.as_str()), "test");
            for (number, table) in tables.iter().enumerate() {
                let meta = meta(&format!("{names}/{number}"), 1 << 60);
                let tabulated = tabulated(table.clone(), 1 << 60, Codec::None);
                writer.add(&meta, &tabulated).await.unwrap();
            }
            let written = writer.finish().await.unwrap();
            let read = Manifest::from_bytes(bytes_of(&written)).await.unwrap();
            assert_eq!(read.0.directory, written.0.directory);
            assert_eq!(read.fingerprint(), written.fingerprint());
            assert_eq!(contents(&read).await.unwrap(), tables);
        });
    }
}
