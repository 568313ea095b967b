//! `stream`: every sample once, resumed or not, and damage named.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use forebay_data::format::wds::WdsWriter;
use forebay_data::format::{SampleRef, ShardWriter};
use forebay_data::{Field, Kind};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::sandbox::{Ran, Sandbox};

const SHARDS: usize = 5;
const SAMPLES: usize = 40;

/// A tar of samples whose keys follow from its number.
pub(super) fn shard(number: usize, samples: usize) -> Vec<u8> {
    let mut writer = Box::new(WdsWriter::default());
    let (cls, bin) = (Field::new("cls", Kind::Decimal), Field::new("bin", Kind::Bytes));
    for index in 0..samples {
        let key = format!("{number:02}-{index:05}");
        let class = index.to_string();
        let data = key.repeat(100);
        let fields = [(&bin, data.as_bytes()), (&cls, class.as_bytes())];
        let sample = SampleRef {
            key: &key,
            fields: &fields,
        };
        writer.add(sample).unwrap();
    }
    writer.finish().unwrap().to_vec()
}

pub(super) fn with_data() -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("data")).unwrap();
    for number in 0..SHARDS {
        let name = format!("data/train-{number:03}.tar");
        std::fs::write(sandbox.path(name), shard(number, SAMPLES)).unwrap();
    }
    sandbox
}

pub(super) fn keys() -> BTreeSet<String> {
    let shard = |number| (0..SAMPLES).map(move |index| format!("{number:02}-{index:05}"));
    (0..SHARDS).flat_map(shard).collect()
}

/// Keys of the samples and the report behind them.
pub(super) fn read(ran: &Ran) -> (Vec<String>, Value) {
    let mut rows = ran.json_lines();
    let report = rows.pop().unwrap();
    let key = |row: &Value| row["key"].as_str().unwrap().to_owned();
    (rows.iter().map(key).collect(), report)
}

#[test]
fn all_samples_come_in_the_order_of_the_shards() {
    let sandbox = with_data();
    let ran = sandbox
        .run(["stream", "data", "--batch-size", "32", "--keys"])
        .exits(0);
    let streamed: Vec<&str> = ran.out.lines().collect();
    assert!(streamed.iter().copied().eq(keys().iter().map(String::as_str)));
    let ran = ran.says(&[
        "200 samples in 7 batches",
        "GB",
        "first batch",
        "bad samples  none",
    ]);
    assert!(ran.err.contains("waiting"), "{}", ran.err);
}

#[test]
fn wrapping_gives_every_rank_full_batches_of_all_samples() {
    let sandbox = with_data();
    let args = |more: &[&'static str]| {
        let common = [
            "stream",
            "data",
            "--batch-size",
            "24",
            "--shuffle",
            "--lanes",
            "8",
            "--keys",
        ];
        [&common, more].concat()
    };
    let mut seen = BTreeSet::new();
    for rank in ["0", "1"] {
        let ran = sandbox.run(args(&["--world", "2", "--rank", rank, "--last", "wrap"]));
        let ran = ran.exits(0).says(&["120 samples in 5 batches"]);
        seen.extend(ran.out.lines().map(str::to_owned));
    }
    assert_eq!(seen, keys());
    for (more, told) in [
        (&["--last", "drop"][..], "192 samples in 8 batches"),
        (&["--drop-last"], "192 samples in 8 batches"),
        (&["--last", "short"], "200 samples in 9 batches"),
        (&[], "200 samples in 9 batches"),
    ] {
        sandbox.run(args(more)).exits(0).says(&[told]);
    }
    let both = sandbox.run(args(&["--drop-last", "--last", "wrap"]));
    both.exits(2).says(&["--last <HOW>"]);
}

