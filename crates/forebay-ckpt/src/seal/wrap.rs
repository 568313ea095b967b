//! Wrapping keys: who has one of them reads what was sealed for it.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result, env};
use forebay_store::Context;
use forebay_store::remote::{Environment, Kms};
use ring::aead::{Aad, Nonce};
use zeroize::Zeroizing;

use super::command::Command;
use super::slots::{ID_BYTES_MAX, Slot, WRAPPED_BYTES_MAX};
use super::{KEY_BYTES, Secret, fill_random};
use crate::hex;
use crate::names::Attempt;

/// Bytes of the nonce before a wrapped key, and of the tag behind it.
const NONCE_BYTES: usize = 12;
const WRAP_TAG_BYTES: usize = 16;

/// Longest key file that is read: 64 hex digits, and what editors add.
const KEY_FILE_BYTES_MAX: u64 = 4096;

/// Permission bits that let others than the owner at a key.
const OPEN_TO_OTHERS: u32 = 0o077;

/// Slots named in an error.
const SLOTS_SHOWN_MAX: usize = 8;

/// A key that wraps data keys.
#[derive(Debug)]
pub struct KeyWrap(Way);

#[derive(Debug)]
enum Way {
    Static(StaticKey),
    Command(Command),
    Kms(Box<Kms>),
}

/// What a key of AWS KMS binds a data key to.
const KMS_BOUND: &str = "forebay-attempt";

/// A wrapping key that is in our hands.
struct StaticKey {
    kind: &'static str,
    id: String,
    key: Secret,
}

impl fmt::Debug for StaticKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.id)
    }
}

impl KeyWrap {
    /// A new one, and its 64 hex digits.
    pub fn generate() -> Result<(Self, Zeroizing<String>)> {
        let key = Secret::draw()?;
        let text = Zeroizing::new(hex::encode(key.bytes()));
        Ok((Self::of("file", *key.bytes()), text))
    }

    /// What slots know it by, where that is known beforehand; tells nothing of the key.
    pub fn id(&self) -> Option<&str> {
        match &self.0 {
            Way::Static(own) => Some(&own.id),
            Way::Command(_) | Way::Kms(_) => None,
        }
    }

    /// From a file of 32 bytes or 64 hex digits that nobody but its owner may read.
    pub fn file(path: &Path) -> Result<Self> {
        let refuse = |kind, message: String| Error::new(kind, "read key", message).at(path.display());
        let bytes = read_private(path)?;
        let text = std::str::from_utf8(&bytes).ok().map(str::trim_ascii);
        let key = match text.and_then(hex::decode) {
            Some(key) if key.len() == KEY_BYTES => key,
            _ => bytes,
        };
        let key = <[u8; KEY_BYTES]>::try_from(&key[..]).map_err(|_| {
            refuse(ErrorKind::InvalidInput, "this is no key".to_owned())
                .with_hint("a key is 32 bytes, or 64 hex digits; make one by `forebay ckpt key`")
        })?;
        Ok(Self::of("file", key))
    }

    /// From the environment variable `FOREBAY_KEY`: 64 hex digits.
    pub fn env(environment: &Environment) -> Result<Self> {
        let refuse = |kind, message: &str| {
            Error::new(kind, "read key", format!("{}: {message}", env::KEY.name))
                .with_hint("it must have 64 hex digits")
        };
        let text = environment.get(env::KEY).map(Zeroizing::new);
        let text = text.ok_or_else(|| refuse(ErrorKind::NotFound, "the variable is not set"))?;
        let key = hex::decode(text.trim_ascii());
        let key = key.and_then(|key| <[u8; KEY_BYTES]>::try_from(&key[..]).ok());
        let key = key.ok_or_else(|| refuse(ErrorKind::InvalidInput, "this is no key"))?;
        Ok(Self::of("env", key))
    }

    /// By a program and its arguments, which is asked on its standard input and answers on its standard output.
    pub fn command(words: Vec<String>) -> Result<Self> {
        Ok(Self(Way::Command(Command::new(words)?)))
    }

