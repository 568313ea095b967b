//! Signatures of checkpoints: Ed25519 over the root, which covers every byte.
//!
//! ```text
//! save: root of the manifest -> signed -> beside the body, in the manifest
//! open: signatures -> one by a trusted key that holds, or refused
//! ```
//!
//! Private keys are PKCS#8 in PEM, public ones SubjectPublicKeyInfo in PEM, as other tools write and read them. Only hashes that hold against tampering are signed.

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

use crate::hash::Digest;
use crate::hex;
use crate::manifest::Manifest;
use crate::pem;
use crate::seal::read_private;
use crate::wire::{Wire, cursor};

/// Most signatures of a manifest: a few people or machines vouch for it.
const SIGNATURES_MAX: u64 = 1024;

/// Bytes of a public key and of a signature.
const PUBLIC_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;

/// Least bytes of a signature's row: what counts are compared with.
const ROW_BYTES_MIN: usize = 3;

/// Longest name of an algorithm, public key and signature that are read: also of algorithms to come.
const ALGORITHM_BYTES_MAX: usize = 64;
const BLOB_BYTES_MAX: usize = 16 << 10;

const ALGORITHM: &str = "ed25519";

/// What a SubjectPublicKeyInfo of Ed25519 begins with (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// Longest file of a public key that is read.
const PUBLIC_FILE_BYTES_MAX: u64 = 4096;

/// A key that signs; cheap to clone, and never shown.
#[derive(Clone)]
pub struct SigningKey(Arc<Ed25519KeyPair>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

impl SigningKey {
    /// A new one, and its PEM.
    pub fn generate() -> Result<(Self, Zeroizing<String>)> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let document = document
            .map_err(|_| Error::new(ErrorKind::Io, "make key", "the system gives no random bytes"))?;
        let text = Zeroizing::new(pem::encode("PRIVATE KEY", document.as_ref()));
        Ok((Self::from_pem(&text)?, text))
    }

    /// From PKCS#8 in PEM, as `openssl genpkey -algorithm ed25519` writes it.
    pub fn from_pem(text: &str) -> Result<Self> {
        let refuse = |message: &str| {
            Error::new(ErrorKind::InvalidInput, "read key", message).with_hint(
                "make one by `forebay ckpt key --sign`, or by `openssl genpkey -algorithm ed25519`",
            )
        };
        let der = pem::decode("PRIVATE KEY", text).ok_or_else(|| refuse("this is no private key in PEM"))?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der);
        let pair = pair.map_err(|_| refuse("this is no Ed25519 private key"))?;
        Ok(Self(Arc::new(pair)))
    }

    /// From a file that nobody but its owner may read.
    pub fn file(path: &Path) -> Result<Self> {
        let bytes = read_private(path)?;
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        Self::from_pem(text).map_err(|error| error.at(path.display()))
    }

    /// The key that others check its signatures with.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; PUBLIC_BYTES];
        for (to, from) in bytes.iter_mut().zip(self.0.public_key().as_ref()) {
            *to = *from;
        }
        PublicKey(bytes)
    }

    fn sign(&self, root: &Digest) -> Signature {
        Signature {
            algorithm: ALGORITHM.to_owned(),
            public: self.public().0.to_vec(),
            bytes: self.0.sign(&signed(root)).as_ref().to_vec(),
        }
    }
}

/// A key that signatures are checked with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; PUBLIC_BYTES]);

