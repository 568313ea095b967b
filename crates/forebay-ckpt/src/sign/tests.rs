//! Signatures hold for what was signed by whom is trusted, and for nothing else.

use std::process::{Command, Stdio};

use forebay_core::Seed;

use super::*;
use crate::tests::support::*;
use crate::*;

fn signed_by(key: &SigningKey, step: u64, hash: HashKind) -> SaveOptions {
    SaveOptions {
        hash,
        sign: Some(key.clone()),
        ..options(step, 1, 2)
    }
}

#[test]
fn keys_come_back_from_pem() {
    let (key, text) = SigningKey::generate().unwrap();
    assert_eq!(SigningKey::from_pem(&text).unwrap().public(), key.public());
    let public = key.public();
    assert_eq!(PublicKey::parse(&public.to_pem()).unwrap(), public);
    assert_eq!(PublicKey::parse(&format!("{public}\n")).unwrap(), public);
    let shown = format!("{key:?}");
    assert!(text.lines().nth(1).is_some_and(|line| !shown.contains(line)));
    for bad in [
        "",
        "x",
        &public.to_pem(),
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
    ] {
        assert!(SigningKey::from_pem(bad).is_err());
    }
    for bad in [
        "",
        "00",
        &text[..],
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
    ] {
        assert!(PublicKey::parse(bad).is_err());
    }
}

#[test]
fn pem_holds_bytes_of_any_length() {
    for len in 0..200 {
        let mut bytes = vec![0; len];
        Seed(len as u64).rng().fill(&mut bytes);
        let text = pem::encode("THING", &bytes);
        assert!(text.lines().all(|line| line.len() <= 64));
        assert_eq!(*pem::decode("THING", &text).unwrap(), bytes);
        assert!(pem::decode("OTHER", &text).is_none());
    }
    let wrap = |body: &str| format!("-----BEGIN X-----\n{body}\n-----END X-----");
    for bad in ["A", "AAA", "AB==", "A===", "AA=A", "AAAA=", "A*AA"] {
        assert!(pem::decode("X", &wrap(bad)).is_none(), "{bad}");
    }
}

fn openssl(arguments: &[&str]) -> Option<Vec<u8>> {
    let run = Command::new("openssl")
        .args(arguments)
        .stderr(Stdio::null())
        .output();
    run.ok()
        .filter(|done| done.status.success())
        .map(|done| done.stdout)
}

/// Keys and signatures of another implementation, in both directions.
#[test]
fn other_tools_read_our_keys_and_we_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (theirs, public) = (path("theirs"), path("public"));
    if openssl(&["genpkey", "-algorithm", "ed25519", "-out", &theirs]).is_none() {
        println!("skipped: there is no openssl here that knows Ed25519");
        return;
    }
    let text = std::fs::read_to_string(&theirs).unwrap();
    let their_public = openssl(&["pkey", "-in", &theirs, "-pubout"]).unwrap();
    let their_public = PublicKey::parse(std::str::from_utf8(&their_public).unwrap()).unwrap();
    assert_eq!(SigningKey::from_pem(&text).unwrap().public(), their_public);
    let (key, _) = SigningKey::generate().unwrap();
    std::fs::write(&public, key.public().to_pem()).unwrap();
    let root = [7; 32];
    let (message, signature) = (path("message"), path("signature"));
    std::fs::write(&message, signed(&root)).unwrap();
    std::fs::write(&signature, key.sign(&root).bytes).unwrap();
    let checked = openssl(&[
        "pkeyutl", "-verify", "-pubin", "-inkey", &public, "-rawin", "-in", &message, "-sigfile", &signature,
    ]);
    assert!(checked.is_some(), "openssl does not take our signature");
}

