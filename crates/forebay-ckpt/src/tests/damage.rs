//! Damage of every sort to every object of a checkpoint: never handed out as good, always named by verify. And, with checks off, handed out:
//! so the tests would see it.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Rng, Seed, Span};
use forebay_store::{Context, Entry as Row, ListOptions, PutOptions, Store, StoreExt};
use futures::StreamExt;

use super::hooked::{Call, Hooked};
use super::support::*;
use crate::pages::Source;
use crate::seal::tests::keys;
use crate::*;

/// Single bit flips over all objects; a sweep with checks off takes a tenth.
const FLIPS: usize = 10_000;

/// A store with a checkpoint of two steps, the second incremental, as plain bytes.
struct Model {
    state: State,
    objects: Vec<(Key, Vec<u8>)>,
    /// Bytes that nobody needs: of the older payloads, what the newer step has anew.
    idle: Vec<(Key, Span)>,
}

impl Model {
    /// True when every byte that differs is one that nobody needs.
    fn is_idle(&self, damaged: &[(Key, Vec<u8>)]) -> bool {
        self.objects.iter().zip(damaged).all(|((key, good), (_, bad))| {
            good == bad
                || good.len() == bad.len()
                    && differences(good, bad).all(|at| {
                        let is_in = |(of, span): &(Key, Span)| {
                            of == key && span.contains(Span::at(at as u64, 1).unwrap())
                        };
                        self.idle.iter().any(is_in)
                    })
        })
    }
}

/// Where two texts of one length differ; what is alike is passed over quickly.
fn differences(good: &[u8], bad: &[u8]) -> impl Iterator<Item = usize> {
    const STEP: usize = 512;
    let pieces = good.chunks(STEP).zip(bad.chunks(STEP)).enumerate();
    let unlike = pieces.filter(|(_, (good, bad))| good != bad);
    unlike.flat_map(|(number, (good, bad))| {
        let bytes = good.iter().zip(bad).enumerate();
        let unlike = bytes.filter(|(_, (good, bad))| good != bad);
        unlike.map(move |(at, _)| number * STEP + at)
    })
}

/// What lies in older payloads and is not referenced.
async fn idle(store: &Arc<dyn Store>, context: &Context) -> Vec<(Key, Span)> {
    let checkpoint = open(store, context, 2).await;
    let mut used: Vec<(Key, Span)> = Vec::new();
    for rank in 0..2 {
        let part = checkpoint.part(rank).await.unwrap();
        for chunk in part.chunks(0, part.head.chunks.records).await.unwrap() {
            used.push((part.payload(&chunk).unwrap().key(), chunk.span()));
        }
    }
    let mut idle = Vec::new();
    for payload in checkpoint
        .manifest()
        .payloads
        .iter()
        .filter(|payload| payload.step == 1)
    {
        let mut at = payload.head_bytes;
        let mut spans: Vec<Span> = used
            .iter()
            .filter(|(key, _)| *key == payload.key())
            .map(|(_, span)| *span)
            .collect();
        spans.sort();
        for span in spans {
            idle.extend(
                Span::new(at, span.start())
                    .ok()
                    .filter(|span| !span.is_empty())
                    .map(|span| (payload.key(), span)),
            );
            at = span.end();
        }
        idle.extend(
            Span::new(at, payload.bytes)
                .ok()
                .map(|span| (payload.key(), span)),
        );
    }
    idle
}

async fn objects(store: &Arc<dyn Store>, context: &Context) -> Vec<(Key, Vec<u8>)> {
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    let mut objects = Vec::new();
    while let Some(row) = rows.next().await {
        let Row::Object(meta) = row.unwrap() else { continue };
        let (bytes, _) = crate::open::read_small(store, context, &meta.key, 1 << 30)
            .await
            .unwrap();
        objects.push((meta.key, bytes.to_vec()));
    }
    objects
}

/// How the checkpoints that are damaged were saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    Raw,
    Compressed,
    Sealed,
}

impl Saved {
    fn options(self, step: u64) -> SaveOptions {
        let options = options(step, 1, 2);
        match self {
            Self::Raw => options,
            Self::Compressed => SaveOptions {
                compress: Compress::Auto,
                ..options
            },
            Self::Sealed => SaveOptions {
                compress: Compress::Auto,
                seal: keys(&[1]),
                ..options
            },
        }
    }
}

