//! Which format a data set has and which objects are its shards, from names and from the small index files that some formats have.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{Context, Entry, ListOptions, ObjectMeta, Store, is_special_file};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::aside::{Aside, FORMER_MANIFEST_NAME, is_aside, is_hidden, note_former};
use super::fit::is_listable;
use super::is_absent;
use super::layout::{beside, with_layout};
use super::listed::by_index;
use super::logged::{self, LoggedTable};
use super::place::nothing_at;
use super::registry::{self, PARTITIONS, PETASTORM, ShardStore};
use super::splits;
use crate::format::parquet::Partitions;
use crate::format::petastorm::{COMMON_METADATA, Petastorm};
use crate::manifest::{FormatSpec, MANIFEST_NAME, SUMS_NAME};
use crate::pack::is_plan;
use crate::source::ShardSource;

/// Most objects of one listing: a folder of sixteen million files takes some gigabytes to remember, and is better packed.
const OBJECTS_MAX: usize = 16 << 20;

/// Looks side by side.
const LOOKS_AT_ONCE_MAX: usize = 32;

/// Formats named in one message.
const NAMED_MAX: usize = 3;

/// What a plan of a pack without a manifest says.
const UNFINISHED: &str = "a pack into this place has not come to its end, so samples are missing";

/// What was found.
#[derive(Debug, Clone)]
pub struct Discovered {
    /// The format.
    pub spec: FormatSpec,
    /// The shards, in order.
    pub shards: Vec<ObjectMeta>,
    /// What whoever opens the data set should know: what is not read of what is there, and what was decided in doubt.
    pub notes: Vec<String>,
    /// A pack into this place has not come to its end, so samples are missing.
    pub(crate) is_unfinished: bool,
    /// Where they are read from.
    pub(super) from: ShardStore,
}

impl Discovered {
    /// Refuse what a pack has not written to its end.
    pub(crate) fn refuse_unfinished(&self) -> Result<()> {
        if !self.is_unfinished {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Precondition, "open data set", UNFINISHED)
            .at(self.from.store.location())
            .with_hint(
                "run the same forebay pack again: it goes on where it was; or name the shards that are there",
            ))
    }
}

/// A kind of shard, as names tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Wds,
    Mds,
    TfRecord,
    Parquet,
    Tokens,
    #[cfg(test)]
    Lines,
}

impl Family {
    /// Name of the format.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Wds => "wds",
            Self::Mds => "mds",
            Self::TfRecord => "tfrecord",
            Self::Parquet => "parquet",
            Self::Tokens => "tokens",
            #[cfg(test)]
            Self::Lines => "lines",
        }
    }

    /// True when shards of that format have such names.
    pub(super) fn is_of(self, format: &str) -> bool {
        self.name() == format || (self == Self::Parquet && format == PETASTORM)
    }
}

/// Tells by their names which objects are shards of a data set that has some already.
#[derive(Debug)]
pub(super) struct Siblings<'a> {
    format: &'a str,
    /// Names of the shards of tokens, without their numbers.
    numbered: HashSet<String>,
}

impl<'a> Siblings<'a> {
    /// Of shards of a format.
    pub(super) fn of<'k>(format: &'a str, shards: impl Iterator<Item = &'k Key>) -> Self {
        let shards = shards.filter(|_| Family::Tokens.is_of(format));
        Self {
            format,
            numbered: shards.map(unnumbered).collect(),
        }
    }

    /// True of an object that is one by its name. MDS lists its shards in an index. A `.bin` may be anything, and `val.bin` beside `train.bin` is another data set: of
    /// tokens, those are that are numbered as they are.
    pub(super) fn has(&self, key: &Key) -> bool {
        let family = family_of(key).filter(|family| family.is_of(self.format));
        family.is_some_and(|family| match family {
            Family::Mds => false,
            Family::Tokens => self.numbered.contains(&unnumbered(key)),
            _ => true,
        })
    }
}

/// A key with a zero for each of its numbers.
fn unnumbered(key: &Key) -> String {
    let mut unnumbered = String::with_capacity(key.as_str().len());
    for c in key.as_str().chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if c != '0' || !unnumbered.ends_with('0') {
            unnumbered.push(c);
        }
    }
    unnumbered
}

