//! Codecs: what goes in comes back however it is cut, damage and bombs are stopped.

use std::io::Write;

use super::*;
use crate::format::mds::Compression;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn compress(name: &str, bytes: &[u8]) -> Vec<u8> {
    Compression::parse(name).unwrap().compress(bytes).unwrap()
}

fn decode(codec: Codec, stored: &[u8], step: usize) -> Result<Vec<u8>> {
    let mut decoder = Decoder::new(codec);
    let mut raw = Vec::new();
    let mut sink = |bytes: &[u8]| {
        raw.extend_from_slice(bytes);
        Ok(())
    };
    for piece in stored.chunks(step) {
        decoder.feed(piece, &mut sink)?;
    }
    let bytes = decoder.finish(&mut sink)?;
    assert_eq!(bytes, raw.len() as u64);
    Ok(raw)
}

#[test]
fn every_codec_gives_back_what_went_in_however_it_is_cut() {
    let bytes: Vec<u8> = (0..1_000_000u32).map(|index| (index / 7 % 251) as u8).collect();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(&bytes).unwrap();
    let cases = [
        (Codec::None, bytes.clone()),
        (Codec::Gzip, gzip(&bytes)),
        (
            Codec::Gzip,
            [gzip(&bytes[..300_000]), gzip(&bytes[300_000..])].concat(),
        ),
        (Codec::Zlib, zlib.finish().unwrap()),
        (Codec::Brotli, compress("br:4", &bytes)),
        (Codec::Bzip2, compress("bz2", &bytes)),
        (
            Codec::Bzip2,
            [
                compress("bz2", &bytes[..300_000]),
                compress("bz2:1", &bytes[300_000..]),
            ]
            .concat(),
        ),
        (Codec::Snappy, compress("snappy", &bytes)),
        (Codec::Zstd, zstd::encode_all(&bytes[..], 1).unwrap()),
        (
            Codec::Zstd,
            [
                zstd::encode_all(&bytes[..5], 1).unwrap(),
                zstd::encode_all(&bytes[5..], 1).unwrap(),
            ]
            .concat(),
        ),
    ];
    for (codec, stored) in cases {
        for step in [1000, 70_001, usize::MAX] {
            assert!(decode(codec, &stored, step).unwrap() == bytes, "{codec:?} {step}");
        }
    }
}

#[test]
fn truncation_and_damage_are_seen() {
    let bytes = vec![7; 100_000];
    let zlib = Compression::find("zlib").unwrap().compress(&bytes).unwrap();
    for (codec, stored) in [
        (Codec::Gzip, gzip(&bytes)),
        (Codec::Zlib, zlib),
        (Codec::Zstd, compress("zstd", &bytes)),
        (Codec::Brotli, compress("br:4", &bytes)),
        (Codec::Bzip2, compress("bz2", &bytes)),
        (Codec::Snappy, compress("snappy", &bytes)),
    ] {
        for len in [1, stored.len() / 2, stored.len() - 1] {
            let error = decode(codec, &stored[..len], 100).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{codec:?} {len}");
        }
        if matches!(codec, Codec::Brotli | Codec::Snappy) {
            // They have no checksum.
            continue;
        }
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            // The highest bit: the lowest ones of the last byte of bzip2 fill it up.
            damaged[at] ^= 0x80;
            match decode(codec, &damaged, 100) {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{codec:?} {at}"),
                // Times in headers and tables that nothing refers to say nothing of the content.
                Ok(decoded) => assert!(at + 4 < stored.len() && decoded == bytes, "{codec:?} {at}"),
            }
        }
    }
}

#[test]
fn nothing_may_follow_what_is_complete() {
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(b"something").unwrap();
    for (codec, stored) in [
        (Codec::Zlib, zlib.finish().unwrap()),
        (Codec::Brotli, compress("br", b"something")),
        (Codec::Snappy, compress("snappy", b"something")),
    ] {
        let longer = [&stored[..], b"xyz"].concat();
        for step in [1, usize::MAX] {
            assert_eq!(decode(codec, &stored, step).unwrap(), b"something");
            let error = decode(codec, &longer, step).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{codec:?}");
        }
    }
}

