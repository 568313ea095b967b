//! The checkpoint that an incremental save is compared with.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};

use super::SaveOptions;
use crate::hash::IdKind;
use crate::names::Attempt;
use crate::open::{Checkpoint, read_manifest};
use crate::pages::Source;
use crate::seal::{Opener, id_key};

/// An open checkpoint whose chunks may be referenced.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    pub(crate) checkpoint: Checkpoint,
    /// Where it is sealed, its data keys, which the new checkpoint needs slots for.
    pub(crate) opener: Option<Arc<Opener>>,
}

impl Base {
    /// What its contents are told apart by.
    pub(super) fn id_kind(&self) -> IdKind {
        let manifest = self.checkpoint.manifest();
        let key = self
            .opener
            .as_ref()
            .and_then(|opener| opener.data_key(manifest.attempt));
        match key {
            Some(key) => IdKind::Keyed(id_key(&key)),
            None => IdKind::Hash(manifest.hash),
        }
    }
}

/// True when a base cannot be used, and a full save can be made all the same.
pub(super) fn is_of_base(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Io
    )
}

/// Which attempt the pin is to name as the base, if the checkpoint of that step can be one; [`open_base`] says why not.
pub(super) async fn wanted_base(source: &Source, step: u64) -> Result<Option<(u64, Attempt)>> {
    match read_manifest(source, step).await {
        Ok(found) => Ok(found.map(|(found, _)| (step, found.attempt))),
        Err(error) if is_of_base(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The checkpoint to compare with, looked at after the pin names it; or why there is none.
pub(super) async fn open_base(
    source: &Source,
    options: &SaveOptions,
    wanted: Option<(u64, Attempt)>,
) -> Result<(Option<Base>, Option<String>)> {
    let Some(step) = options.base_step else {
        return Ok((None, None));
    };
    let full = |why: String| Ok((None, Some(why)));
    if !options.hash.tells_contents_apart() {
        return full(format!("{} is too short to tell contents apart", options.hash));
    }
    let opened = Checkpoint::open_with(source.clone(), step).await;
    let checkpoint = match opened {
        Ok(checkpoint) => checkpoint.with_keys(options.seal.clone()),
        Err(error) if is_of_base(&error) => return full(error.to_string()),
        Err(error) => return Err(error),
    };
    let manifest = checkpoint.manifest();
    if wanted != Some((step, manifest.attempt)) {
        return full(format!("the checkpoint of step {step} was replaced meanwhile"));
    }
    if manifest.hash != options.hash || manifest.chunk_bytes != options.chunk_bytes {
        return full(format!(
            "the checkpoint of step {step} has other chunks or hashes"
        ));
    }
    match (manifest.is_sealed(), options.seal.is_empty()) {
        (false, true) => Ok((
            Some(Base {
                checkpoint,
                opener: None,
            }),
            None,
        )),
        (true, true) => full(format!(
            "the checkpoint of step {step} is sealed, and this save is not"
        )),
        (false, false) => full(format!(
            "the checkpoint of step {step} is not sealed, and this save is"
        )),
        (true, false) => match checkpoint.opener().await {
            Ok(opener) => Ok((
                Some(Base {
                    opener: Some(opener),
                    checkpoint,
                }),
                None,
            )),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => full(error.to_string()),
            Err(error) => Err(error),
        },
    }
}
