//! The checkpoint that an incremental save is compared with.

use std::sync::Arc;

use forebay_core::{ErrorKind, Result};

use super::SaveOptions;
use crate::hash::IdKind;
use crate::names::Attempt;
use crate::open::Checkpoint;
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
    let Some((_, attempt)) = wanted else {
        return full(format!("there is no checkpoint of step {step}"));
    };
    if !options.hash.tells_contents_apart() {
        return full(format!("{} is too short to tell contents apart", options.hash));
    }
    let opened = Checkpoint::open_with(source.clone(), step).await;
    let checkpoint = match opened {
        Ok(checkpoint) => checkpoint.with_keys(options.seal.clone()),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Unsupported
            ) =>
        {
            return full(error.to_string());
        }
        Err(error) => return Err(error),
    };
    let manifest = checkpoint.manifest();
    if manifest.attempt != attempt {
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
