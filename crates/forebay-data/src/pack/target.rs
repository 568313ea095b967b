//! Where the shards go, and what is noted beside them while they do.
//!
//! ```text
//! .forebay-pack-plan.json      what is packed how: another run must have the same to go on
//! .forebay-pack-00000017.json  shard 17 is there: its name, size, SHA-256, and the positions of the input it covers
//! ```
//!
//! Notes are small objects of their own, each written after its shard, so that they can be in any store. They are removed when the manifest is there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_store::{
    Context, Entry, ListOptions, ObjectMeta, PutMode, PutOptions, ReadOptions, Store, StoreExt,
    is_special_file,
};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::PackSpec;
use super::build::Built;
use super::input::Input;
use super::output::Output;
use crate::dataset::family_of;
use crate::format::tabulate;
use crate::manifest::{FormatSpec, MANIFEST_NAME, Manifest, ManifestWriter, SUMS_NAME};
use crate::schema::Dtype;
use crate::source::ShardSource;

/// How the names of plan and notes begin; hidden, so that no reader takes them for data, and in no folder that would be left behind.
const NOTES_PREFIX: &str = ".forebay-pack-";

/// Name of the plan, behind that.
const PLAN_NAME: &str = "plan.json";

/// The list of shards of MDS.
const INDEX_NAME: &str = "index.json";

/// Version of plan and notes.
const PLAN_VERSION: u64 = 1;

/// Longest plan or note that is read.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// Most objects of a target that are listed: a data set has far fewer, and more would be somebody else's.
const OBJECTS_MAX: usize = 4 << 20;

/// Objects read, written or removed side by side.
const AT_ONCE_MAX: usize = 16;

/// What is packed, and how: the same plan gives the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    version: u64,
    settings: BTreeMap<String, Value>,
}

