//! Compares a data set with its manifest, byte by byte, and names every damage.
//!
//! Each shard is read once, in order: its bytes go into the SHA-256 as they are stored and, decompressed, past the checksum of every sample or column chunk
//! ([`Extents`]). Where chunks lie is told by the footer of the shard, which is read first and compared with a checksum of its own; without it no row can be
//! read, and none counts as whole. Damage stops nothing: the pass goes on to the end of the shard, and to the next one. When the hash of a shard differs, its format
//! has a second look, which may find damage between samples (headers, footers) and say in words what is wrong. Memory is that of a few pieces and
//! one table per shard at work.
//!
//! Plain folders have no shards that anybody wrote: their files are compared one by one (`files.rs`).

mod extents;
mod files;

use std::collections::HashSet;
use std::sync::Arc;

use forebay_core::{ErrorKind, Key, Ledger, Result};
use futures::TryStreamExt;
use futures::stream::{self, StreamExt};
use ring::digest;
use serde::Serialize;

use crate::codec::Decoder;
use crate::dataset::{Dataset, Progress, Task, at_once};
use crate::format::tabulate;
use crate::manifest::Shard;
use crate::source::ShardSource;
use crate::table::{Layout, Table};
use extents::{Extents, Part};
use files::Files;

/// Damaged samples named for one shard, and shards or files that the manifest does not know; the rest is counted. A shard that is torn in the middle has one for each
/// sample behind.
pub const DAMAGES_NAMED_MAX: usize = 100;

/// What is said of a shard whose hash differs.
const OTHER_SHA256: &str = "the shard has another SHA-256 than when it was indexed";

/// What kind of damage it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DamageKind {
    /// The shard is not there, or a file of it.
    Missing,
    /// The shard, or a file of it, has another size than when it was indexed.
    Size,
    /// The shard has another SHA-256.
    Sha256,
    /// The bytes of a sample do not have its checksum.
    SampleCrc,
    /// The bytes of a column of a group of samples do not have their checksum.
    ChunkCrc,
    /// The shard no longer follows its format, or does not decompress.
    Format,
    /// The shard, or a file of it, could not be read.
    Unreadable,
    /// The object looks like a shard of the data set or a file of the folder, but the manifest does not know it: streams refuse to leave it out silently.
    Unlisted,
}

impl DamageKind {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Size => "size",
            Self::Sha256 => "sha256",
            Self::SampleCrc => "sample crc",
            Self::ChunkCrc => "chunk crc",
            Self::Format => "format",
            Self::Unreadable => "unreadable",
            Self::Unlisted => "unlisted",
        }
    }
}

/// One damage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The shard.
    pub shard: Key,
    /// The file, where the shard is a list of files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Key>,
    /// What kind of damage.
    pub kind: DamageKind,
    /// Number of the sample in the shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<u64>,
    /// Key of the sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Number of the group in the shard, where samples are rows of groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// The column of the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// Where the sample or column chunk begins, after decompression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// In words.
    pub message: String,
}

impl Damage {
    /// Damage of no part of a shard that could be told.
    fn of_shard(shard: &Key, kind: DamageKind, message: String) -> Self {
        Self {
            shard: shard.clone(),
            file: None,
            kind,
            sample: None,
            key: None,
            group: None,
            column: None,
            offset: None,
            message,
        }
    }
}

/// What a verification found.
#[derive(Debug, Clone, Default)]
pub struct VerifyReport {
    /// Shards looked at.
    pub shards: u64,
    /// Shards without damage.
    pub shards_whole: u64,
    /// Samples whose checksum holds.
    pub samples_whole: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Damages in all.
    pub damages_count: u64,
    /// The damages, in the order of the shards; of each shard the first [`DAMAGES_NAMED_MAX`], and those of the whole shard.
    pub damages: Vec<Damage>,
    /// Whether shards that the manifest does not know were looked for; they are not where nothing can be listed.
    pub unlisted_sought: bool,
    /// Which way the bytes came.
    pub ledger: Ledger,
}

impl VerifyReport {
    /// Damages that are counted and not among those that are named.
    pub fn damages_unnamed(&self) -> u64 {
        self.damages_count.saturating_sub(self.damages.len() as u64)
    }

    /// True when everything is as it was when it was indexed.
    pub fn is_whole(&self) -> bool {
        self.damages_count == 0
    }
}

