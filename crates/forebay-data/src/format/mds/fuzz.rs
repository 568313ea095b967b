//! What the fuzzer feeds: shards as they are and shards with a good header, index.json, encoded values, whole-shard compressions.

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key};

use super::{Encoding, Index, Mds};
use crate::codec::{Codec, Decoder};
use crate::format::scan_bytes;
use crate::format::value::Value;

/// A header that any bytes may follow.
const CONFIG: &[u8] = br#"{"column_encodings":["str","int","ndarray","pkl"],"column_names":["a","b","c","d"],"column_sizes":[null,8,null,null],"compression":null,"format":"mds","version":2}"#;

/// Decoding stops there: more would only be slow.
const RAW_BYTES_MAX: usize = 1 << 20;

pub(super) fn run(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let step = usize::from(*first) + 1;
    // What others wrote, with which a fuzzer begins, says nothing of steps.
    for bytes in [bytes, rest] {
        run_cut(bytes, step);
    }
}

/// The bytes, and the same in pieces of `step`.
fn run_cut(bytes: &[u8], step: usize) {
    scan(bytes, step);
    scan(&with_header(bytes), step);
    if let Ok(index) = Index::parse(bytes) {
        let text = index.to_json().expect("an index has a text");
        assert_eq!(Index::parse(&text).expect("it is one"), index);
        if let Some(entry) = index.shards.first() {
            let key = entry.stored().key.clone();
            let bytes = entry.stored().bytes;
            let _ = Mds::new().with_index(&Key::ROOT, index).scan_file(&key, bytes);
        }
    }
    for name in ["ndarray", "ndarray:int16", "pil", "jpeg_array", "list[png]"] {
        if let Ok(Value::Array(array)) = Value::open(&format!("mds:{name}"), bytes) {
            let elements: u64 = array.shape.iter().product();
            assert_eq!(elements * array.dtype.bytes(), array.values.len() as u64);
        }
    }
    if let Ok(encoding) =
        std::str::from_utf8(bytes).map_or(Err(()), |name| Encoding::parse(name).map_err(drop))
    {
        assert_eq!(
            Encoding::parse(&encoding.to_string()).expect("its own name"),
            encoding
        );
    }
    for codec in [
        Codec::Brotli,
        Codec::Bzip2,
        Codec::Snappy,
        Codec::Zstd,
        Codec::Gzip,
        Codec::Zlib,
    ] {
        decode(codec, bytes, step);
    }
}

/// What a scan accepts holds together, and does not depend on how the bytes are cut.
fn scan(bytes: &[u8], step: usize) {
    let key = Key::parse("shard.mds.gz").expect("a name");
    let pass = |step| {
        let scan = Mds::new().allow_pickle().scan_file(&key, 1).expect("no index");
        scan_bytes(Box::new(scan), &Bytes::copy_from_slice(bytes), step)
    };
    let (whole, cut) = (pass(usize::MAX), pass(step));
    assert_eq!(whole.is_ok(), cut.is_ok());
    if let (Ok(whole), Ok(cut)) = (whole, cut) {
        whole
            .check(bytes.len() as u64)
            .expect("a table that holds together");
        assert_eq!(whole, cut);
    }
}

/// A shard whose samples have the lengths that the first bytes say, and whose content is the rest.
fn with_header(bytes: &[u8]) -> Vec<u8> {
    let (count, rest) = bytes
        .split_first()
        .map_or((0, bytes), |(first, rest)| (first & 15, rest));
    let (lens, body) = rest.split_at(usize::from(count).min(rest.len()));
    let mut shard = (lens.len() as u32).to_le_bytes().to_vec();
    let mut offset = (4 * (lens.len() + 2) + CONFIG.len()) as u32;
    shard.extend(offset.to_le_bytes());
    for len in lens {
        offset += u32::from(*len);
        shard.extend(offset.to_le_bytes());
    }
    shard.extend_from_slice(CONFIG);
    shard.extend_from_slice(body);
    shard
}

pub(crate) fn decode(codec: Codec, stored: &[u8], step: usize) {
    let pass = |step: usize| {
        let mut raw = Vec::new();
        let mut sink = |bytes: &[u8]| {
            raw.extend_from_slice(bytes);
            if raw.len() > RAW_BYTES_MAX {
                return Err(Error::new(ErrorKind::LimitExceeded, "fuzz", ""));
            }
            Ok(())
        };
        let mut decoder = Decoder::new(codec);
        for piece in stored.chunks(step) {
            decoder.feed(piece, &mut sink)?;
        }
        let bytes = decoder.finish(&mut sink)?;
        assert_eq!(bytes, raw.len() as u64);
        Ok::<_, Error>(raw)
    };
    let (whole, cut) = (pass(usize::MAX), pass(step));
    assert_eq!(whole.is_ok(), cut.is_ok(), "{codec:?}");
    if let (Ok(whole), Ok(cut)) = (whole, cut) {
        assert!(whole == cut, "{codec:?}");
    }
}