/// Last parts of names that say how an object is compressed; what it holds is said before them.
const COMPRESSIONS: [&str; 7] = ["gz", "zst", "zstd", "zlib", "bz2", "br", "snappy"];

/// Compressions that others put tars into, and that are not read.
const PACKED: [&str; 5] = ["xz", "lzma", "lz4", "lz", "7z"];

/// Last parts of names that say what an object holds.
const ENDINGS: &[(&str, Family)] = &[
    ("tar", Family::Wds),
    ("tgz", Family::Wds),
    ("mds", Family::Mds),
    ("parquet", Family::Parquet),
    ("pq", Family::Parquet),
    ("tfrecord", Family::TfRecord),
    ("tfrecords", Family::TfRecord),
    ("tfrec", Family::TfRecord),
    ("bin", Family::Tokens),
    ("npy", Family::Tokens),
    #[cfg(test)]
    ("lines", Family::Lines),
];

/// What an object of a listing is by its name; nothing where listings leave it out.
pub(crate) fn family_of(key: &Key) -> Option<Family> {
    let family = named_family_of(key).filter(|_| !is_hidden(key))?;
    (family != Family::Parquet || !is_aside(key)).then_some(family)
}

/// The same of an object that was named.
pub(super) fn named_family_of(key: &Key) -> Option<Family> {
    let (name, mut plain) = (key.file_name(), key.file_name());
    if let Some((stem, extension)) = name.rsplit_once('.')
        && COMPRESSIONS.iter().any(|one| extension.eq_ignore_ascii_case(one))
    {
        plain = stem;
    }
    let extension = plain.rsplit_once('.').map_or("", |(_, extension)| extension);
    let is_it = |(ending, _): &&(&str, Family)| extension.eq_ignore_ascii_case(ending);
    match ENDINGS.iter().find(is_it) {
        Some((_, family)) => Some(*family),
        None => is_numbered(plain).then_some(Family::TfRecord),
    }
}

/// What objects are by their names, listed or named.
fn families(are_named: bool) -> fn(&Key) -> Option<Family> {
    if are_named { named_family_of } else { family_of }
}

/// True for what side files were called before, and for the sums that data sets are published with: no samples, whatever the format.
fn is_former(key: &Key) -> bool {
    matches!(key.as_str(), FORMER_MANIFEST_NAME | "SHA256SUMS")
}

/// `name-00000-of-00010`: the way TensorFlow numbers files. With an extension behind it, the extension counts.
fn is_numbered(name: &str) -> bool {
    let is_number = |part: &str| part.len() >= 5 && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = name.rsplit('-');
    parts.next().is_some_and(is_number)
        && parts.next().is_some_and(|part| part.eq_ignore_ascii_case("of"))
        && parts.next().is_some_and(is_number)
}

/// Find out what is at the root of a store, or among the objects named.
pub async fn discover(
    store: &Arc<dyn Store>,
    context: &Context,
    choice: Option<&FormatSpec>,
    only: Option<&[Key]>,
) -> Result<Discovered> {
    let found = look_for(store, context, choice, only).await?;
    if found.spec.name != registry::FILES {
        return Ok(found);
    }
    let from = ShardStore::of_files(store, &found.spec, &found.shards)?;
    let shards = from.virtual_shards().unwrap_or_default();
    if shards.is_empty() {
        return Err(nothing_at(nothing(choice), store.location()));
    }
    Ok(Discovered {
        spec: found.spec,
        shards,
        notes: found.notes.into_iter().chain(from.note()).collect(),
        is_unfinished: found.is_unfinished,
        from,
    })
}

