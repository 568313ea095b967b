//! States, stores and short ways to save and load them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{Key, Limits, Location, Result, Rng, Seed, Span};
use forebay_io::{AlignedBuf, Buf, Disk, DiskConfig, Pages};
use forebay_store::{
    Body, Capabilities, Context, Entry as Row, ListOptions, Listing, MemoryStore, ObjectMeta, Proof, PutDone,
    PutMode, PutOptions, ReadDone, ReadOptions, Store, Upload,
};
use futures::StreamExt;

use crate::*;

/// Chunks small enough that small tensors have several.
pub(crate) const CHUNK: u32 = CHUNK_BYTES_MIN;

pub(crate) const NO_WAIT: Duration = Duration::from_millis(1);

pub(crate) fn limits() -> Limits {
    Limits {
        // Small, so that payloads are uploaded in parts.
        part_bytes: 16 << 10,
        buffer_bytes_max: 32 << 20,
        ..Limits::default()
    }
}

pub(crate) fn context() -> Context {
    let config = DiskConfig {
        limits: limits(),
        ..DiskConfig::default()
    };
    Context::new(Disk::open(config).unwrap()).with_state_dir(None)
}

pub(crate) fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// A tensor as a model of what must come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn new(dtype: Dtype, shape: &[u64], rng: &mut Rng) -> Self {
        let mut bytes = vec![0; dtype.bytes_of(shape).unwrap() as usize];
        rng.fill(&mut bytes);
        let shape = shape.to_vec();
        Self { dtype, shape, bytes }
    }

    /// A box of it, element by element: slow, and plainly right.
    pub(crate) fn cut(&self, offsets: &[u64], lengths: &[u64]) -> Vec<u8> {
        // Sweeps load whole tensors thousands of times.
        if lengths == self.shape {
            return self.bytes.clone();
        }
        let width = (self.dtype.bits() / 8) as usize;
        let mut out = Vec::new();
        let count: u64 = lengths.iter().product();
        for number in 0..count {
            let (mut rest, mut element, mut stride) = (number, 0, 1);
            for dim in (0..lengths.len()).rev() {
                let index = offsets[dim] + rest % lengths[dim];
                rest /= lengths[dim];
                element += index * stride;
                stride *= self.shape[dim];
            }
            out.extend_from_slice(&self.bytes[element as usize * width..][..width]);
        }
        out
    }
}

/// Names and tensors.
pub(crate) type State = BTreeMap<String, Tensor>;

pub(crate) fn state(seed: u64) -> State {
    let mut rng = Seed(seed).rng();
    let shapes: [(&str, Dtype, &[u64]); 6] = [
        ("embed", Dtype::Bf16, &[96, 64]),
        ("layer.0.weight", Dtype::F32, &[64, 64]),
        ("layer.0.bias", Dtype::F32, &[37]),
        ("layer.1.weight", Dtype::F8_E4M3, &[8, 24, 50]),
        ("step", Dtype::I64, &[]),
        ("empty", Dtype::F16, &[0, 4]),
    ];
    shapes
        .into_iter()
        .map(|(name, dtype, shape)| (name.to_owned(), Tensor::new(dtype, shape, &mut rng)))
        .collect()
}

/// The same names and shapes, with numbers that shrink: few exponents, as weights have.
pub(crate) fn soft_state(seed: u64) -> State {
    let soften = |(name, tensor)| (name, soft(tensor));
    state(seed).into_iter().map(soften).collect()
}

/// With few exponents.
pub(crate) fn soft(mut tensor: Tensor) -> Tensor {
    let width = (tensor.dtype.bits() / 8) as usize;
    for element in tensor.bytes.chunks_exact_mut(width) {
        let high = &mut element[width - 1];
        *high = 0x38 | *high & 3;
    }
    tensor
}

/// The rows (or columns, along `dim`) that a rank has of a tensor: as torch chunks them; what has no such dimension is rank 0's.
pub(crate) fn shard(shape: &[u64], dim: usize, rank: u32, world: u32) -> Option<(Vec<u64>, Vec<u64>)> {
    let Some(size) = shape.get(dim).copied().filter(|size| *size > 0) else {
        return (rank == 0).then(|| (vec![0; shape.len()], shape.to_vec()));
    };
    let step = size.div_ceil(u64::from(world));
    let start = (step * u64::from(rank)).min(size);
    let (mut offsets, mut lengths) = (vec![0; shape.len()], shape.to_vec());
    offsets[dim] = start;
    lengths[dim] = step.min(size - start);
    (lengths[dim] > 0).then_some((offsets, lengths))
}