    /// By a key of AWS KMS: its ARN, its id, or `alias/NAME`.
    pub fn aws_kms(key: &str, context: &Context) -> Result<Self> {
        Ok(Self(Way::Kms(Box::new(Kms::new(key, context)?))))
    }

    /// As the command line has it: `file:PATH`, `env`, `command:PROGRAM ARGUMENTS`, `aws-kms:KEY`; anything else is a path.
    pub fn parse(text: &str, context: &Context) -> Result<Self> {
        match text.split_once(':') {
            Some(("file", path)) => Self::file(Path::new(path)),
            Some(("command", words)) => {
                Self::command(words.split_ascii_whitespace().map(str::to_owned).collect())
            }
            Some(("aws-kms", key)) => Self::aws_kms(key, context),
            None if text == "env" => Self::env(context.environment()),
            _ => Self::file(Path::new(text)),
        }
    }

    pub(crate) fn of(kind: &'static str, key: [u8; KEY_BYTES]) -> Self {
        let key = Secret::new(key);
        let fingerprint = key.derive("forebay key id 1");
        let id = hex::encode(fingerprint.bytes().get(..8).unwrap_or_default());
        Self(Way::Static(StaticKey { kind, id, key }))
    }

    /// Wrap the data key of an attempt.
    pub(crate) async fn wrap(&self, (step, attempt): (u64, Attempt), key: &Secret) -> Result<Slot> {
        let (kind, id, wrapped) = match &self.0 {
            Way::Static(own) => (own.kind, own.id.clone(), own.wrap(attempt, key)?),
            Way::Command(command) => {
                let (id, wrapped) = command.wrap(attempt, key).await?;
                ("command", id, wrapped)
            }
            Way::Kms(kms) => {
                let bound = attempt.to_string();
                // Boxed: every save would be as large as a request.
                let context = [(KMS_BOUND, bound.as_str())];
                let (id, wrapped) = Box::pin(kms.encrypt(key.bytes(), &context)).await?;
                if id.len() > ID_BYTES_MAX || wrapped.len() > WRAPPED_BYTES_MAX {
                    let message = "AWS KMS gave a wrapped key that is too long";
                    return Err(Error::new(ErrorKind::LimitExceeded, "wrap key", message));
                }
                ("aws-kms", id, wrapped)
            }
        };
        Ok(Slot {
            kind: kind.to_owned(),
            id,
            step,
            attempt,
            wrapped,
        })
    }

    /// The data key in a slot; `None` where the slot is for another wrapping key.
    pub(crate) async fn unwrap(&self, slot: &Slot) -> Result<Option<Secret>> {
        match &self.0 {
            Way::Static(own) if matches!(slot.kind.as_str(), "file" | "env") && slot.id == own.id => {
                own.unwrap(slot.attempt, &slot.wrapped).map(Some)
            }
            Way::Command(command) if slot.kind == "command" => {
                let key = command.unwrap(slot.attempt, &slot.id, &slot.wrapped).await?;
                Ok(Some(key))
            }
            Way::Kms(kms) if slot.kind == "aws-kms" => {
                let bound = slot.attempt.to_string();
                let context = [(KMS_BOUND, bound.as_str())];
                let opened = Box::pin(kms.decrypt(&slot.wrapped, &context)).await?;
                let opened = Zeroizing::new(opened);
                let key = <[u8; KEY_BYTES]>::try_from(&opened[..]).map_err(|_| {
                    let message = "AWS KMS gave something that is no data key";
                    Error::new(ErrorKind::Corrupt, "unwrap key", message)
                })?;
                Ok(Some(Secret::new(key)))
            }
            _ => Ok(None),
        }
    }
}

impl StaticKey {
    fn aad(attempt: Attempt) -> Aad<Vec<u8>> {
        let mut aad = b"forebay wrap 1\0".to_vec();
        aad.extend_from_slice(&attempt.0);
        Aad::from(aad)
    }

