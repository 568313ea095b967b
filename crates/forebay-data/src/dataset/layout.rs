//! Whether a folder of files is a folder of images whose directories are classes, or a tree of samples. Names alone decide it.
//!
//! People leave other files among their images (a README, `Thumbs.db`, a list of labels): those must not turn classes into a tree, and a tree of samples with
//! images in it must not become classes. What speaks for a tree is described on [`Census::is_image_folder`]. Either way nothing is done silently: what is left out
//! of an image folder is told ([`FileSet::note`](crate::format::files::FileSet::note)), and so is a tree in which most images stand alone.

use std::collections::HashSet;

use forebay_core::Key;
use forebay_store::ObjectMeta;

use crate::format::files::{is_image, option, sample_parts};
use crate::manifest::FormatSpec;

/// Files among the images that are strays in however small a folder; in a larger one, as many as there are images.
const STRAYS_FREE: u64 = 8;

/// One image of so many that has a file of its own name beside it makes them fields of samples: strays do not come in pairs with images.
const COMPANIONS_SHARE: u64 = 10;

/// The layout that the files speak of, and what is to be said about it; one that was asked for is left as it is.
pub(super) fn with_layout(spec: FormatSpec, objects: &[ObjectMeta]) -> (FormatSpec, Option<String>) {
    if spec.params.contains_key("layout") {
        return (spec, None);
    }
    let census = Census::of(objects.iter().map(|meta| &meta.key));
    let layout = if census.is_image_folder() {
        "images"
    } else {
        "tree"
    };
    (
        spec.with("layout", layout),
        census.doubt().or_else(|| rows_unread(objects)),
    )
}

/// Endings of files of rows that nothing here reads row by row.
const ROWS: [&str; 9] = [
    "jsonl", "ndjson", "csv", "tsv", "arrow", "feather", "h5", "hdf5", "lance",
];

/// What is to be said where most files are of rows: each of them is one sample.
fn rows_unread(objects: &[ObjectMeta]) -> Option<String> {
    let ending = |meta: &ObjectMeta| {
        let (_, ending) = meta.key.file_name().rsplit_once('.')?;
        ROWS.into_iter().find(|rows| ending.eq_ignore_ascii_case(rows))
    };
    let count = objects.iter().filter(|meta| ending(meta).is_some()).count();
    let first = objects
        .iter()
        .find_map(ending)
        .filter(|_| count * 2 > objects.len())?;
    Some(format!(
        "{count} files such as .{first} are read whole, each as one sample: rows in them are not read; written as Parquet, each row is a sample"
    ))
}

/// What is to be said where shards are read and lie beside more images than there are of them.
pub(super) fn beside(format: &str, shards: usize, objects: &[ObjectMeta]) -> Option<String> {
    let census = Census::of(objects.iter().map(|meta| &meta.key));
    (census.images > shards as u64).then(|| {
        format!(
            "the shards of format {format} are read, and not the {} images in directories beside them: --format files reads those",
            census.images
        )
    })
}

/// How many files there are of each kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Census {
    /// Images in directories.
    images: u64,
    /// Of these, those that have a file that is no image beside them, whose name agrees up to the first dot.
    accompanied: u64,
    /// Other files at the root or in a directory of the root that has images below it; images at the root are among them.
    strays: u64,
    /// Other files in directories of the root without any image.
    elsewhere: u64,
}