#[test]
fn the_report_has_what_scripts_need() {
    let sandbox = with_data();
    let ran = sandbox.run(["stream", "data/train-{000..001}.tar", "--json", "--epochs", "2"]);
    let report = ran.exits(0).json();
    assert_eq!(
        (&report["samples"], &report["end"]),
        (&(4 * SAMPLES).into(), &"over".into())
    );
    assert_eq!(
        (&report["shards"], &report["dataset_samples"]),
        (&2.into(), &80.into())
    );
    assert_eq!(
        (&report["format"], &report["bad_samples"]),
        (&"wds".into(), &0.into())
    );
    for name in [
        "bytes_per_s",
        "samples_per_s",
        "cpu_s_per_gb",
        "first_batch_s",
        "memory_peak_bytes",
    ] {
        assert!(report[name].as_f64().unwrap() > 0.0, "{name}: {report}");
    }
    let stalls = &report["stalls"];
    assert!(stalls["waited_share"].is_number() && stalls["wait_p99_s"].is_number());
    assert!(stalls["blame"]["disk_s"].is_number(), "{stalls}");
    assert!(report["ledger"]["paths"].is_object());
    assert_eq!(report["position"]["epoch"], 2, "after the last");
}

#[test]
fn a_mixture_leaves_no_field_out_without_a_word() {
    let sandbox = with_data();
    std::fs::create_dir(sandbox.path("more")).unwrap();
    let mut writer = Box::new(WdsWriter::default());
    let fields = ["bin", "cls", "txt"].map(|name| Field::new(name, Kind::Bytes));
    for key in ["a", "b"] {
        let fields: Vec<(&Field, &[u8])> = fields.iter().map(|field| (field, &b"1"[..])).collect();
        writer.add(SampleRef { key, fields: &fields }).unwrap();
    }
    std::fs::write(sandbox.path("more/a.tar"), writer.finish().unwrap()).unwrap();
    let mixed = [
        "stream",
        "data",
        "more",
        "--shuffle",
        "--lanes",
        "2",
        "--batch-size",
        "2",
        "--batches",
        "1",
    ];
    sandbox
        .run(mixed)
        .exits(2)
        .says(&["a field 'txt'", "in common: bin,cls"]);
    sandbox.run(mixed.iter().chain(&["--fields", "bin,cls"])).exits(0);
}

#[test]
fn a_trace_that_could_not_be_written_is_told() {
    let sandbox = with_data();
    for batches in ["1", "1000"] {
        let args = ["stream", "data", "--batches", batches, "--trace", "/dev/full"];
        sandbox.run(args).exits(2).says(&["/dev/full", "No space left"]);
    }
}

