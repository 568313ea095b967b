//! Compares a plain folder with its manifest, sample by sample.
//!
//! Virtual shards follow from the listing: a file more moves all that is behind it, and a class more the labels of the classes behind it. So the bytes of a virtual
//! shard say nothing about a folder that changed. What was indexed is looked up by the keys of its samples instead and laid out as it was then: files that are missing or have
//! another size are named, the rest is read and compared with the checksums of its samples, and a file that no sample asks for is one that the manifest does not know.
//! Where all of that is as it was, the files must also lie in the order that they had: streams lay a folder out by the names of its files.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, ErrorKind, Key, Ledger, Result};
use futures::TryStreamExt;
use futures::stream::{self, StreamExt};

use super::{DAMAGES_NAMED_MAX, Damage, DamageKind, Found};
use crate::dataset::{Dataset, Progress, at_once};
use crate::format::Tabulated;
use crate::format::files::{self, FileSample, FileSet, FileShard, Member};
use crate::manifest::Shard;
use crate::schema::Field;
use crate::table::{Layout, Samples, Table};

/// So many files in a row that are there and cannot be read: whoever has them cannot be reached, say, and what is behind them is not tried.
const UNREADABLE_MAX: usize = 16;

/// A folder that is verified, over all its shards.
#[derive(Debug)]
pub(super) struct Files {
    dataset: Dataset,
    /// The classes of images, with their labels.
    labels: HashMap<String, u32>,
    /// For each file by its number, where its bytes begin over all shards of the manifest, counted from 1; 0 of files that no sample asked for.
    places: Vec<AtomicU64>,
}

/// A sample whose files are all there.
#[derive(Debug)]
struct Intact {
    /// Its number in its shard.
    number: usize,
    /// The files that may be meant; never none, and hardly ever more than one.
    candidates: Vec<Candidate>,
    /// Which of them is compared next.
    tried: usize,
}

impl Intact {
    /// The files that are named where it is damaged.
    fn members(&self) -> &[Member] {
        let first = self.candidates.first();
        first.map_or(&[], |first| &first.sample.members)
    }
}

/// Files that may be those of a sample.
#[derive(Debug)]
struct Candidate {
    sample: FileSample,
    /// Their numbers in the listing.
    files: Vec<usize>,
}

/// What was read of a shard, of which some bytes may be read again, and some not at all; tells how far it is.
#[derive(Debug)]
struct Moved {
    progress: Arc<dyn Progress>,
    left: AtomicU64,
    read: Mutex<(u64, Ledger)>,
}

impl Moved {
    fn add(&self, bytes: u64, ledger: &Ledger) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.0 += bytes;
        read.1.merge(ledger);
        drop(read);
        self.tell(bytes);
    }

    fn tell(&self, bytes: u64) {
        let take = |left: u64| Some(left.saturating_sub(bytes));
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        self.progress.moved(bytes.min(left.unwrap_or_default()));
    }
}

