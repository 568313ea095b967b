//! Writers that race for one name: exactly one may win.
//!
//! Races are real: several writers at once, over connections that are open already, for several rounds. That no violation was seen is no proof, but
//! what ignores or races on conditions shows it here. A round in which a writer failed for another reason than having lost says nothing, and is
//! run again.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use forebay_core::{Key, Result};
use futures::future::join_all;
use object_store::multipart::MultipartStore;
use object_store::{PutPayload, PutResult};

use super::checks::{Probe, content, refuted};
use crate::store::Proof;

/// Writers that race.
const WRITERS: usize = 8;

/// Rounds of a race. A server whose completions race (SeaweedFS 4.48) shows it in about every second round, so eight of them miss it
/// once in some hundred probes; each round is one round trip for puts and three for uploads.
const ROUNDS: usize = 8;

/// How often a round is run that says nothing, such as one that was throttled.
const ROUND_TRIES: u32 = 4;

/// A way to write that must not replace.
#[derive(Clone, Copy)]
pub(super) enum Race<'a> {
    Put,
    Complete(&'a dyn MultipartStore),
}

/// How a round of a race went.
enum Round {
    /// One writer won, the others were told so, and the object is the winner's.
    Fair,
    /// It says nothing, for that reason.
    Unclear(String),
    Over(Proof),
}

impl Probe<'_> {
    /// Several rounds, each until it says something.
    pub(super) async fn races(&self, name: &str, race: Race<'_>) -> Result<Proof> {
        for round in 0..ROUNDS {
            let mut unclear = String::new();
            let mut fair = false;
            for attempt in 1..=ROUND_TRIES {
                let key = self.key(&format!("{name}-{round}-{attempt}"))?;
                let ends = match race {
                    Race::Put => self.race_puts(&key).await?,
                    Race::Complete(api) => self.race_completions(api, &key).await?,
                };
                match self.judge(&key, ends).await? {
                    Round::Over(proof) => return Ok(proof),
                    Round::Unclear(why) => {
                        unclear = why;
                        self.store.pause(attempt).await;
                    }
                    Round::Fair => {
                        fair = true;
                        break;
                    }
                }
            }
            if !fair {
                self.disturbed.store(true, Ordering::Relaxed);
                return Ok(Proof::Untried(unclear));
            }
        }
        Ok(Proof::Shown)
    }

    async fn race_puts(&self, key: &Key) -> Result<Vec<object_store::Result<PutResult>>> {
        let path = self.path(key)?;
        let writers = (0..WRITERS).map(|writer| {
            let payload = PutPayload::from(Bytes::from(content(writer as u8)));
            self.store.put_create(&path, payload, None)
        });
        Ok(join_all(writers).await)
    }

    async fn race_completions(
        &self,
        api: &dyn MultipartStore,
        key: &Key,
    ) -> Result<Vec<object_store::Result<PutResult>>> {
        let begun = (0..WRITERS).map(|writer| self.begin(api, key, writer as u8));
        let begun: Vec<_> = join_all(begun).await.into_iter().collect::<Result<_>>()?;
        let completions = begun
            .iter()
            .map(|(path, upload, part)| self.complete(api, path, upload, part));
        let ends = join_all(completions).await;
        let lost = begun.iter().zip(&ends).filter(|(_, end)| end.is_err());
        join_all(lost.map(|((path, upload, _), _)| self.abort(api, path, upload))).await;
        Ok(ends)
    }

    async fn judge(&self, key: &Key, ends: Vec<object_store::Result<PutResult>>) -> Result<Round> {
        let mut winners = Vec::new();
        let mut unclear = None;
        for (writer, end) in ends.into_iter().enumerate() {
            match end {
                Ok(_) => winners.push(writer),
                Err(error) => {
                    if let Err(error) = self.store.lost_race(error) {
                        unclear = Some(format!("a writer in a race neither won nor lost: {error}"));
                    }
                }
            }
        }
        Ok(match winners.as_slice() {
            [winner] if self.get(key).await? != Some(content(*winner as u8)) => Round::Over(refuted(
                "the writer that won a race is not the one whose object is there",
            )),
            [_] => unclear.map_or(Round::Fair, Round::Unclear),
            [] => Round::Unclear(unclear.unwrap_or_else(|| "no writer won a race".to_owned())),
            several => Round::Over(refuted(&format!(
                "{} of {WRITERS} racing writers won",
                several.len()
            ))),
        })
    }
}