async fn model(context: &Context, saved: Saved) -> Model {
    let store = memory();
    let mut state = match saved {
        Saved::Raw => state(1),
        _ => soft_state(1),
    };
    save_with(&store, context, saved.options(1), &state, 0)
        .await
        .unwrap();
    state.get_mut("layer.0.weight").unwrap().bytes[5000] ^= 4;
    let how = SaveOptions {
        base_step: Some(1),
        ..saved.options(2)
    };
    save_with(&store, context, how, &state, 0).await.unwrap();
    // Only what step 2 needs: damage to anything else is none.
    let remove = GcOptions {
        remove: vec![1],
        ..GcOptions::default()
    };
    gc(Arc::clone(&store), context, &remove).await.unwrap();
    store
        .delete(&Key::parse(crate::names::LAST_GC).unwrap())
        .await
        .unwrap();
    let objects = objects(&store, context).await;
    let idle = idle(&store, context).await;
    let changed = |span: &Span| match saved {
        Saved::Raw => span.len() == u64::from(CHUNK),
        _ => span.len() > u64::from(CHUNK) / 2,
    };
    assert!(idle.iter().any(|(_, span)| changed(span)), "{idle:?}");
    Model { state, objects, idle }
}

async fn store_of(objects: &[(Key, Vec<u8>)]) -> Arc<dyn Store> {
    let store = memory();
    for (key, bytes) in objects {
        store.put_bytes(key, bytes, &PutOptions::default()).await.unwrap();
    }
    store
}

/// What became of a damaged checkpoint.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// An error, or verify names it.
    Noticed,
    /// Loads and verifies as if nothing were.
    Unnoticed,
    /// Another state than was saved is given as good.
    WrongBytes,
}

async fn outcome(source: &Source, state: &State) -> Outcome {
    let checkpoint = match Checkpoint::open_with(source.clone(), 2).await {
        Ok(checkpoint) => checkpoint.with_keys(keys(&[1])),
        Err(error) => {
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::NotFound
                ),
                "{error}"
            );
            return Outcome::Noticed;
        }
    };
    let is_loaded = match load_all(&checkpoint, state).await {
        Err(why) if why.contains("has other bytes") => return Outcome::WrongBytes,
        loaded => loaded.is_ok(),
    };
    let value = checkpoint.value("extra").await;
    let value_is_good = match &value {
        Ok(Some(Value::List(values))) if values.len() == 3 => values[0] == Value::Int(7),
        Ok(_) => return Outcome::WrongBytes,
        Err(_) => false,
    };
    if !is_loaded || !value_is_good {
        return Outcome::Noticed;
    }
    // What loading does not need, such as the index, is for this to notice.
    let verified = verify(&checkpoint, &|_| {}).await;
    if verified.is_ok_and(|report| report.is_whole()) {
        Outcome::Unnoticed
    } else {
        Outcome::Noticed
    }
}

/// Do `damage` to the objects `count` times, each time to fresh ones; gives how often it was not noticed, and how often wrong bytes were given.
async fn sweep(
    saved: Saved,
    count: usize,
    checks: bool,
    damage: impl Fn(&mut [(Key, Vec<u8>)], &mut Rng),
) -> (usize, usize) {
    let context = context();
    let model = model(&context, saved).await;
    let Model { state, objects, .. } = &model;
    let store = store_of(objects).await;
    let source = Source {
        store: Arc::clone(&store),
        context,
        checks,
    };
    assert_eq!(outcome(&source, state).await, Outcome::Unnoticed);
    let mut rng = Seed(3).rng();
    let (mut unnoticed, mut wrong) = (0, 0);
    for _ in 0..count {
        let mut damaged = objects.clone();
        while model.is_idle(&damaged) {
            damage(&mut damaged, &mut rng);
        }
        let mut changed = Vec::new();
        for (at, (key, bytes)) in objects.iter().enumerate() {
            if damaged[at].1 != *bytes {
                store
                    .put_bytes(key, &damaged[at].1, &PutOptions::default())
                    .await
                    .unwrap();
                changed.push(at);
            }
        }
        assert!(!changed.is_empty());
        match outcome(&source, state).await {
            Outcome::Noticed => {}
            Outcome::Unnoticed => unnoticed += 1,
            Outcome::WrongBytes => wrong += 1,
        }
        for at in changed {
            let (key, bytes) = &objects[at];
            store.put_bytes(key, bytes, &PutOptions::default()).await.unwrap();
        }
    }
    (unnoticed, wrong)
}