impl Files {
    /// Of a plain folder; `None` for all other data sets.
    pub(super) async fn new(dataset: &Dataset) -> Result<Option<Self>> {
        let Some(set) = dataset.files() else {
            return Ok(None);
        };
        Ok(Some(Self {
            labels: labels(dataset, set).await?,
            dataset: dataset.clone(),
            places: (0..set.files()).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    /// Files that no sample of the manifest asked for, once all shards were verified.
    pub(super) fn unasked(&self) -> Vec<Key> {
        let set = self.dataset.files();
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, place)| place.load(Ordering::Relaxed) == 0)
            .filter_map(|(number, _)| set?.file_key(number))
            .collect()
    }

    /// Files that lie behind others now which lay behind them, of a folder that is as it was but for their names: how many, and the first of them.
    pub(super) fn misplaced(&self) -> (u64, Vec<Damage>) {
        let (mut last, mut count, mut damages) = (0, 0, Vec::new());
        for (number, place) in self.places.iter().enumerate() {
            let place = place.load(Ordering::Relaxed);
            let is_behind = std::mem::replace(&mut last, place) > place;
            count += u64::from(is_behind);
            let key = || self.dataset.files()?.file_key(number);
            if is_behind
                && damages.len() < DAMAGES_NAMED_MAX
                && let Some(key) = key()
            {
                let message = format!(
                    "its name comes behind that of a file which it lay before: streams look for other bytes in its place, until {} takes the new names in",
                    self.dataset.how_to_index_anew()
                );
                damages.push(Damage {
                    file: Some(key.clone()),
                    ..Damage::of_shard(&key, DamageKind::SampleCrc, message)
                });
            }
        }
        (count, damages)
    }

    pub(super) async fn verify_shard(
        &self,
        number: usize,
        table: &Table,
        progress: &Arc<dyn Progress>,
    ) -> Result<Found> {
        let mut found = Found::default();
        let shards = self.dataset.shards();
        let (Layout::Samples(samples), Some(set), Some(shard)) =
            (&table.layout, self.dataset.files(), shards.get(number))
        else {
            return Ok(found);
        };
        let before = shards.iter().take(number).map(|shard| shard.raw_bytes);
        let finder = Finder {
            files: self,
            set,
            shard,
            base: before.sum(),
            table,
            samples,
        };
        let moved = Arc::new(Moved {
            progress: Arc::clone(progress),
            left: AtomicU64::new(shard.stored_bytes),
            read: Mutex::default(),
        });
        let intact = (0..samples.len()).filter_map(|number| finder.find(number, &mut found));
        finder.compare(intact.collect(), &moved, &mut found).await;
        moved.tell(shard.stored_bytes);
        let read = moved.read.lock().unwrap_or_else(PoisonError::into_inner);
        (found.bytes, found.ledger) = read.clone();
        drop(read);
        Ok(found)
    }

    /// A sample asked for this file, whose bytes are to begin there.
    fn ask(&self, file: usize, place: u64) {
        if let Some(known) = self.places.get(file) {
            known.store(place + 1, Ordering::Relaxed);
        }
    }
}

/// The label of each class when the folder was indexed: their order there. Of a part of a data set, the classes are those of the listing.
async fn labels(dataset: &Dataset, set: &FileSet) -> Result<HashMap<String, u32>> {
    let mut labels = HashMap::new();
    if set.label().is_none() {
        return Ok(labels);
    }
    if dataset.is_part() {
        let classes = set.classes().iter().cloned();
        return Ok(classes.zip(0..).collect());
    }
    let tables = (0..dataset.shards().len()).map(|number| dataset.table(number));
    let mut tables = stream::iter(tables).buffered(at_once());
    while let Some(table) = tables.try_next().await? {
        let Layout::Samples(samples) = &table.layout else {
            continue;
        };
        for key in (0..samples.len()).filter_map(|sample| samples.keys.get(sample)) {
            let class = class_of(key);
            if !labels.contains_key(class) {
                labels.insert(class.to_owned(), labels.len() as u32);
            }
        }
    }
    Ok(labels)
}

/// The directory of the root that a sample is below.
fn class_of(key: &str) -> &str {
    key.split('/').next().unwrap_or(key)
}

/// Finds the files of the samples of a shard.
struct Finder<'a> {
    files: &'a Files,
    set: &'a FileSet,
    shard: &'a Shard,
    /// Bytes of all shards before it.
    base: u64,
    table: &'a Table,
    samples: &'a Samples,
}

impl Finder<'_> {
    /// The files of a sample, in the order of its bytes; `None` where they are not what they were, which is added to what was found.
    fn find(&self, number: usize, found: &mut Found) -> Option<Intact> {
        let key = self.samples.keys.get(number)?;
        let there = self.set.find(key);
        let label = self.set.label();
        let columns = self.samples.columns.iter().zip(&self.table.fields).enumerate();
        let mut fields: Vec<_> = columns
            .filter(|(column, _)| label.is_none_or(|(label, _)| label != *column))
            .filter_map(|(column, (spans, field))| Some((spans.get(number)?, column, field)))
            .collect();
        // Of two that begin at one place, the first has no bytes.
        fields.sort_unstable_by_key(|(span, column, _)| (span.start, span.end, *column));
        let mut meant = Vec::with_capacity(fields.len());
        for (span, column, field) in &fields {
            let size = span.len() as u64;
            let of_field = there.iter().filter(|file| file.field == field.name);
            let fitting: Vec<&files::Found> = of_field.clone().filter(|file| file.size == size).collect();
            if !fitting.is_empty() {
                meant.push((*column, fitting));
                continue;
            }
            let others: Vec<&files::Found> = of_field.collect();
            for other in &others {
                self.files.ask(other.number, self.base);
            }
            found.add(match others[..] {
                [] => self.missing(number, key, field),
                _ => self.other_size(number, &others, size),
            });
        }
        let label = label.and_then(|_| self.files.labels.get(class_of(key)).copied());
        let candidates: Vec<Candidate> = (0..meant.iter().map(|(_, files)| files.len()).max()?)
            .map(|nth| candidate(key, label, &meant, nth))
            .collect();
        if meant.len() == fields.len() {
            let tried = 0;
            return Some(Intact {
                number,
                candidates,
                tried,
            });
        }
        // What is there of it is not new.
        self.asked(number, candidates.first());
        None
    }

