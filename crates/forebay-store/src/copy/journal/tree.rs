//! The journal of a tree: which objects are done.

use std::collections::HashMap;
use std::io::{BufRead, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Clock, Key};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::{FORMAT, Slot, WRITE_PERIOD, on_blocking};
use crate::context::Context;
use crate::copy::Shared;
use crate::copy::report::ObjectCopied;
use crate::store::{ObjectMeta, identity_below};

/// Objects a journal remembers: some 50 MB in memory when it is read. Those beyond are copied again after an interruption.
const OBJECTS_MAX: usize = 250_000;

/// Longest first line: two places, each some thousand bytes at most.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// First line of the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: u32,
    source: String,
    destination: String,
}

/// One line per object that is done.
#[derive(Debug, Serialize, Deserialize)]
struct Line<'a> {
    name: std::borrow::Cow<'a, str>,
    from: std::borrow::Cow<'a, str>,
    to: std::borrow::Cow<'a, str>,
}

/// What an earlier, interrupted copy has finished.
#[derive(Debug, Default)]
pub(crate) struct Known(HashMap<String, (String, String)>);

impl Known {
    /// True when the destination has the object as it is at the source now: the same size, and the same checksum or the version that the
    /// journal says was made from this version of the source.
    pub(crate) fn is_complete(&self, name: &Key, source: &ObjectMeta, there: &ObjectMeta) -> bool {
        if source.size != there.size {
            return false;
        }
        if let (Some(a), Some(b)) = (source.checksum, there.checksum)
            && std::mem::discriminant(&a) == std::mem::discriminant(&b)
        {
            return a == b;
        }
        match (self.0.get(name.as_str()), &source.version, &there.version) {
            (Some((from, to)), Some(source), Some(there)) => from == source && to == there,
            _ => false,
        }
    }
}

/// Remembers finished objects, in batches.
#[derive(Debug)]
pub(crate) struct TreeJournal {
    slot: Option<Slot>,
    header: Header,
    known: Arc<Known>,
    from: Key,
    pending: Vec<u8>,
    recorded: usize,
    is_begun: bool,
    clock: Arc<dyn Clock>,
    flushed: Duration,
    writing: Option<JoinHandle<()>>,
}

impl TreeJournal {
    /// Find what an earlier copy of the same tree to the same place has left.
    pub(crate) async fn open(shared: &Shared, from: &Key, to: &Key) -> Self {
        let header = Header {
            format: FORMAT,
            source: identity_below(&shared.source.identity(), from),
            destination: identity_below(&shared.destination.identity(), to),
        };
        let slot = Slot::claim(shared, &header.source, &header.destination, "tree").await;
        let text = match &slot {
            Some(slot) => slot.read().await,
            None => None,
        };
        let known = text.and_then(|text| parse(&text, &header));
        let mut journal = Self {
            slot,
            header,
            from: from.clone(),
            pending: Vec::new(),
            recorded: known.as_ref().map_or(0, |known| known.0.len()),
            is_begun: known.is_some(),
            known: Arc::new(known.unwrap_or_default()),
            clock: Arc::clone(shared.context.clock()),
            flushed: shared.context.clock().now(),
            writing: None,
        };
        // From the beginning, so that whoever asks meanwhile or after a crash knows that this tree is under way.
        if !journal.is_begun
            && let Some(write) = journal.take_write()
        {
            on_blocking(write).await;
        }
        journal
    }

    /// What an earlier copy has finished.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known)
    }

    /// Remember an object that is done.
    pub(crate) fn record(&mut self, object: &ObjectCopied) {
        if self.slot.is_none() || self.recorded >= OBJECTS_MAX {
            return;
        }
        let (Some(name), Some(from), Some(to)) = (
            object.from.below(&self.from),
            &object.from_version,
            &object.to_version,
        ) else {
            return;
        };
        let line = Line {
            name: name.as_str().into(),
            from: from.into(),
            to: to.into(),
        };
        if serde_json::to_writer(&mut self.pending, &line).is_ok() {
            self.pending.push(b'\n');
            self.recorded += 1;
        }
    }

    /// Write what is pending, if the last time is long enough ago.
    pub(crate) fn flush_if_due(&mut self) {
        let now = self.clock.now();
        let is_writing = self
            .writing
            .as_ref()
            .is_some_and(|writing| !writing.is_finished());
        if self.pending.is_empty() || is_writing || now.saturating_sub(self.flushed) < WRITE_PERIOD {
            return;
        }
        self.flushed = now;
        if let Some(write) = self.take_write() {
            // Not waited for: the next write is a second away.
            self.writing = Some(tokio::task::spawn_blocking(write));
        }
    }

    fn take_write(&mut self) -> Option<impl FnOnce() + Send + 'static> {
        let path = self.slot.as_ref()?.path.clone();
        let lines = std::mem::take(&mut self.pending);
        let header = (!self.is_begun).then(|| serde_json::to_vec(&self.header).unwrap_or_default());
        self.is_begun = true;
        Some(move || {
            if let Err(error) = append(&path, header, &lines) {
                tracing::warn!(%error, "cannot remember which objects are copied");
            }
        })
    }

    /// The copy is over: forget everything when it is complete, keep the rest otherwise.
    pub(crate) async fn close(mut self, is_complete: bool) {
        if let Some(writing) = self.writing.take() {
            drop(writing.await);
        }
        if is_complete {
            if let Some(slot) = &self.slot {
                slot.remove().await;
            }
        } else if !self.pending.is_empty()
            && let Some(write) = self.take_write()
        {
            on_blocking(write).await;
        }
    }
}