impl Census {
    /// Of files that could be part of a sample; the others say nothing.
    fn of<'a>(keys: impl Iterator<Item = &'a Key> + Clone) -> Self {
        let parts = keys.filter_map(|key| sample_parts(key.as_str()));
        let mut census = Self::default();
        let mut classes = HashSet::new();
        for (dir, _, field) in parts.clone() {
            if !dir.is_empty() && is_image(field) {
                census.images += 1;
                classes.insert(class_of(dir));
            }
        }
        if census.images == 0 {
            return census;
        }
        for (dir, _, field) in parts.clone() {
            if dir.is_empty() || (!is_image(field) && classes.contains(class_of(dir))) {
                census.strays += 1;
            } else if !is_image(field) {
                census.elsewhere += 1;
            }
        }
        census.accompanied = census.count_accompanied(&parts);
        census
    }

    /// Images that have a file beside them. Of millions of names, those are remembered of which there are fewer.
    fn count_accompanied<'a>(
        &self,
        parts: &(impl Iterator<Item = (&'a str, &'a str, &'a str)> + Clone),
    ) -> u64 {
        let of_kind = |wanted: bool| {
            let files = parts.clone().filter(|(dir, ..)| !dir.is_empty());
            files
                .filter(move |(.., field)| is_image(field) == wanted)
                .map(|(dir, stem, _)| (dir, stem))
        };
        if self.strays.saturating_add(self.elsewhere) <= self.images {
            let others: HashSet<(&str, &str)> = of_kind(false).collect();
            of_kind(true).filter(|image| others.contains(image)).count() as u64
        } else {
            let mut images: HashSet<(&str, &str)> = of_kind(true).collect();
            of_kind(false).filter(|other| images.remove(other)).count() as u64
        }
    }

    /// True when the directories are classes: there are images in them, and what else is there are strays. It is a tree when
    ///
    /// - one image of ten has a file of its own name beside it, such as a caption: those are fields of one sample;
    /// - directories without any image hold as many files as there are images, such as labels by file;
    /// - among the images, and at the root, there are more other files than images.
    fn is_image_folder(&self) -> bool {
        let is_accompanied = self.accompanied.saturating_mul(COMPANIONS_SHARE) >= self.images;
        self.images > 0
            && !is_accompanied
            && self.elsewhere < self.images
            && self.strays <= self.images.max(STRAYS_FREE)
    }

    /// What is to be said of a tree that could have been meant as classes: most images in it stand alone.
    fn doubt(&self) -> Option<String> {
        let is_doubtful = self.accompanied.saturating_mul(2) < self.images && !self.is_image_folder();
        is_doubtful.then(|| {
            format!(
                "{} images lie in directories, beside {} other files: all are read as plain files, without labels; the directories are classes by {}",
                self.images,
                self.strays.saturating_add(self.elsewhere),
                option("images")
            )
        })
    }
}

/// The directory of the root that a directory is below, or is.
fn class_of(dir: &str) -> &str {
    dir.split('/').next().unwrap_or(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(names: &[&str]) -> Census {
        let keys: Vec<Key> = names.iter().map(|name| Key::parse(name).unwrap()).collect();
        Census::of(keys.iter())
    }

    /// Names, and more of them by number.
    fn numbered(names: &[&str], pattern: &str, count: usize) -> Census {
        let more = (0..count).map(|index| pattern.replace('#', &index.to_string()));
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).chain(more).collect();
        census(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    const IMAGES: [&str; 3] = ["cat/1.jpg", "cat/2.JPEG", "dog/deep/1.png"];

    #[test]
    fn strays_leave_classes_classes() {
        for strays in [
            &[][..],
            &["README.txt"],
            &["README", "LICENSE", "Makefile"],
            &["cat/Thumbs.db", "dog/Thumbs.db"],
            &["dog/deep/notes.txt", "labels.csv", "meta.json", "preview.png"],
            &["annotations/all.json", "__meta__/x.json"],
        ] {
            let census = census(&[&IMAGES, strays].concat());
            assert!(census.is_image_folder(), "{strays:?}: {census:?}");
            assert_eq!(census.doubt(), None, "{strays:?}");
        }
        assert!(numbered(&["cat/notes.txt"], "cat/#.jpg", 1000).is_image_folder());
        assert!(numbered(&["cat/7.txt"], "cat/#.jpg", 1000).is_image_folder());
    }

    #[test]
    fn trees_stay_trees() {
        for (names, is_told) in [
            (&["a.jpg", "b.jpg"][..], false),
            (&["a.txt", "d/b.txt"], false),
            // Captions; for each, for some.
            (&["d/1.jpg", "d/1.txt", "d/2.jpg", "d/2.txt"], false),
            (&["d/1.jpg", "d/2.jpg", "d/3.jpg", "d/3.json"], true),
            // Labels by file.
            (
                &["images/1.jpg", "images/2.jpg", "labels/1.txt", "labels/2.txt"],
                true,
            ),
            (&["img/1.png", "text/1.txt", "meta/1.json"], true),
            // Most images lie at the root.
            (
                &[
                    "d/1.jpg", "1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg", "6.jpg", "7.jpg", "8.jpg",
                    "9.jpg",
                ],
                true,
            ),
        ] {
            let census = census(names);
            assert!(!census.is_image_folder(), "{names:?}: {census:?}");
            assert_eq!(census.doubt().is_some(), is_told, "{names:?}: {census:?}");
        }
        let pages = numbered(&["docs/img/a.png", "docs/img/b.png"], "docs/#.html", 40);
        assert!(!pages.is_image_folder());
        let doubt = pages.doubt().unwrap();
        assert!(
            doubt.starts_with("2 images lie in directories, beside 40 other files"),
            "{doubt}"
        );
        assert!(doubt.contains("--layout images"), "{doubt}");
    }
}
