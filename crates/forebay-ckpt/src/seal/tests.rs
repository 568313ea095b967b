//! Keys, slots and sealed chunks by themselves.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use forebay_store::remote::Environment;

use super::*;
use crate::hex;

/// A wrapping key that is told from others by a number.
pub(crate) fn keys(numbers: &[u8]) -> Keys {
    Keys::new(numbers.iter().map(|number| KeyWrap::of("file", [*number; 32])))
}

fn bound() -> Bound {
    Bound {
        attempt: Attempt([1; 16]),
        rank: 2,
        place: Place::new(&[3; 16], 4, 5),
        codec: Codec::Zstd,
        parameter: 0,
        chunks: 6,
        number: 7,
    }
}

#[tokio::test]
async fn a_chunk_opens_at_its_place_and_nowhere_else() {
    let key = Secret::draw().unwrap();
    let sealer = Sealer::new(&key).unwrap();
    let mut stored = b"hello".to_vec();
    let tag = sealer.seal(&bound(), &mut stored).unwrap();
    assert_ne!(stored, b"hello");
    stored.extend_from_slice(&tag);
    let ring = keys(&[9]);
    let mut slots = Vec::new();
    // Another attempt with the same data key: what must not open does not for being bound, not for lack of a key.
    for attempt in [[1; 16], [2; 16]] {
        slots.extend(ring.wrap((1, Attempt(attempt)), &key).await.unwrap());
    }
    let opener = Opener::new(&ring, &slots).await.unwrap();
    assert_eq!(opener.open(&bound(), &mut stored.clone()).unwrap(), b"hello");
    let others = [
        Bound {
            attempt: Attempt([2; 16]),
            ..bound()
        },
        Bound { rank: 3, ..bound() },
        Bound {
            place: Place::new(&[4; 16], 4, 5),
            ..bound()
        },
        Bound {
            place: Place::new(&[3; 16], 5, 5),
            ..bound()
        },
        Bound {
            place: Place::new(&[3; 16], 4, 6),
            ..bound()
        },
        Bound {
            codec: Codec::Raw,
            ..bound()
        },
        Bound {
            parameter: 2,
            ..bound()
        },
        Bound { chunks: 5, ..bound() },
        Bound { number: 8, ..bound() },
    ];
    for other in others {
        assert!(opener.open(&other, &mut stored.clone()).is_err(), "{other:?}");
    }
    for bit in 0..stored.len() * 8 {
        let mut damaged = stored.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(opener.open(&bound(), &mut damaged).is_err());
    }
    assert!(opener.open(&bound(), &mut stored[..20].to_vec()).is_err());
    assert!(opener.open(&bound(), &mut []).is_err());
}

#[test]
fn numbers_of_payloads_differ() {
    let key = Secret::draw().unwrap();
    let (one, two) = (Sealer::new(&key).unwrap(), Sealer::new(&key).unwrap());
    assert_ne!(one.number(0).unwrap(), two.number(0).unwrap());
    assert_eq!(one.number(0).unwrap() + 1, one.number(1).unwrap());
    assert!(one.number(usize::try_from(u32::MAX).unwrap()).is_err());
}

#[tokio::test]
async fn any_of_the_keys_opens_and_no_other() {
    let key = Secret::draw().unwrap();
    let attempt = Attempt([4; 16]);
    let slots = keys(&[1, 2]).wrap((3, attempt), &key).await.unwrap();
    let again = slots::decode(&slots::encode(&slots)).unwrap();
    assert_eq!(again, slots);
    for number in [1, 2] {
        assert_eq!(keys(&[7, number]).open(&slots, attempt).await.unwrap(), key);
    }
    for (ring, word) in [
        (keys(&[3]), "none of the keys"),
        (Keys::default(), "no key was given"),
    ] {
        let error = ring.open(&slots, attempt).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(text.contains(word), "{text}");
        assert!(slots.iter().all(|slot| text.contains(&slot.id)), "{text}");
    }
    // A slot of another attempt does not open, whoever moves it.
    let mut moved = slots.clone();
    for slot in &mut moved {
        slot.attempt = Attempt([5; 16]);
    }
    keys(&[1]).open(&moved, Attempt([5; 16])).await.unwrap_err();
    let mut damaged = slots;
    damaged[0].wrapped[20] ^= 1;
    assert!(keys(&[1]).open(&damaged, attempt).await.is_err());
}

