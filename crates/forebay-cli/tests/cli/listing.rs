//! `ls`, `stat`, `cat`.

use super::sandbox::Sandbox;

pub(crate) fn tree() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("d/a", 5);
    sandbox.file("d/b c", 4097);
    sandbox.file("d/sub/x", 1);
    sandbox.file("d/sub/deep/y", 0);
    sandbox
}

#[test]
fn ls_shows_one_level_or_all() {
    let sandbox = tree();
    assert_eq!(sandbox.run(["ls", "d"]).exits(0).out, "a\nb c\nsub/\n");
    assert_eq!(sandbox.run(["ls", "d/"]).exits(0).out, "a\nb c\nsub/\n");
    assert_eq!(
        sandbox.run(["ls", "-r", "d"]).exits(0).out,
        "a\nb c\nsub/deep/y\nsub/x\n"
    );
    assert_eq!(sandbox.run(["ls", "d/a"]).exits(0).out, "a\n");
    let url = format!("file://{}", sandbox.path("d").display());
    assert_eq!(sandbox.run(["ls", &url]).exits(0).out, "a\nb c\nsub/\n");
    std::fs::create_dir(sandbox.path("empty")).unwrap();
    assert_eq!(sandbox.run(["ls", "empty"]).exits(0).out, "");
}

#[test]
fn ls_long_and_json_have_sizes() {
    let sandbox = tree();
    let long = sandbox.run(["ls", "--long", "d"]).exits(0).out;
    let rows: Vec<Vec<&str>> = long
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!((rows[0][0], rows[0][2]), ("5", "a"));
    assert!(
        rows[0][1].ends_with('Z') && rows[0][1].len() == 20,
        "{}",
        rows[0][1]
    );
    assert_eq!(rows[2], ["-", "-", "sub/"]);
    let rows = sandbox.run(["ls", "--json", "d"]).exits(0).json_lines();
    assert_eq!(rows.len(), 3);
    assert_eq!(
        (&rows[1]["name"], &rows[1]["size"]),
        (&"b c".into(), &4097.into())
    );
    assert_eq!(rows[1]["url"], "[DIR]/here/d/b c");
    assert_eq!(
        (&rows[2]["kind"], &rows[2]["name"]),
        (&"prefix".into(), &"sub".into())
    );
    assert!(rows[0]["version"].is_string() && rows[0]["modified"].is_number());
}

#[test]
fn stat_tells_what_is_known_and_how_it_is_read() {
    let sandbox = tree();
    sandbox.file("large", 1 << 20);
    let out = sandbox.run(["stat", "d/b c"]).exits(0).out;
    for words in [
        "url       [DIR]/here/d/b c\n",
        "4097 (4.0 KiB)",
        "checksum  none kept",
        "buffered: smaller than",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let json = sandbox.run(["stat", "--json", "large"]).exits(0).json();
    assert_eq!(
        (&json["kind"], &json["size"]),
        (&"object".into(), &(1 << 20).into())
    );
    assert!(json["access"]["path"].is_string(), "{json}");
    assert_eq!(
        json["access"]["align"].is_null(),
        json["access"]["reason"].is_string(),
        "direct, or why not"
    );
}

#[test]
fn stat_of_a_directory_shows_the_probe_and_leaves_nothing() {
    let sandbox = tree();
    let out = sandbox.run(["stat", "d"]).exits(0).out;
    for name in [
        "range",
        "version_match",
        "put_if_absent",
        "upload_if_absent",
        "checksum",
        "multipart",
        "engine",
    ] {
        assert!(out.lines().any(|line| line.starts_with(name)), "{name}: {out}");
    }
    let json = sandbox.run(["stat", "--json", "d"]).exits(0).json();
    assert_eq!(json["capabilities"]["put_if_absent"], "shown", "{json}");
    assert!(json["engine"]["kind"].is_string());
    assert_eq!(sandbox.names("d"), ["a", "b c", "sub"]);
}

#[test]
fn the_engine_that_was_asked_for_is_reported() {
    let sandbox = tree();
    let json = sandbox
        .run(["stat", "--json", "--engine", "psync", "d"])
        .exits(0)
        .json();
    assert_eq!(json["engine"]["kind"], "psync");
    assert!(
        json["engine"]["fallback_reason"]
            .as_str()
            .unwrap()
            .contains("asked for"),
        "{json}"
    );
}

#[test]
fn cat_gives_the_bytes_whole_and_in_ranges() {
    let sandbox = Sandbox::new();
    let content = sandbox.file("f", 20_000_001);
    let cat = |args: &[&str]| sandbox.command(args).output().unwrap();
    let whole = cat(&["cat", "f"]);
    assert!(whole.status.success() && whole.stdout == content);
    for (range, bytes) in [
        ("0-10", &content[..10]),
        ("8388600-8388700", &content[8_388_600..8_388_700]),
        ("20MB-", &content[20_000_000..]),
        ("-1000", &content[content.len() - 1000..]),
        ("5-5", &[]),
    ] {
        let part = cat(&["cat", "--range", range, "f"]);
        assert!(part.status.success() && part.stdout == bytes, "{range}");
    }
    sandbox.file("empty", 0);
    assert_eq!(cat(&["cat", "empty"]).stdout, b"");
}

#[test]
fn cat_stays_within_the_memory_it_is_given() {
    let sandbox = Sandbox::new();
    let content = sandbox.file("f", 30_000_000);
    let output = sandbox
        .command(["cat", "--buffer-memory", "4MiB", "--part-size", "1MiB", "f"])
        .output()
        .unwrap();
    assert!(output.status.success() && output.stdout == content);
}

#[test]
fn a_store_in_memory_is_there_for_the_process() {
    let sandbox = Sandbox::new();
    sandbox.file("f", 100);
    sandbox
        .run(["cp", "f", "mem://x/k"])
        .exits(0)
        .says(&["copied 1 object"]);
    sandbox.run(["stat", "mem://x/k"]).exits(2).says(&["not found"]);
    assert_eq!(sandbox.run(["ls", "mem://x"]).exits(0).out, "");
}
