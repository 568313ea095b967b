//! What `torch.save` writes: a zip archive of a pickle, which says what there is, and of the bytes of each storage.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use forebay_core::{Ledger, Result};

use super::Job;
use super::pickle::{Nest, Pickle, TensorView, has_type, put_tensor};
use super::stream::Writer;
use super::tensors::Tensor;
use super::zip::Archive;
use crate::value::Value;

const FILE: &str = "model.pt";

/// The folder that everything is in; torch takes any name.
const FOLDER: &str = "model";

/// The value in which the Python package keeps how a state is nested; structures of ranks that have others begin with it and a dot.
const STRUCTURE: &str = "forebay.state";

impl Job<'_> {
    pub(super) async fn torch(&mut self, file_name: Option<&str>) -> Result<()> {
        let file = file_name.unwrap_or(FILE);
        self.done.left_out.append(&mut self.tensors.opaque);
        let tensors = std::mem::take(&mut self.tensors.list);
        let (tensors, without): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|tensor| has_type(tensor.dtype));
        self.done
            .left_out
            .extend(without.into_iter().map(|tensor| tensor.name));
        let storages = storages(&tensors);
        let pickle = self.pickle(&tensors, &storages).await?;
        let bytes: u64 = storages.list.iter().map(|storage| storage.bytes).sum();
        let mut writer = self.begin(file, bytes).await?;
        let written = self.archive(&mut writer, pickle, &storages.list).await;
        let written = written.map(|ledger| self.done.ledger.merge(&ledger));
        self.end(file, writer, written).await?;
        self.done.tensors += tensors.len() as u64;
        Ok(())
    }

    async fn pickle(&mut self, tensors: &[Tensor], storages: &Storages) -> Result<Vec<u8>> {
        let mut pickle = Pickle::new();
        let mut made: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for tensor in tensors {
            let number = storages.number_of.get(&tensor.target).copied().unwrap_or(0);
            let (first_element, strides) = match &tensor.view {
                Some((first, strides)) => (*first, strides.clone()),
                None => (0, tensor.strides()),
            };
            let view = TensorView {
                dtype: tensor.dtype,
                storage: &number.to_string(),
                storage_elements: tensor.target_shape.iter().product(),
                first_element,
                shape: &tensor.shape,
                strides: &strides,
            };
            made.insert(&tensor.name, put_tensor(&view)?);
        }
        let values = std::mem::take(&mut self.tensors.values);
        let mut nest = Nest {
            tensors: &made,
            taken: BTreeSet::new(),
            values: 0,
            left_out: Vec::new(),
        };
        let is_nested = match self.structure(&values).await? {
            Some(structure) => pickle.nest(&structure, &mut nest),
            None => false,
        };
        self.done.values += nest.values;
        self.done.left_out.append(&mut nest.left_out);
        // Those of ranks that have others than the first.
        for (name, tensor) in made.iter().filter(|(name, _)| !nest.taken.contains(**name)) {
            pickle.tensor(name, tensor);
        }
        for (name, new) in values {
            if is_nested && (name == STRUCTURE || name.starts_with(&format!("{STRUCTURE}."))) {
                continue;
            }
            let value = self.checkpoint.value(&name).await?;
            match value {
                Some(value) if pickle.value(&new, &value) => self.done.values += 1,
                _ => self.done.left_out.push(new),
            }
        }
        Ok(pickle.finish())
    }

    /// How the state is nested, where that is known and all of it is wanted.
    async fn structure(&self, values: &[(String, String)]) -> Result<Option<Value>> {
        let is_there = values
            .iter()
            .any(|(name, new)| name == STRUCTURE && new == STRUCTURE);
        if !is_there {
            return Ok(None);
        }
        self.checkpoint.value(STRUCTURE).await
    }

    async fn archive(&self, writer: &mut Writer, pickle: Vec<u8>, storages: &[Tensor]) -> Result<Ledger> {
        let mut archive = Archive::default();
        put(writer, &mut archive, "data.pkl", &pickle).await?;
        put(writer, &mut archive, "byteorder", b"little").await?;
        let mut ledger = Ledger::default();
        for (number, storage) in storages.iter().enumerate() {
            let name = format!("{FOLDER}/data/{number}");
            let head = archive.begin(&name, writer.bytes);
            writer.write(&head).await?;
            let mut crc = crc32fast::Hasher::new();
            let mut each = |bytes: &[u8]| crc.update(bytes);
            ledger.merge(&self.write_tensor(writer, storage, &mut each).await?);
            writer.write(&archive.end(storage.bytes, crc.finalize())).await?;
        }
        put(writer, &mut archive, "version", b"3\n").await?;
        let start = writer.bytes;
        writer.write(&archive.finish(start)).await?;
        Ok(ledger)
    }
}

async fn put(writer: &mut Writer, archive: &mut Archive, name: &str, bytes: &[u8]) -> Result<()> {
    let head = archive.begin(&format!("{FOLDER}/{name}"), writer.bytes);
    writer.write(&head).await?;
    writer.write(bytes).await?;
    let end = archive.end(bytes.len() as u64, crc32fast::hash(bytes));
    writer.write(&end).await
}

/// What is stored: each tensor of the checkpoint that something is a view of, once.
struct Storages {
    list: Vec<Tensor>,
    number_of: HashMap<String, usize>,
}

fn storages(tensors: &[Tensor]) -> Storages {
    let mut storages = Storages {
        list: Vec::new(),
        number_of: HashMap::new(),
    };
    for tensor in tensors {
        if storages.number_of.contains_key(&tensor.target) {
            continue;
        }
        let number = storages.list.len();
        storages.number_of.insert(tensor.target.clone(), number);
        storages.list.push(Tensor {
            shape: tensor.target_shape.clone(),
            bytes: tensor.dtype.bytes_of(&tensor.target_shape).unwrap_or(0),
            view: None,
            ..tensor.clone()
        });
    }
    storages
}
