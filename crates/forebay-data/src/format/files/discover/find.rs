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
        let Some(dir) = self.in_dir(dir) else {
            return Vec::new();
        };
        let mut numbers: Vec<usize> = self.beginning(&dir, &format!("{name}.")).collect();
        if self.layout != FileLayout::Tree {
            numbers.extend(self.called(&dir, name));
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

    /// The images of some neighbours that are called so by all of their name, in which each `_` may stand for a dot. A directory may have a hundred thousand that share
    /// what is before the first dot, so their names are spelled from the left: of all ways to do so, those that no file begins with are left alone.
    fn called(&self, files: &Range<usize>, name: &str) -> Vec<usize> {
        let mut parts = name.split('_');
        let first = parts.next().unwrap_or_default().to_owned();
        let mut spelled = vec![(self.beginning(files, &first), first)];
        for part in parts {
            let longer = spelled.iter().flat_map(|(files, begin)| {
                ['.', '_'].map(|between| {
                    let begin = format!("{begin}{between}{part}");
                    (self.beginning(files, &begin), begin)
                })
            });
            spelled = longer.filter(|(files, _)| !files.is_empty()).collect();
        }
        let whole = spelled.into_iter().filter_map(|(files, name)| {
            let first = self.files.get(files.start).filter(|_| !files.is_empty())?;
            (self.name(first) == name).then_some(files.start)
        });
        whole.collect()
    }

    /// The files of a directory.
    fn in_dir(&self, dir: &str) -> Option<Range<usize>> {
        let found = self
            .dirs
            .binary_search_by(|known| known.split('/').cmp(dir.split('/')));
        let dir = found.ok()? as u32;
        let start = self.files.partition_point(|file| file.dir < dir);
        let end = self.files.partition_point(|file| file.dir <= dir);
        Some(start..end)
    }

    /// Those of some neighbours in a directory whose names begin so: they are sorted, and those lie side by side.
    fn beginning(&self, files: &Range<usize>, begin: &str) -> Range<usize> {
        let among = self.files.get(files.clone()).unwrap_or_default();
        let start = among.partition_point(|file| self.name(file) < begin);
        let among = among.get(start..).unwrap_or_default();
        let len = among.partition_point(|file| self.name(file).starts_with(begin));
        files.start + start..files.start + start + len
    }
}
