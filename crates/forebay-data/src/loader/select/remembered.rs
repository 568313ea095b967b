//! What filters keep, between runs: a file for each data set and filter in the state folder, as `docs/formats/selections.md` has them.
//!
//! A file that is missing, damaged, of another version or of other data only means that the samples are read again, so nothing here fails. Files appear by
//! renaming: a reader sees a whole one or none, whoever else writes the same.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forebay_core::{Seed, crc64nvme};
use sha2::{Digest, Sha256};

use crate::dataset::Dataset;
use crate::filter::Filter;
use crate::manifest::Shard;
use crate::order::Selection;

const MAGIC: [u8; 8] = *b"FBSELECT";

const FORMAT: u32 = 2;

const SUM_BYTES: usize = 8;

/// Below that, reading again takes no time that anybody notices, and the folder is not for trifles.
pub(super) const WORTH_BYTES_MIN: u64 = 32 << 20;

/// A bitmap of 128 million samples. Larger files are not ours.
const FILE_BYTES_MAX: usize = 16 << 20;

/// What is told of a filter names the fields that it has, and a filter is a line that somebody wrote.
const NOTE_BYTES_MAX: usize = 64 << 10;

/// Files in the folder: more data sets and filters than one user has under way.
const FILES_MAX: usize = 64;

/// Bytes of all of them: the folder is in the home of a user.
const FOLDER_BYTES_MAX: u64 = 256 << 20;

/// What was found of a filter over a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// What is kept of each shard.
    pub(super) selections: Vec<Selection>,
    /// What is to be told of it, at every start.
    pub(super) note: Option<String>,
}

/// Where the selection of a data set by a filter is.
#[derive(Debug)]
pub(super) struct Remembered {
    path: PathBuf,
    /// The digests of data set and filter.
    of: [u8; 64],
}

impl Remembered {
    /// Nothing where there is no state folder, or where the data set is a part of one already.
    pub(super) fn new(dataset: &Dataset, filter: &Filter) -> Option<Self> {
        if dataset.filter_ledger().is_some() {
            return None;
        }
        let folder = dataset.context().state_dir()?.join("selections");
        // How a filter is understood may change with every version.
        let filter = format!("{}\n{filter:?}", env!("CARGO_PKG_VERSION"));
        let mut of = [0; 64];
        let (data, how) = of.split_at_mut(32);
        data.copy_from_slice(&dataset.manifest().fingerprint());
        how.copy_from_slice(&Sha256::digest(filter));
        let name: Vec<String> = Sha256::digest(of)
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = folder.join(name.concat() + ".sel");
        Some(Self { path, of })
    }

    /// What is kept of these shards, where that is known.
    pub(super) async fn load(&self, shards: &[Shard]) -> Option<Finding> {
        let (path, of) = (self.path.clone(), self.of);
        let samples: Vec<u64> = shards.iter().map(|shard| shard.samples).collect();
        let load = move || {
            let meta = std::fs::metadata(&path).ok()?;
            let is_small = meta.is_file() && meta.len() <= FILE_BYTES_MAX as u64;
            let bytes = is_small.then(|| std::fs::read(&path).ok())??;
            decode(&bytes, &of, &samples)
        };
        tokio::task::spawn_blocking(load).await.ok()?
    }

    /// Keep it for the next start.
    pub(super) async fn save(&self, found: &Finding) {
        let Some(bytes) = encode(&self.of, found) else {
            return;
        };
        let path = self.path.clone();
        let saving = tokio::task::spawn_blocking(move || save(&path, &bytes));
        if let Ok(Err(error)) = saving.await {
            // It only costs reading again next time.
            tracing::debug!(%error, "what the filter keeps was not remembered");
        }
    }
}

/// What is before the first shard.
fn head(of: &[u8; 64], shards: usize) -> Option<Vec<u8>> {
    let shards = u32::try_from(shards).ok()?.to_le_bytes();
    Some([&MAGIC[..], &FORMAT.to_le_bytes(), &shards, of].concat())
}

fn encode(of: &[u8; 64], found: &Finding) -> Option<Vec<u8>> {
    let mut bytes = head(of, found.selections.len())?;
    for selection in &found.selections {
        selection.encode(&mut bytes);
        if bytes.len() > FILE_BYTES_MAX - NOTE_BYTES_MAX {
            return None;
        }
    }
    let note = found.note.as_deref().unwrap_or_default();
    if note.len() > NOTE_BYTES_MAX {
        return None;
    }
    bytes.extend(u32::try_from(note.len()).ok()?.to_le_bytes());
    bytes.extend(note.as_bytes());
    bytes.extend(crc64nvme(&bytes).to_le_bytes());
    Some(bytes)
}

/// What was found, of a file that is of this data set and this filter.
fn decode(bytes: &[u8], of: &[u8; 64], samples: &[u64]) -> Option<Finding> {
    let (bytes, sum) = bytes.split_last_chunk::<SUM_BYTES>()?;
    if crc64nvme(bytes) != u64::from_le_bytes(*sum) {
        return None;
    }
    let mut rest = bytes.strip_prefix(&*head(of, samples.len())?)?;
    let selections = samples
        .iter()
        .map(|samples| Selection::decode(*samples, &mut rest));
    let selections: Vec<Selection> = selections.collect::<Option<_>>()?;
    let is_one_kept = selections.iter().any(|selection| selection.count() > 0);
    let (len, note) = rest.split_first_chunk()?;
    let is_all = note.len() == u32::from_le_bytes(*len) as usize && note.len() <= NOTE_BYTES_MAX;
    let note = std::str::from_utf8(note).ok()?;
    (is_all && is_one_kept).then(|| Finding {
        selections,
        note: (!note.is_empty()).then(|| note.to_owned()),
    })
}

fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    std::fs::create_dir_all(folder)?;
    let draft = path.with_extension(format!("{:016x}.tmp", Seed::fresh().0));
    let saved = std::fs::write(&draft, bytes).and_then(|()| std::fs::rename(&draft, path));
    if saved.is_err() {
        drop(std::fs::remove_file(&draft));
    }
    forget_old(folder)?;
    saved
}

/// Remove what was written longest ago, and is too much.
fn forget_old(folder: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let is_ours = path
            .extension()
            .is_some_and(|ending| ending == "sel" || ending == "tmp");
        // Another process may have removed it meanwhile.
        if let (true, Ok(meta)) = (is_ours, entry.metadata()) {
            files.push((meta.modified()?, meta.len(), path));
        }
    }
    files.sort_unstable_by(|a, b| b.cmp(a));
    let mut bytes = 0;
    for (number, (_, len, path)) in files.into_iter().enumerate() {
        bytes += len;
        if number >= FILES_MAX || bytes > FOLDER_BYTES_MAX {
            drop(std::fs::remove_file(path));
        }
    }
    Ok(())
}

/// For the fuzz target: what may stand between a head and a checksum that fit.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    let of = [0; 64];
    for samples in [&[][..], &[100], &[1000, 1], &[0, 64, 130]] {
        let mut file = head(&of, samples.len()).unwrap_or_default();
        file.extend(bytes);
        file.extend(crc64nvme(&file).to_le_bytes());
        if let Some(found) = decode(&file, &of, samples) {
            let again = encode(&of, &found).and_then(|again| decode(&again, &of, samples));
            assert_eq!(again, Some(found));
        }
    }
}