/// The same, but for plain folders: there the files themselves take the place of shards.
pub(crate) async fn look_for(
    store: &Arc<dyn Store>,
    context: &Context,
    choice: Option<&FormatSpec>,
    only: Option<&[Key]>,
) -> Result<Discovered> {
    choice.map_or(Ok(()), registry::check_choice)?;
    let Listed {
        objects,
        hudi,
        has_former,
        is_unfinished,
    } = match only {
        Some(keys) => Listed {
            objects: heads(store, keys).await?,
            hudi: BTreeSet::new(),
            has_former: false,
            is_unfinished: false,
        },
        None => list(store).await.map_err(without_listing)?,
    };
    let (are_named, is_chosen) = (only.is_some(), choice.is_some());
    let is_parquet = |meta: &ObjectMeta| families(are_named)(&meta.key) == Some(Family::Parquet);
    let has_parquet = !is_chosen && objects.iter().any(is_parquet);
    let logs = if has_parquet && !are_named {
        logged::tables(&objects, hudi)
    } else {
        BTreeSet::new()
    };
    let is_petastorm = has_parquet && is_petastorm(store, context).await?;
    let petastorm = is_petastorm.then(|| FormatSpec::new(PETASTORM));
    let choice = choice.or(petastorm.as_ref());
    let found = by_index(store, context, choice, &objects, are_named).await?;
    let aside = Aside::of(&objects).filter(|_| !are_named);
    let mut found = match found {
        Some(found) => found,
        None => by_names(store, choice, objects, are_named, aside.as_ref())
            .map_err(|error| error.at(store.location()))?,
    };
    if found.shards.is_empty() {
        return Err(nothing_at(nothing(choice), store.location()));
    }
    let is_parquet = Family::Parquet.is_of(&found.spec.name);
    if is_parquet && !are_named && !is_chosen {
        logged::refuse(store.location(), &logs, &found.shards)?;
    }
    let aside = aside.filter(|_| is_parquet || !is_chosen);
    found.notes.extend(aside.map(|aside| aside.note()));
    found.notes.extend(has_former.then(note_former));
    found.notes.extend(is_unfinished.then(|| UNFINISHED.to_owned()));
    found.is_unfinished = is_unfinished;
    Ok(found)
}

