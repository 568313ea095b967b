//! What `stream` makes of what users write, and what it tells them.

use std::collections::BTreeSet;

use forebay_data::format::wds::WdsWriter;
use forebay_data::format::{SampleRef, ShardWriter};
use forebay_data::{Field, Kind};

use super::sandbox::Sandbox;
use super::streaming::{keys, read, shard, with_data};

#[test]
fn a_list_of_shards_is_one_data_set() {
    let sandbox = with_data();
    let names: Vec<String> = (0..5)
        .map(|number| format!("data/train-{number:03}.tar"))
        .collect();
    let options = ["stream", "--json", "--keys", "--batch-size", "8", "--lanes", "8"].map(str::to_owned);
    for more in [&[][..], &["--shuffle".to_owned()]] {
        let (streamed, report) = read(&sandbox.run([&options[..], more, &names].concat()).exits(0));
        assert_eq!(streamed.len(), keys().len(), "every sample once");
        assert_eq!(streamed.into_iter().collect::<BTreeSet<_>>(), keys());
        assert_eq!(
            (&report["shards"], report["sources"].is_null()),
            (&5.into(), true)
        );
    }
    std::fs::create_dir(sandbox.path("more")).unwrap();
    std::fs::write(sandbox.path("more/x-000.tar"), shard(90, 80)).unwrap();
    sandbox
        .run(["stream", "--shuffle", "data/train-000.tar", "more/x-000.tar"])
        .exits(2)
        .says(&[
            "single shards lie in several directories",
            "hint: name the directory",
        ]);
    sandbox.run(["stream", "data/*.tar"]).exits(2).says(&[
        "not found",
        "hint: '*' and '?' are not expanded",
        "{000000..000123}.tar",
    ]);
}

#[test]
fn bytes_are_verified_where_their_checksum_is_older_than_the_run() {
    let sandbox = with_data();
    let verified = |url: &str| {
        let report = sandbox.run(["stream", url, "--json"]).exits(0).json();
        let bytes = report["ledger"]["verified_bytes"].as_u64().unwrap();
        (bytes, report["unverified"].as_str().map(str::to_owned))
    };
    let (bytes, why) = verified("data");
    assert_eq!(
        bytes, 0,
        "checksums that were made of the same bytes a moment ago"
    );
    assert!(why.unwrap().contains("forebay index"));
    let made = sandbox.run(["stream", "data", "--save-index"]).exits(0);
    assert!(made.out.contains("made by this run"), "{}", made.out);
    let (bytes, why) = verified("data");
    assert!(bytes > 0 && why.is_none(), "{why:?}");
    // Formats with checksums of their own.
    for (options, name) in [
        (&["--to", "tfrecord"][..], "tfrecord"),
        (&["--to", "wds", "--compression", "gz"], "gz"),
    ] {
        sandbox.run([&["pack", "data", name], options].concat()).exits(0);
        std::fs::remove_file(sandbox.path(name).join("_forebay.fbi")).unwrap();
        let (bytes, why) = verified(name);
        assert!(bytes > 0 && why.is_none(), "{name}: {why:?}");
    }
}

#[test]
fn keys_survive_packing() {
    let sandbox = with_data();
    for (options, name) in [
        (&["--to", "mds"][..], "mds"),
        (&["--to", "mds", "--compression", "zstd"], "zstd"),
        (&["--to", "parquet"], "parquet"),
        (&["--to", "tfrecord"], "tfrecord"),
    ] {
        sandbox.run([&["pack", "data", name], options].concat()).exits(0);
        for more in [&[][..], &["--fields", "cls,__key__"]] {
            let ran = sandbox
                .run([&["stream", name, "--keys"][..], more].concat())
                .exits(0);
            let streamed: Vec<&str> = ran.out.lines().collect();
            assert!(
                streamed.iter().copied().eq(keys().iter().map(String::as_str)),
                "{name}: {streamed:?}"
            );
        }
        // A filter means the same by it, and a position does not depend on it.
        let args = ["stream", name, "--keys", "--json", "--batch-size", "1"];
        let one = sandbox.run([&args[..], &["--filter", "__key__ = '03-00007'"]].concat());
        assert_eq!(read(&one.exits(0)).0, ["03-00007"]);
    }
}

#[test]
fn keys_are_keys_in_a_mixture_whatever_holds_them() {
    let sandbox = with_data();
    for to in ["mds", "tfrecord", "parquet"] {
        sandbox
            .run(["pack", "-q", "data", to, "--to", to, "--fields", "bin"])
            .exits(0);
    }
    // Text in MDS and Parquet, bytes in TFRecord.
    for mixed in [["mds", "tfrecord"], ["tfrecord", "mds"], ["tfrecord", "parquet"]] {
        let args = [
            "--shuffle",
            "--lanes",
            "8",
            "--batch-size",
            "8",
            "--keys",
            "--json",
        ];
        for more in [&[][..], &["--fields", "__key__,bin"]] {
            let ran = sandbox
                .run([&["stream"][..], &mixed, &args, more].concat())
                .exits(0);
            let (streamed, _) = read(&ran);
            assert_eq!(streamed.len(), 2 * keys().len(), "{mixed:?}");
            assert!(streamed.iter().all(|key| keys().contains(key)), "{mixed:?}");
        }
    }
}

