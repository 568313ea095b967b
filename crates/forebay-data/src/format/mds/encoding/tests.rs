//! Encodings: names, kinds, and arrays that say what they are.

use super::*;

const NAMES: [&str; 29] = [
    "bytes",
    "str",
    "int",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "str_int",
    "str_float",
    "str_decimal",
    "pil",
    "jpeg",
    "png",
    "jpeg_array",
    "list[pil]",
    "list[jpeg]",
    "list[png]",
    "json",
    "pkl",
    "ndarray",
    "ndarray:uint16",
    "ndarray:float32:3,4",
];

#[test]
fn names_come_back() {
    for name in NAMES {
        let encoding = Encoding::parse(name).unwrap();
        assert_eq!(encoding.to_string(), name);
        assert_eq!(
            encoding.size().map(u64::from),
            encoding.kind().fixed_bytes(),
            "{name}"
        );
    }
    assert_eq!(Encoding::parse("jpegarray").unwrap(), Encoding::JpegArray);
    assert_eq!(
        Encoding::parse("ndarray:").unwrap(),
        Encoding::parse("ndarray").unwrap()
    );
}

#[test]
fn what_is_not_an_encoding_is_refused_by_name() {
    for name in [
        "",
        "Str",
        "bool",
        "bfloat16",
        "int:8",
        "ndarray:bool",
        "ndarray::3",
        "ndarray:uint8:",
        "ndarray:uint8:0",
        "ndarray:uint8:-1",
        "ndarray:uint8:3:4",
        "ndarray:uint8:4294967296",
        "ndarray:uint8:18446744073709551615,18446744073709551615",
        "list[str]",
    ] {
        let error = Encoding::parse(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn what_was_read_is_written_in_the_same_encoding() {
    // Only names that mean the same kind may change, and pickles are plain bytes by then.
    let same = |name: &str| !matches!(name, "int" | "str_int" | "str_float" | "png" | "pkl");
    for name in NAMES.into_iter().filter(|name| same(name)) {
        let encoding = Encoding::parse(name).unwrap();
        assert_eq!(Encoding::for_kind(&encoding.kind()), encoding);
    }
    let array = |dtype, shape: &[u64]| Kind::Array {
        dtype,
        shape: shape.to_vec(),
    };
    for (kind, name) in [
        (array(Dtype::Bool, &[]), "uint8"),
        (array(Dtype::Bfloat16, &[2]), "bytes"),
        (array(Dtype::Uint8, &[2, 0]), "bytes"),
        (array(Dtype::Uint8, &[1 << 40]), "bytes"),
        (Kind::Varints, "ndarray:int64"),
        (
            Kind::List {
                dtype: Dtype::Float32,
            },
            "ndarray:float32",
        ),
        (
            Kind::List {
                dtype: Dtype::Bfloat16,
            },
            "bytes",
        ),
        (
            Kind::Encoded {
                encoding: "npy".into(),
            },
            "bytes",
        ),
    ] {
        assert_eq!(Encoding::for_kind(&kind).to_string(), name, "{kind:?}");
    }
}

#[test]
fn arrays_say_their_type_and_shape() {
    let open = |name: &str, bytes: &[u8]| {
        let encoding = Encoding::parse(name).unwrap();
        match encoding.open(bytes) {
            Some(Ok(Value::Array(array))) => Ok((array.dtype, array.shape, array.values.len())),
            Some(Err(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    };
    let bytes = [16, 2 << 2, 1, 3, 0, 0, 0, 0, 0, 0];
    assert_eq!(open("ndarray", &bytes).unwrap(), (Dtype::Uint16, vec![1, 3], 6));
    let bytes = [1 << 2 | 1, 3, 0, 9, 9, 9];
    assert_eq!(open("ndarray:int8", &bytes).unwrap(), (Dtype::Int8, vec![3], 3));
    for (name, bytes) in [
        ("ndarray", &[][..]),
        ("ndarray", &[7, 4, 1, 0]),
        ("ndarray", &[8]),
        ("ndarray", &[8, 4, 2, 0]),
        ("ndarray", &[8, 255, 1]),
        ("ndarray:uint8", &[4, 1, 0, 0]),
        ("ndarray:uint64", &[4, 1, 0, 0]),
        (
            "ndarray:uint64",
            &[
                2 << 2 | 3,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                255,
                2,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
            ],
        ),
    ] {
        let error = open(name, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name} {bytes:?}");
    }
}

#[test]
fn heads_of_arrays_take_the_narrowest_numbers() {
    for (shape, head) in [
        (&[3, 255][..], &[2 << 2, 3, 255][..]),
        (&[256], &[1 << 2 | 1, 0, 1]),
        (&[1, 65_536], &[2 << 2 | 2, 1, 0, 0, 0, 0, 0, 1, 0]),
    ] {
        assert_eq!(array_head(shape).unwrap(), head);
    }
    assert_eq!(array_head(&[]), None);
    assert_eq!(array_head(&[1; 64]), None);
    assert_eq!(array_head(&[1 << 40]).unwrap().len(), 9);
}
