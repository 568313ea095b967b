//! Where the shards go, and what is noted beside them while they do.
//!
//! ```text
//! .forebay-pack-plan.json      what is packed how: another run must have the same to go on
//! .forebay-pack-00000017.json  shard 17 is there: its name, size, SHA-256, and the positions of the input it covers
//! ```
//!
//! A run that fails over its input or its options before there is anything of a shard takes its plan back, unless another run has taken it up.
//!
//! Of two runs that begin at once, one puts its plan; the other goes on with it where its own is the same, and is refused otherwise. What is replaced is what
//! packing wrote: a manifest that has its mark, the shards it lists or that have a note, and the side files that name just these.
//!
//! Notes are small objects of their own, each written after its shard, so that they can be in any store. They are removed when the manifest is there, and so are the
//! parts of shards that a killed run was uploading, which a bucket keeps, and charges for, until somebody gives them up.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_store::{
    Context, Entry, ListOptions, OPEN_UPLOADS_MAX, ObjectMeta, OpenUpload, PutMode, PutOptions, ReadOptions,
    Store, StoreExt, is_special_file,
};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use super::build::Built;
use super::output::Output;
use super::plan::Plan;
use crate::dataset::{FORMER_MANIFEST_NAME, Progress, family_of};
use crate::format::mds;
use crate::format::tabulate;
use crate::manifest::{
    FormatSpec, MANIFEST_NAME, Manifest, ManifestWriter, SUMS_NAME, Sums, put_if_absent, read_small,
    save_sums, sha256sums,
};
use crate::source::ShardSource;

/// How the names of plan and notes begin; hidden, so that no reader takes them for data, and in no folder that would be left behind.
const NOTES_PREFIX: &str = ".forebay-pack-";

/// Name of the plan, behind that.
const PLAN_NAME: &str = "plan.json";

/// True for the plan of a pack: where it lies and no manifest does, some of the shards are missing.
pub(crate) fn is_plan(key: &Key) -> bool {
    key.as_str().strip_prefix(NOTES_PREFIX) == Some(PLAN_NAME)
}

/// The list of shards of MDS.
const INDEX_NAME: &str = "index.json";

/// Longest list of shards of MDS that is read: some hundred thousand shards.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Longest plan or note that is read.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// Most objects of a target that are listed: a data set has far fewer, and more would be somebody else's.
const OBJECTS_MAX: usize = 4 << 20;

/// What becomes of uploads that nobody gives up, and who can.
const UPLOADS_LEFT: &str = "their parts stay, and are paid for, until they are given up: a rule of the bucket can do so (AbortIncompleteMultipartUpload)";

/// Objects read, written or removed side by side.
const AT_ONCE_MAX: usize = 16;

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
    /// Checksums for the list of shards of MDS: of both its files, of which only one is there to be read again.
    #[serde(default)]
    pub(super) hashes: mds::ShardHashes,
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
    /// Uploads that were open when this run took up the plan of another one.
    left: Arc<[OpenUpload]>,
    /// Is told what could not be cleared away.
    progress: Arc<dyn Progress>,
}

/// What lies in a target.
#[derive(Debug, Default)]
pub(super) struct Contents {
    has_manifest: bool,
    has_plan: bool,
    notes: Vec<Key>,
    others: Vec<Key>,
}

impl Contents {
    /// Whether there is a manifest, but under its former name.
    fn has_former(&self) -> bool {
        !self.has_manifest && self.others.iter().any(|key| key.as_str() == FORMER_MANIFEST_NAME)
    }

    /// Whether a run was begun here, and there is nothing of it.
    fn holds_only_a_plan(&self) -> bool {
        self.has_plan && !self.has_manifest && self.notes.is_empty() && self.others.is_empty()
    }
}