    /// A sample has asked for its files.
    fn asked(&self, number: usize, candidate: Option<&Candidate>) {
        let start = self.samples.starts.get(number).copied().unwrap_or_default();
        let mut place = self.base + start;
        if let Some(candidate) = candidate {
            for (file, member) in candidate.files.iter().zip(&candidate.sample.members) {
                self.files.ask(*file, place);
                place += member.size;
            }
        }
    }

    /// Of an image, the manifest does not know which of several that are called so it was.
    fn other_size(&self, number: usize, others: &[&files::Found], size: u64) -> Damage {
        if let [other] = others {
            let message = format!("{} bytes instead of {size}", other.size);
            return self.damage(number, DamageKind::Size, Some(other.key.clone()), message);
        }
        let names: Vec<String> = others
            .iter()
            .map(|other| format!("{:?} {}", other.key, other.size))
            .collect();
        let message = format!(
            "none of these has the {size} bytes that it had: {}",
            names.join(", ")
        );
        self.damage(number, DamageKind::Size, None, message)
    }

    /// Of an image, the manifest does not know how its name ended.
    fn missing(&self, number: usize, key: &str, field: &Field) -> Damage {
        if self.set.label().is_some() {
            let message = format!("the image of sample {number} is not there");
            return self.damage(number, DamageKind::Missing, None, message);
        }
        let file = Key::parse(&format!("{key}.{}", field.name)).ok();
        self.damage(
            number,
            DamageKind::Missing,
            file,
            "the file is not there".to_owned(),
        )
    }

