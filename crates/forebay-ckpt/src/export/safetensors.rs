//! Safetensors: one file, or shards and an index as model hubs have them.

use std::collections::BTreeMap;

use forebay_core::safetensors::{Dtype as FileDtype, HeaderBuilder, Order};
use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{PutOptions, StoreExt};
use serde::Serialize;

use super::tensors::Tensor;
use super::{ExportedFile, Job};

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Data begin at a multiple of this: any reader takes it, and those that read directly like it.
const ALIGN: u64 = 4096;

/// Most shards: their numbers have five digits.
const SHARDS_MAX: usize = 99_999;

/// The index of a folder of shards.
#[derive(Debug, Serialize)]
struct Index {
    metadata: IndexMetadata,
    weight_map: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct IndexMetadata {
    total_size: u64,
}

impl Job<'_> {
    pub(super) async fn safetensors(&mut self, file_name: Option<&str>) -> Result<()> {
        self.leave_out_values();
        let tensors = std::mem::take(&mut self.tensors.list);
        self.safetensors_file(file_name.unwrap_or(FILE), &tensors).await
    }

    pub(super) async fn hf(&mut self, shard_bytes_max: u64) -> Result<()> {
        self.leave_out_values();
        let tensors = std::mem::take(&mut self.tensors.list);
        let shards = shards(tensors, shard_bytes_max)?;
        let mut index = Index {
            metadata: IndexMetadata { total_size: 0 },
            weight_map: BTreeMap::new(),
        };
        let count = shards.len();
        for (number, shard) in (1..).zip(&shards) {
            let name = format!("model-{number:05}-of-{count:05}.safetensors");
            self.safetensors_file(&name, shard).await?;
            for tensor in shard {
                index.metadata.total_size += tensor.bytes;
                index.weight_map.insert(tensor.name.clone(), name.clone());
            }
        }
        let bytes = serde_json::to_vec_pretty(&index).map_err(|error| {
            Error::new(ErrorKind::Internal, "export", "the index cannot be written").with_source(error)
        })?;
        let (key, options) = (Key::parse(INDEX)?, PutOptions::default());
        let put = self.to.put_bytes(&key, &bytes, &options).await?;
        self.done.ledger.merge(&put.ledger);
        self.done.files.push(ExportedFile {
            name: INDEX.to_owned(),
            bytes: bytes.len() as u64,
        });
        Ok(())
    }

    /// These formats hold tensors alone.
    fn leave_out_values(&mut self) {
        let values = self.tensors.values.drain(..).map(|(_, name)| name);
        self.done.left_out.extend(values);
        self.done.left_out.append(&mut self.tensors.opaque);
    }

    async fn safetensors_file(&mut self, name: &str, tensors: &[Tensor]) -> Result<()> {
        let metadata = BTreeMap::from([
            // What loaders of model hubs ask for.
            ("format".to_owned(), "pt".to_owned()),
            ("forebay.step".to_owned(), self.checkpoint.step().to_string()),
        ]);
        let mut builder = HeaderBuilder::new()
            .order(Order::Safetensors)
            .align(ALIGN)
            .metadata(Some(metadata));
        for tensor in tensors {
            let (dtype, shape) = tensor.dtype.in_safetensors(&tensor.shape);
            builder.tensor(tensor.name.clone(), FileDtype::parse(dtype)?, shape);
        }
        let encoded = builder.encode()?;
        let mut writer = self.begin(name, encoded.header.file_len()).await?;
        let written = async {
            writer.write(&encoded.bytes).await?;
            let mut ledger = forebay_core::Ledger::default();
            for source in &encoded.sources {
                if let Some(tensor) = tensors.get(*source) {
                    ledger.merge(&self.write_tensor(&mut writer, tensor, &mut |_| {}).await?);
                }
            }
            Ok(ledger)
        };
        let written = written.await.map(|ledger| self.done.ledger.merge(&ledger));
        self.end(name, writer, written).await?;
        self.done.tensors += tensors.len() as u64;
        Ok(())
    }
}

/// Tensors by shard, in their order.
fn shards(tensors: Vec<Tensor>, shard_bytes_max: u64) -> Result<Vec<Vec<Tensor>>> {
    let mut shards: Vec<Vec<Tensor>> = Vec::new();
    let mut bytes: u64 = 0;
    for tensor in tensors {
        bytes = bytes.saturating_add(tensor.bytes);
        match shards.last_mut() {
            Some(shard) if bytes <= shard_bytes_max => shard.push(tensor),
            _ => {
                bytes = tensor.bytes;
                shards.push(vec![tensor]);
            }
        }
    }
    if shards.len() > SHARDS_MAX {
        let message = format!("{} shards are more than {SHARDS_MAX}", shards.len());
        return Err(
            Error::new(ErrorKind::InvalidInput, "export", message).with_hint("let a shard have more bytes")
        );
    }
    Ok(shards)
}
