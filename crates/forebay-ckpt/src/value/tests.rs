//! Values come back as they were; hostile bytes are refused without panic, and what is accepted has one encoding.

use proptest::prelude::*;

use super::*;

fn any_key() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        "[a-z]{0,6}".prop_map(Value::Text),
        prop::collection::vec(any::<u8>(), 0..4).prop_map(Value::Bytes),
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any_key(),
        any::<f64>().prop_map(Value::Float),
        (any::<f64>(), any::<f64>()).prop_map(|(real, imaginary)| Value::Complex(real, imaginary)),
        (any::<bool>(), prop::collection::vec(any::<u8>(), 8..20)).prop_map(|(negative, mut magnitude)| {
            magnitude.push(1);
            Value::BigInt { negative, magnitude }
        }),
        prop::collection::vec(0u64..4, 0..3).prop_map(|shape| {
            let bytes = vec![7; 4 * shape.iter().product::<u64>() as usize];
            Value::Array(Array {
                dtype: "<f4".to_owned(),
                shape,
                bytes,
            })
        }),
        "[a-z.]{1,9}".prop_map(Value::Tensor),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::List),
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Tuple),
            prop::collection::vec((any_key(), inner.clone()), 0..5).prop_map(|pairs| {
                let mut seen = Vec::new();
                let mut unique = Vec::new();
                for (key, value) in pairs {
                    if !seen.contains(&key) {
                        seen.push(key.clone());
                        unique.push((key, value));
                    }
                }
                Value::Dict(unique)
            }),
            (prop::sample::select(Named::ALL), inner)
                .prop_map(|((named, _), value)| Value::Named(named, Box::new(value))),
        ]
    })
}

proptest! {
    #[test]
    fn values_come_back(value in any_value()) {
        let bytes = value.encode().unwrap();
        let again = Value::decode(&bytes).unwrap();
        // Not the values: a NaN is not equal to itself.
        prop_assert_eq!(again.encode().unwrap(), bytes);
        prop_assert_eq!(format!("{again:?}"), format!("{value:?}"));
    }

    #[test]
    fn changed_bytes_are_refused_or_another_value(value in any_value(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = value.encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(other) = Value::decode(&bytes) {
            prop_assert_eq!(other.encode().unwrap(), bytes, "one value has one encoding");
        }
    }

    #[test]
    fn garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Value::decode(&bytes));
    }
}

#[test]
fn what_is_too_deep_is_refused_on_both_sides() {
    let deep = |levels: u32| (0..levels).fold(Value::None, |value, _| Value::List(vec![value]));
    let bytes = deep(DEPTH_MAX - 1).encode().unwrap();
    assert!(Value::decode(&bytes).is_ok());
    assert!(
        deep(DEPTH_MAX)
            .encode()
            .unwrap_err()
            .to_string()
            .contains("64 levels")
    );
    // Ten megabytes that open one list after the other.
    let hostile = [tag::LIST, 1].repeat(5 << 20);
    assert!(
        Value::decode(&hostile)
            .unwrap_err()
            .to_string()
            .contains("64 levels")
    );
}

#[test]
fn what_has_a_shorter_way_is_refused() {
    for (negative, magnitude, is_good) in [
        (false, vec![0, 0, 0, 0, 0, 0, 0, 0x80], true),
        (true, vec![0, 0, 0, 0, 0, 0, 0, 0x80], false),
        (true, vec![1, 0, 0, 0, 0, 0, 0, 0x80], true),
        (false, vec![1], false),
        (false, vec![], false),
        (false, vec![0; 9], false),
    ] {
        let value = Value::BigInt { negative, magnitude };
        assert_eq!(value.encode().is_ok(), is_good, "{value:?}");
    }
}

#[test]
fn unknown_types_are_named() {
    let mut bytes = vec![tag::NAMED];
    bytes.put_text("pickle");
    bytes.push(tag::NONE);
    let error = Value::decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("\"pickle\""), "{error}");
    for dtype in ["|O8", "object", "", "<f3", "<f04", ">f4", "<M8[ns]"] {
        let array = Array {
            dtype: dtype.to_owned(),
            shape: vec![],
            bytes: vec![0; 4],
        };
        assert!(Value::Array(array).encode().is_err(), "{dtype}");
    }
}

#[test]
fn dicts_have_each_key_once_and_no_odd_keys() {
    let twice = Value::Dict(vec![
        (Value::text("a"), Value::None),
        (Value::text("a"), Value::Bool(true)),
    ]);
    assert!(twice.encode().unwrap_err().to_string().contains("same key twice"));
    let odd = Value::Dict(vec![(Value::List(vec![]), Value::None)]);
    assert!(odd.encode().is_err());
    let dict = Value::Dict(vec![(Value::text("a"), Value::Int(3))]);
    assert_eq!(dict.get("a"), Some(&Value::Int(3)));
    assert_eq!(dict.get("b"), None);
}
