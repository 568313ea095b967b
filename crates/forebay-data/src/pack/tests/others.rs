//! A target that somebody else uses as well: nothing is mixed, and what packing did not write stays.

use forebay_core::ErrorKind;
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};

use super::*;
use crate::dataset::Save;
use crate::manifest::{MANIFEST_NAME, SUMS_NAME};

fn over(spec: &PackSpec) -> PackSpec {
    PackSpec {
        overwrite: true,
        ..spec.clone()
    }
}

/// Both see an empty target before either begins.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_plans_for_one_target_one_is_refused() {
    let from = memory_store();
    folder(&*from, 30).await;
    let spec = small(PackFormat::Wds);
    let (one, two) = (plan_of(&from, &spec, 1).await, {
        let other = PackSpec {
            shuffle: Some(7),
            ..spec.clone()
        };
        plan_of(&from, &other, 1).await
    });
    let to = memory_store();
    let target = Target::new(Arc::clone(&to), &context(), &spec.progress);
    let seen = target.contents().await.unwrap();
    target.begin(&one, &seen).await.unwrap();
    let error = target.begin(&two, &seen).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(error.message().contains("shuffle"), "{error}");
    // The same plan goes on with what is there.
    target.begin(&one, &seen).await.unwrap();
    run(&from, &to, &spec).await.unwrap();
    // And whoever comes when all is done does not begin at all.
    let before = contents(&*to).await;
    let error = target.begin(&two, &seen).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(contents(&*to).await == before);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_at_once_do_not_mix() {
    let from = memory_store();
    folder(&*from, 30).await;
    let spec = small(PackFormat::Wds);
    let other = PackSpec {
        shuffle: Some(7),
        ..spec.clone()
    };
    let to = memory_store();
    let (one, two) = tokio::join!(run(&from, &to, &spec), run(&from, &to, &other));
    let (won, lost) = match (one, two) {
        (Ok(_), Err(error)) => (spec, error),
        (Err(error), Ok(_)) => (other, error),
        both => panic!("{both:?}"),
    };
    assert!(
        matches!(lost.kind(), ErrorKind::Precondition | ErrorKind::AlreadyExists),
        "{lost}"
    );
    let alone = memory_store();
    run(&from, &alone, &won).await.unwrap();
    assert!(written(&*to).await == written(&*alone).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_sets_that_were_not_packed_are_not_overwritten() {
    let (from, theirs) = (memory_store(), memory_store());
    folder(&*from, 20).await;
    let spec = small(PackFormat::Wds);
    run(&from, &theirs, &spec).await.unwrap();
    // The same shards with a manifest that an index made.
    theirs.delete(&key(MANIFEST_NAME)).await.unwrap();
    let options = OpenOptions {
        save: Save::IfAbsent,
        ..OpenOptions::default()
    };
    Dataset::open(Arc::clone(&theirs), &context(), &options)
        .await
        .unwrap();
    let before = contents(&*theirs).await;
    let error = run(&from, &theirs, &over(&spec)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(error.message().contains("not packed"), "{error}");
    assert!(contents(&*theirs).await == before, "nothing was touched");
    // Nor is it taken for the end of a run that did not come to it.
    let plan = serde_json::to_vec(&plan_of(&from, &spec, 1).await).unwrap();
    put(&*theirs, ".forebay-pack-plan.json", &plan).await;
    let error = run(&from, &theirs, &spec).await.unwrap_err();
    assert!(error.message().contains("not packed"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn side_files_of_others_stay() {
    let from = memory_store();
    folder(&*from, 20).await;
    let to = memory_store();
    let spec = small(PackFormat::Wds);
    run(&from, &to, &spec).await.unwrap();
    put(&*to, SUMS_NAME, b"theirs").await;
    put(&*to, "index.json", b"{}").await;
    let report = run(&from, &to, &over(&spec)).await.unwrap();
    assert_eq!(report.sums, "theirs");
    let found = contents(&*to).await;
    assert_eq!(
        (&found[SUMS_NAME][..], &found["index.json"][..]),
        (&b"theirs"[..], &b"{}"[..])
    );
    // Where a list of shards must be written, there is no place for theirs.
    let mds = PackSpec {
        fields: Some(vec!["dat".to_owned()]),
        ..small(PackFormat::Mds)
    };
    let error = run(&from, &to, &over(&mds)).await.unwrap_err();
    assert!(error.message().contains("index.json"), "{error}");
    assert_eq!(contents(&*to).await["index.json"], b"{}");
}

/// The list of shards is there before the manifest is.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_left_that_ended_early_is_removed() {
    let from = memory_store();
    folder(&*from, 20).await;
    let mds = PackSpec {
        fields: Some(vec!["dat".to_owned()]),
        ..small(PackFormat::Mds)
    };
    let whole = memory_store();
    let shards = run(&from, &whole, &mds).await.unwrap().shards;
    let to = memory_store();
    let plan = FaultPlan::new(Seed(0)).with(
        Op::Put,
        When::Nth(3 + 2 * shards),
        Fault::Fail(ErrorKind::OutOfSpace),
    );
    let faulty = Arc::new(Faulty::new(Arc::clone(&to), plan)) as Arc<dyn Store>;
    run(&from, &faulty, &mds).await.unwrap_err();
    assert!(contents(&*to).await.contains_key("index.json"));
    let report = run(&from, &to, &over(&small(PackFormat::Wds))).await.unwrap();
    assert_eq!(report.sums, "written");
    let names: Vec<String> = written(&*to).await.into_keys().collect();
    assert!(
        names
            .iter()
            .all(|name| name.starts_with("shard-") || name == SUMS_NAME),
        "{names:?}"
    );
}

/// Notes that nobody has a plan for could be of other samples.
#[tokio::test(flavor = "multi_thread")]
async fn notes_without_a_plan_are_forgotten() {
    let from = memory_store();
    folder(&*from, 20).await;
    let (spec, to, alone) = (small(PackFormat::Wds), memory_store(), memory_store());
    run(&from, &alone, &spec).await.unwrap();
    let note = r#"{"number":0,"key":"shard-000000.tar","size":1,"sha256":"","samples":1,"start":0,"end":1}"#;
    put(&*to, ".forebay-pack-00000000.json", note.as_bytes()).await;
    let report = run(&from, &to, &spec).await.unwrap();
    assert_eq!(report.shards_kept, 0);
    assert!(written(&*to).await == written(&*alone).await);
}

/// Give an object another name.
async fn rename(store: &dyn Store, from: &str, to: &str) {
    let bytes = contents(store).await.remove(from).unwrap();
    put(store, to, &bytes).await;
    store.delete(&key(from)).await.unwrap();
}

/// What an earlier version packed has its index under another name, and its own shards are not taken for somebody else's.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_whose_index_has_its_former_name_is_replaced_once_that_is_renamed() {
    let from = memory_store();
    folder(&*from, 30).await;
    let (to, spec) = (memory_store(), small(PackFormat::Wds));
    run(&from, &to, &spec).await.unwrap();
    rename(&*to, MANIFEST_NAME, "forebay.fbi").await;
    rename(&*to, SUMS_NAME, "SHA256SUMS").await;
    let before = contents(&*to).await;
    for spec in [spec.clone(), over(&spec)] {
        let error = run(&from, &to, &spec).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        let told = format!("{error} {}", error.hint().unwrap_or_default());
        for word in ["'forebay.fbi'", "former name", "renamed to '_forebay.fbi'"] {
            assert!(told.contains(word), "no {word:?} in {told}");
        }
    }
    assert!(contents(&*to).await == before, "nothing was touched");
    rename(&*to, "forebay.fbi", MANIFEST_NAME).await;
    run(&from, &to, &over(&spec)).await.unwrap();
    assert_eq!(samples(&to).await.len(), 30);
}