impl PublicKey {
    /// From SubjectPublicKeyInfo in PEM, or from 64 hex digits.
    pub fn parse(text: &str) -> Result<Self> {
        let of_hex = hex::decode(text.trim_ascii()).map(|bytes| bytes.to_vec());
        let of_pem = || {
            let der = pem::decode("PUBLIC KEY", text)?;
            der.strip_prefix(&SPKI_PREFIX).map(<[u8]>::to_vec)
        };
        let bytes = of_hex.or_else(of_pem).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "read key",
                "this is no Ed25519 public key",
            )
            .with_hint("it is 64 hex digits, or what `openssl pkey -pubout` writes")
        })
    }

    /// From a file.
    pub fn file(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
                _ => ErrorKind::Io,
            };
            Error::new(kind, "read key", "the key cannot be read")
                .at(path.display())
                .with_source(error)
        };
        let len = std::fs::metadata(path).map_err(failed)?.len();
        if len > PUBLIC_FILE_BYTES_MAX {
            let message = "this file is too long for a public key";
            return Err(Error::new(ErrorKind::InvalidInput, "read key", message).at(path.display()));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text).map_err(|error| error.at(path.display()))
    }

    /// As other tools read it.
    pub fn to_pem(&self) -> String {
        let mut der = SPKI_PREFIX.to_vec();
        der.extend_from_slice(&self.0);
        pem::encode("PUBLIC KEY", &der)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A signature as it lies in a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature {
    algorithm: String,
    public: Vec<u8>,
    bytes: Vec<u8>,
}

impl Signature {
    /// True when a key made it of that root.
    fn holds(&self, key: &PublicKey, root: &Digest) -> bool {
        self.algorithm == ALGORITHM
            && self.public == key.0
            && self.bytes.len() == SIGNATURE_BYTES
            && UnparsedPublicKey::new(&ED25519, &key.0)
                .verify(&signed(root), &self.bytes)
                .is_ok()
    }
}

/// What is signed: nothing else that this key signs can look like it.
fn signed(root: &Digest) -> Vec<u8> {
    let mut message = b"forebay checkpoint 1\0".to_vec();
    message.extend_from_slice(root);
    message
}

/// Signatures as bytes; none for none.
pub(crate) fn encode(signatures: &[Signature]) -> Vec<u8> {
    let mut out = Vec::new();
    if signatures.is_empty() {
        return out;
    }
    out.put_varint(signatures.len() as u64);
    for signature in signatures {
        out.put_text(&signature.algorithm);
        out.put_blob(&signature.public);
        out.put_blob(&signature.bytes);
    }
    out
}

/// Signatures from bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Signature>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut cursor = cursor(bytes, "signatures");
    let count = cursor.count(SIGNATURES_MAX, ROW_BYTES_MIN)?;
    let mut signatures = Vec::with_capacity(count);
    for _ in 0..count {
        signatures.push(Signature {
            algorithm: cursor.text(ALGORITHM_BYTES_MAX)?.to_owned(),
            public: cursor.blob(BLOB_BYTES_MAX)?.to_vec(),
            bytes: cursor.blob(BLOB_BYTES_MAX)?.to_vec(),
        });
    }
    if signatures.is_empty() {
        return Err(cursor.corrupt("there are no signatures where some should be"));
    }
    cursor.finish()?;
    Ok(signatures)
}

/// Refuse hashes whose chunks could be exchanged under a signature.
pub(crate) fn check_hash(hash: crate::HashKind) -> Result<()> {
    if hash.resists_tampering() {
        return Ok(());
    }
    let message =
        format!("{hash} does not hold against tampering, so a signature over it would mean nothing");
    Err(Error::new(ErrorKind::InvalidInput, "sign", message).with_hint("hash by BLAKE3 or SHA-256"))
}

impl Manifest {
    /// Add a signature of everything that this manifest covers.
    pub(crate) fn sign(&mut self, key: &SigningKey) -> Result<()> {
        check_hash(self.hash)?;
        let mut signatures = decode(&self.signatures)?;
        signatures.retain(|signature| signature.public != key.public().0);
        signatures.push(key.sign(&self.root()?));
        self.signatures = encode(&signatures);
        Ok(())
    }

    /// Public keys of those who signed it, as the signatures say; whether they hold says [`check_signature`](Self::check_signature).
    pub fn signers(&self) -> Result<Vec<PublicKey>> {
        let signatures = decode(&self.signatures)?.into_iter();
        let keys = signatures.filter_map(|signature| signature.public.try_into().ok().map(PublicKey));
        Ok(keys.collect())
    }

    /// Which of these keys has signed it. Refuses what none of them has, and hashes that could be tampered with.
    pub fn check_signature(&self, trusted: &[PublicKey]) -> Result<PublicKey> {
        let refuse = |message: String| Error::new(ErrorKind::PermissionDenied, "check signature", message);
        check_hash(self.hash)?;
        let signatures = decode(&self.signatures)?;
        if signatures.is_empty() {
            let message = format!("the checkpoint of step {} is not signed", self.step);
            return Err(refuse(message).with_hint("a signature may have been taken away"));
        }
        let root = self.root()?;
        let holds = |key: &&PublicKey| signatures.iter().any(|signature| signature.holds(key, &root));
        trusted.iter().find(holds).copied().ok_or_else(|| {
            let message = format!(
                "no signature of the checkpoint of step {} is by a trusted key and holds; it says that {:?} signed it",
                self.step,
                self.signers().unwrap_or_default()
            );
            refuse(message)
        })
    }
}
