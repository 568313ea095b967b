//! Looking up files by the key of a sample, as it was when the folder was indexed: the listing may be another one since.

use std::ops::Range;

use forebay_core::Key;

use super::super::LabelForm;
use super::{FileLayout, FileSet};

/// A file that may belong to a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its number among the files of the folder.
    pub(crate) number: usize,
    /// Its name in the store.
    pub(crate) key: Key,
    /// Its size when it was listed.
    pub(crate) size: u64,
    /// What its field is called.
    pub(crate) field: String,
}

impl FileSet {
    /// The files that a sample of that key may have had. An image is called by all of its name (`0_jpg`) where it shares what is before the dot with others, and by
    /// that alone (`0`) where it does not; which of the two it was is told by the images that there were, so both are looked for.
    pub(crate) fn find(&self, key: &str) -> Vec<Found> {
        let (dir, name) = key.rsplit_once('/').unwrap_or(("", key));
        let mut numbers: Vec<usize> = self.named(dir, name).collect();
        if self.layout != FileLayout::Tree {
            for (at, _) in name.match_indices('_') {
                let stem = name.get(..at).unwrap_or_default();
                numbers.extend(
                    self.named(dir, stem)
                        .filter(|number| self.whole_name(*number) == name),
                );
            }
        }
        numbers
            .into_iter()
            .filter_map(|number| self.found(number))
            .collect()
    }

    /// The name of a file in the store.
    pub(crate) fn file_key(&self, number: usize) -> Option<Key> {
        self.key_of(self.files.get(number)?)
    }

    /// The field of labels and their form, where there are labels.
    pub(crate) fn label(&self) -> Option<(usize, LabelForm)> {
        match &self.layout {
            FileLayout::Tree => None,
            FileLayout::Images(fields) => Some((self.label_field()?, fields.form)),
        }
    }

    fn found(&self, number: usize) -> Option<Found> {
        let file = self.files.get(number)?;
        let field = match &self.layout {
            FileLayout::Tree => self.stem_and_field(file).1.to_lowercase(),
            FileLayout::Images(fields) => fields.image.clone(),
        };
        Some(Found {
            number,
            key: self.key_of(file)?,
            size: file.size,
            field,
        })
    }

    /// What an image is called that is not alone in having what is before its dot.
    fn whole_name(&self, number: usize) -> String {
        let name = self.files.get(number).map_or("", |file| self.name(file));
        name.replace('.', "_")
    }

    /// The files of a directory that have this before the first dot of their names: they are sorted, and those lie side by side.
    fn named(&self, dir: &str, stem: &str) -> Range<usize> {
        let Ok(dir) = self
            .dirs
            .binary_search_by(|known| known.split('/').cmp(dir.split('/')))
        else {
            return 0..0;
        };
        let (dir, begin) = (dir as u32, format!("{stem}."));
        let start = self
            .files
            .partition_point(|file| (file.dir, self.name(file)) < (dir, begin.as_str()));
        let files = self.files.get(start..).unwrap_or_default().iter();
        let len = files
            .take_while(|file| file.dir == dir && self.name(file).starts_with(&begin))
            .count();
        start..start + len
    }
}
