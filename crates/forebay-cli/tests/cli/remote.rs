//! The same verbs on a real S3 server, where one is given by the variables that `cargo xtask servers` prints.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;

use forebay_core::{Seed, env};
use rustix::process::{Pid, Signal, kill_process};

use super::sandbox::{Ran, Sandbox};
use super::streaming::{read, shard};

/// A sandbox whose environment leads to the test server, and a prefix of its own there; `None` without a server.
fn server() -> Option<(Sandbox, String)> {
    let (Some(endpoint), Some(bucket)) = (env::TEST_S3_ENDPOINT.get(), env::TEST_S3_BUCKET.get()) else {
        assert!(
            !env::TEST_REQUIRE_SERVERS.is_on(),
            "a test server is required, but none is given"
        );
        return None;
    };
    let sandbox = Sandbox::new()
        .var("FOREBAY_S3_ENDPOINT", endpoint)
        .var(
            "AWS_ACCESS_KEY_ID",
            env::TEST_S3_ACCESS_KEY.get().unwrap_or_default(),
        )
        .var(
            "AWS_SECRET_ACCESS_KEY",
            env::TEST_S3_SECRET_KEY.get().unwrap_or_default(),
        )
        .var("AWS_REGION", env::TEST_S3_REGION.get().unwrap_or_default());
    let prefix = format!("s3://{bucket}/cli-{:016x}", Seed::fresh().0);
    Some((sandbox, prefix))
}

#[test]
fn the_verbs_are_the_same() {
    let Some((sandbox, url)) = server() else { return };
    sandbox.file("t/a", 100);
    sandbox.file("t/b c/\u{e9}", 4096);
    let large = sandbox.file("t/large", 20_000_000);
    sandbox
        .run(["cp", "-r", "t", &url])
        .exits(0)
        .says(&["copied 3 objects"]);
    // Some servers show a folder for a while after its last object, such as that of the probe, is gone.
    let level = sandbox.run(["ls", &url]).exits(0).out;
    let level: Vec<&str> = level.lines().filter(|name| *name != ".forebay-probe/").collect();
    assert_eq!(level, ["a", "b c/", "large"]);
    assert_eq!(
        sandbox.run(["ls", "-r", &url]).exits(0).out,
        "a\nb c/\u{e9}\nlarge\n"
    );
    let stat = sandbox
        .run(["stat", "--json", &format!("{url}/large")])
        .exits(0)
        .json();
    assert_eq!(stat["size"], 20_000_000);
    let cat = sandbox
        .command(["cat", &format!("{url}/large")])
        .output()
        .unwrap();
    assert!(cat.status.success() && cat.stdout == large);
    let range = sandbox
        .command(["cat", "--range", "9000000-9000100", &format!("{url}/large")])
        .output()
        .unwrap();
    assert_eq!(range.stdout, large[9_000_000..9_000_100]);
    sandbox
        .run(["cp", "-r", &url, "back"])
        .exits(0)
        .says(&["copied 3 objects"]);
    assert!(sandbox.read("back/large") == large);
    sandbox.run(["rm", &format!("{url}/a")]).exits(0);
    sandbox
        .run(["stat", &format!("{url}/a")])
        .exits(2)
        .says(&["not found"]);
    sandbox.run(["rm", &url]).exits(2).says(&["prefix", "-r"]);
    sandbox
        .run(["rm", "-r", &url])
        .exits(0)
        .says(&["removed 2 objects"]);
    assert_eq!(sandbox.run(["ls", "-r", &url]).out, "");
}

#[test]
fn a_store_that_checks_what_it_is_sent_is_taken_at_its_word() {
    let Some((sandbox, url)) = server() else { return };
    sandbox.file("f", 10_000);
    let capabilities = sandbox
        .run(["stat", "--json", url.rsplit_once('/').unwrap().0])
        .exits(0)
        .json();
    let json = sandbox
        .run(["cp", "--json", "f", &format!("{url}/f")])
        .exits(0)
        .json();
    let by_store = capabilities["capabilities"]["checksum"] == "shown";
    assert_eq!(json["checked_by_store"], u64::from(by_store), "{json}");
    assert_eq!(json["checked_by_read_back"], u64::from(!by_store), "{json}");
    let json = sandbox
        .run(["cp", "--json", "--verify", "read-back", "f", &format!("{url}/f")])
        .exits(0)
        .json();
    assert_eq!(json["checked_by_read_back"], 1);
    sandbox.run(["rm", "-r", &url]).exits(0);
}

