//! The checksums that index.json can name, over bytes in pieces.
//!
//! MDS takes every algorithm of Python's hashlib whose digest has one length, and those of xxhash. A [`Hasher`] gives what their `hexdigest()`
//! would.

use std::fmt;
use std::fmt::Write as _;

use digest::Digest;
use forebay_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::{xxh3, xxh32, xxh64};

/// A checksum by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are those of the algorithms")]
pub enum HashName {
    Blake2b,
    Blake2s,
    Md5,
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha3_224,
    Sha3_256,
    Sha3_384,
    Sha3_512,
    Sha512,
    Xxh128,
    Xxh32,
    Xxh3_128,
    Xxh3_64,
    Xxh64,
}

impl HashName {
    /// Every one, sorted by name.
    pub const ALL: &'static [Self] = &[
        Self::Blake2b,
        Self::Blake2s,
        Self::Md5,
        Self::Sha1,
        Self::Sha224,
        Self::Sha256,
        Self::Sha384,
        Self::Sha3_224,
        Self::Sha3_256,
        Self::Sha3_384,
        Self::Sha3_512,
        Self::Sha512,
        Self::Xxh128,
        Self::Xxh32,
        Self::Xxh3_128,
        Self::Xxh3_64,
        Self::Xxh64,
    ];

    /// Its name in index.json.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blake2b => "blake2b",
            Self::Blake2s => "blake2s",
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha224 => "sha224",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha3_224 => "sha3_224",
            Self::Sha3_256 => "sha3_256",
            Self::Sha3_384 => "sha3_384",
            Self::Sha3_512 => "sha3_512",
            Self::Sha512 => "sha512",
            Self::Xxh128 => "xxh128",
            Self::Xxh32 => "xxh32",
            Self::Xxh3_128 => "xxh3_128",
            Self::Xxh3_64 => "xxh3_64",
            Self::Xxh64 => "xxh64",
        }
    }

    /// The checksum of that name, where there is one.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// The checksum of that name in index.json.
    pub fn parse(name: &str) -> Result<Self> {
        Self::find(name).ok_or_else(|| {
            let message = format!("the checksum '{}' is not known", name.escape_debug());
            Error::new(ErrorKind::Unsupported, "read mds", message)
                .with_hint("remove it from the hashes of index.json, or read without index.json")
        })
    }
}

impl fmt::Display for HashName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Computes a checksum over pieces.
pub struct Hasher {
    name: HashName,
    state: Box<dyn State>,
}

impl Hasher {
    /// Before the first byte.
    pub fn new(name: HashName) -> Self {
        fn of<D: Digest + Send + 'static>() -> Box<dyn State> {
            Box::new(Crypto(D::new()))
        }
        let state: Box<dyn State> = match name {
            HashName::Blake2b => of::<blake2::Blake2b512>(),
            HashName::Blake2s => of::<blake2::Blake2s256>(),
            HashName::Md5 => of::<md5::Md5>(),
            HashName::Sha1 => of::<sha1::Sha1>(),
            HashName::Sha224 => of::<sha2::Sha224>(),
            HashName::Sha256 => of::<sha2::Sha256>(),
            HashName::Sha384 => of::<sha2::Sha384>(),
            HashName::Sha3_224 => of::<sha3::Sha3_224>(),
            HashName::Sha3_256 => of::<sha3::Sha3_256>(),
            HashName::Sha3_384 => of::<sha3::Sha3_384>(),
            HashName::Sha3_512 => of::<sha3::Sha3_512>(),
            HashName::Sha512 => of::<sha2::Sha512>(),
            HashName::Xxh128 | HashName::Xxh3_128 => Box::new(Wide(xxh3::Xxh3::new())),
            HashName::Xxh32 => Box::new(xxh32::Xxh32::new(0)),
            HashName::Xxh3_64 => Box::new(xxh3::Xxh3::new()),
            HashName::Xxh64 => Box::new(xxh64::Xxh64::new(0)),
        };
        Self { name, state }
    }

    /// Which checksum it is.
    pub fn name(&self) -> HashName {
        self.name
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
    }

    /// The checksum in hexadecimal digits, lower case.
    pub fn finish(self) -> String {
        self.state.hex()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hasher").field(&self.name).finish()
    }
}

trait State: Send {
    fn update(&mut self, bytes: &[u8]);
    fn hex(self: Box<Self>) -> String;
}

struct Crypto<D>(D);

impl<D: Digest + Send> State for Crypto<D> {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn hex(self: Box<Self>) -> String {
        let digest = self.0.finalize();
        digest.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

impl State for xxh32::Xxh32 {
    fn update(&mut self, bytes: &[u8]) {
        Self::update(self, bytes);
    }

    fn hex(self: Box<Self>) -> String {
        format!("{:08x}", self.digest())
    }
}

impl State for xxh64::Xxh64 {
    fn update(&mut self, bytes: &[u8]) {
        Self::update(self, bytes);
    }

    fn hex(self: Box<Self>) -> String {
        format!("{:016x}", self.digest())
    }
}

impl State for xxh3::Xxh3 {
    fn update(&mut self, bytes: &[u8]) {
        Self::update(self, bytes);
    }

    fn hex(self: Box<Self>) -> String {
        format!("{:016x}", self.digest())
    }
}

/// The 128 bits of XXH3.
struct Wide(xxh3::Xxh3);

impl State for Wide {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn hex(self: Box<Self>) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

/// Checksums that bytes ought to have, computed while they pass.
#[derive(Debug, Default)]
pub(super) struct Checks {
    checks: Vec<(Hasher, String)>,
}

impl Checks {
    pub(super) fn new(hashes: &[(HashName, String)]) -> Self {
        let checks = hashes.iter().map(|(name, hex)| (Hasher::new(*name), hex.clone()));
        Self {
            checks: checks.collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        for (hasher, _) in &mut self.checks {
            hasher.update(bytes);
        }
    }

    /// Compare. `what` says of which bytes they are.
    pub(super) fn finish(self, what: &str) -> Result<()> {
        for (hasher, expected) in self.checks {
            let name = hasher.name();
            let found = hasher.finish();
            if found != expected {
                let message =
                    format!("the {name} of the {what} shard is {found}, but index.json says {expected}");
                return Err(Error::new(ErrorKind::Corrupt, "read mds", message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `hexdigest()` of b"forebay" by Python's hashlib and xxhash.
    const DIGESTS: &str = include_str!("../../../../../fixtures/mds/hashes.json");

    #[test]
    fn digests_are_those_of_python_however_the_bytes_are_cut() {
        let digests: std::collections::BTreeMap<String, [String; 2]> = serde_json::from_str(DIGESTS).unwrap();
        assert_eq!(digests.len(), HashName::ALL.len());
        let long: Vec<u8> = (0..100_000u32).map(|index| (index % 251) as u8).collect();
        for name in HashName::ALL {
            assert_eq!(HashName::parse(name.name()).unwrap(), *name);
            assert_eq!(serde_json::to_value(name).unwrap(), name.name());
            for (bytes, expected) in [&b"forebay"[..], &long].into_iter().zip(&digests[name.name()]) {
                let mut hasher = Hasher::new(*name);
                for piece in bytes.chunks(777) {
                    hasher.update(piece);
                }
                assert_eq!(hasher.finish(), *expected, "{name}");
            }
        }
        assert!(HashName::ALL.is_sorted_by_key(|name| name.name()));
        assert_eq!(
            HashName::parse("shake_128").unwrap_err().kind(),
            ErrorKind::Unsupported
        );
    }
}
