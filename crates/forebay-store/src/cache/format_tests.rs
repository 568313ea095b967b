//! The format is pinned: what these bytes say today they must say for ever.

use proptest::prelude::*;

use super::*;

fn identity() -> Identity {
    Identity {
        location: "s3://bucket".to_owned(),
        key: "train/shard-0001.tar".to_owned(),
        version: Some("\"abc\"".to_owned()),
        size: 10_000_001,
        block_bytes: 4 << 20,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[test]
fn format_1_is_pinned_for_ever() {
    let identity = identity();
    assert_eq!(format!("{:?}", identity.name()), PINNED_NAME);
    let header = identity.header().unwrap();
    assert_eq!(hex(&header), PINNED_HEADER);
    assert_eq!(Identity::parse(&header), Some((identity.clone(), 128)));
    let record = |verified| {
        let crc = 0x1234_5678;
        hex(&record(&identity.seal(), 2, 1_611_393, Present { crc, verified }))
    };
    assert_eq!(record(false), PINNED_RECORD);
    assert_eq!(record(true), PINNED_RECORD_VERIFIED);
    assert_eq!(hex(&marker()), PINNED_MARKER);
    let usage = Usage {
        bytes: 1 << 40,
        generation: 7,
    };
    assert_eq!(hex(&usage.encode()), PINNED_SLOT);
}

const PINNED_NAME: &str = "54991537a75d8aa655f268861ea418ef-c05628dd931efcaf";
const PINNED_HEADER: &str = "\
    46424159434944580100000080000000819698000000000000004000000000000b000000140000000500000001000000\
    48400465821de8cb2436301dccfdb01a73333a2f2f6275636b6574747261696e2f73686172642d303030312e74617222\
    6162632200000000000000000000000000000000000000000000000016a94f40";
const PINNED_RECORD: &str = "01000000785634128196180018637452";
const PINNED_RECORD_VERIFIED: &str = "020000007856341281961800481fe601";
const PINNED_MARKER: &str = "\
    464241594344495201000000000000000000000000000000000000000000000000000000000000000000000000000000\
    00000000000000000000000057c62d3a";
const PINNED_SLOT: &str = "0000000000010000070000000000000000000000000000000000000062f1d106";

#[test]
fn a_record_belongs_to_its_entry_block_and_length() {
    let seal = identity().seal();
    for verified in [false, true] {
        let present = Present { crc: 99, verified };
        let bytes = record(&seal, 5, 4096, present);
        assert_eq!(parse_record(&seal, 5, 4096, &bytes), Some(present));
    }
    let present = Present {
        crc: 99,
        verified: true,
    };
    let mut bytes = record(&seal, 5, 4096, present);
    assert_eq!(parse_record(&seal, 6, 4096, &bytes), None);
    assert_eq!(parse_record(&seal, 5, 4095, &bytes), None);
    let other = Identity {
        version: None,
        ..identity()
    };
    assert_eq!(parse_record(&other.seal(), 5, 4096, &bytes), None);
    assert_eq!(parse_record(&seal, 5, 4096, &[0; 16]), None);
    assert_eq!(parse_record(&seal, 5, 4096, &bytes[..15]), None);
    // Neither does it become one of another kind.
    bytes[0] = 1;
    assert_eq!(parse_record(&seal, 5, 4096, &bytes), None);
}

#[test]
fn names_read_back_and_strangers_do_not() {
    let name = identity().name();
    for part in [Part::Index, Part::Data] {
        let path = name.path(Path::new("/c"), part);
        let (dir, file) = (path.parent().unwrap(), path.file_name().unwrap());
        let dir = dir.file_name().unwrap().to_str().unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(Name::parse(dir, file), Some((name, part)));
        assert_eq!(Name::parse("zz", file), None);
        assert_eq!(Name::parse(dir, &file.to_uppercase()), None);
        assert_eq!(Name::parse(dir, &format!("{file}~")), None);
        assert_eq!(Name::parse(dir, &file[1..]), None);
    }
    let other = Identity {
        version: Some("x".to_owned()),
        ..identity()
    };
    assert!(other.name() != name && other.name().same_object(&name));
    let (first, last) = Name::range_of("s3://bucket", "train/shard-0001.tar");
    assert!(first <= name && name <= last);
}

#[test]
fn markers_of_later_formats_are_told_from_broken_ones() {
    assert_eq!(parse_marker(&marker()), Marker::Ours);
    let mut later = marker();
    later[8] = 9;
    assert_eq!(parse_marker(&later), Marker::Broken);
    close(&mut later);
    assert_eq!(parse_marker(&later), Marker::Foreign(9));
    assert_eq!(parse_marker(b""), Marker::Broken);
}

#[test]
fn names_too_long_for_a_header_are_not_cached() {
    let long = Identity {
        version: Some("v".repeat(HEADER_BYTES_MAX)),
        ..identity()
    };
    assert_eq!(long.header(), None);
}

proptest! {
    #[test]
    fn headers_round_trip(location in ".{0,50}", key in ".{0,50}", version in prop::option::of(".{0,20}"), size: u64, shift in 12u32..30) {
        let identity = Identity { location, key, version, size, block_bytes: 1 << shift };
        let header = identity.header().unwrap();
        let mut longer = header.clone();
        longer.extend_from_slice(&[7; 100]);
        prop_assert_eq!(Identity::parse(&longer), Some((identity, header.len() as u64)));
    }

    #[test]
    fn no_flipped_bit_passes(bit in 0usize..128 * 8) {
        let mut header = identity().header().unwrap();
        header[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Identity::parse(&header), None);
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), front: bool) {
        let mut bytes = bytes;
        if front && bytes.len() > 16 {
            bytes[..12].copy_from_slice(&identity().header().unwrap()[..12]);
        }
        prop_assert_eq!(Identity::parse(&bytes), None);
        prop_assert_eq!(Usage::parse(&bytes).filter(|_| bytes.len() < SLOT_BYTES), None);
        parse_marker(&bytes);
    }

    #[test]
    fn blocks_tile_the_object(size in 0u64..100_000, blocks in 1u64..5) {
        let identity = Identity { size, block_bytes: blocks * 4096, ..identity() };
        let mut at = 0;
        for block in 0..identity.blocks() {
            let span = identity.block_span(block);
            prop_assert_eq!(span.start(), at);
            prop_assert!(!span.is_empty());
            at = span.end();
        }
        prop_assert_eq!(at, size);
        prop_assert!(identity.block_span(identity.blocks()).is_empty());
    }
}
