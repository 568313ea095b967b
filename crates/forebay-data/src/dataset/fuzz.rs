//! What the fuzzer feeds: the names of a listing, of which everything about a data set is found out.

use std::sync::Arc;

use forebay_core::Key;
use forebay_store::{MemoryStore, ObjectMeta, Store};

use super::aside::Aside;
use super::discover::by_names;
use super::registry::{FORMAT_NAMES, ShardStore};
use super::{FILES, logged};
use crate::manifest::FormatSpec;

/// Most names: what is done for each pair of them is to be seen, not how long it takes.
const NAMES_MAX: usize = 64;

/// Every line is the name of an object. What is found are some of the objects, whoever asks for what.
pub(crate) fn listing(text: &str) {
    let keys = text
        .lines()
        .filter_map(|line| Key::parse(line).ok())
        .take(NAMES_MAX);
    let mut keys: Vec<Key> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    let objects: Vec<ObjectMeta> = keys
        .into_iter()
        .map(|key| ObjectMeta {
            size: key.as_str().len() as u64,
            key,
            version: None,
            modified: None,
            checksum: None,
            permissions: None,
        })
        .collect();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let hudi = objects.iter().filter_map(|meta| logged::hudi_of(&meta.key));
    let tables = logged::tables(&objects, hudi.collect());
    let _ = logged::refuse(store.location(), &tables, &objects);
    let aside = Aside::of(&objects);
    let choices = FORMAT_NAMES.iter().map(|name| Some(FormatSpec::new(*name)));
    let trees = ["tree", "images"].map(|layout| Some(FormatSpec::new(FILES).with("layout", layout)));
    for choice in choices.chain([None]).chain(trees) {
        for (are_named, aside) in [(true, None), (false, aside.as_ref())] {
            let found = by_names(&store, choice.as_ref(), objects.clone(), are_named, aside);
            let Ok(found) = found else { continue };
            assert!(found.shards.iter().all(|shard| objects.contains(shard)));
            if found.spec.name == FILES
                && let Ok(folder) = ShardStore::of_files(&store, &found.spec, &found.shards)
            {
                let _ = (folder.virtual_shards(), folder.note());
            }
        }
    }
}
