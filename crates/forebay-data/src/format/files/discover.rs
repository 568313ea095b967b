//! From a listing to samples and virtual shards: a function of names and sizes alone.
//!
//! A million files are common, a hundred million happen, so a file is 16 bytes and its name: directories are kept once, names lie in one piece of memory
//! with a zero byte behind each (no name has one), and keys are put together when a shard is asked for.

mod find;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{Entry, ListOptions, Store, is_special_file};
use futures::StreamExt;

use super::left_out::LeftOut;
use super::{FileLayout, FileSample, FileShard, Member};
use crate::format::wds::names;
use crate::schema::{Field, Kind};
use crate::table::{FIELDS_MAX, SAMPLE_BYTES_MAX};

pub(crate) use find::Found;

/// Most bytes that names take together, since they are found by 32-bit offsets: some 200 million files.
const NAMES_BYTES_MAX: usize = u32::MAX as usize;

/// Most files of one virtual shard: its table and its list of names are held whole.
pub(super) const SHARD_FILES_MAX: usize = 1 << 16;

/// Endings of images, as torchvision knows them.
const IMAGE_ENDINGS: [&str; 9] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// Takes a listing row by row, in any order.
#[derive(Debug)]
pub struct FileSetBuilder {
    root: Key,
    layout: FileLayout,
    dirs: Vec<Box<str>>,
    dir_ids: HashMap<Box<str>, u32>,
    names: String,
    files: Vec<FileRow>,
    left_out: LeftOut,
}

#[derive(Debug, Clone, Copy)]
struct FileRow {
    size: u64,
    dir: u32,
    /// Where its name begins.
    name: u32,
}

/// A folder of files, as samples and virtual shards.
#[derive(Debug)]
pub struct FileSet {
    root: Key,
    layout: FileLayout,
    dirs: Vec<Box<str>>,
    /// Class of each directory, where the layout has classes.
    dir_classes: Vec<u32>,
    classes: Vec<String>,
    names: String,
    files: Vec<FileRow>,
    /// First file of each sample, and the number of files behind them.
    samples: Vec<u32>,
    shards: Vec<Range<u32>>,
    left_out: LeftOut,
}

/// A path in its parts: the directory, what the name has before its first dot, and what it has behind. `None` where no layout makes a sample of it.
pub(crate) fn sample_parts(path: &str) -> Option<(&str, &str, &str)> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let (stem, field) = name.split_once('.')?;
    let is_sample = !stem.is_empty() && !field.is_empty() && !names::is_metadata(path);
    is_sample.then_some((dir, stem, field))
}

/// True when what a name has behind its first dot ends like an image.
pub(crate) fn is_image(field: &str) -> bool {
    let ending = field.rsplit('.').next().unwrap_or(field);
    IMAGE_ENDINGS
        .iter()
        .any(|known| known.eq_ignore_ascii_case(ending))
}

impl FileSetBuilder {
    /// For what lies below `root`.
    pub fn new(root: &Key, layout: FileLayout) -> Self {
        Self {
            root: root.clone(),
            layout,
            dirs: Vec::new(),
            dir_ids: HashMap::new(),
            names: String::new(),
            files: Vec::new(),
            left_out: LeftOut::default(),
        }
    }

    /// Take a file; false where it is part of no sample.
    pub fn push(&mut self, key: &Key, size: u64) -> Result<bool> {
        let Some(below) = key.below(&self.root) else {
            return Err(invalid(format!(
                "'{}' is not below the folder",
                key.as_str().escape_debug()
            )));
        };
        let path = below.as_str();
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        if !self.is_wanted(path) {
            self.left_out.add(&below);
            return Ok(false);
        }
        if size > SAMPLE_BYTES_MAX {
            let message = format!("'{}' is longer than a sample may be", path.escape_debug());
            return Err(Error::new(ErrorKind::LimitExceeded, "list files", message)
                .with_hint("folders of small files are meant; shards are read by their own formats"));
        }
        if self.names.len() + name.len() >= NAMES_BYTES_MAX {
            let message = "more files than one data set of plain files may have";
            return Err(Error::new(ErrorKind::LimitExceeded, "list files", message)
                .with_hint("pack the folder, in parts if need be"));
        }
        let dir = self.dir_id(dir);
        let start = self.names.len() as u32;
        self.names.push_str(name);
        self.names.push('\0');
        self.files.push(FileRow {
            size,
            dir,
            name: start,
        });
        Ok(true)
    }

