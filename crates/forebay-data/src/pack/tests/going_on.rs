//! Runs that ended early are gone on with, and nothing but a whole run leaves a manifest.

use std::sync::{Mutex, PoisonError};

use forebay_core::ErrorKind;
use forebay_store::wrap::{Counted, Fault, FaultPlan, Faulty, Op, When};

use super::*;
use crate::dataset::Save;
use crate::format::mds::HashName;
use crate::format::wds::WdsWriter;
use crate::manifest::MANIFEST_NAME;
use crate::pack::target::Contents;

async fn whole(from: &Arc<dyn Store>, spec: &PackSpec) -> BTreeMap<String, Vec<u8>> {
    let to = memory_store();
    run(from, &to, spec).await.unwrap();
    written(&*to).await
}

/// Fail each write in turn, and go on from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_from_wherever_it_ended() {
    let from = memory_store();
    folder(&*from, 60).await;
    // Hashes of what is not stored are known by the notes alone.
    let zip = Some("zstd".to_owned());
    let settings = [
        (PackFormat::Mds, zip, vec![HashName::Sha1]),
        (PackFormat::Wds, None, Vec::new()),
    ];
    for (format, compression, hashes) in settings {
        let spec = PackSpec {
            fields: Some(vec!["dat".to_owned(), "txt".to_owned()]),
            samples_per_shard: Some(9),
            compression,
            hashes,
            ..small(format)
        };
        let expected = whole(&from, &spec).await;
        let (mut ended, mut completed) = (0, 0);
        for nth in 1..60 {
            let to = memory_store();
            let plan =
                FaultPlan::new(Seed(0)).with(Op::Put, When::Nth(nth), Fault::Fail(ErrorKind::OutOfSpace));
            let faulty: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&to), plan));
            if let Err(error) = run(&from, &faulty, &spec).await {
                ended += 1;
                assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
                // Behind the manifest there are only the hashes.
                let is_complete = error.to_string().contains("the data set is complete");
                let found = contents(&*to).await;
                assert_eq!(found.contains_key(MANIFEST_NAME), is_complete, "{nth}");
                completed += u32::from(is_complete);
                run(&from, &to, &spec).await.unwrap();
            }
            assert!(written(&*to).await == expected, "{format:?} {nth}");
        }
        assert!(ended > 8 && completed == 1, "{ended} {completed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_that_are_there_are_not_written_again() {
    let from = memory_store();
    folder(&*from, 60).await;
    let spec = PackSpec {
        shard_bytes: 20_000,
        threads: 1,
        ..small(PackFormat::Wds)
    };
    let expected = whole(&from, &spec).await;
    let to = memory_store();
    let shards = expected.len() as u64 - 1;
    // The plan, then a shard and its note for each of three shards; then no more.
    let plan = FaultPlan::new(Seed(0)).with(Op::Put, When::Nth(8), Fault::Fail(ErrorKind::OutOfSpace));
    run(
        &from,
        &(Arc::new(Faulty::new(Arc::clone(&to), plan)) as Arc<dyn Store>),
        &spec,
    )
    .await
    .unwrap_err();
    let counted = Counted::new(Arc::clone(&to));
    let moved = Arc::new(Moved::default());
    let spec = PackSpec {
        progress: Arc::clone(&moved) as Arc<dyn Progress>,
        ..spec
    };
    let report = run(&from, &(Arc::new(counted.clone()) as Arc<dyn Store>), &spec)
        .await
        .unwrap();
    assert_eq!(report.shards_kept, 3);
    // What need not be read again counts as done, about.
    let moved = moved.0.load(Ordering::Relaxed);
    assert!(
        moved > report.bytes_read * 3 / 4,
        "{moved} of {}",
        report.bytes_read
    );
    // Hashes and manifest, and two for each shard that was missing.
    assert_eq!(counted.counts().of(Op::Put).requests, 2 + 2 * (shards - 3));
    assert!(written(&*to).await == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_and_damage_are_filled() {
    let from = memory_store();
    folder(&*from, 60).await;
    let spec = PackSpec {
        shard_bytes: 20_000,
        filter: Some("cls != 5".to_owned()),
        limit: Some(50),
        ..small(PackFormat::Wds)
    };
    let expected = whole(&from, &spec).await;
    for (gone, damaged) in [(1, 3), (0, 2), (2, 0)] {
        // As a run leaves it that ended right before the manifest.
        let stopped = memory_store();
        let plan = FaultPlan::new(Seed(0)).with(
            Op::Put,
            When::Nth(2 + 2 * (expected.len() as u64 - 1)),
            Fault::Fail(ErrorKind::OutOfSpace),
        );
        run(
            &from,
            &(Arc::new(Faulty::new(Arc::clone(&stopped), plan)) as Arc<dyn Store>),
            &spec,
        )
        .await
        .unwrap_err();
        stopped
            .delete(&key(&format!(".forebay-pack-{gone:08}.json")))
            .await
            .unwrap();
        let name = format!("shard-{damaged:06}.tar");
        let mut bytes = expected[&name].clone();
        bytes[600] ^= 1;
        put(&*stopped, &name, &bytes).await;
        let report = run(&from, &stopped, &spec).await.unwrap();
        assert_eq!(report.shards_kept, report.shards - 2);
        assert!(written(&*stopped).await == expected);
    }
}

/// A pack that ends at its fourth write: of one thread, that is after the plan, the first shard and its note.
pub(super) async fn end_early(from: &Arc<dyn Store>, to: &Arc<dyn Store>, spec: &PackSpec) {
    let spec = &PackSpec {
        threads: 1,
        ..spec.clone()
    };
    let plan = FaultPlan::new(Seed(0)).with(Op::Put, When::Nth(4), Fault::Fail(ErrorKind::OutOfSpace));
    let faulty: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(to), plan));
    run(from, &faulty, spec).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_input_or_other_options_are_refused() {
    let from = memory_store();
    folder(&*from, 20).await;
    let spec = small(PackFormat::Wds);
    let to = memory_store();
    end_early(&from, &to, &spec).await;
    let before = contents(&*to).await;
    let others = [
        (
            "shard_size",
            PackSpec {
                shard_bytes: 40_000,
                ..spec.clone()
            },
        ),
        (
            "shuffle",
            PackSpec {
                shuffle: Some(1),
                ..spec.clone()
            },
        ),
        (
            "filter",
            PackSpec {
                filter: Some("cls = 1".to_owned()),
                ..spec.clone()
            },
        ),
        (
            "to",
            PackSpec {
                to: PackFormat::TfRecord,
                ..spec.clone()
            },
        ),
    ];
    for (name, other) in others {
        let error = run(&from, &to, &other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(
            error.message().contains(name) && error.hint().unwrap().contains("--overwrite"),
            "{error}"
        );
    }
    put(&*from, "d0/s0000.txt", b"other").await;
    let error = run(&from, &to, &spec).await.unwrap_err();
    assert!(error.message().contains("another input"), "{error}");
    assert!(contents(&*to).await == before, "nothing was touched");
    let spec = PackSpec {
        overwrite: true,
        ..spec
    };
    run(&from, &to, &spec).await.unwrap();
    assert_eq!(samples(&to).await[0].1["txt"], b"other");
}

/// A command that was wrong from the start is put right without having to say that something is to be replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_failed_before_its_first_shard_is_not_in_the_way() {
    let from = memory_store();
    let samples = [("one", vec![text("txt", "a")]), ("two", vec![text("cls", "1")])];
    shard_of(&*from, "a.tar", Box::new(WdsWriter::default()), &samples).await;
    let (to, spec) = (memory_store(), small(PackFormat::Mds));
    // Every sample of MDS has every field.
    let error = run(&from, &to, &spec).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(contents(&*to).await.is_empty());
    run(&from, &to, &small(PackFormat::Wds)).await.unwrap();
    let names: Vec<String> = written(&*to).await.into_keys().collect();
    assert_eq!(names, ["_SHA256SUMS", "shard-000000.tar"]);
}

/// What others have put there meanwhile, or go on with, is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_taken_back_only_where_nothing_else_is() {
    let from = memory_store();
    folder(&*from, 20).await;
    let (spec, to) = (small(PackFormat::Wds), memory_store());
    let plan = plan_of(&from, &spec, 1).await;
    let mut target = Target::new(Arc::clone(&to), &context(), &spec.progress);
    target.begin(&plan, &Contents::default()).await.unwrap();
    let other = plan_of(&from, &spec, 2).await;
    target.withdraw(&other).await.unwrap();
    assert_eq!(contents(&*to).await.len(), 1, "of another run");
    // Taken up by the other: no longer the first one's.
    target.prepare(&other, false).await.unwrap();
    target.withdraw(&plan).await.unwrap();
    put(&*to, "shard-000000.tar", b"theirs").await;
    target.withdraw(&other).await.unwrap();
    assert_eq!(contents(&*to).await.len(), 2, "beside what nobody knows");
    to.delete(&key("shard-000000.tar")).await.unwrap();
    target.withdraw(&other).await.unwrap();
    assert!(contents(&*to).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_without_its_note_is_replaced_too() {
    let from = memory_store();
    folder(&*from, 20).await;
    let (to, spec) = (memory_store(), small(PackFormat::Wds));
    end_early(&from, &to, &spec).await;
    let mut shards = 0;
    for (name, _) in contents(&*to).await {
        shards += u32::from(name.starts_with("shard-"));
        if name.starts_with(".forebay-pack-0") {
            to.delete(&Key::parse(&name).unwrap()).await.unwrap();
        }
    }
    assert!(shards > 0);
    put(&*from, "d0/s0000.txt", b"other").await;
    let spec = PackSpec {
        overwrite: true,
        ..spec
    };
    run(&from, &to, &spec).await.unwrap();
    assert_eq!(samples(&to).await[0].1["txt"], b"other");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_replaced_only_when_asked() {
    let from = memory_store();
    folder(&*from, 40).await;
    let to = memory_store();
    let spec = small(PackFormat::Mds);
    let spec = PackSpec {
        fields: Some(vec!["dat".to_owned()]),
        ..spec
    };
    run(&from, &to, &spec).await.unwrap();
    let error = run(&from, &to, &spec).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let other = PackSpec {
        overwrite: true,
        ..small(PackFormat::Wds)
    };
    run(&from, &to, &other).await.unwrap();
    let names: Vec<String> = written(&*to).await.into_keys().collect();
    assert!(
        names
            .iter()
            .all(|name| name.starts_with("shard-") && name.contains(".tar") || name == "_SHA256SUMS"),
        "{names:?}"
    );
    assert_eq!(samples(&to).await.len(), 40);
    // What somebody else put there could be taken for a shard.
    put(&*to, "theirs.tar", b"x").await;
    let error = run(&from, &to, &other).await.unwrap_err();
    assert!(error.message().contains("theirs.tar"), "{error}");
    let foreign = memory_store();
    put(&*foreign, "notes.txt", b"x").await;
    let error = run(&from, &foreign, &spec).await.unwrap_err();
    assert!(error.message().contains("notes.txt"), "{error}");
    run(
        &from,
        &foreign,
        &PackSpec {
            overwrite: true,
            ..spec
        },
    )
    .await
    .unwrap();
    assert!(contents(&*foreign).await.contains_key("notes.txt"));
}

/// A run that ended between the manifest and its last word.
#[tokio::test(flavor = "multi_thread")]
async fn a_finished_target_is_finished() {
    let from = memory_store();
    folder(&*from, 20).await;
    let spec = small(PackFormat::Wds);
    let to = memory_store();
    let plan = FaultPlan::new(Seed(0)).with(Op::Delete, When::First(1), Fault::Fail(ErrorKind::Unavailable));
    run(
        &from,
        &(Arc::new(Faulty::new(Arc::clone(&to), plan)) as Arc<dyn Store>),
        &spec,
    )
    .await
    .unwrap_err();
    assert!(contents(&*to).await.contains_key(MANIFEST_NAME));
    let report = run(&from, &to, &spec).await.unwrap();
    assert_eq!(report.samples, 20);
    written(&*to).await;
}

/// Keeps what it is told.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<String>>);

impl Progress for Heard {
    fn noted(&self, note: &str) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(note.to_owned());
    }
}

/// Nobody is kept from packing by it, but whoever pays for what was left knows.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_cannot_be_looked_for_are_told() {
    let from = memory_store();
    folder(&*from, 20).await;
    let (to, spec) = (memory_store(), small(PackFormat::Wds));
    end_early(&from, &to, &spec).await;
    // The target is listed, and then its uploads.
    let denied = Fault::Fail(ErrorKind::PermissionDenied);
    let plan = FaultPlan::new(Seed(0)).with(Op::List, When::Nth(2), denied);
    let denying: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&to), plan));
    let heard = Arc::new(Heard::default());
    let spec = PackSpec {
        progress: Arc::clone(&heard) as Arc<dyn Progress>,
        ..spec
    };
    run(&from, &denying, &spec).await.unwrap();
    let told = heard.0.lock().unwrap().clone();
    let [told] = &told[..] else { panic!("{told:?}") };
    for word in ["cannot be looked for", "paid for"] {
        assert!(told.contains(word), "no {word:?} in {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_packed_to_its_end_is_no_data_set() {
    let from = memory_store();
    folder(&*from, 20).await;
    let (to, spec) = (memory_store(), small(PackFormat::Wds));
    end_early(&from, &to, &spec).await;
    let open = async |options: OpenOptions| Dataset::open(Arc::clone(&to), &context(), &options).await;
    let saving = OpenOptions {
        save: Save::IfAbsent,
        ..OpenOptions::default()
    };
    for options in [OpenOptions::default(), saving] {
        let error = open(options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(error.hint().unwrap().contains("run the same forebay pack again"));
    }
    // Whoever names shards knows what is there.
    let named = OpenOptions {
        shards: Some(vec![key("shard-000000.tar")]),
        ..OpenOptions::default()
    };
    assert!(open(named).await.unwrap().samples() < 20);
    run(&from, &to, &spec).await.unwrap();
    assert_eq!(open(OpenOptions::default()).await.unwrap().samples(), 20);
}
