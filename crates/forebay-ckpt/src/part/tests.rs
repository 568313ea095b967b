//! Parts and indexes as bytes: they come back, and hostile ones are refused without panic.

use forebay_core::{Seed, Span};
use proptest::prelude::*;

use super::*;
use crate::entry::{Alias, Codec, SliceSpec};
use crate::index::{self, Found, IndexHead, PartEntries};
use crate::names::Attempt;
use crate::tree::{named_children, open_page};
use crate::{Dtype, HashKind};

pub(crate) fn head() -> PartHead {
    PartHead {
        step: 7,
        attempt: Attempt([9; 16]),
        rank: 1,
        world: 4,
        hash: HashKind::Xxh3,
        chunk_bytes: 4096,
        raw_bytes: 100,
        written_bytes: 50,
        features: vec![],
        payloads: vec![PayloadRow {
            step: 7,
            attempt: Attempt([9; 16]),
            rank: 1,
            form: Form::Safetensors,
            bytes: 1 << 20,
            head_bytes: 4096,
            head_hash: [3; 32],
        }],
        entries: Root::default(),
        chunks: Root::default(),
        values: Root::default(),
        content_ids: Root::default(),
    }
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let dims = prop::collection::vec((0u64..1 << 20, 0u64..1 << 20, 0u64..1 << 20), 0..4);
    let slice = (prop::sample::select(&Dtype::ALL[..16]), dims, 0u64..1 << 39).prop_map(
        |(dtype, dims, first_chunk)| {
            let mut spec = SliceSpec {
                dtype,
                shape: vec![],
                offsets: vec![],
                lengths: vec![],
            };
            for (offset, length, more) in dims {
                spec.shape.push(offset + length + more);
                spec.offsets.push(offset);
                spec.lengths.push(length);
            }
            (spec, first_chunk)
        },
    );
    let slice = slice.prop_filter_map("cannot be counted", |(spec, first_chunk)| {
        spec.check().ok()?;
        Some(Content::Slice { spec, first_chunk })
    });
    let content = prop_oneof![
        4 => slice,
        1 => (0u64..1 << 40, 0u64..1 << 20).prop_map(|(start, len)| Content::Value(Span::at(start, len).unwrap())),
        1 => (0u64..1 << 40, 0u64..1 << 20).prop_map(|(start, len)| Content::Opaque(Span::at(start, len).unwrap())),
        1 => ("[a-z]{1,9}", 0u64..99).prop_map(|(target, first_element)| Content::Alias(Alias {
            target, dtype: Dtype::F32, first_element, shape: vec![3, 4], strides: vec![4, 1],
        })),
    ];
    ("[a-z.]{1,30}", content).prop_map(|(name, content)| Entry { name, content })
}

proptest! {
    #[test]
    fn entries_come_back(entry in any_entry()) {
        let mut bytes = Vec::new();
        entry.put(&mut bytes);
        let mut cursor = cursor(&bytes, "test");
        prop_assert_eq!(Entry::take(&mut cursor).unwrap(), entry);
        cursor.finish().unwrap();
    }

    #[test]
    fn accepted_entries_have_one_encoding(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut cursor = cursor(&bytes, "test");
        if let Ok(entry) = Entry::take(&mut cursor) {
            let mut again = Vec::new();
            entry.put(&mut again);
            prop_assert_eq!(&bytes[..cursor.at()], &again[..]);
        }
    }

    #[test]
    fn accepted_chunks_have_one_encoding(bytes in prop::collection::vec(any::<u8>(), 64..65), codec in 0u8..6, flag in 0u8..3) {
        let mut bytes = bytes;
        (bytes[4], bytes[5]) = (codec, flag);
        if let Ok(chunk) = ChunkRecord::take(&mut cursor(&bytes, "test")) {
            let mut again = Vec::new();
            chunk.put(&mut again);
            prop_assert_eq!(bytes, again);
        }
    }

    #[test]
    fn changed_heads_do_not_panic(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        head().put(&mut bytes);
        drop(PartHead::parse(&bytes[..cut.index(bytes.len())]).unwrap_err());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(head) = PartHead::parse(&bytes) {
            let mut again = Vec::new();
            head.put(&mut again);
            prop_assert_eq!(bytes, again);
        }
    }
}

fn part(entries: u64) -> Vec<u8> {
    let mut builder = PartBuilder::new(head());
    for number in 0..entries {
        let first_chunk = builder.next_chunk();
        let record = ChunkRecord {
            payload: 0,
            codec: Codec::Raw,
            is_sealed: false,
            parameter: 0,
            offset: 4096 + 16 * number,
            stored_bytes: 16,
            raw_bytes: 16,
            number: 0,
            hash: [number as u8; 32],
        };
        builder.push_chunk(&record, &record.hash);
        builder.push_entry(Entry {
            name: format!("tensor.{number:06}"),
            content: Content::Slice {
                spec: SliceSpec::whole(Dtype::F32, &[4]),
                first_chunk,
            },
        });
    }
    builder.finish().unwrap()
}