#[tokio::test]
async fn what_is_signed_is_what_is_loaded() {
    let context = context();
    let store = memory();
    let state = state(1);
    let ((key, _), (other, _)) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    for (step, hash) in [(1, HashKind::Blake3), (2, HashKind::Sha256)] {
        save_with(&store, &context, signed_by(&key, step, hash), &state, 0)
            .await
            .unwrap();
        let checkpoint = open(&store, &context, step).await;
        let manifest = checkpoint.manifest();
        assert_eq!(manifest.signers().unwrap(), [key.public()]);
        let trusted = [other.public(), key.public()];
        assert_eq!(manifest.check_signature(&trusted).unwrap(), key.public());
        load_all(&checkpoint.require_signature(&trusted).unwrap(), &state)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn without_a_good_signature_nothing_is_opened() {
    let context = context();
    let store = memory();
    let ((key, _), (other, _)) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    save_with(
        &store,
        &context,
        signed_by(&key, 1, HashKind::Blake3),
        &state(1),
        0,
    )
    .await
    .unwrap();
    let checkpoint = open(&store, &context, 1).await;
    let refused = |manifest: &Manifest, trusted: &[PublicKey]| {
        let error = manifest.check_signature(trusted).unwrap_err();
        error.to_string()
    };
    let signed = checkpoint.manifest();
    assert!(refused(signed, &[other.public()]).contains("trusted"));
    assert!(refused(signed, &[]).contains("trusted"));
    let stripped = Manifest {
        signatures: Vec::new(),
        ..signed.clone()
    };
    assert!(refused(&stripped, &[key.public()]).contains("not signed"));
    let changed = Manifest {
        raw_bytes: signed.raw_bytes + 1,
        ..signed.clone()
    };
    assert!(refused(&changed, &[key.public()]).contains("trusted"));
    // The trusted key's name over somebody else's signature.
    let mut forged = decode(&signed.signatures).unwrap();
    forged[0].bytes = other.sign(&signed.root().unwrap()).bytes;
    let forged = Manifest {
        signatures: encode(&forged),
        ..signed.clone()
    };
    assert!(refused(&forged, &[key.public()]).contains("trusted"));
    let mut bits = 0;
    for bit in 0..signed.signatures.len() * 8 {
        let mut signatures = signed.signatures.clone();
        signatures[bit / 8] ^= 1 << (bit % 8);
        let damaged = Manifest {
            signatures,
            ..signed.clone()
        };
        assert!(damaged.check_signature(&[key.public()]).is_err(), "bit {bit}");
        bits += 1;
    }
    println!("{bits} bits of a signature flipped, 0 accepted");
    // A good signature over hashes that could be tampered with is none.
    let mut weak = Manifest {
        hash: HashKind::Xxh3,
        signatures: Vec::new(),
        ..signed.clone()
    };
    assert!(weak.sign(&key).is_err());
    weak.signatures = encode(&[key.sign(&weak.root().unwrap())]);
    assert!(refused(&weak, &[key.public()]).contains("tampering"));
    assert!(checkpoint.require_signature(&[other.public()]).is_err());
}

#[tokio::test]
async fn weak_hashes_are_not_signed() {
    let (key, _) = SigningKey::generate().unwrap();
    for hash in [HashKind::Crc32c, HashKind::Xxh3] {
        let begun = Save::begin(memory(), &context(), signed_by(&key, 1, hash)).await;
        assert!(begun.unwrap_err().to_string().contains("tampering"));
    }
}

/// A signature outlives a change of keys: it is over the root, which does not change.
#[tokio::test]
async fn signatures_outlive_a_rewrap() {
    let context = context();
    let store = memory();
    let keys = crate::seal::tests::keys;
    let (key, _) = SigningKey::generate().unwrap();
    let options = SaveOptions {
        seal: keys(&[1]),
        ..signed_by(&key, 1, HashKind::Blake3)
    };
    save_with(&store, &context, options, &state(1), 0).await.unwrap();
    rewrap(
        std::sync::Arc::clone(&store),
        &context,
        1,
        &keys(&[1]),
        &keys(&[2]),
    )
    .await
    .unwrap();
    let checkpoint = open(&store, &context, 1).await;
    let trusted = checkpoint.require_signature(&[key.public()]).unwrap();
    load_all(&trusted.with_keys(keys(&[2])), &state(1)).await.unwrap();
}