impl Plan {
    pub(super) fn new(input: &Input, spec: &PackSpec) -> Self {
        // The window of a shuffle depends on the memory there is.
        let window = spec.shuffle.map(|_| spec.memory_bytes_max);
        let settings = json!({
            "input": hex(&input.identity()),
            "to": spec.to,
            "shard_size": spec.shard_bytes,
            "samples_per_shard": spec.samples_per_shard,
            "compression": spec.compression,
            "shuffle": spec.shuffle,
            "shuffle_memory": window,
            "filter": spec.filter,
            "limit": spec.limit,
            "fields": spec.fields,
            "drop_keys": spec.drop_keys,
            "token_dtype": spec.dtype.map(Dtype::name),
        });
        let settings = match settings {
            Value::Object(settings) => settings.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        Self {
            version: PLAN_VERSION,
            settings,
        }
    }

    /// What is different in another plan, in words.
    fn difference(&self, other: &Self) -> Option<String> {
        if self.version != other.version {
            return Some(format!("version {}", other.version));
        }
        let names = self.settings.keys().chain(other.settings.keys());
        let name = names
            .into_iter()
            .find(|name| self.settings.get(*name) != other.settings.get(*name))?;
        let shown = other.settings.get(name).unwrap_or(&Value::Null);
        Some(match name.as_str() {
            "input" => "another input".to_owned(),
            name => format!("{name} {shown}"),
        })
    }
}

/// A shard that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) number: u64,
    pub(super) key: Key,
    pub(super) size: u64,
    pub(super) sha256: String,
    pub(super) samples: u64,
    /// Positions of the input that it covers.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// What was found in a target.
#[derive(Debug)]
pub(super) enum Found {
    /// Shards of an earlier run with the same plan; none in a new target.
    Notes(Vec<Note>),
    /// Everything: only the notes had not been removed yet.
    Complete(Manifest),
}

/// Where shards go.
#[derive(Debug, Clone)]
pub(super) struct Target {
    store: Arc<dyn Store>,
    context: Context,
}

/// What lies in a target.
#[derive(Debug, Default)]
struct Contents {
    has_manifest: bool,
    has_plan: bool,
    notes: Vec<Key>,
    others: Vec<Key>,
}

impl Target {
    pub(super) fn new(store: Arc<dyn Store>, context: &Context) -> Self {
        let context = context.clone();
        Self { store, context }
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// A manifest that will be there when it is finished.
    pub(super) fn manifest(&self, spec: FormatSpec, mode: PutMode) -> Result<ManifestWriter> {
        Ok(ManifestWriter::to_object(
            spec,
            &self.store.identity(),
            Arc::clone(&self.store),
            Key::parse(MANIFEST_NAME)?,
            mode,
            &self.context,
        ))
    }

    /// See what is there, make room where that is asked for, and write the plan.
    pub(super) async fn prepare(&self, plan: &Plan, overwrite: bool) -> Result<Found> {
        let mut contents = self.contents().await?;
        if overwrite && (contents.has_manifest || contents.has_plan || !contents.others.is_empty()) {
            self.clear(contents).await?;
            contents = self.contents().await?;
        }
        let known = if contents.has_plan {
            self.read_json::<Plan>(&notes_key(PLAN_NAME)?).await?
        } else {
            None
        };
        match known {
            Some(known) => {
                if let Some(difference) = plan.difference(&known) {
                    return Err(self.other_plan(&difference));
                }
            }
            None if contents.has_manifest || !(overwrite || contents.others.is_empty()) => {
                return Err(self.not_empty(&contents));
            }
            None => {}
        }
        if contents.has_manifest {
            let key = Key::parse(MANIFEST_NAME)?;
            let manifest = Manifest::open(Arc::clone(&self.store), &key, &self.context).await?;
            return Ok(Found::Complete(manifest));
        }
        self.put_json(&notes_key(PLAN_NAME)?, plan).await?;
        let notes = stream::iter(contents.notes)
            .map(|key| async move { self.read_json::<Note>(&key).await })
            .buffered(AT_ONCE_MAX);
        let notes: Vec<Option<Note>> = notes.try_collect().await?;
        Ok(Found::Notes(in_order(notes.into_iter().flatten())))
    }

    async fn contents(&self) -> Result<Contents> {
        let mut contents = Contents::default();
        let mut rows = self.store.list(&Key::ROOT, ListOptions { recursive: true });
        let mut count = 0;
        while let Some(row) = rows.next().await {
            let key = match row {
                Ok(Entry::Object(meta)) => meta.key,
                Ok(Entry::Prefix(_)) => continue,
                Err(error) if is_special_file(&error) => continue,
                // A local directory that is not there yet.
                Err(error) if error.kind() == ErrorKind::NotFound && count == 0 => break,
                Err(error) => return Err(error),
            };
            count += 1;
            if count > OBJECTS_MAX {
                let message = format!("more than {OBJECTS_MAX} objects are there already");
                return Err(Error::new(ErrorKind::LimitExceeded, "pack", message).at(self.store.location()));
            }
            match (key.as_str(), key.as_str().strip_prefix(NOTES_PREFIX)) {
                (_, Some(PLAN_NAME)) => contents.has_plan = true,
                (_, Some(_)) => contents.notes.push(key),
                (MANIFEST_NAME, None) => contents.has_manifest = true,
                _ => contents.others.push(key),
            }
        }
        Ok(contents)
    }

    /// Remove what an earlier run wrote, the manifest first: from then on nobody takes the rest for a data set. What nobody here wrote stays, and is
    /// refused where it could be taken for a shard.
    async fn clear(&self, contents: Contents) -> Result<()> {
        let manifest = Key::parse(MANIFEST_NAME)?;
        let mut ours: Vec<Key> = Vec::new();
        if contents.has_manifest {
            let known = Manifest::open(Arc::clone(&self.store), &manifest, &self.context).await?;
            ours.extend(known.shards().iter().map(|shard| shard.key.clone()));
        }
        for key in &contents.notes {
            ours.extend(self.read_json::<Note>(key).await?.map(|note| note.key));
        }
        let mut sides = Vec::new();
        for key in &ours {
            if let Some((stem, "bin")) = key.as_str().rsplit_once('.') {
                sides.push(Key::parse(&format!("{stem}.idx"))?);
            }
        }
        ours.extend(sides);
        ours.extend([Key::parse(SUMS_NAME)?, Key::parse(INDEX_NAME)?]);
        let foreign = |key: &&Key| !ours.contains(key) && family_of(key).is_some();
        if let Some(key) = contents.others.iter().find(foreign) {
            let message =
                format!("'{key}' is not part of what was packed here, but could be taken for a shard");
            return Err(Error::new(ErrorKind::AlreadyExists, "pack", message)
                .at(self.store.location())
                .with_hint("remove it, or choose another target"));
        }
        self.store.delete(&manifest).await?;
        self.delete_all(ours.into_iter().chain(contents.notes)).await?;
        self.store.delete(&notes_key(PLAN_NAME)?).await
    }

    async fn delete_all(&self, keys: impl Iterator<Item = Key>) -> Result<()> {
        let deletes = keys.map(|key| async move { self.store.delete(&key).await });
        stream::iter(deletes)
            .buffer_unordered(AT_ONCE_MAX)
            .try_collect()
            .await
    }

    /// A shard of an earlier run, where it is still what was written.
    pub(super) async fn reuse(&self, output: &Output, note: &Note) -> Result<Option<Built>> {
        let meta: ObjectMeta = match self.store.head(&note.key).await {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if meta.size != note.size || output.key(note.number)? != note.key {
            return Ok(None);
        }
        let source = ShardSource::new(Arc::clone(&self.store), meta.clone(), &self.context);
        let tabulated = match tabulate(&*output.format()?, &source).await {
            Ok(tabulated) => tabulated,
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if hex(&tabulated.sha256) != note.sha256 || tabulated.table.samples() != note.samples {
            return Ok(None);
        }
        Ok(Some(Built {
            meta,
            tabulated,
            ledger: Ledger::default(),
        }))
    }

    /// Note that a shard is there.
    pub(super) async fn note(&self, note: &Note) -> Result<()> {
        self.put_json(&notes_key(&format!("{:08}.json", note.number))?, note)
            .await
    }

    /// Write the list of shards of MDS.
    pub(super) async fn put_index(&self, index: &[u8]) -> Result<()> {
        let key = Key::parse(INDEX_NAME)?;
        self.store
            .put_bytes(&key, index, &PutOptions::default())
            .await
            .map(drop)
    }

    /// Remove all notes, the plan last.
    pub(super) async fn forget(&self) -> Result<()> {
        let contents = self.contents().await?;
        self.delete_all(contents.notes.into_iter()).await?;
        self.store.delete(&notes_key(PLAN_NAME)?).await
    }

    async fn put_json(&self, key: &Key, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_vec(value).map_err(|error| {
            Error::new(ErrorKind::Internal, "pack", "a note that cannot be written").with_source(error)
        })?;
        self.store
            .put_bytes(key, &text, &PutOptions::default())
            .await
            .map(drop)
    }

    /// A note or plan; `None` where it is not one: whoever wrote it did not come to its end.
    async fn read_json<T: for<'de> Deserialize<'de>>(&self, key: &Key) -> Result<Option<T>> {
        let meta = match self.store.head(key).await {
            Ok(meta) if meta.size <= NOTE_BYTES_MAX => meta,
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let options = ReadOptions::default();
        let (text, _) = self
            .store
            .read(key, Span::first(meta.size), &options, &self.context)
            .await?;
        Ok(serde_json::from_slice(&text).ok())
    }

    fn other_plan(&self, difference: &str) -> Error {
        let message = format!("a pack with {difference} was begun here and did not end");
        Error::new(ErrorKind::Precondition, "pack", message)
            .at(self.store.location())
            .with_hint("go on with the same input and options, or start over with --overwrite")
    }

    fn not_empty(&self, contents: &Contents) -> Error {
        let message = match contents.others.first() {
            _ if contents.has_manifest => "there is a data set already".to_owned(),
            Some(key) => format!("the target is not empty: it holds '{key}'"),
            None => "the target is not empty".to_owned(),
        };
        Error::new(ErrorKind::AlreadyExists, "pack", message)
            .at(self.store.location())
            .with_hint("choose another target, or replace what was packed there with --overwrite")
    }
}

/// Notes that follow each other without overlap; a gap between two is filled later.
fn in_order(notes: impl Iterator<Item = Note>) -> Vec<Note> {
    let mut notes: Vec<Note> = notes.filter(|note| note.start < note.end).collect();
    notes.sort_by_key(|note| note.number);
    let mut kept: Vec<Note> = Vec::with_capacity(notes.len());
    for note in notes {
        let follows = kept.last().is_none_or(|last| {
            last.number < note.number
                && last.end <= note.start
                && (last.number + 1 < note.number || last.end == note.start)
        });
        let begins = !kept.is_empty() || note.number > 0 || note.start == 0;
        if follows && begins {
            kept.push(note);
        }
    }
    kept
}

fn notes_key(name: &str) -> Result<Key> {
    Key::parse(&format!("{NOTES_PREFIX}{name}"))
}

/// Refuse a target inside the input or around it: what is written would be taken for input by the next run.
pub(super) fn refuse_overlap(from: &dyn Store, to: &dyn Store) -> Result<()> {
    let place = |store: &dyn Store| format!("{}/", store.identity().trim_end_matches('/'));
    let (source, target) = (place(from), place(to));
    if !target.starts_with(&source) && !source.starts_with(&target) {
        return Ok(());
    }
    let message = format!("the input {} and the target overlap", from.location());
    Err(Error::new(ErrorKind::InvalidInput, "pack", message)
        .at(to.location())
        .with_hint("choose a target outside of the input"))
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