#[test]
fn keys_are_not_shown() {
    let secret = hex::encode(&[0xab; 32]);
    let ring = Keys::new([KeyWrap::of("file", [0xab; 32])]);
    let sealer = Sealer::new(&Secret::new([0xab; 32])).unwrap();
    let shown = format!("{ring:?} {:?} {sealer:?}", Secret::new([0xab; 32]));
    assert!(
        !shown.contains(&secret[..6]) && !shown.contains("171, 171"),
        "{shown}"
    );
}

#[test]
fn key_files_are_read_when_only_their_owner_can() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let write = |bytes: &[u8], mode: u32| {
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        KeyWrap::file(&path)
    };
    let text = format!("{}\n", hex::encode(&[5; 32]));
    let shown = |key: KeyWrap| format!("{key:?}");
    let of_hex = shown(write(text.as_bytes(), 0o600).unwrap());
    assert_eq!(of_hex, shown(write(&[5; 32], 0o400).unwrap()));
    assert_eq!(
        write(&[5; 32], 0o640).unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    for bad in [&[5; 31][..], b"", b"zz", &[b'0'; 63], &[0; 5000]] {
        assert_eq!(write(bad, 0o600).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(
        KeyWrap::file(&dir.path().join("none")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let environment = Environment::fixed([("FOREBAY_KEY", text.trim())]);
    let context = crate::tests::support::context().with_environment(environment);
    let from_env = shown(KeyWrap::parse("env", &context).unwrap());
    assert_eq!(from_env.replace("env ", "file "), of_hex);
    assert!(KeyWrap::env(&Environment::fixed([("FOREBAY_KEY", "123")])).is_err());
    assert!(KeyWrap::env(&Environment::fixed::<&str, &str>([])).is_err());
    assert!(
        KeyWrap::parse("aws-kms:no key", &context)
            .unwrap_err()
            .to_string()
            .contains("KMS")
    );
}

/// A command that turns digits around: not safe, but different.
const TURN: &str = r#"read line
op=$(printf '%s' "$line" | sed 's/.*"op":"\([a-z]*\)".*/\1/')
key=$(printf '%s' "$line" | sed 's/.*"key":"\([0-9a-f]*\)".*/\1/' | tr 0123456789abcdef fedcba9876543210)
case $op in
wrap) printf '{"id":"turned","key":"%s"}\n' "$key" ;;
unwrap) printf '%s' "$line" | grep -q '"id":"turned"' && printf '{"key":"%s"}\n' "$key" ;;
esac
"#;

#[tokio::test]
async fn commands_wrap_and_unwrap() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("turn.sh");
    std::fs::write(&script, TURN).unwrap();
    let words = |arguments: &[&str]| {
        arguments
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let turn = || KeyWrap::command(words(&["sh", script.to_str().unwrap()])).unwrap();
    let (key, attempt) = (Secret::draw().unwrap(), Attempt([4; 16]));
    let slots = Keys::new([turn()]).wrap((3, attempt), &key).await.unwrap();
    assert_eq!(
        (slots[0].kind.as_str(), slots[0].id.as_str()),
        ("command", "turned")
    );
    assert_ne!(slots[0].wrapped, key.bytes());
    assert_eq!(Keys::new([turn()]).open(&slots, attempt).await.unwrap(), key);
    for (bad, word) in [
        (&["false"][..], "failed"),
        (&["true"], "JSON"),
        (&["echo", "{\"key\":\"zz\"}"], "hex digits"),
        (&["/no/such/command"], "cannot be run"),
    ] {
        let ring = Keys::new([KeyWrap::command(words(bad)).unwrap()]);
        let error = ring.wrap((3, attempt), &key).await.unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        ring.open(&slots, attempt).await.unwrap_err();
    }
    let slow = command::Command::new(words(&["sleep", "60"])).unwrap();
    let error = slow
        .with_wait(Duration::from_millis(50))
        .wrap(attempt, &key)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(KeyWrap::command(Vec::new()).is_err());
}