#[test]
fn reading_everything_to_make_an_index_is_said_first() {
    let sandbox = with_data();
    let url = sandbox.path("data").to_string_lossy().into_owned();
    sandbox.run(["stream", "data"]).exits(0).says(&[
        "no index here: reading 5 shards, 550.0 KiB, to make one in memory; `forebay index ",
        "makes the next start instant",
    ]);
    sandbox
        .run(["stream", &url, "--world", "4", "--shuffle"])
        .exits(0)
        .says(&["each of 4 ranks does so, 2.1 MiB together"]);
    // Before, not after: a pass that fails has said it too.
    let whole = sandbox.read("data/train-002.tar");
    std::fs::write(sandbox.path("data/train-002.tar"), &whole[..20_000]).unwrap();
    sandbox
        .run(["stream", "data"])
        .exits(2)
        .says(&["no index here: reading 5 shards"]);
    std::fs::write(sandbox.path("data/train-002.tar"), &whole).unwrap();
    let saved = sandbox.run(["stream", "data", "--save-index"]).exits(0);
    let saved = saved.says(&["to make one"]);
    assert!(
        !saved.err.contains("in memory") && !saved.err.contains("forebay index"),
        "{}",
        saved.err
    );
    let indexed = sandbox.run(["stream", "data"]).exits(0);
    assert!(!indexed.err.contains("no index"), "{}", indexed.err);
}

/// A shard of samples that are large enough for 64 ranks to read more than a trifle of them.
fn large(number: usize) -> Vec<u8> {
    let mut writer = Box::new(WdsWriter::default());
    let (bin, cls) = (Field::new("bin", Kind::Bytes), Field::new("cls", Kind::Decimal));
    let data = vec![0; 140_000];
    for index in 0..64 {
        let (key, class) = (format!("{number}-{index:02}"), index.to_string());
        let fields = [(&bin, &data[..]), (&cls, class.as_bytes())];
        let sample = SampleRef {
            key: &key,
            fields: &fields,
        };
        writer.add(sample).unwrap();
    }
    writer.finish().unwrap().to_vec()
}

#[test]
fn a_filter_that_reads_much_says_so_once() {
    let sandbox = Sandbox::new();
    for (number, name) in ["one", "two"].iter().enumerate() {
        std::fs::create_dir(sandbox.path(name)).unwrap();
        std::fs::write(sandbox.path(format!("{name}/0.tar")), large(number)).unwrap();
        sandbox.run(["index", "-q", name]).exits(0);
    }
    let run = |args: &str| {
        let mixed = "stream one two --shuffle --world 64 --batch-size 1 --batches 1";
        sandbox.run(mixed.split(' ').chain(["--filter", args])).exits(0)
    };
    let ran = run("cls >= 0").says(&[
        "the filter reads about 17.3 MiB at every start",
        "each of 64 ranks does so, 1.1 GiB together",
        "`forebay pack --filter` makes a data set of them",
    ]);
    assert_eq!(ran.err.matches("the filter reads").count(), 1, "{}", ran.err);
    // Keys are in the index.
    let ran = run("__key__ >= '0'");
    assert!(!ran.err.contains("the filter reads"), "{}", ran.err);
    let alone = sandbox.run(["stream", "one", "--filter", "cls >= 0"]).exits(0);
    assert!(!alone.err.contains("the filter reads"), "{}", alone.err);
}

