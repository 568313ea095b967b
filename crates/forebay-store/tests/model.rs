//! Random operations on a memory store and a local store, compared step by step with a plain map.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{ErrorKind, Key, Limits, Location, Span, crc64nvme};
use forebay_io::{AlignedBuf, Buf, DiskConfig, EngineChoice, Pages};
use forebay_store::{
    Context, Entry, ListOptions, LocalStore, MemoryStore, PutMode, PutOptions, ReadOptions, Store, StoreExt,
};
use futures::StreamExt;
use proptest::prelude::*;

/// No name is the prefix of another: files cannot be directories.
const NAMES: [&str; 10] = [
    "a", "b-c", "b.d", "b\\d", "b/a", "b/a.x", "b/a0/x", "b/ab", "b0", "z/y/x/w",
];

const PREFIXES: [&str; 7] = ["", "b", "b/a0", "b/a", "z", "z/y", "none"];

#[derive(Debug, Clone)]
enum Step {
    Put(usize, usize, u8),
    PutIfAbsent(usize, usize, u8),
    Upload {
        name: usize,
        parts: usize,
        tail: usize,
        fill: u8,
        reversed: bool,
    },
    GiveUp(usize),
    Delete(usize),
    Read {
        name: usize,
        start: usize,
        len: usize,
    },
    Head(usize),
    List {
        prefix: usize,
        recursive: bool,
    },
}

fn any_size() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1usize..5000, 60_000usize..70_000, Just(65_536)]
}

fn any_step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        4 => (name.clone(), any_size(), any::<u8>()).prop_map(|(name, size, fill)| Step::Put(name, size, fill)),
        2 => (name.clone(), any_size(), any::<u8>()).prop_map(|(name, size, fill)| Step::PutIfAbsent(name, size, fill)),
        1 => (name.clone(), 0usize..3, 1usize..5000, any::<u8>(), any::<bool>())
            .prop_map(|(name, parts, tail, fill, reversed)| Step::Upload { name, parts, tail, fill, reversed }),
        1 => name.clone().prop_map(Step::GiveUp),
        2 => name.clone().prop_map(Step::Delete),
        5 => (name.clone(), 0usize..80_000, 0usize..80_000)
            .prop_map(|(name, start, len)| Step::Read { name, start, len }),
        2 => name.prop_map(Step::Head),
        3 => (0..PREFIXES.len(), any::<bool>()).prop_map(|(prefix, recursive)| Step::List { prefix, recursive }),
    ]
}