#[test]
fn an_interrupted_upload_goes_on_where_it_stopped() {
    let Some((sandbox, url)) = server() else { return };
    let large = sandbox.file("large", 300_000_000);
    let copy = format!("{url}/large");
    let mut child = sandbox
        .command(["cp", "large", &copy, "--concurrency", "1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Until the journal says that some parts are there; a machine that copies everything before has nothing to resume.
    while sandbox.journals().is_empty() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    if child.try_wait().unwrap().is_none() {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        sandbox
            .ran(&output)
            .exits(130)
            .says(&["interrupted", "goes on where it stopped"]);
        sandbox.run(["stat", &copy]).exits(2).says(&["not found"]);
        let json = sandbox.run(["cp", "--json", "large", &copy]).exits(0).json();
        assert!(json["bytes_resumed"].as_u64().unwrap() > 0, "{json}");
    }
    assert_eq!(sandbox.journals(), [""; 0]);
    let cat = sandbox.command(["cat", &copy]).output().unwrap();
    assert!(cat.status.success() && cat.stdout == large);
    sandbox.run(["rm", "-r", &url]).exits(0);
}

#[test]
fn what_is_not_there_or_not_allowed_is_told() {
    let Some((sandbox, url)) = server() else { return };
    sandbox
        .run(["ls", "s3://no-such-bucket-here/x/"])
        .exits(2)
        .says(&["error: not found", "no-such-bucket-here"]);
    let sandbox = sandbox.var("AWS_SECRET_ACCESS_KEY", "wrong");
    let ran = sandbox.run(["ls", &format!("{url}/")]).exits(2);
    let told = ran.err.contains("not authenticated") || ran.err.contains("permission denied");
    assert!(told && ran.err.contains("hint: "), "{}", ran.err);
}

#[test]
fn a_store_is_measured_and_left_empty() {
    let Some((sandbox, url)) = server() else { return };
    let args = [
        "bench",
        "store",
        &url,
        "--json",
        "--size",
        "32MiB",
        "--object-size",
        "16MiB",
        "--small-objects",
        "20",
        "--runs",
        "1",
    ];
    let json = sandbox.run(args).exits(0).json();
    assert_eq!(json["tests"].as_array().unwrap().len(), 4);
    assert_eq!(sandbox.run(["ls", "-r", &url]).out, "");
}

/// Data files of a cache in the current directory.
fn blocks(sandbox: &Sandbox) -> Vec<PathBuf> {
    let dirs = std::fs::read_dir(sandbox.path("blocks")).unwrap();
    let dirs = dirs
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir());
    dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "data"))
        .collect()
}

/// The counts that `-v` tells: blocks from the disk, fetched, and in place of corrupt ones.
fn cache_counts(ran: &Ran) -> [u64; 3] {
    let line = ran.err.lines().find(|line| line.starts_with("cache: "));
    let line = line.unwrap_or_else(|| panic!("no word of the cache in: {}", ran.err));
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    [(); 3].map(|()| numbers.next().unwrap())
}

#[test]
fn what_was_read_once_comes_from_the_cache() {
    let Some((sandbox, url)) = server() else { return };
    let large = sandbox.file("large", 20_000_000);
    let object = format!("{url}/large");
    sandbox.run(["cp", "large", &object]).exits(0);
    let cat = || {
        let output = sandbox
            .command(["cat", "-v", "--cache", "blocks:1GiB", &object])
            .output()
            .unwrap();
        assert!(output.stdout == large, "the bytes are the same in any case");
        cache_counts(&sandbox.ran(&output).exits(0))
    };
    let [from_disk, fetched, _] = cat();
    assert!(from_disk == 0 && fetched > 0, "{from_disk} {fetched}");
    assert_eq!(cat(), [fetched, 0, 0]);
    let args = ["cp", "-v", "--cache", "blocks:1GiB", &object, "copy"];
    assert_eq!(cache_counts(&sandbox.run(args).exits(0)), [fetched, 0, 0]);
    assert!(sandbox.read("copy") == large);

    let files = blocks(&sandbox);
    assert_eq!(files.len(), 1, "{files:?}");
    let file = OpenOptions::new().write(true).open(&files[0]).unwrap();
    file.write_all_at(&[!large[10_000_000]], 10_000_000).unwrap();
    let [from_disk, fetched_again, corrupt] = cat();
    assert_eq!((from_disk, fetched_again, corrupt), (fetched - 1, 1, 1));
    assert_eq!(cat(), [fetched, 0, 0], "the block is mended");

    // A new version is noticed.
    sandbox.file("large", 10);
    sandbox.run(["rm", &object]).exits(0);
    sandbox.run(["cp", "large", &object]).exits(0);
    let output = sandbox
        .command(["cat", "--cache", "blocks:1GiB", &object])
        .output();
    assert!(output.unwrap().stdout == sandbox.read("large"));
    sandbox.run(["rm", "-r", &url]).exits(0);
}