#[test]
fn two_runs_give_every_sample_once() {
    let sandbox = with_data();
    let first = [
        "stream",
        "data",
        "--json",
        "--keys",
        "--shuffle",
        "--seed",
        "7",
        "--lanes",
        "8",
    ];
    let args = |more: &[&'static str]| [&first[..], &["--batch-size", "16"], more].concat();
    let whole = sandbox.run(args(&[])).exits(0);
    let (all, _) = read(&whole);
    assert_eq!(all.iter().cloned().collect::<BTreeSet<_>>(), keys());
    let begun = sandbox.run(args(&["--batches", "5", "--state-out", "state.json"]));
    let (mut streamed, report) = read(&begun.exits(0));
    assert_eq!((&report["end"], streamed.len()), (&"enough".into(), 80));
    let rest = sandbox.run(args(&["--resume", "state.json", "--state-out", "state.json"]));
    streamed.extend(read(&rest.exits(0)).0);
    assert_eq!(streamed, all, "as if it had never stopped");
    // It is over: there is nothing to go on with.
    let over = sandbox.run(args(&["--resume", "state.json"])).exits(1);
    assert_eq!(read(&over).0, [""; 0]);
    let json = report["position"].to_string();
    let rest = sandbox
        .run([args(&[]), vec!["--resume", &json]].concat())
        .exits(0);
    assert_eq!(read(&rest).0, all[80..]);
}

#[test]
fn ranks_share_the_samples() {
    let sandbox = with_data();
    let mut streamed = Vec::new();
    for rank in ["0", "1"] {
        let args = [
            "stream",
            "data",
            "--json",
            "--keys",
            "--shuffle",
            "--batch-size",
            "5",
        ];
        let ran = sandbox.run([&args[..], &["--world", "2", "--rank", rank]].concat());
        streamed.extend(read(&ran.exits(0)).0);
    }
    assert_eq!(streamed.len(), keys().len());
    assert_eq!(streamed.into_iter().collect::<BTreeSet<_>>(), keys());
}

#[test]
fn what_does_not_fit_is_told_with_advice() {
    let sandbox = with_data();
    sandbox
        .run(["stream", "data", "--shuffle", "--lanes", "64", "--world", "3"])
        .exits(2)
        .says(&["64 lanes cannot be shared by 3 ranks", "hint: ", "63 or 66"]);
    sandbox
        .run(["stream", "data", "--fields", "jpg"])
        .exits(2)
        .says(&["no field 'jpg'", "hint: there are: bin, cls"]);
    sandbox
        .run(["stream", "data", "--bad", "ignore"])
        .exits(2)
        .says(&["hint: write stop, skip"]);
    sandbox.run(["stream", "nothing"]).exits(2).says(&["nothing"]);
    sandbox
        .run(["stream", "data", "--resume", "{\"version\":1}"])
        .exits(2)
        .says(&["this is no state of a stream"]);
    std::fs::write(sandbox.path("large"), [b'x'; 5000]).unwrap();
    sandbox
        .run(["stream", "data", "--resume", "large"])
        .exits(2)
        .says(&["[DIR]/here/large", "more than a position has"]);
    let error = sandbox.run(["stream", "data", "--rank", "4", "--json"]).exits(2);
    assert_eq!(error.json_error()["kind"], "invalid_input");
}

#[test]
fn a_position_of_another_order_is_refused() {
    let sandbox = with_data();
    let args = [
        "stream",
        "data",
        "--shuffle",
        "--batch-size",
        "64",
        "--batches",
        "1",
    ];
    sandbox
        .run([&args[..], &["--state-out", "state"]].concat())
        .exits(0);
    sandbox
        .run([&args[..], &["--resume", "state", "--seed", "5"]].concat())
        .exits(1)
        .says(&["seed was 0 and is 5"]);
}

/// Make the index of the data set, and then damage one byte of a sample.
pub(super) fn damage(sandbox: &Sandbox, shard: &str, key: &str) {
    index(sandbox);
    flip_bit(sandbox, shard, key);
}

pub(super) fn flip_bit(sandbox: &Sandbox, shard: &str, key: &str) {
    let mut bytes = sandbox.read(shard);
    let content = key.repeat(100).into_bytes();
    let at = bytes
        .windows(content.len())
        .position(|part| part == content)
        .unwrap();
    bytes[at + 500] ^= 1;
    std::fs::write(sandbox.path(shard), bytes).unwrap();
}

pub(super) fn index(sandbox: &Sandbox) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let context = forebay_store::Context::open(forebay_io::DiskConfig::default()).unwrap();
        let location = forebay_core::Location::from_path(&sandbox.path("data"), &sandbox.work()).unwrap();
        let store = forebay_store::open(&location, &context).await.unwrap();
        let options = forebay_data::dataset::OpenOptions {
            save: forebay_data::dataset::Save::IfAbsent,
            ..Default::default()
        };
        forebay_data::Dataset::open(store, &context, &options)
            .await
            .unwrap();
    });
}