    fn wrap(&self, attempt: Attempt, key: &Secret) -> Result<Vec<u8>> {
        let mut nonce = [0; NONCE_BYTES];
        fill_random(&mut nonce)?;
        let mut wrapped = nonce.to_vec();
        let mut sealed = Zeroizing::new(*key.bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self
            .key
            .aead()?
            .seal_in_place_separate_tag(nonce, Self::aad(attempt), &mut sealed[..])
            .map_err(|_| Error::new(ErrorKind::Internal, "wrap key", "a key cannot be wrapped"))?;
        wrapped.extend_from_slice(&sealed[..]);
        wrapped.extend_from_slice(tag.as_ref());
        Ok(wrapped)
    }

    fn unwrap(&self, attempt: Attempt, wrapped: &[u8]) -> Result<Secret> {
        let damaged = || {
            let message = format!(
                "the key slot of {} {} is damaged, or of another attempt",
                self.kind, self.id
            );
            Error::new(ErrorKind::Corrupt, "unwrap key", message)
        };
        if wrapped.len() != NONCE_BYTES + KEY_BYTES + WRAP_TAG_BYTES {
            return Err(damaged());
        }
        let (nonce, sealed) = wrapped.split_first_chunk::<NONCE_BYTES>().ok_or_else(damaged)?;
        let mut sealed = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let key = self
            .key
            .aead()?
            .open_in_place(nonce, Self::aad(attempt), &mut sealed);
        let key = key.ok().and_then(|key| <[u8; KEY_BYTES]>::try_from(&*key).ok());
        key.map(Secret::new).ok_or_else(damaged)
    }
}

/// The bytes of a file that nobody but its owner may read.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let refuse = |kind, message: &str| Error::new(kind, "read key", message).at(path.display());
    let failed = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Io,
        };
        refuse(kind, "the key cannot be read").with_source(error)
    };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if meta.mode() & OPEN_TO_OTHERS != 0 {
        return Err(refuse(
            ErrorKind::PermissionDenied,
            "others than its owner may use this key",
        )
        .with_hint(format!("chmod 600 {}", path.display())));
    }
    if meta.len() > KEY_FILE_BYTES_MAX {
        return Err(refuse(ErrorKind::InvalidInput, "this file is too long for a key"));
    }
    std::fs::read(path).map(Zeroizing::new).map_err(failed)
}

/// Wrapping keys, each of which is enough to read; none means that nothing is sealed.
#[derive(Debug, Clone, Default)]
pub struct Keys(Vec<Arc<KeyWrap>>);

impl Keys {
    /// These.
    pub fn new(keys: impl IntoIterator<Item = KeyWrap>) -> Self {
        Self(keys.into_iter().map(Arc::new).collect())
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A slot by each of them.
    pub(crate) async fn wrap(&self, of: (u64, Attempt), key: &Secret) -> Result<Vec<Slot>> {
        let mut slots = Vec::with_capacity(self.0.len());
        for wrap in &self.0 {
            slots.push(wrap.wrap(of, key).await?);
        }
        Ok(slots)
    }

    /// The data key of an attempt, by the first of them that opens a slot of it.
    pub(crate) async fn open(&self, slots: &[Slot], attempt: Attempt) -> Result<Secret> {
        let mut failed = None;
        let own: Vec<&Slot> = slots.iter().filter(|slot| slot.attempt == attempt).collect();
        for wrap in &self.0 {
            for slot in &own {
                match wrap.unwrap(slot).await {
                    Ok(Some(key)) => return Ok(key),
                    Ok(None) => {}
                    Err(error) => failed = Some(error),
                }
            }
        }
        let shown: Vec<String> = own
            .iter()
            .take(SLOTS_SHOWN_MAX)
            .map(|slot| format!("{} {}", slot.kind.escape_debug(), slot.id.escape_debug()))
            .collect();
        let there = match shown.len() {
            0 => "there is no key slot for it".to_owned(),
            _ => format!("its key slots are for {}", shown.join(", ")),
        };
        let given = match self.0.len() {
            0 => "no key was given".to_owned(),
            count => format!(
                "none of the keys that were given ({count}) opens it: {:?}",
                self.0
            ),
        };
        let message = format!("the checkpoint is sealed, and {given}; {there}");
        let error = Error::new(ErrorKind::PermissionDenied, "unwrap key", message);
        Err(match failed {
            Some(source) => error.with_source(source),
            None => error,
        })
    }
}