#[test]
fn members_of_json_that_no_sample_has_are_told() {
    let sandbox = Sandbox::new();
    let mut writer = Box::new(WdsWriter::default());
    let json = Field::new("json", Kind::Json);
    for index in 0..8 {
        let (key, text) = (index.to_string(), format!(r#"{{"width": {index}}}"#));
        let fields = [(&json, text.as_bytes())];
        let sample = SampleRef {
            key: &key,
            fields: &fields,
        };
        writer.add(sample).unwrap();
    }
    std::fs::write(sandbox.path("a.tar"), writer.finish().unwrap()).unwrap();
    sandbox
        .run([
            "stream",
            "a.tar",
            "--filter",
            "json.width < 4 or json.breadth > 3",
        ])
        .exits(0)
        .says(&["no sample that was looked at has 'json.breadth'"]);
}

#[test]
fn a_position_behind_the_last_epoch_is_refused() {
    let sandbox = with_data();
    let args = |more: &[&'static str]| [&["stream", "data", "--batch-size", "40"][..], more].concat();
    sandbox
        .run(args(&["--epochs", "2", "--batches", "7", "--state-out", "state"]))
        .exits(0);
    sandbox.run(args(&["--resume", "state"])).exits(2).says(&[
        "the saved position is in epoch 2, and the run ends after epoch 1",
        "hint: epochs counts from the beginning of the run",
    ]);
    sandbox
        .run(args(&["--epochs", "2", "--resume", "state"]))
        .exits(0);
    sandbox
        .run(args(&[
            "--resume",
            "state",
            "--epochs",
            "2",
            "--drop-last",
            "--limit",
            "100",
        ]))
        .exits(1)
        .says(&[
            "last was short and is drop, limit was none and is 100",
            "last is 'drop' in Python",
        ]);
    // At the end of it, the answer is no.
    sandbox.run(args(&["--state-out", "end"])).exits(0);
    sandbox
        .run(args(&["--resume", "end"]))
        .exits(1)
        .says(&["nothing was left", "--epochs 2 gives one more"]);
    let mixed = [
        "--shuffle",
        "--lanes",
        "8",
        "--weights",
        "1",
        "--state-out",
        "mixed",
    ];
    sandbox
        .run(args(&[&mixed[..], &["--epochs", "2", "--batches", "7"]].concat()))
        .exits(0);
    sandbox
        .run(args(&[
            "--shuffle",
            "--lanes",
            "8",
            "--weights",
            "1",
            "--resume",
            "mixed",
        ]))
        .exits(2)
        .says(&["is in epoch 2, and the run ends after epoch 1"]);
}

#[test]
fn a_cache_is_put_before_file_systems_or_said_to_be_left_aside() {
    let sandbox = with_data();
    super::streaming::index(&sandbox);
    let args = ["stream", "data", "-v", "--cache", "blocks:1GiB", "--epochs", "2"];
    let ran = sandbox.run(args).exits(0).says(&["cache: "]);
    assert!(
        !ran.err.contains("cache: 0 blocks from the disk, 0 fetched"),
        "{}",
        ran.err
    );
    assert!(!sandbox.names("blocks").is_empty());
    sandbox
        .run(["cat", "--cache", "blocks:1GiB", "data/train-000.tar"])
        .exits(0)
        .says(&["--cache is left aside"]);
    // One of the environment is for what is far.
    let sandbox = sandbox.var("FOREBAY_CACHE", "elsewhere:1GiB");
    sandbox.run(["stream", "data"]).exits(0);
    assert!(!sandbox.path("elsewhere").exists());
}

#[test]
fn samples_that_are_not_damaged_are_not_said_to_be() {
    let sandbox = with_data();
    sandbox
        .run(["stream", "data", "--decode", "bin=int", "--batch-size", "8"])
        .exits(2)
        .says(&[
            "field 'bin'",
            "is no such number",
            "as it was written",
            "--bad skip:N",
        ]);
    super::streaming::damage(&sandbox, "data/train-003.tar", "03-00021");
    sandbox
        .run(["stream", "data", "--batch-size", "8"])
        .exits(2)
        .says(&["forebay verify names every damage", "--bad skip:N"]);
    sandbox
        .run(["stream", "data", "--decode", "bin=txt"])
        .exits(2)
        .says(&[
            "int, float, array:DTYPE:SHAPE",
            "in Python also json, text, bytes",
        ]);
}

#[test]
fn shards_that_are_not_there_or_cut_off_are_told_apart() {
    let sandbox = with_data();
    super::streaming::index(&sandbox);
    sandbox
        .run(["stream", "data/train-{000..009}.tar"])
        .exits(2)
        .says(&[
            "not found",
            "shard \"train-005.tar\" does not exist, and the manifest does not know 4 more",
            "hint: the data set has 5 shards, from \"train-000.tar\" to \"train-004.tar\"",
        ]);
    std::fs::write(sandbox.path("data/train-005.tar"), shard(5, 3)).unwrap();
    sandbox.run(["stream", "data/train-005.tar"]).exits(1).says(&[
        "is not in the manifest",
        "forebay index --force [DIR]/here/data takes",
    ]);
    std::fs::remove_file(sandbox.path("data/train-005.tar")).unwrap();
    let whole = sandbox.read("data/train-002.tar");
    std::fs::write(sandbox.path("data/train-002.tar"), &whole[..20_000]).unwrap();
    sandbox
        .run(["stream", "data", "--bad", "skip:100"])
        .exits(1)
        .says(&[
            "has 20000 bytes instead of",
            "hint: a shard that is shorter was cut off",
            "fetch it again",
        ]);
    std::fs::remove_file(sandbox.path("data/train-002.tar")).unwrap();
    sandbox
        .run(["stream", "data", "--bad", "skip:100"])
        .exits(1)
        .says(&["is missing", "hint: bring the shard back"]);
}