#[test]
fn damage_names_shard_and_sample() {
    let sandbox = with_data();
    damage(&sandbox, "data/train-003.tar", "03-00021");
    let args = ["stream", "data", "--batch-size", "16", "--state-out", "state"];
    sandbox
        .run(args)
        .exits(2)
        .says(&["data/train-003.tar", "sample 21 '03-00021'", "checksum", "hint: "]);
    // Where it stopped, for whoever repairs the shard.
    std::fs::write(sandbox.path("data/train-003.tar"), shard(3, SAMPLES)).unwrap();
    let rest = sandbox
        .run([&args[..], &["--resume", "state", "--keys", "--json"]].concat())
        .exits(0);
    let streamed = read(&rest).0;
    assert_eq!(streamed, keys().into_iter().skip(128).collect::<Vec<_>>());
}

#[test]
fn damaged_samples_can_be_replaced() {
    let sandbox = with_data();
    damage(&sandbox, "data/train-003.tar", "03-00021");
    let ran = sandbox.run(["stream", "data", "--bad", "skip:1", "--json", "--keys"]);
    let (streamed, report) = read(&ran.exits(0));
    assert_eq!((streamed.len(), &report["bad_samples"]), (200, &1.into()));
    assert_eq!(report["bad"][0]["shard"], "train-003.tar");
    assert_eq!(report["bad"][0]["key"], "03-00021");
    assert!(!streamed.contains(&"03-00021".to_owned()));
    sandbox
        .run(["stream", "data", "--bad", "skip:0"])
        .exits(2)
        .says(&["more than the 0 allowed"]);
}