/// A byte of all objects, each object as likely as any other so that small ones get their share.
fn place(objects: &[(Key, Vec<u8>)], rng: &mut Rng) -> (usize, usize) {
    let object = rng.below(objects.len() as u64) as usize;
    (object, rng.below(objects[object].1.len() as u64) as usize)
}

fn flip(objects: &mut [(Key, Vec<u8>)], rng: &mut Rng) {
    let (object, byte) = place(objects, rng);
    objects[object].1[byte] ^= 1 << rng.below(8);
}

/// Zeros over a range that was not zero.
fn punch(objects: &mut [(Key, Vec<u8>)], rng: &mut Rng) {
    loop {
        let (object, byte) = place(objects, rng);
        let bytes = &mut objects[object].1;
        let end = (byte + 1 + rng.below(6000) as usize).min(bytes.len());
        if bytes[byte..end].iter().any(|byte| *byte != 0) {
            bytes[byte..end].fill(0);
            return;
        }
    }
}

/// A page of one place written to another, of the same or another object; sometimes exchanged.
fn misdirect(objects: &mut [(Key, Vec<u8>)], rng: &mut Rng) {
    loop {
        let ((from, a), (to, b)) = (place(objects, rng), place(objects, rng));
        let len = (4096)
            .min(objects[from].1.len() - a / 4096 * 4096)
            .min(objects[to].1.len() - b / 4096 * 4096);
        let (a, b) = (a / 4096 * 4096, b / 4096 * 4096);
        let source = objects[from].1[a..a + len].to_vec();
        let target = objects[to].1[b..b + len].to_vec();
        if source != target {
            objects[to].1[b..b + len].copy_from_slice(&source);
            if rng.one_in(2) {
                objects[from].1[a..a + len].copy_from_slice(&target);
            }
            return;
        }
    }
}

