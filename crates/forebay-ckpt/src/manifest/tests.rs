//! Manifests come back, every bit of them counts, and hostile ones are refused.

use proptest::prelude::*;

use super::*;
use crate::names::Form;

fn manifest(world: u32, payloads: u64) -> Manifest {
    Manifest {
        features: vec!["opaque".to_owned()],
        step: 1200,
        attempt: Attempt([5; 16]),
        committed: Duration::from_nanos(1_700_000_000_123_456_789),
        hash: HashKind::Blake3,
        publish: Publish::IfAbsent,
        chunk_bytes: 4 << 20,
        entries: 10,
        chunks: 20,
        raw_bytes: 30,
        written_bytes: 40,
        base: Some(BaseRow {
            step: 1100,
            attempt: Attempt([4; 16]),
            chain: 3,
        }),
        metadata: Value::Dict(vec![(Value::text("loss"), Value::Float(2.5))]),
        parts: (0..world)
            .map(|rank| FileRow {
                bytes: 1000,
                head_bytes: 100,
                hash: [rank as u8; 32],
            })
            .collect(),
        index: Some(FileRow {
            bytes: 500,
            head_bytes: 50,
            hash: [7; 32],
        }),
        payloads: (0..payloads)
            .map(|number| PayloadRow {
                step: number,
                attempt: Attempt([3; 16]),
                rank: 0,
                form: Form::Safetensors,
                bytes: 8192,
                head_bytes: 4096,
                head_hash: [1; 32],
            })
            .collect(),
        slots: vec![1, 2, 3],
        signatures: vec![4, 5],
    }
}

#[test]
fn manifests_come_back() {
    for (world, payloads) in [(1, 0), (3, 7), (1000, 2000)] {
        let manifest = manifest(world, payloads);
        let bytes = manifest.encode().unwrap();
        let again = Manifest::decode(&bytes).unwrap();
        assert_eq!(again, manifest);
        assert_eq!(again.root().unwrap(), manifest.root().unwrap());
        assert!(manifest.payloads.iter().all(|row| again.names(row)));
    }
    let plain = Manifest {
        base: None,
        index: None,
        slots: vec![],
        signatures: vec![],
        ..manifest(1, 1)
    };
    assert_eq!(Manifest::decode(&plain.encode().unwrap()).unwrap(), plain);
    // Neither key slots nor signatures are part of what is signed.
    assert_eq!(
        Manifest {
            slots: vec![9; 50],
            signatures: vec![],
            ..manifest(1, 1)
        }
        .root()
        .unwrap(),
        manifest(1, 1).root().unwrap()
    );
}

#[test]
fn every_bit_counts() {
    let bytes = manifest(2, 2).encode().unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            assert!(Manifest::decode(&changed).is_err(), "byte {at} bit {bit}");
        }
        assert!(Manifest::decode(&bytes[..at]).is_err());
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Manifest::decode(&longer).is_err());
}

/// With good checksums around bad content: what somebody would write who wants to do harm.
fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Result<Manifest> {
    let mut body = manifest(2, 2).body().unwrap();
    change(&mut body);
    Manifest::take_body(&body)
}

#[test]
fn hostile_bodies_are_refused() {
    let refused = |change: fn(&mut Manifest), word: &str| {
        let mut manifest = manifest(2, 3);
        change(&mut manifest);
        let error = Manifest::take_body(&manifest.body().unwrap()).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert!(manifest.encode().is_err());
    };
    refused(
        |manifest| manifest.features = vec!["quantum".to_owned()],
        "quantum",
    );
    refused(|manifest| manifest.parts = vec![], "ranks");
    refused(|manifest| manifest.chunk_bytes = 3, "power of two");
    refused(|manifest| manifest.metadata = Value::None, "metadata");
    refused(
        |manifest| manifest.metadata = Value::Dict(vec![(Value::Int(1), Value::None)]),
        "metadata",
    );
    refused(|manifest| manifest.payloads.swap(0, 1), "ascend");
    refused(|manifest| manifest.payloads[1] = manifest.payloads[0], "ascend");
    refused(|manifest| manifest.parts[0].head_bytes = u32::MAX, "head");
    refused(
        |manifest| {
            manifest.base = Some(BaseRow {
                step: 1200,
                attempt: Attempt([5; 16]),
                chain: 1,
            });
        },
        "itself",
    );
    let large = "x".repeat(METADATA_BYTES_MAX);
    let metadata = Value::Dict(vec![(Value::text("note"), Value::Text(large))]);
    let error = Manifest {
        metadata,
        ..manifest(1, 1)
    }
    .encode()
    .unwrap_err();
    assert!(error.to_string().contains("at most 1048576"), "{error}");
    // A world that would need more rows than there are bytes.
    let error = forged(|body| body[40..44].copy_from_slice(&200_000u32.to_le_bytes())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn later_formats_are_refused_by_number() {
    let mut bytes = manifest(1, 1).encode().unwrap();
    bytes[8] = 9;
    let error = Manifest::decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("format 9"), "{error}");
}

proptest! {
    #[test]
    fn changed_bodies_do_not_panic(at in any::<prop::sample::Index>(), byte: u8) {
        let result = forged(|body| {
            let at = at.index(body.len());
            body[at] = byte;
        });
        if let Ok(manifest) = result {
            prop_assert!(manifest.encode().is_ok());
        }
    }

    #[test]
    fn garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        drop(Manifest::take_body(&bytes));
        drop(Manifest::decode(&bytes));
    }
}