#[test]
fn every_bit_of_head_and_trailer_counts() {
    let file = part(1000);
    let size = file.len() as u64;
    let head = split_tail(&file, size).unwrap().unwrap();
    let parsed = PartHead::parse(head).unwrap();
    assert_eq!((parsed.entries.records, parsed.chunks.records), (1000, 1000));
    assert_eq!((parsed.entries.levels, parsed.chunks.levels), (2, 2));
    for at in file.len() - TRAILER_BYTES - head.len()..file.len() {
        for bit in 0..8 {
            let mut changed = file.clone();
            changed[at] ^= 1 << bit;
            assert!(split_tail(&changed, size).is_err(), "byte {at} bit {bit}");
        }
    }
    assert!(split_tail(&file, size + 1).is_err());
    assert_eq!(
        split_tail(&file[file.len() - 40..], size).unwrap().unwrap_err(),
        head.len() as u32
    );
    for cut in 0..TRAILER_BYTES {
        assert!(split_tail(&file[..cut], cut as u64).is_err());
    }
}

#[test]
fn hostile_heads_are_refused() {
    let refused = |change: fn(&mut PartHead), word: &str| {
        let mut head = head();
        change(&mut head);
        let mut bytes = Vec::new();
        head.put(&mut bytes);
        let error = PartHead::parse(&bytes).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(|head| head.rank = 4, "rank");
    refused(|head| head.world = WORLD_MAX + 1, "rank");
    refused(|head| head.chunk_bytes = 5000, "power of two");
    refused(|head| head.chunk_bytes = 1, "power of two");
    refused(|head| head.features = vec!["warp-drive".to_owned()], "warp-drive");
    refused(|head| head.payloads[0].head_bytes = 2 << 20, "payload");
    refused(|head| head.payloads[0].rank = WORLD_MAX, "payload");
    refused(|head| head.chunks.records = 5, "impossible");
    refused(
        |head| {
            head.chunks = Root {
                records: 5,
                levels: 2,
                top: None,
            }
        },
        "",
    );
    let mut bytes = Vec::new();
    head().put(&mut bytes);
    bytes[8] = 2;
    let error = PartHead::parse(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("format 2"), "{error}");
}

#[test]
fn hostile_entries_are_refused() {
    let refused = |content: Content, word: &str| {
        let entry = Entry {
            name: "w".to_owned(),
            content,
        };
        let mut bytes = Vec::new();
        entry.put(&mut bytes);
        let error = Entry::take(&mut cursor(&bytes, "test")).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    };
    let spec = SliceSpec::whole(Dtype::F64, &[8, 8]);
    let slice = |spec: SliceSpec| Content::Slice { spec, first_chunk: 0 };
    refused(slice(spec.cut(&[1, 0], &[8, 8])), "within its tensor");
    refused(slice(spec.cut(&[u64::MAX, 0], &[1, 8])), "within its tensor");
    refused(
        slice(SliceSpec::whole(Dtype::F64, &[u64::MAX, u64::MAX])),
        "64 bits",
    );
    refused(
        slice(SliceSpec::whole(Dtype::F64, &[1 << 40, 1 << 30])),
        "64 bits",
    );
    refused(
        Content::Slice {
            spec,
            first_chunk: u64::MAX,
        },
        "chunk",
    );
    refused(Content::Value(Span::at(0, 1 << 40).unwrap()), "64 MiB");
}

#[test]
fn indexes_are_sorted_whatever_order_parts_come_in() {
    let mut found = Vec::new();
    for rank in 0..20u32 {
        for number in 0..50 {
            let spec = SliceSpec::whole(Dtype::F32, &[20, 4]).cut(&[u64::from(rank), 0], &[1, 4]);
            let content = Content::Slice {
                spec,
                first_chunk: number,
            };
            found.push(Found {
                rank,
                entry: Entry {
                    name: format!("model.layers.{number}"),
                    content,
                },
            });
        }
    }
    // Parts in any order; each has its own entries in theirs.
    let mut parts: Vec<PartEntries> = Vec::new();
    found.sort_by(|a, b| (a.rank, a.order()).cmp(&(b.rank, b.order())));
    for of_rank in found.chunk_by(|a, b| a.rank == b.rank) {
        let mut part = PartEntries::new(of_rank[0].rank);
        for found in of_rank {
            part.push(&found.entry);
        }
        parts.push(part);
    }
    parts.push(PartEntries::new(20));
    Seed(5).rng().shuffle(&mut parts);
    let head = IndexHead {
        step: 1,
        attempt: Attempt([1; 16]),
        world: 20,
        chunk_bytes: 4096,
        entries: Root::default(),
    };
    let index = index::encode(head, &parts).unwrap();
    let head = split_tail(&index.bytes, index.bytes.len() as u64)
        .unwrap()
        .unwrap();
    assert_eq!(
        (sha256(&[head]), head.len() as u32),
        (index.hash, index.head_bytes)
    );
    let head = IndexHead::parse(head).unwrap();
    assert_eq!(head.entries.records, 1000);
    let top = head.entries.top.unwrap();
    let page = &index.bytes[top.offset as usize..][..top.len as usize];
    let children = named_children(page, Kind::Index, head.entries.levels - 1, NAME_BYTES_MAX).unwrap();
    let mut read = Vec::new();
    for child in children {
        let page = &index.bytes[child.pointer.offset as usize..][..child.pointer.len as usize];
        let (mut cursor, records) = open_page(page, Kind::Index, 0).unwrap();
        read.extend((0..records).map(|_| Found::take(&mut cursor).unwrap()));
    }
    found.sort_by(|a, b| a.order().cmp(&b.order()));
    assert_eq!(read, found);
}
