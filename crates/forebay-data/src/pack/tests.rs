//! Packing in memory and on disk: what comes back, that it is always the same, and what is refused.

mod going_on;
mod hashes;
mod memory_bound;
mod others;
mod parts;
mod refused;
mod round_trip;
mod unpacked;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Key, Limits, Location, Seed};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::{Entry, ListOptions, LocalStore, MemoryStore, PutOptions, ReadOptions, StoreExt};

use super::*;
use crate::dataset::Dataset;
use crate::schema::{Field, Kind};
use crate::table::Layout;

/// A sample: its key, and its fields by name.
type Sample = (String, BTreeMap<String, Vec<u8>>);

/// A sample to be written: its key and its fields.
type Made<'a> = (&'a str, Vec<(Field, Vec<u8>)>);

/// Counts bytes that were read.
#[derive(Debug, Default)]
struct Moved(AtomicU64);

impl Progress for Moved {
    fn planned(&self, _shards: u64, _bytes: u64) {}

    fn moved(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn shard_done(&self, _shard: &Key, _samples: u64) {}
}

fn context() -> Context {
    let config = DiskConfig {
        limits: Limits {
            part_bytes: 64 << 10,
            buffer_bytes_max: 64 << 20,
            ..Limits::default()
        },
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

fn memory_store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn local_at(path: &Path, context: &Context) -> Arc<dyn Store> {
    let location = Location::from_path(path, Path::new("/")).unwrap();
    Arc::new(LocalStore::open(&location, context).unwrap())
}

fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Seed(seed).rng().fill(&mut bytes);
    bytes
}

async fn put(store: &dyn Store, name: &str, bytes: &[u8]) {
    store
        .put_bytes(&key(name), bytes, &PutOptions::default())
        .await
        .unwrap();
}

/// A folder of samples with a text, a label and some with JSON.
async fn folder(store: &dyn Store, samples: u64) {
    for index in 0..samples {
        let name = format!("d{}/s{index:04}", index % 3);
        put(store, &format!("{name}.txt"), format!("text {index}").as_bytes()).await;
        put(store, &format!("{name}.cls"), (index % 10).to_string().as_bytes()).await;
        put(
            store,
            &format!("{name}.dat"),
            &bytes_of(index, 100 + index as usize % 700),
        )
        .await;
        if index % 2 == 0 {
            let json = format!("{{\"width\": {index}, \"tag\": \"t{}\"}}", index % 4);
            put(store, &format!("{name}.json"), json.as_bytes()).await;
        }
    }
}

fn place(store: &Arc<dyn Store>) -> Place {
    Place {
        store: Arc::clone(store),
        shards: None,
    }
}

async fn run(from: &Arc<dyn Store>, to: &Arc<dyn Store>, spec: &PackSpec) -> Result<PackReport> {
    pack(
        place(from),
        Arc::clone(to),
        &context(),
        &OpenOptions::default(),
        spec,
    )
    .await
}

/// The plan of a run of that number.
async fn plan_of(from: &Arc<dyn Store>, spec: &PackSpec, owner: u64) -> Plan {
    let input = Input::open(place(from), &context(), &OpenOptions::default(), spec).await;
    Plan::new(&input.unwrap(), spec, owner)
}

/// Small shards, so that there are several.
fn small(to: PackFormat) -> PackSpec {
    PackSpec {
        shard_bytes: 30_000,
        threads: 3,
        ..PackSpec::new(to)
    }
}

/// Every object of a store with its bytes.
async fn contents(store: &dyn Store) -> BTreeMap<String, Vec<u8>> {
    let context = context();
    let mut found = BTreeMap::new();
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    while let Some(row) = rows.next().await {
        let Entry::Object(meta) = row.unwrap() else {
            continue;
        };
        let span = forebay_core::Span::first(meta.size);
        let (bytes, _) = store
            .read(&meta.key, span, &ReadOptions::default(), &context)
            .await
            .unwrap();
        found.insert(meta.key.to_string(), bytes.to_vec());
    }
    found
}

/// What was written, but for the manifest: it holds versions of the store.
async fn written(store: &dyn Store) -> BTreeMap<String, Vec<u8>> {
    let mut found = contents(store).await;
    assert!(
        found.remove(crate::manifest::MANIFEST_NAME).is_some(),
        "no manifest"
    );
    assert!(
        found.keys().all(|name| !name.starts_with('.')),
        "notes are left: {found:?}"
    );
    found
}

/// The samples of a data set, in order, as anybody reads them.
async fn samples(store: &Arc<dyn Store>) -> Vec<Sample> {
    let context = context();
    let dataset = Dataset::open(Arc::clone(store), &context, &OpenOptions::default())
        .await
        .unwrap();
    assert!(dataset.is_indexed());
    let mut found = Vec::new();
    for shard in 0..dataset.shards().len() {
        let table = dataset.table(shard).await.unwrap();
        let blocks = match &table.layout {
            Layout::Samples(_) => {
                let span = forebay_core::Span::first(dataset.shards()[shard].raw_bytes);
                let data = dataset.read(shard, span).await.unwrap();
                vec![crate::Block::from_bytes(Arc::clone(&table), 0..table.samples(), data, 0).unwrap()]
            }
            Layout::Groups(groups) => {
                let mut blocks = Vec::new();
                for number in 0..groups.list.len() {
                    blocks.push(dataset.group(shard, number, None).await.unwrap());
                }
                blocks
            }
        };
        for block in blocks {
            found.extend((0..block.len()).map(|sample| sample_of(&block, sample)));
        }
    }
    found
}

fn sample_of(block: &crate::Block, sample: usize) -> Sample {
    assert!(block.is_whole(sample));
    let fields = block
        .fields()
        .iter()
        .enumerate()
        .filter_map(|(column, field)| Some((field.name.clone(), block.field(sample, column)?.to_vec())));
    let mut fields: BTreeMap<String, Vec<u8>> = fields.collect();
    let own = fields
        .remove(shape::KEY_FIELD)
        .map(|key| String::from_utf8(key).unwrap());
    let key = block.key(sample).map(str::to_owned).or(own);
    (key.unwrap_or_default(), fields)
}

/// A data set of one shard, made by a writer.
async fn shard_of(
    store: &dyn Store,
    name: &str,
    mut writer: Box<dyn crate::format::ShardWriter>,
    samples: &[Made<'_>],
) {
    for (key, fields) in samples {
        let fields: Vec<(&Field, &[u8])> = fields.iter().map(|(field, bytes)| (field, &bytes[..])).collect();
        writer
            .add(crate::format::SampleRef { key, fields: &fields })
            .unwrap();
    }
    put(store, name, &writer.finish().unwrap()).await;
}

fn text(name: &str, value: &str) -> (Field, Vec<u8>) {
    (Field::new(name, Kind::Text), value.as_bytes().to_vec())
}
