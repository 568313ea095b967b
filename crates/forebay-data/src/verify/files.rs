//! Compares a plain folder with its manifest, sample by sample.
//!
//! Virtual shards follow from the listing: a file more moves all that is behind it, and a class more the labels of the classes behind it. So the bytes of a virtual
//! shard say nothing about a folder that changed. What was indexed is looked up by the keys of its samples instead and laid out as it was then: files that are missing or have
//! another size are named, the rest is read and compared with the checksums of its samples, and a file that no sample asks for is one that the manifest does not know.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::{ErrorKind, Key, Result};

use super::{Damage, DamageKind, Found};
use crate::dataset::{Dataset, Progress};
use crate::format::Tabulated;
use crate::format::files::{self, FileSample, FileSet, FileShard, Member};
use crate::manifest::Shard;
use crate::schema::Field;
use crate::table::{Layout, Samples, Table};

/// A folder that is verified, over all its shards.
#[derive(Debug)]
pub(super) struct Files {
    dataset: Dataset,
    /// The classes of images, with their labels.
    labels: HashMap<String, u32>,
    /// Files that a sample of the manifest asked for, by their numbers.
    asked: Vec<AtomicBool>,
}

/// A sample whose files are all there, with its number in its shard.
type Intact = (usize, FileSample);

impl Files {
    /// Of a plain folder; `None` for all other data sets.
    pub(super) async fn new(dataset: &Dataset) -> Result<Option<Self>> {
        let Some(set) = dataset.files() else {
            return Ok(None);
        };
        let asked = (0..set.files()).map(|_| AtomicBool::new(false)).collect();
        Ok(Some(Self {
            labels: labels(dataset, set).await?,
            dataset: dataset.clone(),
            asked,
        }))
    }

    /// Files that no sample of the manifest asked for, once all shards were verified.
    pub(super) fn unasked(&self) -> Vec<Key> {
        let set = self.dataset.files();
        let asked = self.asked.iter().enumerate();
        asked
            .filter(|(_, asked)| !asked.load(Ordering::Relaxed))
            .filter_map(|(number, _)| set?.file_key(number))
            .collect()
    }

    pub(super) async fn verify_shard(
        &self,
        shard: &Shard,
        table: &Table,
        progress: &Arc<dyn Progress>,
    ) -> Result<Found> {
        let mut found = Found::default();
        let (Layout::Samples(samples), Some(set)) = (&table.layout, self.dataset.files()) else {
            return Ok(found);
        };
        let finder = Finder {
            files: self,
            set,
            shard,
            table,
            samples,
        };
        let intact: Vec<Intact> = (0..samples.len())
            .filter_map(|number| Some((number, finder.find(number, &mut found)?)))
            .collect();
        let all = intact.iter().map(|(_, sample)| sample.clone()).collect();
        match finder.read(all, progress).await {
            Ok(tabulated) => finder.judge(&intact, &tabulated, &mut found),
            // One file cannot be read: the others can.
            Err(_) => {
                for one in intact {
                    match finder.read(vec![one.1.clone()], progress).await {
                        Ok(tabulated) => finder.judge(&[one], &tabulated, &mut found),
                        Err(error) => {
                            let kind = match error.kind() {
                                ErrorKind::NotFound => DamageKind::Missing,
                                _ => DamageKind::Unreadable,
                            };
                            found.add(finder.damage(one.0, kind, None, error.to_string()));
                        }
                    }
                }
            }
        }
        Ok(found)
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
    for number in 0..dataset.shards().len() {
        let table = dataset.table(number).await?;
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
    table: &'a Table,
    samples: &'a Samples,
}

impl Finder<'_> {
    /// The files of a sample, in the order of its bytes; `None` where they are not what they were, which is added to what was found.
    fn find(&self, number: usize, found: &mut Found) -> Option<FileSample> {
        let key = self.samples.keys.get(number)?;
        let there = self.set.find(key);
        let label = self.set.label();
        let columns = self.samples.columns.iter().zip(&self.table.fields).enumerate();
        let mut fields: Vec<_> = columns
            .filter(|(column, _)| label.is_none_or(|(label, _)| label != *column))
            .filter_map(|(column, (spans, field))| Some((spans.get(number)?, column, field)))
            .collect();
        fields.sort_unstable_by_key(|(span, column, _)| (span.start, *column));
        let mut members = Vec::with_capacity(fields.len());
        let wanted = fields.len();
        for (span, column, field) in fields {
            let size = span.len() as u64;
            match pick(&there, field, size) {
                None => found.add(self.missing(number, key, field)),
                Some(file) => {
                    if let Some(asked) = self.files.asked.get(file.number) {
                        asked.store(true, Ordering::Relaxed);
                    }
                    if file.size == size {
                        members.push(Member {
                            key: file.key.clone(),
                            size,
                            field: column,
                        });
                    } else {
                        let message = format!("{} bytes instead of {size}", file.size);
                        let file = Some(file.key.clone());
                        found.add(self.damage(number, DamageKind::Size, file, message));
                    }
                }
            }
        }
        (members.len() == wanted).then(|| FileSample {
            key: key.to_owned(),
            members,
            label: label.and_then(|_| self.files.labels.get(class_of(key)).copied()),
        })
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

    /// Read samples and make their table anew.
    async fn read(&self, samples: Vec<FileSample>, progress: &Arc<dyn Progress>) -> Result<Tabulated> {
        let laid = FileShard {
            fields: self.table.fields.clone(),
            label: self.set.label(),
            samples,
        };
        let progress = Arc::clone(progress);
        let moved = move |bytes| progress.moved(bytes);
        self.files
            .dataset
            .tabulate_files(&self.shard.key, laid, moved)
            .await
    }

    /// Compare what was read of these samples with what was indexed.
    fn judge(&self, read: &[Intact], tabulated: &Tabulated, found: &mut Found) {
        found.ledger.merge(&tabulated.ledger);
        found.bytes += tabulated.raw_bytes;
        let Layout::Samples(now) = &tabulated.table.layout else {
            return;
        };
        for ((number, sample), crc) in read.iter().zip(&now.crcs) {
            if self.samples.crcs.get(*number) == Some(crc) {
                found.samples_whole += 1;
                continue;
            }
            let (file, message) = match sample.members.as_slice() {
                [only] => (
                    Some(only.key.clone()),
                    format!("sample {number} does not have its checksum"),
                ),
                several => {
                    let names: Vec<String> =
                        several.iter().map(|member| format!("{:?}", member.key)).collect();
                    let names = names.join(", ");
                    (
                        None,
                        format!(
                            "sample {number} does not have its checksum, which is one of {names} together"
                        ),
                    )
                }
            };
            found.add(self.damage(*number, DamageKind::SampleCrc, file, message));
        }
        let is_all = read.len() == self.samples.len() && found.damages_count == 0;
        if is_all && tabulated.sha256 != self.shard.sha256 {
            found.add_whole(self.shard, DamageKind::Sha256, super::OTHER_SHA256.to_owned());
        }
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

/// The file of a field: the one of its size, where several may be meant.
fn pick<'a>(there: &'a [files::Found], field: &Field, size: u64) -> Option<&'a files::Found> {
    let mut of_field = there.iter().filter(|file| file.field == field.name);
    let first = of_field.clone().next();
    of_field.find(|file| file.size == size).or(first)
}