#[test]
fn bombs_are_stopped() {
    let bytes = RATIO_FREE_BYTES + (64 << 20);
    let zeros = || std::io::Read::take(std::io::repeat(0), bytes);
    let mut brotli = Vec::new();
    let quick = brotli::enc::BrotliEncoderParams {
        quality: 2,
        ..Default::default()
    };
    brotli::BrotliCompress(&mut zeros(), &mut brotli, &quick).unwrap();
    // 45 bytes of bzip2 are 900 kB of zeros, and streams may be joined.
    let stream = compress("bz2", &vec![0; 8 << 20]);
    for (codec, stored) in [
        (Codec::Zstd, zstd::encode_all(zeros(), 1).unwrap()),
        (Codec::Brotli, brotli),
        (Codec::Bzip2, stream.repeat(40)),
    ] {
        let mut decoder = Decoder::new(codec);
        let error = decoder.feed(&stored, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{codec:?}");
    }
}

/// What deflate makes is never more than some thousand times larger, so that gzip and zlib keep within the ratio that stops other bombs. The size stops them.
#[test]
fn deflated_data_ends_at_the_largest_size() {
    let zeros = vec![0; 4 << 20];
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    zlib.write_all(&zeros).unwrap();
    for (codec, stored) in [(Codec::Gzip, gzip(&zeros)), (Codec::Zlib, zlib.finish().unwrap())] {
        assert!((zeros.len() / stored.len()) < RATIO_MAX as usize, "{codec:?}");
        // As if most of an absurdly large shard had been decompressed.
        let mut decoder = Decoder::new(codec);
        decoder.stored_bytes = RAW_BYTES_MAX / 1000;
        decoder.raw_bytes = RAW_BYTES_MAX - zeros.len() as u64 / 2;
        let mut given = 0;
        let error = decoder
            .feed(&stored, &mut |bytes| {
                given += bytes.len();
                Ok(())
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{codec:?}");
        assert!(given <= zeros.len() / 2, "{codec:?}: {given}");
        assert_eq!(
            codec.check_sizes(1 << 40, RAW_BYTES_MAX + 1).unwrap_err().kind(),
            ErrorKind::LimitExceeded
        );
    }
}

#[test]
fn the_codec_is_known_by_name_or_by_its_first_bytes() {
    let of = |name: &str, first: &[u8]| Codec::of(&Key::parse(name).unwrap(), first);
    assert_eq!(of("a.tar.gz", b""), Codec::Gzip);
    assert_eq!(of("a.tgz", b""), Codec::Gzip);
    assert_eq!(of("a.mds.zstd", b""), Codec::Zstd);
    assert_eq!(of("a.tfrecord", &gzip(b"x")), Codec::Gzip);
    assert_eq!(of("a.mds.br", b""), Codec::Brotli);
    assert_eq!(of("a.mds.snappy", b""), Codec::Snappy);
    assert_eq!(of("a.tar.bz2", b""), Codec::Bzip2);
    assert_eq!(of("a.tar", &compress("bz2:3", b"x")), Codec::Bzip2);
    assert_eq!(of("chunk-0-0.bin", b"LDFZ01\0\0\x01"), Codec::LitdataFrames);
    assert_eq!(of("a.tar", b"something"), Codec::None);
}

/// A LitData chunk of these items, each compressed by itself, and what it becomes.
fn compressed_items(items: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let count = (items.len() as u32).to_le_bytes();
    let (mut offsets, mut frames, mut raw) = (Vec::new(), Vec::new(), count.to_vec());
    let start = 4 * (items.len() + 2);
    for item in items {
        offsets.extend(((start + frames.len()) as u32).to_le_bytes());
        frames.extend(zstd::encode_all(*item, 1).unwrap());
        raw.extend_from_slice(item);
        raw.extend((item.len() as u32).to_le_bytes());
    }
    offsets.extend(((start + frames.len()) as u32).to_le_bytes());
    ([&count[..], &offsets, &frames].concat(), raw)
}

#[test]
fn items_may_end_anywhere_in_the_memory_for_what_is_given_out() {
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(OUTPUT_BYTES + 10)
    .collect();
    for len in OUTPUT_BYTES - 14..=OUTPUT_BYTES + 6 {
        let (first, second) = noise[..len].split_at(100_000);
        for items in [&[&noise[..len]][..], &[first, second], &[&noise[..len], first]] {
            let (stored, raw) = compressed_items(items);
            for step in [1000, 70_001, usize::MAX] {
                assert!(
                    decode(Codec::LitdataItems, &stored, step).unwrap() == raw,
                    "{len} {step}"
                );
            }
        }
    }
}
