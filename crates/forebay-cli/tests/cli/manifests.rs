//! An index that is not beside its shards: where it is used, made, and missed.

use std::os::unix::fs::PermissionsExt;

use super::sandbox::Sandbox;
use super::streaming::{flip_bit, keys, read, shard, with_data};

fn mode(sandbox: &Sandbox, name: &str, mode: u32) {
    std::fs::set_permissions(sandbox.path(name), PermissionsExt::from_mode(mode)).unwrap();
}

/// A data set in a directory that may only be read, and its index elsewhere.
fn read_only() -> Sandbox {
    let sandbox = with_data().without_privileges();
    mode(&sandbox, "data", 0o555);
    sandbox.run(["index", "-q", "data", "-o", "m/x.fbi"]).exits(0);
    sandbox
}

#[test]
fn a_data_set_that_may_only_be_read_is_streamed_by_its_index_elsewhere() {
    let sandbox = read_only();
    let before = sandbox.names("data");
    let args = ["stream", "data", "--json", "--keys", "--batch-size", "8"];
    let ran = sandbox
        .run(args.iter().chain(&["--manifest", "m/x.fbi"]))
        .exits(0);
    assert!(!ran.err.contains("no index"), "{}", ran.err);
    let (streamed, report) = read(&ran);
    assert!(streamed.iter().eq(&keys()));
    assert!(
        report["unverified"].is_null(),
        "the index is older than the run: {report}"
    );
    let opening = report["opening"]["paths"].as_object().unwrap().values();
    let bytes: u64 = opening.map(|path| path["bytes"].as_u64().unwrap()).sum();
    assert!(bytes < shard(0, 40).len() as u64, "no shard was read: {report}");
    assert_eq!(sandbox.names("data"), before);
    // Who saves beside the shards is told where else it can be.
    sandbox.run(["stream", "data", "--save-index"]).exits(2).says(&[
        "permission denied",
        "or keep it elsewhere: forebay index -o URL",
        "--manifest URL",
    ]);
    mode(&sandbox, "data", 0o755);
}

#[test]
fn indexes_of_several_data_sets_in_one_folder_have_their_own_hashes() {
    let sandbox = with_data();
    std::fs::create_dir(sandbox.path("more")).unwrap();
    std::fs::write(sandbox.path("more/x-000.tar"), shard(90, 80)).unwrap();
    for (data, manifest) in [("data", "ours/web.fbi"), ("more", "ours/code.fbi")] {
        let json = sandbox.run(["index", "--json", data, "-o", manifest]).exits(0);
        assert_eq!(json.json()["sums"], "written");
    }
    assert_eq!(
        sandbox.names("ours"),
        ["code.fbi", "code.sha256", "web.fbi", "web.sha256"]
    );
    std::fs::write(sandbox.path("ours/code.sha256"), "theirs\n").unwrap();
    sandbox
        .run(["index", "--force", "more", "-o", "ours/code.fbi"])
        .exits(0)
        .says(&["code.sha256: left as it was"]);
}

#[test]
fn an_index_elsewhere_is_shown_and_packed_by() {
    let sandbox = read_only();
    for number in 0..5 {
        mode(&sandbox, &format!("data/train-{number:03}.tar"), 0o000);
    }
    let inspect = ["inspect", "--json", "--manifest", "m/x.fbi", "--samples", "3"];
    let rows = sandbox.run(inspect.iter().chain(&["data"])).exits(0).json_lines();
    assert_eq!(
        (&rows[0]["shards"], &rows[0]["samples"]),
        (&5.into(), &200.into())
    );
    let shown = sandbox.run(inspect.iter().chain(&["data/train-{001..002}.tar"]));
    let rows = shown.exits(0).json_lines();
    assert_eq!((&rows[0]["shards"], &rows[0]["samples"]), (&2.into(), &80.into()));
    for number in 0..5 {
        mode(&sandbox, &format!("data/train-{number:03}.tar"), 0o644);
    }
    mode(&sandbox, "data", 0o755);
    // What is packed is compared with the index, not with what a pass over the shards finds now.
    sandbox
        .run([
            "pack",
            "-q",
            "data",
            "whole",
            "--to",
            "mds",
            "--manifest",
            "m/x.fbi",
        ])
        .exits(0);
    flip_bit(&sandbox, "data/train-003.tar", "03-00021");
    sandbox
        .run(["pack", "data", "out", "--to", "mds", "--manifest", "m/x.fbi"])
        .exits(2)
        .says(&["train-003.tar", "03-00021"]);
}

#[test]
fn an_index_that_is_named_and_missing_is_an_error_or_made_there() {
    let sandbox = with_data();
    for command in [
        &["stream", "data"][..],
        &["inspect", "data"],
        &["verify", "data"],
        &["pack", "--to", "mds", "data", "out"],
    ] {
        sandbox
            .run(command.iter().chain(&["--manifest", "m/x.fbi"]))
            .exits(2)
            .says(&["m/x.fbi", "not found", "forebay index -o"]);
    }
    assert!(!sandbox.path("m").exists() && !sandbox.path("out").exists());
    let stream = ["stream", "data", "--manifest", "m/x.fbi"];
    sandbox
        .run(stream.iter().chain(&["--save-index"]))
        .exits(0)
        .says(&["no index here: reading 5 shards"]);
    assert!(sandbox.path("m/x.fbi").exists() && !sandbox.path("data/_forebay.fbi").exists());
    let again = sandbox.run(stream).exits(0);
    assert!(!again.err.contains("no index"), "{}", again.err);
    let saving = sandbox.run(stream.iter().chain(&["--save-index"])).exits(0);
    assert!(!saving.err.contains("no index"), "{}", saving.err);
}

#[test]
fn data_sets_that_are_mixed_have_an_index_each() {
    let sandbox = with_data();
    std::fs::create_dir(sandbox.path("more")).unwrap();
    std::fs::write(sandbox.path("more/x-000.tar"), shard(90, 80)).unwrap();
    sandbox.run(["index", "-q", "data", "-o", "m/data.fbi"]).exits(0);
    sandbox.run(["index", "-q", "more", "-o", "m/more.fbi"]).exits(0);
    let mixed = ["stream", "data", "more", "--shuffle", "--lanes", "8"];
    let with = |manifests: &[&'static str]| {
        let manifests = manifests.iter().flat_map(|manifest| ["--manifest", manifest]);
        sandbox.run(mixed.iter().copied().chain(manifests))
    };
    let ran = with(&["m/data.fbi", "m/more.fbi"]).exits(0);
    assert!(!ran.err.contains("no index"), "{}", ran.err);
    with(&["m/more.fbi", "m/data.fbi"]).exits(1);
    with(&["m/data.fbi"])
        .exits(2)
        .says(&["1 manifest named for 2 data sets", "hint: name one for each"]);
    // A list of shards is one data set, and has one.
    let list = ["stream", "data/train-000.tar", "data/train-003.tar", "--json"];
    let ran = sandbox
        .run(list.iter().chain(&["--manifest", "m/data.fbi"]))
        .exits(0);
    assert!(!ran.err.contains("no index"), "{}", ran.err);
    assert_eq!(ran.json()["samples"], 80);
    sandbox
        .run(
            list.iter()
                .chain(&["--manifest", "m/data.fbi", "--manifest", "m/data.fbi"]),
        )
        .exits(2)
        .says(&["2 manifests named for 1 data set"]);
}