    fn is_wanted(&self, path: &str) -> bool {
        let Some((dir, _, field)) = sample_parts(path) else {
            return false;
        };
        self.layout == FileLayout::Tree || (!dir.is_empty() && is_image(field))
    }

    /// Listings come directory by directory: the last one is asked first.
    fn dir_id(&mut self, dir: &str) -> u32 {
        if let (Some(last), Some(file)) = (self.dirs.last(), self.files.last())
            && **last == *dir
            && file.dir as usize + 1 == self.dirs.len()
        {
            return file.dir;
        }
        if let Some(id) = self.dir_ids.get(dir) {
            return *id;
        }
        let id = self.dirs.len() as u32;
        self.dirs.push(dir.into());
        self.dir_ids.insert(dir.into(), id);
        id
    }

    /// Sort, and cut into shards of about `shard_bytes`.
    pub fn finish(self, shard_bytes: u64) -> Result<FileSet> {
        let mut order: Vec<u32> = (0..self.dirs.len() as u32).collect();
        order.sort_unstable_by(|a, b| {
            let parts = |id: &u32| self.dirs[*id as usize].split('/');
            parts(a).cmp(parts(b))
        });
        let mut ranks = vec![0u32; order.len()];
        for (rank, id) in order.iter().enumerate() {
            ranks[*id as usize] = rank as u32;
        }
        let dirs: Vec<Box<str>> = order.iter().map(|id| self.dirs[*id as usize].clone()).collect();
        let mut files = self.files;
        for file in &mut files {
            file.dir = ranks[file.dir as usize];
        }
        files.sort_unstable_by(|a, b| {
            let name = |file: &FileRow| name_at(&self.names, file.name);
            a.dir.cmp(&b.dir).then_with(|| name(a).cmp(name(b)))
        });
        files.dedup_by(|b, a| a.dir == b.dir && name_at(&self.names, a.name) == name_at(&self.names, b.name));
        let mut set = FileSet {
            root: self.root,
            layout: self.layout,
            dirs,
            dir_classes: Vec::new(),
            classes: Vec::new(),
            names: self.names,
            files,
            samples: Vec::new(),
            shards: Vec::new(),
            left_out: self.left_out,
        };
        set.find_classes();
        set.find_samples()?;
        set.find_shards(shard_bytes)?;
        Ok(set)
    }
}

impl FileSet {
    /// List a folder of a store.
    pub async fn discover(
        store: &dyn Store,
        root: &Key,
        layout: FileLayout,
        shard_bytes: u64,
    ) -> Result<Self> {
        let mut builder = FileSetBuilder::new(root, layout);
        let mut listing = store.list(root, ListOptions { recursive: true });
        while let Some(row) = listing.next().await {
            match row {
                Ok(Entry::Object(meta)) => {
                    builder.push(&meta.key, meta.size)?;
                }
                Ok(Entry::Prefix(_)) => {}
                Err(error) if is_special_file(&error) => builder.left_out.add_special(),
                Err(error) => return Err(error),
            }
        }
        builder.finish(shard_bytes)
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.samples.len().saturating_sub(1) as u64
    }

    /// Number of files in them.
    pub fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// Files and other entries that are part of no sample.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    /// What whoever reads the folder should know: which files are not read. `None` where all are.
    pub fn note(&self) -> Option<String> {
        if self.left_out.files() == 0 {
            return None;
        }
        let (what, advice) = match &self.layout {
            FileLayout::Tree => (
                "that are part of no sample",
                "a file needs a name before its first dot and an ending behind it".to_owned(),
            ),
            FileLayout::Images(_) => (
                "that are no images in directories of classes",
                format!("all files are read, without labels, by {}", super::option("tree")),
            ),
        };
        Some(format!(
            "{} {what}: {}; {advice}",
            self.left_out.count(),
            self.left_out
        ))
    }