/// Verify every shard, several at once. `report` is told of damage as it is found, shard by shard.
///
/// Open the data set with [`Check::WhenRead`](crate::dataset::Check::WhenRead), so that a missing shard is one damage among others.
pub async fn verify(
    dataset: &Dataset,
    progress: &Arc<dyn Progress>,
    mut tell: impl FnMut(&Damage),
) -> Result<VerifyReport> {
    let bytes = dataset.shards().iter().map(|shard| shard.stored_bytes).sum();
    progress.planned(dataset.shards().len() as u64, bytes);
    let files = Files::new(dataset).await?.map(Arc::new);
    let passes = (0..dataset.shards().len()).map(|number| {
        let (dataset, files, progress) = (dataset.clone(), files.clone(), Arc::clone(progress));
        let pass = async move { verify_shard(&dataset, files.as_deref(), number, &progress).await };
        async move { Task::spawn(pass).await }
    });
    let mut passes = stream::iter(passes).buffered(at_once());
    let mut report = VerifyReport::default();
    for shard in dataset.shards() {
        let Some(found) = passes.next().await else {
            break;
        };
        let found = found?;
        report.shards += 1;
        report.shards_whole += u64::from(found.damages_count == 0);
        report.samples_whole += found.samples_whole;
        report.bytes += found.bytes;
        report.damages_count += found.damages_count;
        report.ledger.merge(&found.ledger);
        found.damages.iter().for_each(&mut tell);
        report.damages.extend(found.damages);
        progress.shard_done(&shard.key, shard.samples);
    }
    let unlisted = match &files {
        Some(files) if !dataset.is_part() => Some(files.unasked()),
        _ => dataset.unlisted().await?,
    };
    report.unlisted_sought = unlisted.is_some();
    if unlisted.is_none() {
        progress.noted(
            "nothing can be listed here, so shards that the manifest does not know were not looked for",
        );
    }
    let unlisted = unlisted.unwrap_or_default();
    report.damages_count += unlisted.len() as u64;
    for key in unlisted.into_iter().take(DAMAGES_NAMED_MAX) {
        let message = format!(
            "the manifest does not know it; {} takes it in",
            dataset.how_to_index_anew()
        );
        let damage = Damage {
            file: files.is_some().then(|| key.clone()),
            ..Damage::of_shard(&key, DamageKind::Unlisted, message)
        };
        tell(&damage);
        report.damages.push(damage);
    }
    if let (Some(files), true) = (&files, report.is_whole() && !dataset.is_part()) {
        let (count, misplaced) = files.misplaced();
        report.damages_count += count;
        misplaced.iter().for_each(&mut tell);
        report.damages.extend(misplaced);
    }
    Ok(report)
}

/// What was found in one shard.
#[derive(Debug, Default)]
struct Found {
    damages: Vec<Damage>,
    damages_count: u64,
    samples_whole: u64,
    bytes: u64,
    ledger: Ledger,
}

impl Found {
    fn add(&mut self, damage: Damage) {
        self.damages_count += 1;
        if self.damages.len() < DAMAGES_NAMED_MAX {
            self.damages.push(damage);
        }
    }

    /// Damage of the whole shard is always named: there are few kinds of it.
    fn add_whole(&mut self, shard: &Shard, kind: DamageKind, message: String) {
        self.damages_count += 1;
        self.damages.push(Damage::of_shard(&shard.key, kind, message));
    }
}

async fn verify_shard(
    dataset: &Dataset,
    files: Option<&Files>,
    number: usize,
    progress: &Arc<dyn Progress>,
) -> Result<Found> {
    // A manifest that cannot be read is no damage of the data, and ends the verification.
    let table = dataset.table(number).await?;
    let mut found = Found::default();
    let Some(shard) = dataset.shards().get(number) else {
        return Ok(found);
    };
    if let Some(files) = files {
        return files.verify_shard(number, &table, progress).await;
    }
    let meta = match dataset.store().head(&shard.key).await {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            found.add_whole(shard, DamageKind::Missing, "the shard is not there".to_owned());
            progress.moved(shard.stored_bytes);
            return Ok(found);
        }
        Err(error) => {
            found.add_whole(shard, DamageKind::Unreadable, error.to_string());
            progress.moved(shard.stored_bytes);
            return Ok(found);
        }
    };
    if meta.size != shard.stored_bytes {
        let message = format!("{} bytes instead of {}", meta.size, shard.stored_bytes);
        found.add_whole(shard, DamageKind::Size, message);
    }
    let source = ShardSource::new(Arc::clone(dataset.store()), meta, dataset.context());
    let mut pass = Pass {
        shard,
        extents: extents_of(dataset, &source, &table, shard, &mut found).await,
        table: &table,
        decoder: Decoder::new(shard.codec),
        is_readable: true,
        groups_damaged: HashSet::new(),
    };
    let read = pass.run(&source, &mut found, &**progress).await;
    let is_same = match read {
        Ok(sha256) => sha256 == shard.sha256,
        Err(error) => {
            found.add_whole(shard, DamageKind::Unreadable, error.to_string());
            return Ok(found);
        }
    };
    pass.finish(&mut found);
    if !is_same {
        found.add_whole(shard, DamageKind::Sha256, OTHER_SHA256.to_owned());
        look_again(dataset, &source, shard, &mut found).await;
    }
    Ok(found)
}