/// True when the Parquet files here have a schema of Petastorm's beside them.
async fn is_petastorm(store: &Arc<dyn Store>, context: &Context) -> Result<bool> {
    match ShardSource::open(Arc::clone(store), &Key::parse(COMMON_METADATA)?, context).await {
        Ok(source) => Petastorm::has_schema(&source).await,
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Say what can be done where nothing can be listed.
fn without_listing(error: Error) -> Error {
    if is_listable(&error) || error.kind() == ErrorKind::NotFound || error.hint().is_some() {
        return error;
    }
    error.with_hint(
        "without listing, name the shards, such as 'train-{000000..000123}.tar', or a manifest that was made elsewhere",
    )
}

async fn heads(store: &Arc<dyn Store>, keys: &[Key]) -> Result<Vec<ObjectMeta>> {
    // Owned keys: a closure over references would not be general enough for a future that moves between threads.
    let heads = keys.iter().cloned().map(|key| {
        let store = Arc::clone(store);
        async move { store.head(&key).await }
    });
    stream::iter(heads)
        .buffered(LOOKS_AT_ONCE_MAX)
        .try_collect()
        .await
}

/// What lies in a store.
#[derive(Debug)]
pub(super) struct Listed {
    /// Every object but our own and hidden ones, sorted by key.
    pub(super) objects: Vec<ObjectMeta>,
    /// Tables that hidden ones among them tell of.
    hudi: BTreeSet<LoggedTable>,
    /// There is a manifest under its former name.
    has_former: bool,
    /// A pack into this place has not written its manifest yet.
    is_unfinished: bool,
}

/// List all of a store.
pub(super) async fn list(store: &Arc<dyn Store>) -> Result<Listed> {
    let (mut objects, mut hudi, mut has_former) = (Vec::new(), BTreeSet::new(), false);
    let (mut has_plan, mut has_manifest) = (false, false);
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    while let Some(row) = rows.next().await {
        match row {
            Ok(Entry::Object(meta)) => {
                has_former |= meta.key.as_str() == FORMER_MANIFEST_NAME;
                has_manifest |= meta.key.as_str() == MANIFEST_NAME;
                has_plan |= is_plan(&meta.key);
                let is_ours = matches!(meta.key.as_str(), MANIFEST_NAME | SUMS_NAME) || is_former(&meta.key);
                if is_hidden(&meta.key) {
                    hudi.extend(logged::hudi_of(&meta.key));
                } else if !is_ours {
                    objects.push(meta);
                }
            }
            Ok(Entry::Prefix(_)) => {}
            Err(error) if is_special_file(&error) => {}
            Err(error) => return Err(error),
        }
        if objects.len() + hudi.len() > OBJECTS_MAX {
            let message = format!("more than {OBJECTS_MAX} objects");
            return Err(Error::new(ErrorKind::LimitExceeded, "open data set", message)
                .at(store.location())
                .with_hint("name a part of them, or pack small files into shards: forebay pack"));
        }
    }
    Ok(Listed {
        objects,
        hudi,
        has_former,
        is_unfinished: has_plan && !has_manifest,
    })
}

/// The format that the names speak of, or that was chosen, with the objects that have it.
pub(super) fn by_names(
    store: &Arc<dyn Store>,
    choice: Option<&FormatSpec>,
    objects: Vec<ObjectMeta>,
    are_named: bool,
    aside: Option<&Aside>,
) -> Result<Discovered> {
    let family_of = families(are_named);
    let families: BTreeSet<Family> = objects.iter().filter_map(|meta| family_of(&meta.key)).collect();
    let spec = match choice {
        Some(spec) => spec.clone(),
        None => {
            let name = name_by(&families, &objects)?;
            if name == registry::FILES {
                refuse_packed(&objects)?;
                if let Some(aside) = aside.filter(|aside| aside.is_most_of(objects.len())) {
                    return Err(aside.refuse(objects.len(), false, store.location()));
                }
            }
            FormatSpec::new(name)
        }
    };
    if spec.name == registry::FILES {
        let (spec, doubt) = with_layout(spec, &objects);
        let splits = splits::told(&objects).filter(|_| !are_named);
        return Ok(Discovered {
            spec,
            shards: objects,
            notes: splits.into_iter().chain(doubt).collect(),
            is_unfinished: false,
            from: ShardStore::plain(Arc::clone(store)),
        });
    }
    let is_shard = |meta: &ObjectMeta| family_of(&meta.key).is_some_and(|family| family.is_of(&spec.name));
    let (mut notes, listed) = (Vec::new(), objects.len());
    // Whoever names objects and a format knows better than names do.
    let shards = if are_named && choice.is_some() {
        objects
    } else {
        let shards = objects.iter().filter(|meta| is_shard(meta)).count();
        if choice.is_none() {
            notes.extend(beside(&spec.name, shards, &objects));
        }
        objects.into_iter().filter(is_shard).collect()
    };
    let aside = aside.filter(|_| Family::Parquet.is_of(&spec.name) && shards.is_empty());
    if let Some(aside) = aside {
        return Err(aside.refuse(listed, true, store.location()));
    }
    notes.extend(splits::told(&shards).filter(|_| !are_named));
    let (spec, uneven) = with_partitions(spec, &shards)?;
    notes.extend(uneven);
    let from = ShardStore::plain(Arc::clone(store));
    Ok(Discovered {
        spec,
        shards,
        notes,
        is_unfinished: false,
        from,
    })
}

/// With the columns that the folders of Parquet files say, and what is to be said of others; columns that were asked for are left as they are, where folders say them.
fn with_partitions(spec: FormatSpec, shards: &[ObjectMeta]) -> Result<(FormatSpec, Option<String>)> {
    if !Family::Parquet.is_of(&spec.name) || shards.is_empty() {
        return Ok((spec, None));
    }
    let keys = shards.iter().map(|meta| &meta.key);
    if spec.params.contains_key(PARTITIONS) {
        registry::partitions(&spec)?.check(keys)?;
        return Ok((spec, None));
    }
    let (partitions, others) = Partitions::of(keys);
    let others = others
        .iter()
        .take(NAMED_MAX)
        .map(|name| format!("'{}'", name.escape_debug()));
    let others = others.collect::<Vec<_>>().join(", ");
    let uneven = (!others.is_empty()).then(|| {
        format!(
            "some folders are called as those of partitions are, and others are not: {others} is no field"
        )
    });
    if partitions.is_empty() {
        return Ok((spec, uneven));
    }
    Ok((spec.with(PARTITIONS, partitions.to_param()), uneven))
}

/// Refuse tars in a compression that is not read: they would pass for plain files, each of them a sample.
fn refuse_packed(objects: &[ObjectMeta]) -> Result<()> {
    let ending_of = |meta: &ObjectMeta| {
        let (stem, ending) = meta.key.file_name().rsplit_once('.')?;
        let is_tar = stem.len() > 4 && stem.to_ascii_lowercase().ends_with(".tar");
        (is_tar && PACKED.iter().any(|one| ending.eq_ignore_ascii_case(one))).then(|| ending.to_owned())
    };
    let Some(ending) = objects.iter().find_map(ending_of) else {
        return Ok(());
    };
    let message = format!("tars that are compressed as .{ending} are not read");
    Err(
        Error::new(ErrorKind::Unsupported, "open data set", message).with_hint(
            "compress them with zstd or gzip, or not at all; --format files takes archives for plain files",
        ),
    )
}

fn name_by(families: &BTreeSet<Family>, objects: &[ObjectMeta]) -> Result<&'static str> {
    let certain: Vec<Family> = families
        .iter()
        .copied()
        .filter(|family| *family != Family::Tokens)
        .collect();
    match certain[..] {
        [family] => Ok(family.name()),
        [] if families.is_empty() => Ok(registry::FILES),
        [] => tokens_or_files(objects),
        _ => {
            let names: Vec<&str> = certain
                .iter()
                .take(NAMED_MAX)
                .map(|family| family.name())
                .collect();
            let message = format!("shards of several formats lie here: {}", names.join(", "));
            Err(Error::new(ErrorKind::InvalidInput, "open data set", message)
                .with_hint("choose one with --format, or name the shards: 'dir/{000000..000123}.tar'"))
        }
    }
}

/// `.bin` beside `.idx` is Megatron's; alone it could be anything, and arrays in a folder are files like others. Where every `.bin` has a file beside it
/// that differs in nothing but the ending, they are fields of samples.
fn tokens_or_files(objects: &[ObjectMeta]) -> Result<&'static str> {
    let has = |suffix: &str| objects.iter().any(|meta| meta.key.as_str().ends_with(suffix));
    if has(".bin") && has(".idx") {
        return Ok(Family::Tokens.name());
    }
    if !has(".bin") || is_every_bin_accompanied(objects) {
        return Ok(registry::FILES);
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        "open data set",
        "these look like raw tokens, which do not say how many make a sample",
    )
    .with_hint(
        "say so: --format tokens --tokens 2048 --dtype uint16; or take them for plain files: --format files",
    ))
}