fn content(size: usize, fill: u8) -> Vec<u8> {
    (0..size)
        .map(|index| fill.wrapping_add((index / 7) as u8))
        .collect()
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

/// What an operation gave, in words that are the same for every store.
type Answer = Result<String, ErrorKind>;

type Model = BTreeMap<&'static str, Vec<u8>>;

fn expected(model: &mut Model, step: &Step, part_bytes: usize) -> Answer {
    let wrote = |bytes: &[u8]| Ok(format!("{} {}", bytes.len(), crc64nvme(bytes)));
    match *step {
        Step::PutIfAbsent(name, ..) if model.contains_key(NAMES[name]) => Err(ErrorKind::AlreadyExists),
        Step::Put(name, size, fill) | Step::PutIfAbsent(name, size, fill) => {
            model.insert(NAMES[name], content(size, fill));
            wrote(&content(size, fill))
        }
        Step::Upload {
            name,
            parts,
            tail,
            fill,
            ..
        } => {
            let bytes = content(parts * part_bytes + tail, fill);
            let answer = wrote(&bytes);
            model.insert(NAMES[name], bytes);
            answer
        }
        Step::GiveUp(_) => Ok(String::new()),
        Step::Delete(name) => {
            model.remove(NAMES[name]);
            Ok(String::new())
        }
        Step::Read { name, start, len } => {
            let bytes = model.get(NAMES[name]).ok_or(ErrorKind::NotFound)?;
            let piece = bytes.get(start..start + len).ok_or(ErrorKind::InvalidInput)?;
            wrote(piece)
        }
        Step::Head(name) => model
            .get(NAMES[name])
            .map(|bytes| bytes.len().to_string())
            .ok_or(ErrorKind::NotFound),
        Step::List { prefix, recursive } => {
            let mut rows: Vec<String> = Vec::new();
            for name in model.keys() {
                let Some(below) = key(name).below(&key(PREFIXES[prefix])) else {
                    continue;
                };
                let row = match below.as_str().split_once('/') {
                    Some((dir, _)) if !recursive => format!("{}/", key(PREFIXES[prefix]).join(&key(dir))),
                    _ => (*name).to_owned(),
                };
                if rows.last() != Some(&row) {
                    rows.push(row);
                }
            }
            Ok(rows.join(" "))
        }
    }
}

async fn actual(store: &dyn Store, step: &Step, part_bytes: usize) -> Answer {
    let wrote = |done: forebay_store::PutDone| format!("{} {}", done.size, done.crc64nvme);
    let absent = PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    };
    let result = match *step {
        Step::Put(name, size, fill) => store
            .put_bytes(&key(NAMES[name]), &content(size, fill), &PutOptions::default())
            .await
            .map(wrote),
        Step::PutIfAbsent(name, size, fill) => store
            .put_bytes(&key(NAMES[name]), &content(size, fill), &absent)
            .await
            .map(wrote),
        Step::Upload {
            name,
            parts,
            tail,
            fill,
            reversed,
        } => upload(
            store,
            NAMES[name],
            &content(parts * part_bytes + tail, fill),
            reversed,
        )
        .await
        .map(wrote),
        Step::GiveUp(name) => {
            let upload = store
                .upload(&key(NAMES[name]), &PutOptions::default())
                .await
                .unwrap();
            upload
                .put_part(0, Buf::copy_of(b"never").unwrap().into())
                .await
                .unwrap();
            upload.abort().await.map(|()| String::new())
        }
        Step::Delete(name) => store.delete(&key(NAMES[name])).await.map(|()| String::new()),
        Step::Read { name, start, len } => {
            let span = Span::at(start as u64, len as u64).unwrap();
            let buf = AlignedBuf::alloc(len, Pages::Small).unwrap();
            let done = store
                .read_into(&key(NAMES[name]), span, buf, &ReadOptions::default())
                .await;
            done.map(|done| format!("{len} {}", crc64nvme(&done.buf[..len])))
        }
        Step::Head(name) => store
            .head(&key(NAMES[name]))
            .await
            .map(|meta| meta.size.to_string()),
        Step::List { prefix, recursive } => {
            let rows = store.list(&key(PREFIXES[prefix]), ListOptions { recursive });
            let rows: Vec<String> = rows.map(|row| shown(row.unwrap())).collect().await;
            Ok(rows.join(" "))
        }
    };
    result.map_err(|error| error.kind())
}

fn shown(row: Entry) -> String {
    match row {
        Entry::Object(meta) => meta.key.to_string(),
        Entry::Prefix(key) => format!("{key}/"),
    }
}

async fn upload(
    store: &dyn Store,
    name: &str,
    bytes: &[u8],
    reversed: bool,
) -> forebay_core::Result<forebay_store::PutDone> {
    let upload = store.upload(&key(name), &PutOptions::default()).await?;
    let mut parts: Vec<(usize, &[u8])> = bytes.chunks(upload.part_bytes() as usize).enumerate().collect();
    if reversed {
        parts.reverse();
    }
    for (index, part) in parts {
        upload.put_part(index as u32, Buf::copy_of(part)?.into()).await?;
    }
    upload.complete().await
}

/// A directory that became empty is still a directory: leave such rows out of one-level listings.
async fn without_empty(store: &dyn Store, answer: Answer) -> Answer {
    let mut kept = Vec::new();
    for row in answer?.split(' ').filter(|row| !row.is_empty()) {
        let empty = row.ends_with('/')
            && store
                .list(&key(row), ListOptions { recursive: true })
                .next()
                .await
                .is_none();
        if !empty {
            kept.push(row.to_owned());
        }
    }
    Ok(kept.join(" "))
}

async fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        part_bytes: 1 << 20,
        buffer_bytes_max: 16 << 20,
        worker_threads: 2,
        ..Limits::default()
    };
    let config = DiskConfig {
        limits,
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    let context = Context::open(config).unwrap().with_state_dir(None);
    let location = Location::from_path(dir.path(), Path::new("/")).unwrap();
    let local = Arc::new(LocalStore::open(&location, &context).unwrap());
    let memory = Arc::new(MemoryStore::new());
    let mut model = Model::new();
    for (number, step) in steps.iter().enumerate() {
        let wanted = expected(&mut model, step, 1 << 20);
        for (what, store) in [
            ("memory", memory.clone() as Arc<dyn Store>),
            ("local", local.clone()),
        ] {
            let mut got = actual(&*store, step, 1 << 20).await;
            if matches!(step, Step::List { recursive: false, .. }) {
                got = without_empty(&*store, got).await;
            }
            prop_assert_eq!(&got, &wanted, "{} at step {}: {:?}", what, number, step);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn stores_agree_with_a_plain_map(steps in prop::collection::vec(any_step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(run(steps))?;
    }
}
