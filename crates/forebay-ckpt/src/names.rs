//! Names of a checkpoint's objects. They are made of numbers alone, so nothing that is read from a manifest can point out of its root.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::Context;

use crate::hash::sha256;

/// Most ranks of one checkpoint: rows for all of them stay within a manifest, and the largest machines have fewer accelerators.
pub const WORLD_MAX: u32 = 262_144;

/// Where manifests are.
pub(crate) const MANIFESTS: &str = "manifests";
/// Where attempts in progress are noted.
pub(crate) const PINS: &str = "pins";
/// Where payloads, parts and indexes are.
pub(crate) const STEPS: &str = "steps";
/// Put after manifests were deleted: where names are files, it makes the deletions durable.
pub(crate) const LAST_GC: &str = "manifests/last-gc.json";

/// One try to save a step; no other try has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(pub [u8; 16]);

impl Attempt {
    /// A new one, to be told to all ranks.
    pub fn draw(context: &Context) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::of(&sha256(&[
            b"forebay drawn attempt 1\0",
            &context.seed().0.to_le_bytes(),
            &context.clock().unix().as_nanos().to_le_bytes(),
            &std::process::id().to_le_bytes(),
            &count.to_le_bytes(),
        ]))
    }

    /// The same on every rank that derives it: from a run id that is new for each start of a job, the step, and the number of the try.
    pub fn derive(run_id: &str, step: u64, number: u64) -> Self {
        Self::of(&sha256(&[
            b"forebay attempt 1\0",
            &varint(run_id.len() as u64),
            run_id.as_bytes(),
            &step.to_le_bytes(),
            &number.to_le_bytes(),
        ]))
    }

    /// The name that what this attempt saved has where a drain from `source` stores it in another way: the same whenever that drain begins anew, and with the
    /// same last 8 bytes.
    pub(crate) fn recoded(self, source: &str) -> Self {
        let hash = sha256(&[b"forebay recoded 1\0", &self.0, source.as_bytes()]);
        let mut recoded = self;
        recoded.0[..8].copy_from_slice(&hash[..8]);
        recoded
    }

    /// True when both hold what one attempt saved, be it stored in another way: the last 8 bytes are the same.
    pub fn is_same_save(self, other: Self) -> bool {
        self.0[8..] == other.0[8..]
    }

    fn of(hash: &[u8; 32]) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&hash[..16]);
        Self(id)
    }

    /// From 32 lowercase hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(is_hex) {
            return None;
        }
        let mut id = [0; 16];
        for (byte, at) in id.iter_mut().zip((0..32).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(id))
    }
}

fn varint(value: u64) -> Vec<u8> {
    use crate::wire::Wire;
    let mut bytes = Vec::new();
    bytes.put_varint(value);
    bytes
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for Attempt {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Attempt {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("an attempt is 32 hex digits"))
    }
}

/// How a payload is laid out, which its name tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// A safetensors file.
    Safetensors,
    /// Chunks at multiples of 4,096.
    Chunks,
}

/// What lies in the folder of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Piece {
    Payload(u32, Form),
    Part(u32),
    Index,
    /// A rank cannot save, and says why.
    Failed(u32),
}

fn key(name: &str) -> Key {
    // Made of digits and fixed words, none of which a key refuses.
    Key::parse(name).unwrap_or_default()
}

pub(crate) fn manifest_key(step: u64) -> Key {
    key(&format!("{MANIFESTS}/{step:020}.fbm"))
}

pub(crate) fn gone_key(step: u64, attempt: Attempt) -> Key {
    key(&format!("{MANIFESTS}/{step:020}-{attempt}.gone"))
}

pub(crate) fn pin_key(attempt: Attempt) -> Key {
    key(&format!("{PINS}/{attempt}.pin"))
}

pub(crate) fn gc_pin_key(id: u64) -> Key {
    key(&format!("{PINS}/gc-{id:016x}.pin"))
}

pub(crate) fn is_gc_pin(key: &Key) -> bool {
    key.file_name().starts_with("gc-")
}

/// The pin of whoever drains from the source of that name, so that two do not do the same work.
pub(crate) fn drain_pin_key(source_identity: &str) -> Key {
    let id = Attempt::of(&sha256(&[b"forebay drain 1\0", source_identity.as_bytes()]));
    key(&format!("{PINS}/drain-{id}.pin"))
}

pub(crate) fn attempt_key(step: u64, attempt: Attempt) -> Key {
    key(&format!("{STEPS}/{step:020}/{attempt}"))
}

/// The name of a note.
const NOTE: &str = "drain.note";

/// The note among manifests, see [`note_keys`].
pub(crate) fn manifests_note_key() -> Key {
    key(&format!("{MANIFESTS}/{NOTE}"))
}

