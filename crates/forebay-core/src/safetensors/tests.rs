//! Headers as files have them, as they should not have them, and against the safetensors crate.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use safetensors::tensor::{Dtype as TheirDtype, SafeTensors, View, serialize};

use super::*;

/// A file with that header text and `data_len` bytes of data.
fn file(text: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len() + data_len, 0);
    bytes
}

fn parse(bytes: &[u8]) -> Result<Header> {
    Header::parse(bytes, bytes.len() as u64)
}

#[track_caller]
fn refused(bytes: &[u8], kind: ErrorKind, words: &[&str]) {
    let error = parse(bytes).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is missing: {error}");
    }
}

#[test]
fn a_header_is_read_in_file_order() {
    let text = r#"{"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4],"more":1}}  "#;
    let bytes = file(text, 12);
    let header = parse(&bytes).unwrap();
    let start = 8 + text.len() as u64;
    assert_eq!(header.data_start(), start);
    let names: Vec<&str> = header.tensors().iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(
        header.get("b").unwrap().span,
        Span::new(start + 4, start + 12).unwrap()
    );
    assert_eq!(header.get("a").unwrap().shape, [2, 2]);
    assert!(header.get("c").is_none());
    assert_eq!(header.metadata().unwrap()["k"], "v");
    assert_eq!(header.data_span().len(), 12);
}

#[test]
fn nothing_scalars_and_empty_tensors_are_fine() {
    assert!(parse(&file("{}", 0)).unwrap().metadata().is_none());
    let text = r#"{"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"F4","shape":[0,3],"data_offsets":[8,8]},"f":{"dtype":"F4","shape":[4],"data_offsets":[8,10]},"__metadata__":null}"#;
    assert_eq!(parse(&file(text, 10)).unwrap().tensors().len(), 3);
}