    /// Read samples and compare them with what was indexed. What cannot be read is looked for in halves, so that all beside it is compared.
    async fn compare(&self, all: Vec<Intact>, moved: &Arc<Moved>, found: &mut Found) {
        let (mut parts, mut unreadable) = (vec![all], 0);
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            match self.read(&part, moved).await {
                Ok(tabulated) => {
                    unreadable = 0;
                    parts.push(self.judge(part, &tabulated, found));
                }
                Err(_) if part.len() > 1 => {
                    let behind = part.split_off(part.len() / 2);
                    parts.extend([behind, part]);
                }
                Err(error) => {
                    unreadable += usize::from(error.kind() != ErrorKind::NotFound);
                    parts.push(self.unreadable(part, &error, found));
                    if unreadable == UNREADABLE_MAX {
                        return self.give_up(&parts, found);
                    }
                }
            }
        }
    }

    /// Of samples that cannot be read; those come back of which other files may be meant.
    fn unreadable(&self, part: Vec<Intact>, error: &Error, found: &mut Found) -> Vec<Intact> {
        let mut again = Vec::new();
        for mut one in part {
            one.tried += 1;
            if one.tried < one.candidates.len() {
                again.push(one);
                continue;
            }
            self.asked(one.number, one.candidates.first());
            let kind = match error.kind() {
                ErrorKind::NotFound => DamageKind::Missing,
                _ => DamageKind::Unreadable,
            };
            let file = match one.members() {
                [only] => Some(only.key.clone()),
                _ => None,
            };
            found.add(self.damage(one.number, kind, file, error.to_string()));
        }
        again
    }

    /// Try nothing of these any more.
    fn give_up(&self, parts: &[Vec<Intact>], found: &mut Found) {
        let left: Vec<&Intact> = parts.iter().flatten().collect();
        for one in &left {
            self.asked(one.number, one.candidates.first());
        }
        if !left.is_empty() {
            let message = format!(
                "{UNREADABLE_MAX} files in a row cannot be read, and {} samples behind them were not tried",
                left.len()
            );
            found.add_whole(self.shard, DamageKind::Unreadable, message);
        }
    }

    /// Read samples and make their table anew.
    async fn read(&self, part: &[Intact], moved: &Arc<Moved>) -> Result<Tabulated> {
        let samples = part.iter().filter_map(|one| one.candidates.get(one.tried));
        let laid = FileShard {
            fields: self.table.fields.clone(),
            label: self.set.label(),
            samples: samples.map(|candidate| candidate.sample.clone()).collect(),
        };
        let moved = Arc::clone(moved);
        self.files
            .dataset
            .tabulate_files(&self.shard.key, laid, move |bytes, ledger| {
                moved.add(bytes, ledger);
            })
            .await
    }

    /// Compare what was read of these samples with what was indexed; those come back of which other files may be meant.
    fn judge(&self, read: Vec<Intact>, tabulated: &Tabulated, found: &mut Found) -> Vec<Intact> {
        let Layout::Samples(now) = &tabulated.table.layout else {
            return Vec::new();
        };
        let (mut again, is_all) = (Vec::new(), read.len() == self.samples.len());
        for (mut one, crc) in read.into_iter().zip(&now.crcs) {
            if self.samples.crcs.get(one.number) == Some(crc) {
                found.samples_whole += 1;
                self.asked(one.number, one.candidates.get(one.tried));
                continue;
            }
            one.tried += 1;
            if one.tried < one.candidates.len() {
                again.push(one);
                continue;
            }
            self.asked(one.number, one.candidates.first());
            found.add(self.other(&one));
        }
        let is_all = is_all && again.is_empty() && found.damages_count == 0;
        if is_all && tabulated.sha256 != self.shard.sha256 {
            found.add_whole(self.shard, DamageKind::Sha256, super::OTHER_SHA256.to_owned());
        }
        again
    }

    /// A sample that has other bytes than it had.
    fn other(&self, one: &Intact) -> Damage {
        let number = one.number;
        let what = format!("sample {number} does not have its checksum");
        let (file, message) = match one.members() {
            [only] => (Some(only.key.clone()), what),
            several => {
                let names: Vec<String> = several.iter().map(|member| format!("{:?}", member.key)).collect();
                (
                    None,
                    format!("{what}, which is one of {} together", names.join(", ")),
                )
            }
        };
        self.damage(number, DamageKind::SampleCrc, file, message)
    }

    fn damage(&self, number: usize, kind: DamageKind, file: Option<Key>, message: String) -> Damage {
        Damage {
            file,
            sample: Some(number as u64),
            key: self.samples.keys.get(number).map(str::to_owned),
            offset: self.samples.starts.get(number).copied(),
            ..Damage::of_shard(&self.shard.key, kind, message)
        }
    }
}

/// The files of each field that have its size and come at this place among those, or last.
fn candidate(key: &str, label: Option<u32>, meant: &[(usize, Vec<&files::Found>)], nth: usize) -> Candidate {
    let files = meant
        .iter()
        .filter_map(|(column, files)| Some((*column, *files.get(nth).or(files.last())?)));
    let members = files.clone().map(|(column, file)| Member {
        key: file.key.clone(),
        size: file.size,
        field: column,
    });
    Candidate {
        sample: FileSample {
            key: key.to_owned(),
            members: members.collect(),
            label,
        },
        files: files.map(|(_, file)| file.number).collect(),
    }
}