pub(crate) fn items(state: &State, dim: usize, rank: u32, world: u32) -> Vec<Item> {
    let mut items = Vec::new();
    for (name, tensor) in state {
        let Some((offsets, lengths)) = shard(&tensor.shape, dim, rank, world) else {
            continue;
        };
        let spec = SliceSpec::whole(tensor.dtype, &tensor.shape).cut(&offsets, &lengths);
        let bytes = Buf::copy_of(&tensor.cut(&offsets, &lengths)).unwrap();
        items.push(Item {
            name: name.clone(),
            data: ItemData::Slice(spec, bytes),
        });
    }
    if rank == 0 {
        items.push(Item {
            name: "extra".to_owned(),
            data: ItemData::Value(Value::List(vec![
                Value::Int(7),
                Value::text("hello"),
                Value::Float(0.5),
            ])),
        });
    }
    items
}

pub(crate) fn options(step: u64, attempt: u8, world: u32) -> SaveOptions {
    let mut id = [attempt; 16];
    id[..8].copy_from_slice(&step.to_le_bytes());
    SaveOptions {
        chunk_bytes: CHUNK,
        ..SaveOptions::new(step, Attempt(id), world)
    }
}

pub(crate) fn metadata(loss: f64) -> Value {
    Value::Dict(vec![(Value::text("loss"), Value::Float(loss))])
}

/// Save a state over all ranks and commit it.
pub(crate) async fn save_with(
    store: &Arc<dyn Store>,
    context: &Context,
    options: SaveOptions,
    state: &State,
    dim: usize,
) -> Result<(Committed, Vec<RankSaved>)> {
    let save = Save::begin(Arc::clone(store), context, options).await?;
    let mut saved = Vec::new();
    let world = save.options().world;
    for rank in 0..world {
        saved.push(save.rank(rank, items(state, dim, rank, world)).await?);
    }
    Ok((save.commit(metadata(2.5), NO_WAIT).await?, saved))
}

pub(crate) async fn save(store: &Arc<dyn Store>, context: &Context, step: u64, world: u32, state: &State) {
    save_with(store, context, options(step, 1, world), state, 0)
        .await
        .unwrap();
}

pub(crate) fn want(name: &str, tensor: &Tensor, offsets: &[u64], lengths: &[u64]) -> Want {
    let bytes = tensor.dtype.bytes_of(lengths).unwrap() as usize;
    Want {
        name: name.to_owned(),
        offsets: offsets.to_vec(),
        lengths: lengths.to_vec(),
        memory: AlignedBuf::alloc(bytes, Pages::Small).unwrap(),
    }
}

/// Load all that a rank has of a state, and compare.
pub(crate) async fn load_shard(
    checkpoint: &Checkpoint,
    state: &State,
    dim: usize,
    rank: u32,
    world: u32,
) -> Result<(), String> {
    let (mut wants, mut expected) = (Vec::new(), Vec::new());
    for (name, tensor) in state {
        if let Some((offsets, lengths)) = shard(&tensor.shape, dim, rank, world) {
            wants.push(want(name, tensor, &offsets, &lengths));
            expected.push((name, tensor.cut(&offsets, &lengths)));
        }
    }
    let loaded = checkpoint.load(wants).await.map_err(|error| error.to_string())?;
    for ((name, expected), memory) in expected.into_iter().zip(loaded.memory) {
        if memory[..] != expected[..] {
            return Err(format!("{name} has other bytes"));
        }
    }
    Ok(())
}

/// Load everything and compare.
pub(crate) async fn load_all(checkpoint: &Checkpoint, state: &State) -> Result<(), String> {
    load_shard(checkpoint, state, 0, 0, 1).await
}

pub(crate) async fn open(store: &Arc<dyn Store>, context: &Context, step: u64) -> Checkpoint {
    Checkpoint::open(Arc::clone(store), context, step).await.unwrap()
}

/// A store of which the abilities are known: without those that are not shown, nobody may use them; and no probe takes operations.
#[derive(Debug)]
pub(crate) struct Abilities {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) put_if_absent: Proof,
}

#[async_trait]
impl Store for Abilities {
    fn location(&self) -> &Location {
        self.inner.location()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.head(key).await
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.inner.read_into(key, span, buf, options).await
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        assert!(
            options.mode == PutMode::Replace || self.put_if_absent.is_shown(),
            "{key}"
        );
        self.inner.put(key, body, options).await
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        assert!(
            options.mode == PutMode::Replace || self.put_if_absent.is_shown(),
            "{key}"
        );
        self.inner.upload(key, options).await
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        self.inner.list(prefix, options)
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.inner.delete(key).await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Capabilities {
            put_if_absent: self.put_if_absent.clone(),
            upload_if_absent: self.put_if_absent.clone(),
            ..Capabilities::untried("not tried")
        })
    }
}

/// All objects of a store, by name.
pub(crate) async fn contents(store: &Arc<dyn Store>, context: &Context) -> BTreeMap<Key, Vec<u8>> {
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    let mut objects = BTreeMap::new();
    while let Some(row) = rows.next().await {
        let Row::Object(meta) = row.unwrap() else { continue };
        let (bytes, _) = crate::open::read_small(store, context, &meta.key, 1 << 30)
            .await
            .unwrap();
        objects.insert(meta.key, bytes.to_vec());
    }
    objects
}