/// What of a shard has a checksum. The chunks of a shard whose footer is not the one that was indexed are unknown: that is a damage by itself.
async fn extents_of<'a>(
    dataset: &Dataset,
    source: &ShardSource,
    table: &'a Table,
    shard: &Shard,
    found: &mut Found,
) -> Extents<'a> {
    let groups = match &table.layout {
        Layout::Samples(samples) => return Extents::of_samples(samples),
        Layout::Groups(groups) => groups,
    };
    let opened = async {
        let format = dataset.format().await?;
        let decoder = format.decoder(source, groups).await?;
        Extents::of_chunks(groups, table.fields.len(), &*decoder)
    };
    match opened.await {
        Ok(extents) => extents,
        Err(error) => {
            let kind = match error.kind() {
                ErrorKind::Corrupt | ErrorKind::LimitExceeded | ErrorKind::Unsupported => DamageKind::Format,
                _ => DamageKind::Unreadable,
            };
            found.add_whole(shard, kind, error.to_string());
            Extents::unknown()
        }
    }
}

/// What the format itself says of a shard that has changed: it sees headers, which no sample holds.
async fn look_again(dataset: &Dataset, source: &ShardSource, shard: &Shard, found: &mut Found) {
    let Ok(format) = dataset.format().await else {
        return;
    };
    if found
        .damages
        .iter()
        .any(|damage| damage.kind == DamageKind::Format)
    {
        return;
    }
    if let Err(error) = tabulate(&*format, source).await {
        found.add_whole(shard, DamageKind::Format, error.to_string());
    }
}

/// One pass over a shard.
struct Pass<'a> {
    shard: &'a Shard,
    table: &'a Table,
    extents: Extents<'a>,
    decoder: Decoder,
    /// False once the shard does not decompress any more: the rest of it is hashed only.
    is_readable: bool,
    /// Groups of which a column is damaged.
    groups_damaged: HashSet<u32>,
}

impl Pass<'_> {
    async fn run(
        &mut self,
        source: &ShardSource,
        found: &mut Found,
        progress: &dyn Progress,
    ) -> Result<[u8; 32]> {
        let mut sha256 = digest::Context::new(&digest::SHA256);
        let mut pieces = source.pieces();
        while let Some((piece, ledger)) = pieces.try_next().await? {
            found.ledger.merge(&ledger);
            found.bytes += piece.len() as u64;
            sha256.update(&piece);
            self.feed(&piece, found);
            progress.moved(piece.len() as u64);
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(sha256.finish().as_ref());
        Ok(hash)
    }

    fn feed(&mut self, piece: &[u8], found: &mut Found) {
        if !self.is_readable {
            return;
        }
        let Self {
            shard,
            table,
            extents,
            decoder,
            groups_damaged,
            ..
        } = self;
        let fed = decoder.feed(piece, &mut |raw| {
            extents.feed(raw, &mut |extent| {
                judge(shard, table, extent, groups_damaged, found);
            });
            Ok(())
        });
        if let Err(error) = fed {
            self.is_readable = false;
            found.add_whole(self.shard, DamageKind::Format, error.to_string());
        }
    }

    /// What the shard ended before.
    fn finish(&mut self, found: &mut Found) {
        let Self {
            shard,
            table,
            extents,
            groups_damaged,
            ..
        } = self;
        extents.finish(&mut |extent| judge(shard, table, extent, groups_damaged, found));
        if let (Layout::Groups(groups), true) = (&table.layout, extents.are_known()) {
            let whole = (0u32..).zip(&groups.list);
            let whole = whole.filter(|(number, _)| !groups_damaged.contains(number));
            found.samples_whole += whole.map(|(_, group)| group.samples).sum::<u64>();
        }
    }
}

/// Count a sample that is whole, and name a sample or chunk that is not.
fn judge(
    shard: &Shard,
    table: &Table,
    extent: extents::Checked,
    groups_damaged: &mut HashSet<u32>,
    found: &mut Found,
) {
    let samples = match (&table.layout, extent.part) {
        (Layout::Samples(samples), Part::Sample { .. }) => Some(samples),
        _ => None,
    };
    if extent.is_whole {
        found.samples_whole += u64::from(samples.is_some());
        return;
    }
    let what = if extent.is_cut_off {
        "ends beyond what can be read of the shard"
    } else {
        "does not have its checksum"
    };
    let start = extent.start;
    let mut damage = Damage {
        offset: Some(start),
        ..Damage::of_shard(&shard.key, DamageKind::SampleCrc, String::new())
    };
    match extent.part {
        Part::Sample { number } => {
            let key = samples.and_then(|samples| samples.keys.get(number));
            damage.sample = Some(number as u64);
            damage.key = key.map(str::to_owned);
            damage.message = format!("sample {number} at byte {start} {what}");
        }
        Part::Chunk { group, column } => {
            groups_damaged.insert(group);
            let field = table.fields.get(column as usize);
            let name = field.map_or(String::new(), |field| field.name.clone());
            damage.kind = DamageKind::ChunkCrc;
            damage.group = Some(u64::from(group));
            damage.message = format!(
                "column '{}' of group {group} at byte {start} {what}",
                name.escape_debug()
            );
            damage.column = Some(name);
        }
    }
    found.add(damage);
}