    /// Names of the classes by label; empty where the layout has none.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Number of virtual shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Virtual shard `index`, written out.
    pub fn shard(&self, index: usize) -> Option<FileShard> {
        let range = self.shards.get(index)?.clone();
        let mut shard = FileShard {
            fields: Vec::new(),
            label: None,
            samples: Vec::with_capacity(range.len()),
        };
        if let FileLayout::Images(fields) = &self.layout {
            shard.fields.push(Field::new(&fields.image, Kind::Image));
            shard.fields.push(Field::new(&fields.label, fields.form.kind()));
            shard.label = Some((1, fields.form));
        }
        let mut columns: HashMap<String, usize> = HashMap::new();
        for sample in range {
            let fields = &mut shard.fields;
            let sample = self.sample(sample as usize, &mut |field| {
                let column = columns.entry(field).or_insert_with_key(|name| {
                    fields.push(Field::new(name, names::kind_of(name)));
                    fields.len() - 1
                });
                Some(*column)
            });
            shard.samples.push(sample?);
        }
        Some(shard)
    }

    /// The fields over all samples, in the order they are first met.
    pub fn fields(&self) -> Vec<Field> {
        if let FileLayout::Images(fields) = &self.layout {
            return vec![
                Field::new(&fields.image, Kind::Image),
                Field::new(&fields.label, fields.form.kind()),
            ];
        }
        // Most files have one of a few endings, as they are written: only new ones are looked at closely.
        let (mut seen, mut known) = (HashSet::new(), HashSet::new());
        let mut fields = Vec::new();
        for file in &self.files {
            let written = self.stem_and_field(file).1;
            if seen.insert(written) && known.insert(written.to_lowercase()) {
                let name = written.to_lowercase();
                fields.push(Field::new(&name, names::kind_of(&name)));
            }
        }
        fields
    }

    /// Sample `index` written out, its fields numbered by `columns`.
    pub(crate) fn sample_at(&self, index: usize, columns: &HashMap<String, usize>) -> Option<FileSample> {
        self.sample(index, &mut |field| columns.get(&field).copied())
    }

