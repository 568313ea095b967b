//! Plain folders of small files, as shards that exist only as lists.
//!
//! Specified in `docs/formats/files.md`. A listing goes through a [`FileSetBuilder`] row by row and becomes a [`FileSet`]: all files sorted, grouped to samples,
//! and the samples to virtual shards of about one size ([`discover`]); what is part of no sample is counted by kind ([`LeftOut`]). A [`FileShard`] is one of them written out: which files make which fields of
//! which samples. Its bytes are its files one after the other; [`FileShard::tabulate`] makes the table over them, and [`FileShard::read`] reads a range of
//! samples into one buffer, many files at once ([`read`]). From there on it is a shard like any other.

mod discover;
mod left_out;
mod read;
#[cfg(test)]
mod tests;

use forebay_core::{Error, ErrorKind, Key, Result, Span};
use serde::{Deserialize, Serialize};

use crate::manifest::FormatSpec;
use crate::schema::{Dtype, Field, Kind};

pub use discover::{FileSet, FileSetBuilder};
pub(crate) use discover::{Found, is_image, sample_parts};
pub use left_out::LeftOut;
pub use read::FileRead;

/// How files make samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileLayout {
    /// Files of one directory whose names agree up to the first dot are the fields of one sample.
    Tree,
    /// An image is a sample, and the directory at the root that it is below is its class.
    Images(ImageFields),
}

/// How users ask for a layout by its name, on the command line and in Python.
pub(crate) fn option(layout: &str) -> String {
    format!("--layout {layout} (in Python: format={{\"name\": \"files\", \"layout\": \"{layout}\"}})")
}

impl FileLayout {
    /// By the parameter `layout` of the format: `tree`, or `images`, whose directories are classes.
    pub(crate) fn of(spec: &FormatSpec, fields: impl FnOnce() -> ImageFields) -> Result<Self> {
        match spec.params.get("layout").and_then(|value| value.as_str()) {
            Some("tree") => Ok(Self::Tree),
            Some("images") => Ok(Self::Images(fields())),
            _ => {
                let message = "format files has a layout: tree or images";
                Err(Error::new(ErrorKind::InvalidInput, "open data set", message))
            }
        }
    }
}

/// What the fields of an image folder are called, and how its labels are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFields {
    /// Field of the image.
    pub image: String,
    /// Field of the label.
    pub label: String,
    /// Its form.
    pub form: LabelForm,
}

/// How labels are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelForm {
    /// 8 bytes, little-endian: one array for a batch.
    Int64,
    /// Decimal digits, as WebDataset has them.
    Decimal,
}

impl ImageFields {
    /// For streaming: `image`, and `label` as a number.
    pub fn arrays() -> Self {
        Self {
            image: "image".to_owned(),
            label: "label".to_owned(),
            form: LabelForm::Int64,
        }
    }

    /// For packing to tar: `jpg` and `cls`, as WebDataset's decoders expect them.
    pub fn webdataset() -> Self {
        Self {
            image: "jpg".to_owned(),
            label: "cls".to_owned(),
            form: LabelForm::Decimal,
        }
    }
}

impl LabelForm {
    fn kind(self) -> Kind {
        match self {
            Self::Int64 => Kind::Array {
                dtype: Dtype::Int64,
                shape: Vec::new(),
            },
            Self::Decimal => Kind::Decimal,
        }
    }

    fn bytes(self, label: u32) -> Vec<u8> {
        match self {
            Self::Int64 => u64::from(label).to_le_bytes().to_vec(),
            Self::Decimal => label.to_string().into_bytes(),
        }
    }

    fn bytes_len(self, label: u32) -> u64 {
        match self {
            Self::Int64 => 8,
            Self::Decimal => u64::from(label.max(1).ilog10()) + 1,
        }
    }
}

/// A virtual shard: the files of some samples, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileShard {
    /// The fields its samples may have.
    pub fields: Vec<Field>,
    /// The field of labels, and their form, where there are labels.
    pub label: Option<(usize, LabelForm)>,
    /// The samples.
    pub samples: Vec<FileSample>,
}

/// A sample of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSample {
    /// What it is called.
    pub key: String,
    /// Its files, in the order of their bytes.
    pub members: Vec<Member>,
    /// Its class, whose bytes follow those of the files.
    pub label: Option<u32>,
}

/// A file of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name in the store.
    pub key: Key,
    /// Its size when it was listed; no other bytes are read.
    pub size: u64,
    /// Which field of the shard it is.
    pub field: usize,
}

impl FileShard {
    /// Bytes of all samples together.
    pub fn bytes(&self) -> u64 {
        self.samples.iter().map(|sample| self.sample_bytes(sample)).sum()
    }

    /// The bytes of sample `index` in the shard.
    pub fn extent(&self, index: usize) -> Option<Span> {
        let sample = self.samples.get(index)?;
        let start = self
            .samples
            .iter()
            .take(index)
            .map(|sample| self.sample_bytes(sample))
            .sum();
        Span::at(start, self.sample_bytes(sample)).ok()
    }

    /// The bytes of a sample's label, where it has one.
    pub(crate) fn label_bytes(&self, sample: &FileSample) -> Option<Vec<u8>> {
        let (_, form) = self.label?;
        Some(form.bytes(sample.label?))
    }

    fn sample_bytes(&self, sample: &FileSample) -> u64 {
        let label = match (self.label, sample.label) {
            (Some((_, form)), Some(label)) => form.bytes_len(label),
            _ => 0,
        };
        let members = sample.members.iter().map(|member| member.size);
        members.fold(label, u64::saturating_add)
    }
}
