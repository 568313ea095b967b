//! The bytes in front of the data area of a file to be written.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use super::{
    DIMS_MAX, Dtype, HEADER_BYTES_MAX, Header, LENGTH_BYTES, METADATA_KEY, TensorInfo, tensor_bytes,
};
use crate::{Error, ErrorKind, Result, Span};

/// In which order tensors are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// As the safetensors library does: greatest dtype first, then by name, so that every tensor begins at a multiple of its element's size.
    #[default]
    Safetensors,
    /// As they were added.
    Given,
}

/// Collects what a file will hold.
#[derive(Debug, Clone)]
pub struct HeaderBuilder {
    tensors: Vec<(String, Dtype, Vec<u64>)>,
    metadata: Option<BTreeMap<String, String>>,
    order: Order,
    align: u64,
}

/// An encoded header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Everything in front of the data area.
    pub bytes: Vec<u8>,
    /// What a reader will find in the file.
    pub header: Header,
    /// For each tensor of the header, which of the added ones it is.
    pub sources: Vec<usize>,
}

impl Default for HeaderBuilder {
    fn default() -> Self {
        Self {
            tensors: Vec::new(),
            metadata: None,
            order: Order::default(),
            align: LENGTH_BYTES,
        }
    }
}

impl HeaderBuilder {
    /// Nothing yet, in the library's order, with the data area at a multiple of 8.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lay tensors out in that order.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Begin the data area at a multiple of `align`, a power of two of at least 8: at 4096, direct I/O needs no copy.
    pub fn align(mut self, align: u64) -> Self {
        self.align = align;
        self
    }

    /// What the file says of itself.
    pub fn metadata(mut self, metadata: Option<BTreeMap<String, String>>) -> Self {
        self.metadata = metadata;
        self
    }

    /// Add a tensor.
    pub fn tensor(&mut self, name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u64>>) -> &mut Self {
        self.tensors.push((name.into(), dtype, shape.into()));
        self
    }

    /// Lay everything out. `InvalidInput` names the tensor that cannot be.
    pub fn encode(self) -> Result<Encoded> {
        if !self.align.is_power_of_two() || !(LENGTH_BYTES..=HEADER_BYTES_MAX).contains(&self.align) {
            let message = format!(
                "alignment {} is not a power of two between 8 and {HEADER_BYTES_MAX}, the longest header",
                self.align
            );
            return Err(refused(message));
        }
        let sources = self.sources()?;
        let mut rows: Vec<Row<'_>> = Vec::with_capacity(sources.len());
        let mut at = 0u64;
        for index in &sources {
            let (name, dtype, shape) = &self.tensors[*index];
            let fail = |why: &str| refused(format!("tensor '{}': {why}", name.escape_debug()));
            if name == METADATA_KEY {
                return Err(fail("this name is kept for the metadata"));
            }
            if shape.len() > DIMS_MAX {
                return Err(fail("it has more dimensions than any framework takes"));
            }
            let bytes = tensor_bytes(*dtype, shape).map_err(fail)?;
            let end = at
                .checked_add(bytes)
                .filter(|end| i64::try_from(*end).is_ok())
                .ok_or_else(|| fail("the file would be longer than files can be"))?;
            rows.push(Row {
                name,
                dtype: *dtype,
                shape,
                begin: at,
                end,
            });
            at = end;
        }
        let bytes = encode_bytes(&rows, self.metadata.as_ref(), self.align)?;
        let data_start = bytes.len() as u64;
        let tensors = rows
            .iter()
            .map(|row| row.info(data_start))
            .collect::<Result<Vec<_>>>()?;
        let header = Header::from_parts(tensors, self.metadata.clone(), data_start, data_start + at);
        Ok(Encoded {
            bytes,
            header,
            sources,
        })
    }

    /// Indices of the added tensors in the order of the file.
    fn sources(&self) -> Result<Vec<usize>> {
        let name_of = |index: &usize| self.tensors[*index].0.as_str();
        let mut sources: Vec<usize> = (0..self.tensors.len()).collect();
        sources.sort_by(|a, b| name_of(a).cmp(name_of(b)));
        let mut pairs = sources.iter().zip(sources.iter().skip(1));
        if let Some((twin, _)) = pairs.find(|(a, b)| name_of(a) == name_of(b)) {
            let name = name_of(twin).escape_debug().to_string();
            return Err(refused(format!("tensor '{name}' comes twice")));
        }
        match self.order {
            // Stable: names stay sorted within a dtype.
            Order::Safetensors => sources.sort_by_key(|index| std::cmp::Reverse(self.tensors[*index].1)),
            Order::Given => sources.sort_unstable(),
        }
        Ok(sources)
    }
}

fn encode_bytes(
    rows: &[Row<'_>],
    metadata: Option<&BTreeMap<String, String>>,
    align: u64,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH_BYTES as usize];
    let document = Document { rows, metadata };
    serde_json::to_writer(&mut bytes, &document)
        .map_err(|error| refused("the header cannot be written".to_owned()).with_source(error))?;
    bytes.resize(bytes.len().next_multiple_of(align as usize), b' ');
    let length = bytes.len() as u64 - LENGTH_BYTES;
    if length > HEADER_BYTES_MAX {
        let message =
            format!("the header would have {length} bytes, and at most {HEADER_BYTES_MAX} are allowed");
        return Err(Error::new(ErrorKind::LimitExceeded, OP, message)
            .with_hint("spread the tensors over several files"));
    }
    bytes[..LENGTH_BYTES as usize].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

struct Row<'a> {
    name: &'a str,
    dtype: Dtype,
    shape: &'a [u64],
    begin: u64,
    end: u64,
}

impl Row<'_> {
    fn info(&self, data_start: u64) -> Result<TensorInfo> {
        Ok(TensorInfo {
            name: self.name.to_owned(),
            dtype: self.dtype,
            shape: self.shape.to_vec(),
            span: Span::new(data_start + self.begin, data_start + self.end)?,
        })
    }
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("tensor", 3)?;
        row.serialize_field("dtype", self.dtype.name())?;
        row.serialize_field("shape", self.shape)?;
        row.serialize_field("data_offsets", &(self.begin, self.end))?;
        row.end()
    }
}

struct Document<'a> {
    rows: &'a [Row<'a>],
    metadata: Option<&'a BTreeMap<String, String>>,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(metadata) = self.metadata {
            map.serialize_entry(METADATA_KEY, metadata)?;
        }
        for row in self.rows {
            map.serialize_entry(row.name, row)?;
        }
        map.end()
    }
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, OP, message)
}

/// What errors say was done.
const OP: &str = "write safetensors";