impl Target {
    pub(super) fn new(store: Arc<dyn Store>, context: &Context, progress: &Arc<dyn Progress>) -> Self {
        Self {
            store,
            context: context.clone(),
            left: Arc::new([]),
            progress: Arc::clone(progress),
        }
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
        )
        .packed())
    }

    /// See what is there, make room where that is asked for, and write the plan.
    pub(super) async fn prepare(&mut self, plan: &Plan, overwrite: bool) -> Result<Found> {
        let mut contents = self.contents().await?;
        if contents.has_plan {
            self.left = self.open_uploads().await;
        }
        if overwrite && (contents.has_manifest || contents.has_plan || !contents.others.is_empty()) {
            self.clear(contents).await?;
            contents = self.contents().await?;
        }
        if contents.has_plan {
            self.take_up(plan, &contents).await?;
        } else if contents.has_manifest || !(overwrite || contents.others.is_empty()) {
            return Err(self.not_empty(&contents));
        } else if plan.writes_index() && contents.others.contains(&Key::parse(INDEX_NAME)?) {
            return Err(self.foreign(INDEX_NAME));
        }
        if contents.has_manifest {
            let manifest = self.packed_manifest().await?;
            return Ok(Found::Complete(manifest));
        }
        let notes = if contents.has_plan {
            contents.notes
        } else {
            self.begin(plan, &contents).await?
        };
        let target = &*self;
        let notes = stream::iter(notes)
            .map(|key| async move { target.read_json::<Note>(&key).await })
            .buffered(AT_ONCE_MAX);
        let notes: Vec<Option<Note>> = notes.try_collect().await?;
        Ok(Found::Notes(in_order(notes.into_iter().flatten())))
    }

    /// Put the plan where none was `seen`, unless somebody else is faster; gives the notes there are.
    pub(super) async fn begin(&self, plan: &Plan, seen: &Contents) -> Result<Vec<Key>> {
        let key = notes_key(PLAN_NAME)?;
        if put_if_absent(&*self.store, &key, &json_of(plan)?)
            .await?
            .is_none()
        {
            let contents = self.contents().await?;
            self.take_up(plan, &contents).await?;
            return Ok(contents.notes);
        }
        // Whoever packed all of it since the target was seen has taken its plan away again.
        let now = self.contents().await?;
        let known: HashSet<&Key> = seen.others.iter().collect();
        if now.has_manifest || now.others.iter().any(|key| !known.contains(key)) {
            self.store.delete(&key).await?;
            return Err(self.not_empty(&now));
        }
        // Notes without a plan are of nobody knows what.
        self.delete_all(now.notes.into_iter()).await?;
        Ok(Vec::new())
    }

    /// Take back the plan of a run that failed, where nothing came of it: the corrected command is not to be refused for it. Not where another run goes on with it, nor where anything
    /// else has come to lie there.
    pub(super) async fn withdraw(&self, plan: &Plan) -> Result<()> {
        if !self.contents().await?.holds_only_a_plan() {
            return Ok(());
        }
        let key = notes_key(PLAN_NAME)?;
        match self.read_json::<Plan>(&key).await? {
            Some(known) if known.is_of(plan) => self.store.delete(&key).await,
            _ => Ok(()),
        }
    }

    /// Go on with the plan that is there, where it is the same. Whoever put it must not take it back any more.
    async fn take_up(&self, plan: &Plan, contents: &Contents) -> Result<()> {
        self.compare(plan).await?;
        if contents.holds_only_a_plan() {
            self.put_json(&notes_key(PLAN_NAME)?, plan).await?;
        }
        Ok(())
    }

    /// Refuse to go on with another plan than the one that is there.
    async fn compare(&self, plan: &Plan) -> Result<()> {
        let Some(known) = self.read_json::<Plan>(&notes_key(PLAN_NAME)?).await? else {
            let message = "the plan of a pack that was begun here cannot be read";
            return Err(Error::new(ErrorKind::Precondition, "pack", message)
                .at(self.store.location())
                .with_hint(
                    "another pack may just have ended; run it again, or start over with --overwrite",
                ));
        };
        match plan.difference(&known) {
            Some(difference) => Err(self.other_plan(&difference)),
            None => Ok(()),
        }
    }

    /// The manifest, where packing wrote it.
    async fn packed_manifest(&self) -> Result<Manifest> {
        let key = Key::parse(MANIFEST_NAME)?;
        let manifest = Manifest::open(Arc::clone(&self.store), &key, &self.context).await?;
        if manifest.is_packed().await? {
            return Ok(manifest);
        }
        let message = "there is a data set that was not packed here";
        Err(Error::new(ErrorKind::AlreadyExists, "pack", message)
            .at(self.store.location())
            .with_hint("only what was packed is replaced; choose another target, or remove it yourself"))
    }

    /// Write the hashes of a data set that is there already, where they are not.
    pub(super) async fn put_sums(&self, manifest: &Manifest) -> Result<Sums> {
        let key = Key::parse(MANIFEST_NAME)?;
        Ok(save_sums(&self.store, &key, manifest.shards(), None, &self.context).await)
    }

    pub(super) async fn contents(&self) -> Result<Contents> {
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
        if contents.has_former() {
            // Only what it lists is known to be packed here.
            return Err(self.not_empty(&contents));
        }
        let mut ours: Vec<Key> = Vec::new();
        let mut sides: Vec<Key> = Vec::new();
        if contents.has_manifest {
            let known = self.packed_manifest().await?;
            ours.extend(known.shards().iter().map(|shard| shard.key.clone()));
            let (sums, key) = (sha256sums(known.shards()), Key::parse(SUMS_NAME)?);
            let found = self.read_there(&contents, &key, sums.len() as u64).await?;
            sides.extend((found.as_deref() == Some(sums.as_bytes())).then_some(key));
        }
        for key in &contents.notes {
            ours.extend(self.read_json::<Note>(key).await?.map(|note| note.key));
        }
        if contents.has_plan {
            // A run that ended between a shard and its note has left the shard alone.
            let unnoted = contents.others.iter().filter(|key| is_named_by_pack(key));
            ours.extend(unnoted.cloned());
        }
        let key = Key::parse(INDEX_NAME)?;
        let index = self.read_there(&contents, &key, INDEX_BYTES_MAX).await?;
        sides.extend(index.is_some_and(|index| lists(&index, &ours)).then_some(key));
        for key in &ours {
            if let Some((stem, "bin")) = key.as_str().rsplit_once('.') {
                sides.push(Key::parse(&format!("{stem}.idx"))?);
            }
        }
        let ours: HashSet<Key> = ours.into_iter().chain(sides).collect();
        let foreign = |key: &&Key| !ours.contains(*key) && family_of(key).is_some();
        if let Some(key) = contents.others.iter().find(foreign) {
            return Err(self.foreign(key.as_str()));
        }
        self.store.delete(&Key::parse(MANIFEST_NAME)?).await?;
        self.delete_all(ours.into_iter().chain(contents.notes)).await?;
        self.store.delete(&notes_key(PLAN_NAME)?).await
    }

    /// The bytes of an object that was listed; `None` where it was not, or has more than that.
    async fn read_there(&self, contents: &Contents, key: &Key, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        if !contents.others.contains(key) {
            return Ok(None);
        }
        read_small(&self.store, key, bytes_max, &self.context).await
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
            hashes: note.hashes.clone(),
            tabulated,
            ledger: Ledger::default(),
        }))
    }

    /// Note that a shard is there.
    pub(super) async fn note(&self, note: &Note) -> Result<()> {
        self.put_json(&notes_key(&format!("{:08}.json", note.number))?, note)
            .await
    }

    /// Write the list of shards of MDS. A run that ended early may have written the same; anybody else's stays.
    pub(super) async fn put_index(&self, index: &[u8]) -> Result<()> {
        let key = Key::parse(INDEX_NAME)?;
        if put_if_absent(&*self.store, &key, index).await?.is_some() {
            return Ok(());
        }
        let found = read_small(&self.store, &key, index.len() as u64, &self.context).await?;
        if found.as_deref() == Some(index) {
            return Ok(());
        }
        Err(self.foreign(INDEX_NAME))
    }

    /// Uploads of shards that nobody has completed. A store that does not tell keeps nobody from packing.
    async fn open_uploads(&self) -> Arc<[OpenUpload]> {
        let found = match self.store.open_uploads(&Key::ROOT).await {
            Ok(found) => found,
            Err(error) => {
                let note = format!("what an earlier run was uploading cannot be looked for: {error}");
                self.progress.noted(&format!("{note}; {UPLOADS_LEFT}"));
                return Arc::new([]);
            }
        };
        if found.len() >= OPEN_UPLOADS_MAX {
            let note = format!("of the uploads that are open here, only {OPEN_UPLOADS_MAX} are looked at");
            self.progress.noted(&format!("{note}; {UPLOADS_LEFT}"));
        }
        let ours = found.into_iter().filter(|upload| is_named_by_pack(&upload.key));
        ours.collect()
    }

    /// Give up what was being uploaded when this run began: the shards are there now, and another run that was at them had the time of this one to complete them.
    async fn give_up_uploads(&self) {
        let mut failed = (0u64, None);
        for upload in self.left.iter() {
            if let Err(error) = self.store.abort_upload(upload).await {
                failed = (failed.0 + 1, failed.1.or(Some(error)));
            }
        }
        if let (count, Some(error)) = failed {
            let note = format!("of what an earlier run was uploading, {count} cannot be given up: {error}");
            self.progress.noted(&format!("{note}; {UPLOADS_LEFT}"));
        }
    }

    /// Remove all notes, the plan last.
    pub(super) async fn forget(&self) -> Result<()> {
        self.give_up_uploads().await;
        let contents = self.contents().await?;
        self.delete_all(contents.notes.into_iter()).await?;
        self.store.delete(&notes_key(PLAN_NAME)?).await
    }

    async fn put_json(&self, key: &Key, value: &impl Serialize) -> Result<()> {
        self.store
            .put_bytes(key, &json_of(value)?, &PutOptions::default())
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

    fn foreign(&self, name: &str) -> Error {
        let message = format!("'{name}' is not part of what was packed here, but could be taken for it");
        Error::new(ErrorKind::AlreadyExists, "pack", message)
            .at(self.store.location())
            .with_hint("remove it, or choose another target")
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
            _ if contents.has_former() => {
                format!(
                    "there is a data set already, with an index under its former name, '{FORMER_MANIFEST_NAME}'"
                )
            }
            Some(key) => format!("the target is not empty: it holds '{key}'"),
            None => "the target is not empty".to_owned(),
        };
        let replace = "choose another target, or replace what was packed there with --overwrite";
        let hint = if contents.has_former() {
            format!("{replace}, once the index is renamed to '{MANIFEST_NAME}'")
        } else {
            replace.to_owned()
        };
        Error::new(ErrorKind::AlreadyExists, "pack", message)
            .at(self.store.location())
            .with_hint(hint)
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

/// Notes and plans as somebody else may have left them.
#[cfg(fuzzing)]
pub(crate) fn fuzz_notes(text: &str) {
    let notes = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let kept = in_order(notes);
    for two in kept.windows(2) {
        assert!(two[0].number < two[1].number && two[0].end <= two[1].start);
    }
    let plans: Vec<Plan> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    for two in plans.windows(2) {
        assert_eq!(
            two[0].difference(&two[1]).is_none(),
            two[1].difference(&two[0]).is_none()
        );
    }
}

/// True when a list of shards of MDS has just these shards.
fn lists(index: &[u8], shards: &[Key]) -> bool {
    let Ok(index) = mds::Index::parse(index) else {
        return false;
    };
    let listed: HashSet<&Key> = index.shards.iter().map(|shard| &shard.stored().key).collect();
    let ours: HashSet<&Key> = shards.iter().collect();
    !ours.is_empty() && listed == ours
}

fn json_of(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| {
        Error::new(ErrorKind::Internal, "pack", "a note that cannot be written").with_source(error)
    })
}

/// Whether packing gives shards such names: `shard-000000.tar`, `shard.00000.mds`.
fn is_named_by_pack(key: &Key) -> bool {
    let number = key
        .as_str()
        .strip_prefix("shard")
        .and_then(|rest| rest.strip_prefix(['-', '.']));
    let Some((number, ending)) = number.and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit()) && !ending.is_empty()
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
