//! Keys of checkpoints as plain structs: who may read, whom to believe.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use forebay_ckpt::{KeyWrap, Keys, PublicKey};
use forebay_core::Result;
use forebay_store::Context;

/// Whom to believe.
#[derive(Debug, Args)]
pub(crate) struct TrustArgs {
    /// Refuse a checkpoint that this key has not signed: file of a public key in PEM, or 64 hex digits. May be given several times: one is enough
    #[arg(long, value_name = "PUBLIC-KEY")]
    pub(crate) require_signature: Vec<String>,
}

impl TrustArgs {
    /// The keys, when a signature is required.
    pub(crate) fn trusted(&self) -> Result<Option<Vec<PublicKey>>> {
        if self.require_signature.is_empty() {
            return Ok(None);
        }
        let keys = self.require_signature.iter().map(|text| {
            // No file has such a name by chance.
            PublicKey::parse(text).or_else(|_| PublicKey::file(Path::new(text)))
        });
        keys.collect::<Result<_>>().map(Some)
    }
}

/// Wrapping keys as the command line names them.
pub(crate) fn keys(texts: &[String], context: &Context) -> Result<Keys> {
    let keys = texts.iter().map(|text| KeyWrap::parse(text, context));
    Ok(Keys::new(keys.collect::<Result<Vec<_>>>()?))
}

/// `forebay ckpt rewrap`.
#[derive(Debug, Args)]
pub(crate) struct CkptRewrapArgs {
    /// A key that opens it now: `file:PATH`, `env` (FOREBAY_KEY), `aws-kms:KEY`, `command:PROGRAM ARGUMENTS`, or a path
    #[arg(long, value_name = "KEY", required = true)]
    pub(crate) key: Vec<String>,
    /// A key that is to open it from now on; may be given several times: each will do
    #[arg(long, value_name = "KEY", required = true)]
    pub(crate) new_key: Vec<String>,
    /// Which step; the newest unless told otherwise
    #[arg(long, value_name = "STEP", conflicts_with = "all")]
    pub(crate) step: Option<u64>,
    /// All steps that are sealed
    #[arg(long)]
    pub(crate) all: bool,
    /// Note it in this file before it is done; see `forebay ckpt log`
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
    /// Where the checkpoints are
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// `forebay ckpt log`.
#[derive(Debug, Args)]
pub(crate) struct CkptLogArgs {
    /// The log
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// `forebay ckpt key`.
#[derive(Debug, Args)]
pub(crate) struct CkptKeyArgs {
    /// A pair for signatures: the private key in FILE, the public one in FILE.pub; without it, a key to seal with
    #[arg(long)]
    pub(crate) sign: bool,
    /// File to make; one that is there stays as it is
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}