/// Names that come and go, in the folders of attempts and in all above them: where names are files, putting one makes those beside it durable.
pub(crate) fn note_keys(attempts: impl Iterator<Item = (u64, Attempt)> + Clone) -> Vec<Key> {
    let of_attempts = attempts
        .clone()
        .map(|(step, attempt)| format!("{STEPS}/{step:020}/{attempt}/{NOTE}"));
    let of_steps = attempts.map(|(step, _)| format!("{STEPS}/{step:020}/{NOTE}"));
    let above = [
        format!("{STEPS}/{NOTE}"),
        format!("{MANIFESTS}/{NOTE}"),
        NOTE.to_owned(),
    ];
    let mut names: Vec<String> = of_attempts.chain(of_steps).chain(above).collect();
    names.dedup();
    names.iter().map(|name| key(name)).collect()
}

pub(crate) fn piece_key(step: u64, attempt: Attempt, piece: Piece) -> Key {
    let name = match piece {
        Piece::Payload(rank, Form::Safetensors) => format!("rank-{rank:06}.safetensors"),
        Piece::Payload(rank, Form::Chunks) => format!("rank-{rank:06}.chunks"),
        Piece::Part(rank) => format!("rank-{rank:06}.part"),
        Piece::Index => "index.fbx".to_owned(),
        Piece::Failed(rank) => format!("rank-{rank:06}.failed"),
    };
    attempt_key(step, attempt).join(&key(&name))
}

/// What a name in `manifests/` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ManifestName {
    Manifest(u64),
    Gone(u64, Attempt),
}

pub(crate) fn parse_manifest_name(name: &str) -> Option<ManifestName> {
    if let Some(stem) = name.strip_suffix(".fbm") {
        return Some(ManifestName::Manifest(parse_number(stem, 20)?));
    }
    let (step, attempt) = name.strip_suffix(".gone")?.split_once('-')?;
    Some(ManifestName::Gone(
        parse_number(step, 20)?,
        Attempt::parse(attempt)?,
    ))
}

/// The step, attempt and piece of a key; `None` for what is not ours.
pub(crate) fn parse_piece_key(key: &Key) -> Option<(u64, Attempt, Piece)> {
    let rest = key.below(&Key::parse(STEPS).ok()?)?;
    let mut parts = rest.as_str().split('/');
    let step = parse_number(parts.next()?, 20)?;
    let attempt = Attempt::parse(parts.next()?)?;
    let name = parts.next()?;
    if parts.next().is_some() {
        return None;
    }
    if name == "index.fbx" {
        return Some((step, attempt, Piece::Index));
    }
    let (rank, ending) = name.strip_prefix("rank-")?.split_once('.')?;
    let rank = u32::try_from(parse_number(rank, 6)?).ok()?;
    let piece = match ending {
        "safetensors" => Piece::Payload(rank, Form::Safetensors),
        "chunks" => Piece::Payload(rank, Form::Chunks),
        "part" => Piece::Part(rank),
        "failed" => Piece::Failed(rank),
        _ => return None,
    };
    Some((step, attempt, piece))
}

fn parse_number(text: &str, digits: usize) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// Refuse a rank or a world that cannot be.
pub(crate) fn check_rank(rank: u32, world: u32) -> Result<()> {
    if world == 0 || world > WORLD_MAX || rank >= world {
        let message = format!("rank {rank} of {world}: ranks count from 0, and there are 1 to {WORLD_MAX}");
        return Err(Error::new(ErrorKind::InvalidInput, "save", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let attempt = Attempt::derive("run", 7, 0);
        assert_ne!(attempt, Attempt::derive("run", 7, 1));
        assert_ne!(attempt, Attempt::derive("run", 8, 0));
        assert_ne!(attempt, Attempt::derive("ru", 7, 0));
        assert_eq!(Attempt::parse(&attempt.to_string()), Some(attempt));
        for piece in [
            Piece::Payload(0, Form::Safetensors),
            Piece::Payload(WORLD_MAX - 1, Form::Chunks),
            Piece::Part(12),
            Piece::Index,
            Piece::Failed(3),
        ] {
            let key = piece_key(u64::MAX, attempt, piece);
            assert_eq!(parse_piece_key(&key), Some((u64::MAX, attempt, piece)));
        }
        assert_eq!(
            parse_manifest_name(manifest_key(12).file_name()),
            Some(ManifestName::Manifest(12))
        );
        assert_eq!(
            parse_manifest_name(gone_key(12, attempt).file_name()),
            Some(ManifestName::Gone(12, attempt))
        );
    }

    #[test]
    fn other_names_are_not_ours() {
        for name in [
            "12.fbm",
            "0000000000000000001x.fbm",
            "last-gc.json",
            ".fbm",
            "a-b.gone",
        ] {
            assert_eq!(parse_manifest_name(name), None, "{name}");
        }
        let attempt = Attempt([7; 16]);
        for name in [
            "steps/1/x/rank-000000.part".to_owned(),
            format!("steps/{:020}/{attempt}/rank-0.part", 1),
            format!("steps/{:020}/{attempt}/rank-000000.tar", 1),
            format!("steps/{:020}/{attempt}/more/rank-000000.part", 1),
            format!("steps/{:020}/{attempt}", 1),
            format!("other/{:020}/{attempt}/rank-000000.part", 1),
        ] {
            assert_eq!(parse_piece_key(&Key::parse(&name).unwrap()), None, "{name}");
        }
    }
}
