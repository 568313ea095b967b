//! The part of the demo that saves: a state is checkpointed twice, restored and compared, checkpointed again after a change; then its payload, which is an ordinary
//! safetensors file, is loaded as weights are.

use std::sync::Arc;
use std::time::Duration;

use forebay_ckpt::{Attempt, Checkpoint, Dtype, Item, ItemData, Save, SaveOptions, SliceSpec, Value, Want};
use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Seed};
use forebay_io::{AlignedBuf, Buf, Pages};
use forebay_store::{Context, Entry, ListOptions, Store};
use forebay_weights::source::OpenOptions;
use forebay_weights::{LoadOptions, Source, load_host};
use futures::TryStreamExt;

use crate::bench::meter::{Meter, Sample};
use crate::progress::Bar;

/// Bytes of a tensor: a matrix of a small language model.
const TENSOR_BYTES: u64 = 8 << 20;

/// One in so many tensors changes before the second save.
const CHANGED_ONE_IN: usize = 20;

/// What the steps took.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) first: Sample,
    pub(super) next: Sample,
    pub(super) restored: Sample,
    /// Its bytes are those of the state, of which few were written.
    pub(super) changed: Sample,
    pub(super) loaded: Sample,
    pub(super) ledger: Ledger,
}

/// Checkpoint a state of about `size` bytes in `store` twice, restore it, checkpoint what changed, and load it as weights.
pub(super) async fn run(store: &Arc<dyn Store>, size: u64, context: &Context, bar: &Bar) -> Result<Steps> {
    let tensors = (size / TENSOR_BYTES).max(2) as usize;
    let size = tensors as u64 * TENSOR_BYTES;
    bar.stage("making a state", 2 * size);
    let mut state = Vec::new();
    let mut memory = Vec::new();
    for number in 0..tensors {
        state.push(tensor(number as u64)?);
        let mut place = AlignedBuf::alloc(TENSOR_BYTES as usize, Pages::default())?;
        // First touches are dear, and a training loop has them behind it.
        place.fill(1);
        memory.push(place);
        bar.add(2 * TENSOR_BYTES);
    }
    bar.stage("saving", 2 * size);
    let meter = Meter::start();
    let mut ledger = save(store, context, 0, None, &state).await?;
    let first = meter.stop(size);
    bar.add(size);
    let meter = Meter::start();
    ledger.merge(&save(store, context, 1, None, &state).await?);
    let next = meter.stop(size);
    bar.stage("restoring", size);
    let meter = Meter::start();
    let checkpoint = Checkpoint::open(Arc::clone(store), context, 1).await?;
    let found = checkpoint.load(wants(memory)).await?;
    let restored = meter.stop(size);
    ledger.merge(&found.ledger);
    if found
        .memory
        .iter()
        .zip(&state)
        .any(|(found, saved)| **found != **saved)
    {
        let message = "what was restored is not what was saved";
        return Err(Error::new(ErrorKind::Corrupt, "demo", message).at(store.location()));
    }
    drop(found);
    bar.stage("saving changes", size);
    for (number, changed) in state.iter_mut().enumerate().step_by(CHANGED_ONE_IN) {
        *changed = tensor((tensors + number) as u64)?;
    }
    let meter = Meter::start();
    ledger.merge(&save(store, context, 2, Some(1), &state).await?);
    let changed = meter.stop(size);
    bar.stage("loading", size);
    let (loaded, account) = weights(store, context, size).await?;
    ledger.merge(&account);
    Ok(Steps {
        first,
        next,
        restored,
        changed,
        loaded,
        ledger,
    })
}

fn tensor(seed: u64) -> Result<Buf> {
    let mut buf = AlignedBuf::alloc(TENSOR_BYTES as usize, Pages::default())?;
    Seed(seed).rng().fill(&mut buf);
    Ok(buf.freeze())
}

fn name(number: usize) -> String {
    format!("model.layers.{number:04}.weight")
}

fn spec() -> SliceSpec {
    SliceSpec::whole(Dtype::Bf16, &[2048, TENSOR_BYTES / 2 / 2048])
}

async fn save(
    store: &Arc<dyn Store>,
    context: &Context,
    step: u64,
    base_step: Option<u64>,
    state: &[Buf],
) -> Result<Ledger> {
    let options = SaveOptions {
        base_step,
        ..SaveOptions::new(step, Attempt::draw(context), 1)
    };
    let items = state.iter().enumerate().map(|(number, buf)| Item {
        name: name(number),
        data: ItemData::Slice(spec(), buf.clone()),
    });
    let save = Save::begin(Arc::clone(store), context, options).await?;
    let saved = save.rank(0, items.collect()).await?;
    save.commit(Value::Dict(Vec::new()), Duration::ZERO).await?;
    Ok(saved.ledger)
}

fn wants(memory: Vec<AlignedBuf>) -> Vec<Want> {
    let wants = memory.into_iter().enumerate().map(|(number, memory)| {
        let spec = spec();
        Want {
            name: name(number),
            offsets: spec.offsets,
            lengths: spec.lengths,
            memory,
        }
    });
    wants.collect()
}

/// Load the largest payload, which has the whole state.
async fn weights(store: &Arc<dyn Store>, context: &Context, size: u64) -> Result<(Sample, Ledger)> {
    let mut objects = store.list(&Key::ROOT, ListOptions { recursive: true });
    let mut payload = None;
    while let Some(found) = objects.try_next().await? {
        if let Entry::Object(found) = found
            && found.key.as_str().ends_with(".safetensors")
            && found.size >= size
        {
            payload = Some(found.key);
        }
    }
    let payload = payload.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "demo", "the checkpoint has no payload").at(store.location())
    })?;
    let location = store.location().join(&payload);
    let meter = Meter::start();
    let source = Source::open(&[location], &OpenOptions::default(), context).await?;
    let (tensors, report) = load_host(&source, &LoadOptions::default(), context).await?;
    let loaded = meter.stop(report.tensor_bytes);
    drop(tensors);
    Ok((loaded, report.ledger))
}