#[test]
fn files_cut_short_say_where() {
    refused(b"1234567", ErrorKind::Corrupt, &["7 bytes are too short"]);
    let whole = file(r#"{"t":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}"#, 9);
    refused(&whole[..40], ErrorKind::Corrupt, &["offset 8", "ends at 40"]);
    refused(
        &whole[..whole.len() - 1],
        ErrorKind::Corrupt,
        &["tensor 't'", "0..9", "needs a file of"],
    );
    let mut longer = whole.clone();
    longer.push(0);
    refused(
        &longer,
        ErrorKind::Corrupt,
        &["the tensors end at offset 70", "ends at 71"],
    );
    let error = Header::parse(&whole[..40], whole.len() as u64).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn lengths_beyond_the_limits_are_refused_before_anything_is_allocated() {
    let mut bytes = (HEADER_BYTES_MAX + 1).to_le_bytes().to_vec();
    let error = Header::prefix_bytes(&bytes, u64::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.to_string().contains("100000001"), "{error}");
    bytes = u64::MAX.to_le_bytes().to_vec();
    assert!(Header::prefix_bytes(&bytes, u64::MAX).is_err());
    assert_eq!(
        Header::prefix_bytes(&HEADER_BYTES_MAX.to_le_bytes(), u64::MAX).unwrap(),
        HEADER_BYTES_MAX + 8
    );
    refused(&file("", 0), ErrorKind::Corrupt, &["claims 0 bytes"]);
    let deep = format!(r#"{{"t":{}"#, "[".repeat(100_000));
    refused(&file(&deep, 0), ErrorKind::Corrupt, &["tensor 't'"]);
    let deep = format!(r#"{{"t":{{"x":{}"#, "[".repeat(100_000));
    refused(&file(&deep, 0), ErrorKind::Corrupt, &["tensor 't'"]);
    let deep = format!(r#"{{"__metadata__":{}"#, r#"{"a":"#.repeat(100_000));
    refused(&file(&deep, 0), ErrorKind::Corrupt, &["near offset"]);
    let shape = vec!["1"; DIMS_MAX + 1].join(",");
    let text = format!(r#"{{"t":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}"#);
    refused(
        &file(&text, 1),
        ErrorKind::Corrupt,
        &["tensor 't'", "more than 64 dimensions"],
    );
}

#[test]
fn what_a_header_may_not_say_names_tensor_and_offsets() {
    let one = |fields: &str| format!(r#"{{"t":{{{fields}}}}}"#);
    let rows: &[(&str, usize, &[&str])] = &[
        (
            r#""dtype":"U8","shape":[4],"data_offsets":[4,0]"#,
            4,
            &["4..0", "ends before it begins"],
        ),
        (
            r#""dtype":"F32","shape":[4],"data_offsets":[0,4]"#,
            4,
            &["0..4", "F32", "[4]", "need 16 bytes"],
        ),
        (
            r#""dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[0,4]"#,
            4,
            &["does not fit 64 bits"],
        ),
        (
            r#""dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]"#,
            0,
            &["in bits does not fit"],
        ),
        (
            r#""dtype":"F4","shape":[3],"data_offsets":[0,1]"#,
            1,
            &["whole byte"],
        ),
        (
            r#""dtype":"U8","shape":[2],"data_offsets":[2,4]"#,
            4,
            &["2..4", "first 2 bytes"],
        ),
        (
            r#""dtype":"U8","shape":[-1],"data_offsets":[0,1]"#,
            1,
            &["near offset"],
        ),
        (
            r#""dtype":"U8","shape":[1.5],"data_offsets":[0,1]"#,
            1,
            &["near offset"],
        ),
        (r#""dtype":"U8","shape":[1]"#, 1, &["data_offsets"]),
        (
            r#""dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]"#,
            1,
            &["duplicate field"],
        ),
        (
            r#""dtype":"U8","shape":[1],"data_offsets":[0,1,2]"#,
            1,
            &["near offset"],
        ),
    ];
    for (fields, data_len, words) in rows {
        let text = one(fields);
        refused(
            &file(&text, *data_len),
            ErrorKind::Corrupt,
            &[&["'t'"], *words].concat(),
        );
    }
    let unknown = one(r#""dtype":"F3","shape":[1],"data_offsets":[0,1]"#);
    refused(
        &file(&unknown, 1),
        ErrorKind::Unsupported,
        &["tensor 't'", "unknown dtype 'F3'", "near offset"],
    );
}

#[test]
fn neighbours_that_overlap_or_leave_gaps_are_named() {
    let two = |a: (u64, u64), b: (u64, u64)| {
        let tensor = |(begin, end): (u64, u64)| {
            format!(
                r#"{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#,
                end - begin
            )
        };
        file(&format!(r#"{{"a":{},"b":{}}}"#, tensor(a), tensor(b)), 8)
    };
    assert!(parse(&two((0, 4), (4, 8))).is_ok());
    refused(
        &two((0, 5), (4, 8)),
        ErrorKind::Corrupt,
        &["'b'", "overlaps tensor 'a', which ends at 5"],
    );
    refused(
        &two((0, 3), (4, 8)),
        ErrorKind::Corrupt,
        &["'b'", "bytes 3..4", "'a'"],
    );
    refused(&two((0, 4), (4, 7)), ErrorKind::Corrupt, &["the tensors end at"]);
    refused(&two((0, 8), (0, 8)), ErrorKind::Corrupt, &["overlaps"]);
}

#[test]
fn names_and_keys_that_come_twice_are_refused() {
    let t = |range: &str| format!(r#""t":{{"dtype":"U8","shape":[1],"data_offsets":[{range}]}}"#);
    let text = format!("{{{},{}}}", t("0,1"), t("1,2"));
    refused(
        &file(&text, 2),
        ErrorKind::Corrupt,
        &["tensor 't' comes twice", "0..1", "1..2"],
    );
    refused(
        &file(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0),
        ErrorKind::Corrupt,
        &["'a' comes twice"],
    );
    refused(
        &file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0),
        ErrorKind::Corrupt,
        &["__metadata__ comes twice"],
    );
    refused(
        &file(r#"{"__metadata__":{"a":1}}"#, 0),
        ErrorKind::Corrupt,
        &["near offset"],
    );
}

#[test]
fn text_that_is_no_header_says_where() {
    let mut bytes = file(r#"{"t":"xx"}"#, 0);
    bytes[8 + 6] = 0xff;
    refused(&bytes, ErrorKind::Corrupt, &["not UTF-8 at offset 14"]);
    refused(&file(" {}", 0), ErrorKind::Corrupt, &["does not begin with '{'"]);
    refused(&file("{}x", 0), ErrorKind::Corrupt, &["near offset 10"]);
    refused(&file("{\n\n\"t\":?}", 0), ErrorKind::Corrupt, &["near offset 14"]);
    refused(&file("{{{", 0), ErrorKind::Corrupt, &["near offset"]);
}

#[test]
fn builders_refuse_what_readers_would() {
    let encode = |name: &str, dtype, shape: &[u64]| {
        let mut builder = HeaderBuilder::new();
        builder.tensor(name, dtype, shape);
        builder.encode()
    };
    assert!(encode("t", Dtype::F4, &[3]).is_err());
    assert!(encode(METADATA_KEY, Dtype::U8, &[1]).is_err());
    assert!(encode("t", Dtype::U8, &[u64::MAX, 2]).is_err());
    assert!(encode("t", Dtype::U8, &[u64::MAX]).is_err());
    for align in [0, 4, 12, 1 << 27, 1 << 36, 1 << 63] {
        assert!(HeaderBuilder::new().align(align).encode().is_err(), "{align}");
    }
    let mut twins = HeaderBuilder::new();
    twins.tensor("t", Dtype::U8, [1]).tensor("t", Dtype::I8, [1]);
    let error = twins.encode().unwrap_err();
    assert!(error.to_string().contains("'t' comes twice"), "{error}");
}

/// A tensor as the safetensors crate takes it.
#[derive(Debug, Clone)]
struct Theirs {
    dtype: TheirDtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View for &Theirs {
    fn dtype(&self) -> TheirDtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        (&self.data).into()
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// None for those that the crate does not know yet.
fn their_dtype(dtype: Dtype) -> Option<TheirDtype> {
    serde_json::from_value(serde_json::Value::String(dtype.name().to_owned())).ok()
}

fn shared_dtypes() -> Vec<Dtype> {
    let all = Dtype::ALL.iter().copied();
    all.filter(|dtype| their_dtype(*dtype).is_some()).collect()
}

#[test]
fn every_dtype_of_the_crate_is_ours_in_its_order() {
    let shared = shared_dtypes();
    assert!(shared.len() + 2 >= Dtype::ALL.len(), "{shared:?}");
    let theirs: Vec<TheirDtype> = shared.iter().filter_map(|dtype| their_dtype(*dtype)).collect();
    assert!(theirs.is_sorted());
    for (ours, theirs) in shared.iter().zip(&theirs) {
        assert_eq!(ours.bits(), theirs.bitsize() as u64, "{ours}");
        assert_eq!(Dtype::parse(ours.name()).unwrap(), *ours);
    }
}

type Tensors = BTreeMap<String, (Dtype, Vec<u64>)>;

fn any_tensors(dtypes: Vec<Dtype>) -> impl Strategy<Value = Tensors> {
    let shape = prop::collection::vec(0u64..5, 0..4).prop_map(|mut shape| {
        // Whole bytes in every dtype.
        shape.push(4);
        shape
    });
    let tensor = (prop::sample::select(dtypes), shape);
    prop::collection::btree_map("[a-z\"\\\\\u{e9}\n.0-9]{0,12}", tensor, 0..12)
}

fn builder(tensors: &Tensors) -> HeaderBuilder {
    let mut builder = HeaderBuilder::new();
    for (name, (dtype, shape)) in tensors {
        builder.tensor(name, *dtype, shape.clone());
    }
    builder
}

proptest! {
    #[test]
    fn what_is_encoded_parses_to_the_same(
        tensors in any_tensors(Dtype::ALL.to_vec()),
        metadata in prop::option::of(prop::collection::btree_map(".{0,8}", ".{0,8}", 0..4)),
        shift in 3u32..13,
        given: bool,
    ) {
        let order = if given { Order::Given } else { Order::Safetensors };
        let encoded = builder(&tensors).order(order).align(1 << shift).metadata(metadata).encode().unwrap();
        prop_assert!((encoded.bytes.len() as u64).is_multiple_of(1 << shift));
        let header = Header::parse(&encoded.bytes, encoded.header.file_len()).unwrap();
        prop_assert_eq!(&header, &encoded.header);
        for (tensor, source) in header.tensors().iter().zip(&encoded.sources) {
            prop_assert_eq!(tensors.keys().nth(*source), Some(&tensor.name));
            prop_assert!(given || tensor.span.start().is_multiple_of(tensor.dtype.align()));
        }
    }

    #[test]
    fn the_safetensors_crate_writes_and_reads_the_same(tensors in any_tensors(shared_dtypes()), key in prop::option::of(".{1,8}")) {
        let theirs: BTreeMap<String, Theirs> = tensors.iter().map(|(name, (dtype, shape))| {
            let data = vec![7; tensor_bytes(*dtype, shape).unwrap() as usize];
            let shape = shape.iter().map(|len| *len as usize).collect();
            (name.clone(), Theirs { dtype: their_dtype(*dtype).unwrap(), shape, data })
        }).collect();
        let metadata = key.map(|key| HashMap::from([(key, "value".to_owned())]));
        let written = serialize(theirs.iter(), metadata.clone()).unwrap();
        let ours = builder(&tensors).metadata(metadata.map(|map| map.into_iter().collect())).encode().unwrap();
        prop_assert_eq!(&written[..ours.bytes.len()], &ours.bytes[..]);
        prop_assert_eq!(parse(&written).unwrap(), ours.header);
        let aligned = builder(&tensors).align(4096).encode().unwrap();
        let mut bytes = aligned.bytes;
        bytes.resize(aligned.header.file_len() as usize, 0);
        let read = SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(read.len(), tensors.len());
    }

    #[test]
    fn no_damage_panics_and_nothing_is_taken_that_the_crate_refuses(
        tensors in any_tensors(shared_dtypes()),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let encoded = builder(&tensors).encode().unwrap();
        let mut bytes = encoded.bytes;
        bytes.resize(encoded.header.file_len() as usize, 0);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        if parse(&bytes).is_ok() {
            prop_assert!(SafeTensors::deserialize(&bytes).is_ok());
        }
    }
}
