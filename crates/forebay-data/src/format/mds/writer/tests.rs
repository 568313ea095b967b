//! Writing: heads of arrays, accounting, and what is refused.

use super::*;

fn one(encoding: Encoding, kind: Kind, bytes: &[u8]) -> Result<Vec<u8>> {
    let settings = Settings::new([("x".to_owned(), encoding)])?;
    let mut writer = settings.writer()?;
    let field = Field::new("x", kind);
    let fields = [(&field, bytes)];
    let sample = SampleRef {
        key: "k",
        fields: &fields,
    };
    let foretold = writer.bytes_with(sample);
    writer.add(sample)?;
    let shard = Box::new(writer).finish()?;
    assert_eq!(foretold, shard.len() as u64);
    let at = u32::from_le_bytes(shard[4..8].try_into().unwrap()) as usize;
    Ok(shard[at..].to_vec())
}

#[test]
fn values_of_litdata_get_the_words_of_mds() {
    let kind = |name: &str| Kind::Encoded {
        encoding: format!("litdata:{name}"),
    };
    let written = |name: &str, bytes: &[u8]| one(Encoding::for_kind(&kind(name)), kind(name), bytes);
    let words = |words: [u32; 4]| words.map(u32::to_le_bytes).concat();
    // numpy: type 5 (uint16), two dimensions of 1 and 2.
    let values = [7, 0, 8, 1];
    let sample = written("numpy", &[&words([5, 2, 1, 2])[..], &values].concat()).unwrap();
    let Ok(Value::Array(opened)) = Value::open("mds:ndarray", &sample[4..]) else {
        panic!("{sample:?}")
    };
    assert_eq!((opened.dtype, opened.shape), (Dtype::Uint16, vec![1, 2]));
    assert_eq!(opened.values, values);
    // tensor: type 11 (uint8), no dimensions.
    let sample = written("tensor", &[0, 0, 0, 11, 0, 0, 0, 0, 9]).unwrap();
    assert_eq!(sample[4..], [8, 4, 1, 9]);
    // tensor: type 10 (bfloat16), one dimension of 1.
    let error = written("tensor", &[0, 0, 0, 10, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2]).unwrap_err();
    assert!(error.to_string().contains("type"), "{error}");
    assert!(written("tensor", &[0, 0]).is_err());
    assert_eq!(Encoding::for_kind(&kind("pil")), Encoding::Pil);
    assert_eq!(written("pil", b"as it is").unwrap()[4..], *b"as it is");
    assert_eq!(Encoding::for_kind(&kind("jpeg_array")), Encoding::JpegArray);
    assert_eq!(Encoding::for_kind(&kind("video")), Encoding::Bytes);
}

#[test]
fn lists_and_varints_become_arrays_with_a_head() {
    let array = |name: &str| Encoding::parse(name).unwrap();
    let list = Kind::List { dtype: Dtype::Uint16 };
    let sample = one(array("ndarray:uint16"), list.clone(), &[1, 0, 2, 0]).unwrap();
    assert_eq!(sample, [6, 0, 0, 0, 4, 2, 1, 0, 2, 0]);
    let sample = one(
        Encoding::for_kind(&Kind::Varints),
        Kind::Varints,
        &[0x96, 0x01, 0x7f],
    )
    .unwrap();
    let Ok(Value::Array(opened)) = Value::open("mds:ndarray:int64", &sample[4..]) else {
        panic!()
    };
    assert_eq!(opened.shape, [2]);
    assert_eq!(
        opened.values,
        [150u64.to_le_bytes(), 127u64.to_le_bytes()].concat()
    );
    let minus_one = [&[0xff; 9][..], &[1]].concat();
    let sample = one(Encoding::for_kind(&Kind::Varints), Kind::Varints, &minus_one).unwrap();
    assert_eq!(sample[6..], (-1i64).to_le_bytes());
    let grid = Kind::Array {
        dtype: Dtype::Uint16,
        shape: vec![1, 2],
    };
    let sample = one(array("ndarray:uint16"), grid, &[1, 0, 2, 0]).unwrap();
    assert_eq!(sample[4..7], [8, 1, 2]);
    for (kind, bytes) in [
        (list, &[1, 0, 2][..]),
        (Kind::Varints, &[0x80]),
        (Kind::Varints, &[0xff; 11]),
    ] {
        let error = one(array("ndarray:uint16"), kind, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("field 'x' of sample 'k'"), "{error}");
    }
}

#[test]
fn samples_must_have_all_fields_and_no_other() {
    let settings =
        Settings::for_fields(&[Field::new("x", Kind::Bytes), Field::new("y", Kind::Text)]).unwrap();
    let mut writer = settings.writer().unwrap();
    let (x, y, z) = (
        Field::new("x", Kind::Bytes),
        Field::new("y", Kind::Text),
        Field::new("z", Kind::Text),
    );
    let empty: &[u8] = b"";
    for (fields, says) in [
        (vec![(&x, empty)], "no field 'y'"),
        (vec![(&x, empty), (&y, empty), (&z, empty)], "'z'"),
    ] {
        let sample = SampleRef {
            key: "k",
            fields: &fields,
        };
        let error = writer.add(sample).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(Box::new(writer).finish().unwrap()[..4], [0; 4]);
    let error = one(Encoding::Int, Kind::Bytes, b"1234567").unwrap_err();
    assert!(error.to_string().contains("no int"), "{error}");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let column = |name: &str| (name.to_owned(), Encoding::Str);
    assert!(Settings::new([]).is_err());
    assert!(Settings::new([column("a"), column("a")]).is_err());
    let settings = Settings::new([column("b"), column("a")]).unwrap();
    assert_eq!(settings.columns()[0].name, "a");
    for limit in [0, 1 << 32, u64::MAX] {
        let error = settings.clone().with_size_limit(Some(limit)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    settings
        .clone()
        .with_size_limit(Some(u64::from(u32::MAX)))
        .unwrap();
    let hashes = [HashName::Xxh64, HashName::Md5, HashName::Md5];
    let hashed = settings.with_hashes(hashes);
    assert_eq!(hashed.hashes, [HashName::Md5, HashName::Xxh64]);
}

#[test]
fn a_shard_does_not_grow_to_4_gib() {
    let settings = Settings::new([("x".to_owned(), Encoding::Bytes)]).unwrap();
    let mut writer = settings.writer().unwrap();
    let field = Field::new("x", Kind::Bytes);
    // As if it had nearly that much already: the bytes themselves would make a slow test.
    writer.shard_bytes = SHARD_BYTES_MAX - 20;
    let add = |writer: &mut MdsWriter, bytes: &[u8]| {
        let fields = [(&field, bytes)];
        writer.add(SampleRef {
            key: "k",
            fields: &fields,
        })
    };
    let error = add(&mut writer, &[0; 13]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    add(&mut writer, &[0; 12]).unwrap();
}