#[test]
fn a_cache_that_cannot_be_is_refused() {
    let Some((sandbox, url)) = server() else { return };
    sandbox.file("f", 10);
    sandbox.run(["cp", "f", &format!("{url}/f")]).exits(0);
    for (cache, words) in [
        ("blocks", "directory:size"),
        (":1GiB", "directory:size"),
        ("blocks:much", "directory:size"),
        ("blocks:1KiB", "less than one block"),
    ] {
        sandbox
            .run(["cat", "--cache", cache, &format!("{url}/f")])
            .exits(2)
            .says(&["error: invalid input", words]);
    }
    assert!(!sandbox.path("blocks").exists());
    sandbox.run(["rm", "-r", &url]).exits(0);
}

#[test]
fn folders_are_packed_into_a_bucket_and_out_of_it() {
    let Some((sandbox, url)) = server() else { return };
    for index in 0..50 {
        sandbox.file(&format!("raw/{index:03}.dat"), 30_000);
    }
    sandbox
        .run(["pack", "raw", &url, "--to", "wds", "--shard-size", "400KiB"])
        .exits(0)
        .says(&["packed 50 samples into 4 shards"]);
    sandbox.run(["verify", &url]).exits(0);
    sandbox.run(["pack", &url, "back", "--to", "tfrecord"]).exits(0);
    sandbox.run(["verify", "back"]).exits(0);
    assert_eq!(
        sandbox
            .run(["ls", "-r", &url])
            .exits(0)
            .out
            .lines()
            .filter(|name| name.starts_with(".forebay-pack"))
            .count(),
        0
    );
    sandbox.run(["rm", "-r", &url]).exits(0);
}

/// Shards of somebody else, without an index.
#[test]
fn data_sets_in_a_bucket_are_indexed_inspected_and_streamed() {
    let Some((sandbox, url)) = server() else { return };
    for number in 0..3 {
        let name = format!("train-{number:03}.tar");
        std::fs::write(sandbox.path(&name), shard(number, 40)).unwrap();
        sandbox.run(["cp", &name, &format!("{url}/{name}")]).exits(0);
    }
    let stream = |more: &[&str]| {
        let all = [
            &["stream", "--json", "--keys", "--shuffle", "--lanes", "4", &url],
            more,
        ]
        .concat();
        let (keys, report) = read(&sandbox.run(all).exits(0));
        let bytes = |bytes: &serde_json::Value| bytes.as_u64().unwrap();
        // With the headers between the fields.
        assert!(bytes(&report["ledger"]["verified_bytes"]) > bytes(&report["bytes"]));
        keys
    };
    sandbox
        .run(["index", &url])
        .exits(0)
        .says(&["indexed 3 shards of format wds with 120 samples"]);
    let keys = stream(&[]);
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 120);
    assert_eq!(stream(&["--cache", "cache:1GiB"]), keys);
    assert_eq!(stream(&["--cache", "cache:1GiB"]), keys);
    sandbox.run(["verify", &url]).exits(0);
    let one = format!("{url}/train-001.tar");
    let found = sandbox
        .run([
            "inspect",
            "--json",
            &one,
            "--sample",
            "01-00007",
            "--extract",
            "out",
        ])
        .exits(0)
        .json_lines();
    assert_eq!(found[0]["number"], 7);
    assert_eq!(sandbox.read("out/01-00007.cls"), b"7");
    sandbox.run(["rm", "-r", &url]).exits(0);
}
