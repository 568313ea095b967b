//! Notes of ranks that cannot save: `rank-<rank>.failed` in the folder of their attempt.
//!
//! Ranks that share nothing but the store wait for each other there. One that fails says why before it goes, so that the others end within one look instead of
//! waiting for what never comes. A note is no part of any checkpoint: nothing but a wait reads it, and gc removes it with the rest of the attempt.
//!
//! ```text
//! any rank fails -> note -> coordinator, waiting for parts, reads it -> its pin goes -> the others, waiting for the pin or the commit, read it
//! ```

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_store::{Context, PutMode, PutOptions, Store, StoreExt};
use serde::{Deserialize, Serialize};

use crate::names::{Attempt, Piece, check_rank, piece_key};
use crate::open::read_small;

/// Most bytes of a note that are read: a kind and a message.
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Most characters of a message that are noted: escaped as JSON, they stay within a note.
const MESSAGE_CHARS_MAX: usize = 4096;

/// The operation that errors of other ranks name.
const OP: &str = "wait for ranks";

/// What a note says.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    kind: ErrorKind,
    message: String,
}

/// Note that a rank cannot save its part of an attempt, and why: the others stop waiting for it. An error that another rank has noted is not noted again. A
/// store that does not take the note is logged, since the error that is under way says more.
pub async fn note_failure(store: &dyn Store, step: u64, attempt: Attempt, rank: u32, error: &Error) {
    if error.op() == OP {
        return;
    }
    let note = Note {
        kind: error.kind(),
        message: error.to_string().chars().take(MESSAGE_CHARS_MAX).collect(),
    };
    if let Err(error) = put(store, step, attempt, rank, &note).await {
        tracing::warn!(%error, rank, "the other ranks are not told of a failure");
    }
}

async fn put(store: &dyn Store, step: u64, attempt: Attempt, rank: u32, note: &Note) -> Result<()> {
    check_rank(rank, rank.saturating_add(1))?;
    let bytes = serde_json::to_vec(note).map_err(|error| {
        Error::new(ErrorKind::Internal, "save", "a note cannot be written").with_source(error)
    })?;
    let options = PutOptions {
        mode: PutMode::Replace,
        ..PutOptions::default()
    };
    let key = piece_key(step, attempt, Piece::Failed(rank));
    store.put_bytes(&key, &bytes, &options).await.map(drop)
}

/// What the first rank has noted that cannot save, among what lies in the folder of an attempt.
pub(crate) async fn first(
    store: &Arc<dyn Store>,
    context: &Context,
    (step, attempt): (u64, Attempt),
    there: impl Iterator<Item = &Piece>,
) -> Result<Option<Error>> {
    let failed = there.filter_map(|piece| match piece {
        Piece::Failed(rank) => Some(*rank),
        _ => None,
    });
    match failed.min() {
        Some(rank) => of_rank(store, context, (step, attempt, rank)).await,
        None => Ok(None),
    }
}

/// The error that a rank has noted; none where it has not.
async fn of_rank(
    store: &Arc<dyn Store>,
    context: &Context,
    (step, attempt, rank): (u64, Attempt, u32),
) -> Result<Option<Error>> {
    let key = piece_key(step, attempt, Piece::Failed(rank));
    let bytes = match read_small(store, context, &key, NOTE_BYTES_MAX).await {
        Ok((bytes, _)) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // A note that cannot be read is one all the same.
    let note: Option<Note> = serde_json::from_slice(&bytes).ok();
    let (kind, why) = match &note {
        Some(note) => (note.kind, note.message.as_str()),
        None => (ErrorKind::Precondition, "its note does not say why"),
    };
    let message = format!("rank {rank} cannot save: {why}");
    Ok(Some(Error::new(kind, OP, message).at(store.location())))
}