/// True when a copy of that tree to that place was begun and not finished.
pub(crate) async fn is_unfinished(context: &Context, source: String, destination: String) -> bool {
    let Some(path) = super::path(context, &source, &destination, "tree") else {
        return false;
    };
    let found = on_blocking(move || {
        let mut line = String::new();
        let file = std::fs::File::open(path).ok()?;
        std::io::BufReader::new(file.take(HEADER_BYTES_MAX))
            .read_line(&mut line)
            .ok()?;
        serde_json::from_str::<Header>(&line).ok()
    });
    found.await.flatten().is_some_and(|header| {
        header.format == FORMAT && header.source == source && header.destination == destination
    })
}

/// One call, so that a batch is in the file as a whole or cut at its end.
fn append(path: &std::path::Path, header: Option<Vec<u8>>, lines: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut text = Vec::with_capacity(lines.len() + 256);
    match header {
        Some(header) => {
            options.write(true).create(true).truncate(true);
            text.extend_from_slice(&header);
            text.push(b'\n');
        }
        None => {
            options.append(true);
            // After a line that was cut by a crash; empty lines are skipped.
            text.push(b'\n');
        }
    }
    text.extend_from_slice(lines);
    options.open(path)?.write_all(&text)
}

/// For the fuzz target: the lines of a journal that is about this copy.
#[cfg(fuzzing)]
pub(super) fn fuzz(text: &str) {
    let header = Header {
        format: FORMAT,
        source: String::new(),
        destination: String::new(),
    };
    parse(text, &header);
    if let Ok(line) = serde_json::to_string(&header) {
        parse(&format!("{line}\n{text}"), &header);
    }
}

/// `None` when the file is not about this copy.
fn parse(text: &str, header: &Header) -> Option<Known> {
    let mut lines = text.lines();
    let found: Header = serde_json::from_str(lines.next()?).ok()?;
    if found != *header {
        return None;
    }
    let mut known = HashMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        // A line that was cut by a crash.
        let Ok(line) = serde_json::from_str::<Line<'_>>(line) else {
            continue;
        };
        if known.len() >= OBJECTS_MAX {
            break;
        }
        known.insert(
            line.name.into_owned(),
            (line.from.into_owned(), line.to.into_owned()),
        );
    }
    Some(Known(known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Checksum;

    fn header() -> Header {
        Header {
            format: FORMAT,
            source: "/a".into(),
            destination: "/b".into(),
        }
    }

    #[test]
    fn a_cut_line_costs_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let line = |name: &str| format!("{{\"name\":\"{name}\",\"from\":\"1\",\"to\":\"2\"}}\n");
        append(
            &path,
            Some(serde_json::to_vec(&header()).unwrap()),
            line("x").as_bytes(),
        )
        .unwrap();
        append(&path, None, b"{\"name\":\"y\",\"fr").unwrap();
        append(&path, None, line("z \\u00e9").as_bytes()).unwrap();
        let known = parse(&std::fs::read_to_string(&path).unwrap(), &header()).unwrap();
        let mut names: Vec<_> = known.0.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["x", "z \u{e9}"]);
        let other = Header {
            destination: "/c".into(),
            ..header()
        };
        assert!(parse(&std::fs::read_to_string(&path).unwrap(), &other).is_none());
    }

    #[test]
    fn only_the_same_version_counts_as_complete() {
        let known = Known(HashMap::from([("k".into(), ("s1".into(), "d1".into()))]));
        let key = Key::parse("k").unwrap();
        let meta = |size, version: &str, checksum| ObjectMeta {
            key: key.clone(),
            size,
            version: Some(version.into()),
            modified: None,
            checksum,
            permissions: None,
        };
        let is_complete = |a: &ObjectMeta, b: &ObjectMeta| known.is_complete(&key, a, b);
        assert!(is_complete(&meta(5, "s1", None), &meta(5, "d1", None)));
        assert!(!is_complete(&meta(5, "s2", None), &meta(5, "d1", None)));
        assert!(!is_complete(&meta(5, "s1", None), &meta(5, "d2", None)));
        assert!(!is_complete(&meta(5, "s1", None), &meta(6, "d1", None)));
        let (a, b) = (Some(Checksum::Crc64Nvme(1)), Some(Checksum::Crc64Nvme(2)));
        assert!(is_complete(&meta(5, "x", a), &meta(5, "y", a)));
        assert!(!is_complete(&meta(5, "s1", a), &meta(5, "d1", b)));
        assert!(is_complete(&meta(5, "s1", a), &meta(5, "d1", None)));
    }
}