    /// Bytes of the files of a sample.
    pub(crate) fn sample_bytes(&self, index: usize) -> u64 {
        let files = self.range(index).and_then(|range| self.files.get(range));
        let sizes = files.unwrap_or_default().iter().map(|file| file.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Files of a sample.
    pub(crate) fn sample_files(&self, index: usize) -> usize {
        self.range(index).map_or(0, |range| range.len())
    }

    /// The field of labels, where there are labels.
    pub(crate) fn label_field(&self) -> Option<usize> {
        matches!(self.layout, FileLayout::Images(_)).then_some(1)
    }

    /// The label of a sample; nothing where there are none.
    pub(crate) fn label_bytes(&self, sample: &FileSample) -> Vec<u8> {
        match (&self.layout, sample.label) {
            (FileLayout::Images(fields), Some(label)) => fields.form.bytes(label),
            _ => Vec::new(),
        }
    }

    fn sample(&self, index: usize, column: &mut dyn FnMut(String) -> Option<usize>) -> Option<FileSample> {
        let range = self.range(index)?;
        let first = self.files.get(range.start)?;
        let is_tree = self.layout == FileLayout::Tree;
        let mut members = Vec::with_capacity(range.len());
        for file in self.files.get(range.clone())? {
            let field = if is_tree {
                column(self.stem_and_field(file).1.to_lowercase())?
            } else {
                0
            };
            members.push(Member {
                key: self.key_of(file)?,
                size: file.size,
                field,
            });
        }
        let dir = self.dirs.get(first.dir as usize)?;
        let (stem, _) = self.stem_and_field(first);
        let name = if !is_tree && self.shares_stem(range.start) {
            self.name(first).replace('.', "_")
        } else {
            stem.to_owned()
        };
        Some(FileSample {
            key: if dir.is_empty() {
                name
            } else {
                format!("{dir}/{name}")
            },
            members,
            label: self.dir_classes.get(first.dir as usize).copied(),
        })
    }

    /// True when a neighbour of a file has its directory and stem.
    fn shares_stem(&self, index: usize) -> bool {
        let stem = |index: usize| {
            let file = self.files.get(index)?;
            Some((file.dir, self.stem_and_field(file).0))
        };
        let own = stem(index);
        stem(index + 1) == own || index.checked_sub(1).is_some_and(|before| stem(before) == own)
    }

    fn key_of(&self, file: &FileRow) -> Option<Key> {
        let dir = self.dirs.get(file.dir as usize)?;
        let name = self.name(file);
        let below = if dir.is_empty() {
            Key::parse(name)
        } else {
            Key::parse(&format!("{dir}/{name}"))
        };
        Some(self.root.join(&below.ok()?))
    }

    fn name(&self, file: &FileRow) -> &str {
        name_at(&self.names, file.name)
    }

    fn stem_and_field(&self, file: &FileRow) -> (&str, &str) {
        let name = self.name(file);
        name.split_once('.').unwrap_or((name, ""))
    }

    /// The files of a sample.
    fn range(&self, sample: usize) -> Option<Range<usize>> {
        Some(*self.samples.get(sample)? as usize..*self.samples.get(sample + 1)? as usize)
    }

    fn find_classes(&mut self) {
        if self.layout == FileLayout::Tree {
            return;
        }
        for dir in &self.dirs {
            let class = dir.split('/').next().unwrap_or_default();
            if self.classes.last().is_none_or(|last| last != class) {
                self.classes.push(class.to_owned());
            }
            self.dir_classes.push(self.classes.len() as u32 - 1);
        }
    }

    fn find_samples(&mut self) -> Result<()> {
        let mut starts: Vec<u32> = Vec::new();
        for (index, file) in self.files.iter().enumerate() {
            let continues = self.layout == FileLayout::Tree
                && index.checked_sub(1).is_some_and(|before| {
                    let before = &self.files[before];
                    before.dir == file.dir && self.stem_and_field(before).0 == self.stem_and_field(file).0
                });
            if !continues {
                starts.push(index as u32);
            }
        }
        starts.push(self.files.len() as u32);
        self.samples = starts;
        for sample in 0..self.samples.len() - 1 {
            self.check_sample(sample)?;
        }
        Ok(())
    }

    /// Fields must differ, and be no more than a table has columns.
    fn check_sample(&self, sample: usize) -> Result<()> {
        let files = self
            .range(sample)
            .and_then(|range| self.files.get(range))
            .unwrap_or_default();
        if files.len() < 2 {
            return Ok(());
        }
        let path = |file: &FileRow| self.key_of(file).unwrap_or_default();
        if files.len() > FIELDS_MAX {
            let message = format!(
                "'{}' and others of its name are more fields than a sample may have",
                path(&files[0])
            );
            return Err(Error::new(ErrorKind::LimitExceeded, "list files", message));
        }
        let mut seen = HashSet::new();
        for file in files {
            if !seen.insert(self.stem_and_field(file).1.to_lowercase()) {
                let message = format!(
                    "'{}' and another file are the same field of one sample",
                    path(file)
                );
                return Err(invalid(message)
                    .with_hint("their endings differ in upper and lower case only; rename one"));
            }
        }
        Ok(())
    }

    fn find_shards(&mut self, shard_bytes: u64) -> Result<()> {
        let (mut first, mut bytes, mut count) = (0u32, 0u64, 0usize);
        let samples = self.samples.len() - 1;
        for sample in 0..samples {
            let range = self.range(sample).unwrap_or_default();
            let files = self.files.get(range).unwrap_or_default();
            let label = match (&self.layout, files.first()) {
                (FileLayout::Images(fields), Some(file)) => {
                    let class = self.dir_classes.get(file.dir as usize);
                    fields.form.bytes_len(class.copied().unwrap_or(0))
                }
                _ => 0,
            };
            let own = files
                .iter()
                .fold(label, |sum, file| sum.saturating_add(file.size));
            if own > SAMPLE_BYTES_MAX {
                let message = format!(
                    "the files of '{}' together are longer than a sample may be",
                    files
                        .first()
                        .and_then(|file| self.key_of(file))
                        .unwrap_or_default()
                );
                return Err(Error::new(ErrorKind::LimitExceeded, "list files", message));
            }
            let is_full = bytes.saturating_add(own) > shard_bytes || count + files.len() > SHARD_FILES_MAX;
            if is_full && count > 0 {
                self.shards.push(first..sample as u32);
                (first, bytes, count) = (sample as u32, 0, 0);
            }
            bytes = bytes.saturating_add(own);
            count += files.len();
        }
        if count > 0 {
            self.shards.push(first..samples as u32);
        }
        Ok(())
    }
}

fn name_at(names: &str, start: u32) -> &str {
    let rest = names.get(start as usize..).unwrap_or_default();
    rest.split('\0').next().unwrap_or_default()
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "list files", message)
}