fn is_every_bin_accompanied(objects: &[ObjectMeta]) -> bool {
    const SUFFIX: &str = ".bin";
    // What is before the first dot of the base name: where files of one sample agree.
    fn stem(key: &str) -> &str {
        let base = key.rfind('/').map_or(0, |slash| slash + 1);
        let dot = key.get(base..).and_then(|name| name.find('.'));
        dot.and_then(|dot| key.get(..base + dot)).unwrap_or(key)
    }
    let (bins, others): (Vec<&str>, Vec<&str>) = objects
        .iter()
        .map(|meta| meta.key.as_str())
        .partition(|key| key.ends_with(SUFFIX));
    let others: HashSet<&str> = others.into_iter().map(stem).collect();
    bins.into_iter().all(|key| others.contains(stem(key)))
}

fn nothing(choice: Option<&FormatSpec>) -> Error {
    let message = match choice {
        Some(spec) => format!("there are no shards of format {}", spec.name),
        None => "there is nothing here".to_owned(),
    };
    Error::new(ErrorKind::NotFound, "open data set", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_formats() {
        let family = |name: &str| family_of(&Key::parse(name).unwrap());
        for (name, expected) in [
            ("a/000001.tar", Some(Family::Wds)),
            ("x.TAR.gz", Some(Family::Wds)),
            ("x.tgz", Some(Family::Wds)),
            ("shard.00000.mds.zstd", Some(Family::Mds)),
            ("part-00000-of-00010.parquet", Some(Family::Parquet)),
            ("part-00000.snappy.parquet", Some(Family::Parquet)),
            ("_common_metadata", None),
            ("_x.parquet", None),
            ("_delta_log/00000000000000000010.checkpoint.parquet", None),
            ("a/_temporary/0/part-00000.parquet", None),
            ("_day=1/part-00000.parquet", Some(Family::Parquet)),
            ("train.tfrecord-00000-of-00010", Some(Family::TfRecord)),
            ("train-00000-of-01024", Some(Family::TfRecord)),
            ("train-00000-of-01024.gz", Some(Family::TfRecord)),
            ("train.tfrecords", Some(Family::TfRecord)),
            ("data-00000-of-00001.arrow", None),
            ("train.bin", Some(Family::Tokens)),
            ("image.png", None),
            (".hidden/x.tar", None),
            ("x.tar.part", None),
        ] {
            assert_eq!(family(name), expected, "{name}");
        }
    }
}