#[test]
fn ctrl_c_tells_what_was_done_and_saves_the_position() {
    let sandbox = with_data();
    let mut child = sandbox
        .command([
            "stream",
            "data",
            "--json",
            "--keys",
            "--epochs",
            "100000000",
            "--batch-size",
            "10",
            "--state-out",
            "state",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(first["key"], "00-00000");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let last = lines.last().unwrap().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let report: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(report["end"], "interrupted");
    let saved: Value = serde_json::from_slice(&sandbox.read("state")).unwrap();
    assert_eq!(report["position"], saved);
    let (epoch, samples) = (
        saved["epoch"].as_u64().unwrap(),
        saved["samples"].as_u64().unwrap(),
    );
    assert_eq!(report["samples"], 200 * epoch + samples);
}

#[test]
fn a_filter_keeps_some_samples_and_belongs_to_the_position() {
    let sandbox = with_data();
    let first = ["stream", "data", "--json", "--keys", "--batch-size", "3"];
    let args = |more: &[&'static str]| [&first[..], more].concat();
    let (kept, report) = read(&sandbox.run(args(&["--filter", "cls = 7 or cls >= 39"])).exits(0));
    let wanted = (0..SHARDS).flat_map(|shard| [7, 39].map(|index| format!("{shard:02}-{index:05}")));
    assert_eq!(kept, wanted.collect::<Vec<_>>());
    assert_eq!(
        (&report["kept_samples"], &report["dataset_samples"]),
        (&10.into(), &200.into())
    );
    let some = ["--filter", "cls = 7", "--limit", "2", "--fields", "cls,bin"];
    let (kept, report) = read(&sandbox.run(args(&some)).exits(0));
    assert_eq!((kept.len(), &report["samples"]), (2, &2.into()));
    let begun = [
        "--filter",
        "cls = 7",
        "--batches",
        "1",
        "--state-out",
        "state.json",
    ];
    sandbox.run(args(&begun)).exits(0);
    let rest = ["--filter", "cls = 7", "--resume", "state.json"];
    let (kept, _) = read(&sandbox.run(args(&rest)).exits(0));
    assert_eq!(kept, ["03-00007", "04-00007"]);
    sandbox
        .run(args(&["--filter", "cls = 8", "--resume", "state.json"]))
        .exits(1)
        .says(&["filter keeps other samples"]);
    sandbox
        .run(args(&["--filter", "cls ="]))
        .exits(2)
        .says(&["filter"]);
}

#[test]
fn several_data_sets_are_mixed_by_weight_and_resumed() {
    let sandbox = with_data();
    std::fs::create_dir(sandbox.path("more")).unwrap();
    std::fs::write(sandbox.path("more/x-000.tar"), shard(90, 80)).unwrap();
    let first = [
        "stream",
        "data",
        "more",
        "--weights",
        "3,1",
        "--shuffle",
        "--lanes",
        "8",
    ];
    let rest = ["--batch-size", "16", "--json", "--keys"];
    let args = |more: &[&'static str]| [&first[..], &rest, more].concat();
    let (all, report) = read(&sandbox.run(args(&[])).exits(0));
    assert_eq!(all.len(), 280 / 16 * 16);
    let share = all.iter().filter(|key| key.starts_with("90-")).count();
    assert_eq!(share * 4, all.len());
    assert_eq!(report["sources"][1]["weight"], 0.25);
    assert_eq!(
        (&report["shards"], &report["dataset_samples"]),
        (&6.into(), &280.into())
    );
    let (begun, _) = read(
        &sandbox
            .run(args(&["--batches", "7", "--state-out", "state.json"]))
            .exits(0),
    );
    let (rest, _) = read(&sandbox.run(args(&["--resume", "state.json"])).exits(0));
    assert_eq!([begun, rest].concat(), all);
    let by_size = sandbox.run(["stream", "data", "more", "--shuffle", "--lanes", "8"]);
    let table = by_size.exits(0).out;
    assert!(
        table.contains("71.43% from data") && table.contains("28.57% from more"),
        "{table}"
    );
    sandbox
        .run(["stream", "data", "more"])
        .exits(2)
        .says(&["data set 0 is not shuffled"]);
    sandbox
        .run(["stream", "data", "more", "--weights", "1", "--shuffle"])
        .exits(2)
        .says(&["1 weights for 2 data sets"]);
}

#[test]
fn kill_leaves_nothing_behind_and_the_next_run_works() {
    let sandbox = with_data();
    index(&sandbox);
    let before = sandbox.names("data");
    let args = [
        "stream",
        "data",
        "--keys",
        "--shuffle",
        "--lanes",
        "8",
        "--batch-size",
        "10",
    ];
    let more = ["--epochs", "100000000", "--state-out", "state"];
    let mut child = sandbox
        .command([&args[..], &more].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..500 {
        lines.next().unwrap().unwrap();
    }
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), None, "it was killed");
    assert_eq!(sandbox.names("data"), before);
    assert_eq!(sandbox.names(""), ["data"]);
    assert_eq!(sandbox.journals(), [""; 0]);
    let ran = sandbox.run(args).exits(0);
    assert_eq!(
        ran.out.lines().map(str::to_owned).collect::<BTreeSet<_>>(),
        keys()
    );
}

#[test]
fn what_was_read_before_the_first_batch_is_told_apart() {
    let sandbox = with_data();
    let bytes = |report: &Value, name: &str| {
        let paths = report[name]["paths"].as_object().unwrap();
        paths
            .values()
            .map(|path| path["bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    let made = sandbox.run(["stream", "data", "--json"]).exits(0).json();
    let size = |number: usize| shard(number, SAMPLES).len() as u64;
    assert_eq!(bytes(&made, "opening"), (0..SHARDS).map(size).sum::<u64>());
    index(&sandbox);
    let opened = sandbox.run(["stream", "data", "--json"]).exits(0).json();
    assert!(bytes(&opened, "opening") < size(0), "the index and no shard");
    let filtered = [
        "stream",
        "data",
        "--json",
        "--batch-size",
        "1",
        "--filter",
        "cls = 7",
    ];
    let filtered = sandbox.run(filtered).exits(0).json();
    assert!(bytes(&filtered, "opening") > bytes(&filtered, "ledger"));
    let ran = sandbox.run(["stream", "data", "--filter", "cls = 7"]).exits(0);
    assert!(ran.out.contains("\nbefore  "), "{}", ran.out);
}
