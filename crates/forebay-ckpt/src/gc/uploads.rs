//! Uploads in parts of writers that died: a bucket keeps their parts, and charges for them, until somebody gives them up.
//!
//! They are found before pins are read, as objects are: one of an attempt that nobody has pinned then is nobody's. Whoever wrote it may have had no pin of ours, such as a
//! plain copy of a folder, so it must be as old as a pin that has expired, too.

use forebay_core::{Key, Result};
use forebay_store::OpenUpload;

use super::{Collected, Gc, Pinned};
use crate::names::{STEPS, parse_piece_key};

impl Gc<'_> {
    pub(super) async fn open_uploads(&self) -> Result<Vec<OpenUpload>> {
        self.source.store.open_uploads(&Key::parse(STEPS)?).await
    }

    /// Give up what the dead have left. A store that does not tell, or does not let go, is named, and keeps nobody from anything else.
    pub(super) async fn give_up(
        &self,
        found: Result<Vec<OpenUpload>>,
        pinned: &Pinned,
        done: &mut Collected,
    ) -> Result<()> {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "uploads that were left cannot be looked for");
                done.uploads_trouble = Some(error.to_string());
                return Ok(());
            }
        };
        for upload in found.into_iter().filter(|upload| self.is_left(upload, pinned)) {
            if !self.options.is_dry_run {
                self.check()?;
                if let Err(error) = self.source.store.abort_upload(&upload).await {
                    tracing::warn!(%error, "an upload that was left stays");
                    done.uploads_trouble.get_or_insert(error.to_string());
                    continue;
                }
            }
            done.uploads.push(upload.key);
        }
        Ok(())
    }

    /// Of an attempt that nobody saves or brings, and so old that nobody can be at it.
    fn is_left(&self, upload: &OpenUpload, pinned: &Pinned) -> bool {
        let Some((_, attempt, _)) = parse_piece_key(&upload.key) else {
            return false;
        };
        let now = self.source.context.clock().unix();
        let is_old = |begun| now.saturating_sub(begun) > self.options.pin_age_max;
        !pinned.attempts.contains(&attempt) && upload.begun.is_some_and(is_old)
    }
}