fn cut_off(objects: &mut [(Key, Vec<u8>)], rng: &mut Rng) {
    let (object, byte) = place(objects, rng);
    objects[object].1.truncate(byte);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_bit_flips_are_noticed() {
    let (unnoticed, wrong) = sweep(Saved::Raw, FLIPS, true, flip).await;
    assert_eq!((unnoticed, wrong), (0, 0), "of {FLIPS} flips");
    let (unnoticed, wrong) = sweep(Saved::Raw, FLIPS / 10, false, flip).await;
    assert!(
        unnoticed + wrong > FLIPS / 50,
        "with checks off: {unnoticed} unnoticed, {wrong} wrong"
    );
    assert!(wrong > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_and_cuts_are_noticed() {
    assert_eq!(sweep(Saved::Raw, 500, true, punch).await, (0, 0));
    assert_eq!(sweep(Saved::Raw, 500, true, cut_off).await, (0, 0));
    let (unnoticed, wrong) = sweep(Saved::Raw, 200, false, punch).await;
    assert!(
        unnoticed + wrong > 20,
        "with checks off: {unnoticed} unnoticed, {wrong} wrong"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn misdirected_writes_are_noticed() {
    assert_eq!(sweep(Saved::Raw, 1000, true, misdirect).await, (0, 0));
    let (_, wrong) = sweep(Saved::Raw, 200, false, misdirect).await;
    assert!(wrong > 10, "with checks off: {wrong} wrong");
}

/// Everything again where chunks are not stored as they are.
async fn coded_damage_is_noticed(saved: Saved) {
    let mut tried = 0;
    for (count, damage) in [
        (FLIPS / 4, flip as fn(&mut [(Key, Vec<u8>)], &mut Rng)),
        (300, punch),
        (300, cut_off),
        (600, misdirect),
    ] {
        assert_eq!(sweep(saved, count, true, damage).await, (0, 0), "{saved:?}");
        tried += count;
    }
    println!("{saved:?}: {tried} damages, 0 undetected");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_compressed_checkpoints_is_noticed() {
    coded_damage_is_noticed(Saved::Compressed).await;
    // Without checks, decoders refuse much, and the rest is wrong.
    let (unnoticed, wrong) = sweep(Saved::Compressed, FLIPS / 10, false, flip).await;
    assert!(
        wrong > FLIPS / 100,
        "with checks off: {unnoticed} unnoticed, {wrong} wrong"
    );
    let (_, wrong) = sweep(Saved::Compressed, 200, false, misdirect).await;
    assert!(wrong > 5, "with checks off: {wrong} wrong");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_sealed_checkpoints_is_noticed() {
    coded_damage_is_noticed(Saved::Sealed).await;
    // Without checks of hashes, pages that were damaged go unnoticed; of what is sealed, nothing does.
    let (unnoticed, wrong) = sweep(Saved::Sealed, FLIPS / 10, false, flip).await;
    assert!(
        unnoticed + wrong > 0,
        "with checks off: {unnoticed} unnoticed, {wrong} wrong"
    );
}

/// Whole objects of another step in place of those that belong there: each is good by itself.
#[tokio::test]
async fn objects_of_other_checkpoints_are_noticed() {
    let context = context();
    let store = memory();
    let (before, after) = (state(1), state(2));
    save(&store, &context, 1, 2, &before).await;
    save(&store, &context, 2, 2, &after).await;
    let all = objects(&store, &context).await;
    let of_step = |step: u64| {
        let start = format!("steps/{step:020}/");
        all.iter()
            .filter(move |(key, _)| key.as_str().starts_with(&start))
            .collect::<Vec<_>>()
    };
    let source = Source {
        store: Arc::clone(&store),
        context: context.clone(),
        checks: true,
    };
    let mut tried = 0;
    for ((_, old), (key, new)) in of_step(1).into_iter().zip(of_step(2)) {
        store.put_bytes(key, old, &PutOptions::default()).await.unwrap();
        assert_eq!(outcome(&source, &after).await, Outcome::Noticed, "{key}");
        store.put_bytes(key, new, &PutOptions::default()).await.unwrap();
        store.delete(key).await.unwrap();
        assert_eq!(outcome(&source, &after).await, Outcome::Noticed, "without {key}");
        store.put_bytes(key, new, &PutOptions::default()).await.unwrap();
        tried += 1;
    }
    assert_eq!(tried, 5);
    let (one, two) = (crate::names::manifest_key(1), crate::names::manifest_key(2));
    let old = &all.iter().find(|(key, _)| *key == one).unwrap().1;
    store.put_bytes(&two, old, &PutOptions::default()).await.unwrap();
    assert_eq!(outcome(&source, &after).await, Outcome::Noticed);
}

#[tokio::test]
async fn damage_is_named_by_tensor_and_bytes() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 1, &state).await;
    let checkpoint = open(&store, &context, 1).await;
    let key = checkpoint.manifest().payloads[0].key();
    let (bytes, _) = crate::open::read_small(&store, &context, &key, 1 << 30)
        .await
        .unwrap();
    let header = forebay_core::safetensors::Header::parse(&bytes, bytes.len() as u64).unwrap();
    let span = header.get("layer.0.weight").unwrap().span;
    let mut damaged = bytes.to_vec();
    damaged[span.start() as usize + 5000] ^= 1;
    damaged[span.start() as usize + 9000..][..4096].fill(0);
    store
        .put_bytes(&key, &damaged, &PutOptions::default())
        .await
        .unwrap();
    let error = load_all(&checkpoint, &state).await.unwrap_err();
    assert!(
        error.contains("layer.0.weight") && error.contains("4096..8192"),
        "{error}"
    );
    let report = verify(&checkpoint, &|_| {}).await.unwrap();
    let damages: Vec<_> = report
        .damages
        .iter()
        .map(|damage| {
            (
                damage.name.as_deref(),
                damage.slice_bytes.map(|span| span.to_string()),
            )
        })
        .collect();
    let named = |bytes: &str| (Some("layer.0.weight"), Some(bytes.to_owned()));
    assert_eq!(
        damages,
        [named("4096..8192"), named("8192..12288"), named("12288..16384")]
    );
    // The others are read as before.
    let embed = &state["embed"];
    assert!(
        checkpoint
            .load(vec![want("embed", embed, &[0, 0], &[96, 64])])
            .await
            .is_ok()
    );
}

/// Without its index, and with a damaged one, a checkpoint is as good; the ledger says that parts were gone through.
#[tokio::test]
async fn a_bad_index_is_done_without() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 2, &state).await;
    let attempt = open(&store, &context, 1).await.manifest().attempt;
    let key = crate::names::piece_key(1, attempt, crate::names::Piece::Index);
    let (good, _) = crate::open::read_small(&store, &context, &key, 1 << 30)
        .await
        .unwrap();
    let mut page = good.to_vec();
    page[20] ^= 1;
    let mut head = good.to_vec();
    let last = head.len() - 40;
    head[last] ^= 1;
    for bad in [Some(page), Some(head), None] {
        match &bad {
            Some(bytes) => drop(
                store
                    .put_bytes(&key, bytes, &PutOptions::default())
                    .await
                    .unwrap(),
            ),
            None => store.delete(&key).await.unwrap(),
        }
        let checkpoint = open(&store, &context, 1).await;
        load_all(&checkpoint, &state).await.unwrap();
        assert!(checkpoint.value("extra").await.unwrap().is_some());
        assert!(checkpoint.entries().await.unwrap().len() > state.len());
        let ledger = checkpoint.ledger();
        assert!(
            ledger.downgrades[0].reason.contains("index"),
            "{:?}",
            ledger.downgrades
        );
        let report = verify(&open(&store, &context, 1).await, &|_| {}).await.unwrap();
        assert_eq!(report.damages.len(), 1, "{:?}", report.damages);
        assert_eq!(report.damages[0].object, key);
    }
}

/// A disk that cannot read one range of a payload: the chunks in it are named, and all else is compared.
#[tokio::test]
async fn what_a_disk_cannot_read_is_damage_with_a_name() {
    let context = context();
    let inner = memory();
    let state = state(1);
    save(&inner, &context, 1, 1, &state).await;
    let checkpoint = open(&inner, &context, 1).await;
    let payload = checkpoint.manifest().payloads[0].key();
    let (bytes, _) = crate::open::read_small(&inner, &context, &payload, 1 << 30)
        .await
        .unwrap();
    let header = forebay_core::safetensors::Header::parse(&bytes, bytes.len() as u64).unwrap();
    let weight = header.get("layer.0.weight").unwrap().span;
    let bad = Span::at(weight.start() + 5000, 1).unwrap();
    let whole = verify(&checkpoint, &|_| {}).await.unwrap();
    let store = Hooked::over(&inner, move |call, key| {
        let is_bad = key == payload && matches!(call, Call::Read(span) if span.intersect(bad).is_some());
        async move {
            if is_bad {
                Err(Error::new(ErrorKind::Io, "read", "a bad sector"))
            } else {
                Ok(())
            }
        }
    });
    let report = verify(&open(&store, &context, 1).await, &|_| {}).await.unwrap();
    let damages: Vec<_> = report
        .damages
        .iter()
        .map(|one| (one.name.clone().unwrap(), one.slice_bytes.unwrap()))
        .collect();
    let chunk = Span::new(4096, 8192).unwrap();
    assert_eq!(damages, [("layer.0.weight".to_owned(), chunk)]);
    assert_eq!(report.chunks, whole.chunks - 1);
}

/// An index that holds its hashes and says less than the parts do, as a fault of a writer would make it.
#[tokio::test]
async fn an_index_that_says_other_things_is_noticed() {
    let context = context();
    let store = memory();
    save(&store, &context, 1, 2, &state(1)).await;
    let checkpoint = open(&store, &context, 1).await;
    let mut manifest = checkpoint.manifest().clone();
    let mut parts = [0, 1].map(crate::index::PartEntries::new);
    // All but the last.
    let entries = checkpoint.entries().await.unwrap();
    for found in &entries[..entries.len() - 1] {
        parts[found.rank as usize].push(&found.entry);
    }
    let (_, head) = checkpoint.index_file().await.unwrap().unwrap();
    let index = crate::index::encode(head.clone(), &parts).unwrap();
    manifest.index = Some(FileRow {
        bytes: index.bytes.len() as u64,
        head_bytes: index.head_bytes,
        hash: index.hash,
    });
    let key = crate::names::piece_key(1, manifest.attempt, crate::names::Piece::Index);
    let how = PutOptions::default();
    store.put_bytes(&key, &index.bytes, &how).await.unwrap();
    let bytes = manifest.encode().unwrap();
    store
        .put_bytes(&crate::names::manifest_key(1), &bytes, &how)
        .await
        .unwrap();
    let report = verify(&open(&store, &context, 1).await, &|_| {}).await.unwrap();
    assert_eq!(report.damages.len(), 1, "{:?}", report.damages);
    assert!(
        report.damages[0].message.contains("other entries"),
        "{:?}",
        report.damages
    );
}
