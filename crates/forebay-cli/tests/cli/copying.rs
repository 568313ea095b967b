//! `cp`: what goes where, what is told, and what a second run does.

use super::sandbox::Sandbox;

#[test]
fn names_go_where_cp_would_put_them() {
    let sandbox = Sandbox::new();
    let content = sandbox.file("f", 100_000);
    std::fs::create_dir(sandbox.path("dir")).unwrap();
    for (destination, lands) in [
        ("g", "g"),
        ("dir", "dir/f"),
        ("dir/", "dir/f"),
        ("new/", "new/f"),
        ("a/b/c", "a/b/c"),
        ("../here/dir/x", "dir/x"),
    ] {
        sandbox.run(["cp", "f", destination]).exits(0);
        assert_eq!(sandbox.read(lands), content, "{destination}");
    }
    sandbox.file("g", 5);
    sandbox
        .run(["cp", "f", "g", "dir"])
        .exits(0)
        .says(&["copied 2 objects"]);
    assert_eq!(sandbox.names("dir"), ["f", "g", "x"]);
    sandbox
        .run(["cp", "f", "g", "nowhere"])
        .exits(2)
        .says(&["several sources", "slash"]);
}

#[test]
fn trees_go_where_cp_would_put_them() {
    let sandbox = Sandbox::new();
    sandbox.file("t/a", 10);
    sandbox.file("t/s/b", 10);
    sandbox
        .run(["cp", "t", "u"])
        .exits(2)
        .says(&["this is a directory", "add -r"]);
    sandbox.run(["cp", "-r", "t", "u"]).exits(0);
    assert_eq!(sandbox.names("u"), ["a", "s"]);
    sandbox.run(["cp", "-r", "t", "u"]).exits(0);
    assert_eq!(
        sandbox.names("u"),
        ["a", "s", "t"],
        "u exists by now, so it is copied into"
    );
    sandbox.run(["cp", "-r", "t", "v/"]).exits(0);
    assert_eq!(sandbox.names("v"), ["t"]);
    sandbox
        .run(["cp", "-r", "t", "t/inside"])
        .exits(2)
        .says(&["lies inside the source"]);
    sandbox.run(["cp", "t/a", "t/a"]).exits(2).says(&["same object"]);
}

#[test]
fn the_result_says_how_it_was_verified() {
    let sandbox = Sandbox::new();
    let content = sandbox.file("f", 9_000_000);
    let ran = sandbox
        .run(["cp", "f", "g"])
        .exits(0)
        .says(&["copied 1 object, 8.6 MiB in", "verified: 1 read back"]);
    assert_eq!(ran.out, "", "data goes to stdout, and there is none");
    assert_eq!(sandbox.read("g"), content);
    sandbox.run(["cp", "-v", "f", "g"]).exits(0).says(&[
        "f -> g: the source keeps no checksum, read back",
        "verified 8.6 MiB of",
    ]);
    sandbox
        .run(["cp", "--verify", "none", "f", "g"])
        .exits(0)
        .says(&["1 not compared"]);
    for spelling in ["read-back", "readback"] {
        let args = ["cp", "--verify", spelling, "f", "g"];
        sandbox.run(args).exits(0).says(&["1 read back"]);
    }
    assert_eq!(sandbox.run(["cp", "-q", "f", "g"]).exits(0).err, "");
    let json = sandbox.run(["cp", "--json", "f", "g"]).exits(0).json();
    assert_eq!(json["objects_copied"], 1);
    assert_eq!(
        (&json["checked_by_read_back"], &json["bytes_copied"]),
        (&1.into(), &9_000_000.into())
    );
    let paths = json["ledger"]["paths"].as_object().unwrap();
    let bytes: u64 = paths.values().map(|path| path["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 3 * 9_000_000, "read, written, read back: {paths:?}");
}

#[test]
fn what_exists_is_left_alone_when_asked() {
    let sandbox = Sandbox::new();
    sandbox.file("t/a", 10);
    sandbox.file("t/b", 10);
    sandbox.file("u/t/a", 77);
    sandbox
        .run(["cp", "-r", "--if-absent", "t", "u"])
        .exits(1)
        .says(&["already exists", "copied 1 object", "1 object not copied"]);
    assert_eq!(
        (sandbox.read("u/t/a").len(), sandbox.read("u/t/b").len()),
        (77, 10)
    );
}

#[test]
fn one_bad_file_stops_no_other() {
    let sandbox = Sandbox::new();
    for index in 0..20 {
        sandbox.file(&format!("t/k{index:02}"), 100);
    }
    std::os::unix::fs::symlink("nowhere", sandbox.path("t/dangling")).unwrap();
    let ran = sandbox.run(["cp", "-r", "t", "u"]);
    assert_eq!(sandbox.names("u").len(), 20, "{}", ran.err);
    assert!(ran.code == Some(2) && ran.err.contains("dangling"), "{ran:?}");
    sandbox
        .run(["cp", "missing", "t/k00", "u"])
        .exits(2)
        .says(&["not found", "missing", "copied 1 object"]);
    let json = sandbox
        .run(["cp", "--json", "missing", "t/k00", "u"])
        .exits(2)
        .json();
    assert_eq!(json["failures"][0]["kind"], "not_found");
    assert_eq!(json["objects_copied"], 1);
}

#[test]
fn the_whole_works_in_little_memory() {
    let sandbox = Sandbox::new();
    let content = sandbox.file("f", 100_000_000);
    let json = sandbox
        .run(["cp", "--json", "--buffer-memory", "64MiB", "f", "g"])
        .exits(0)
        .json();
    assert_eq!(json["bytes_copied"], 100_000_000);
    assert!(sandbox.read("g") == content);
    // A part that can never be leased is an error, not a hang.
    let error = sandbox
        .run(["cp", "--json", "--buffer-memory", "4MiB", "f", "h"])
        .exits(2)
        .json();
    assert_eq!(error["failures"][0]["kind"], "limit_exceeded", "{error}");
    assert!(!sandbox.path("h").exists());
}

#[test]
fn a_finished_copy_leaves_no_state() {
    let sandbox = Sandbox::new();
    sandbox.file("t/a", 10_000_000);
    sandbox.run(["cp", "-r", "t", "u"]).exits(0);
    assert_eq!(sandbox.journals(), [""; 0]);
    assert_eq!(sandbox.names("u"), ["a"], "no temporary file");
}

#[test]
fn objects_come_from_several_places_at_once() {
    let sandbox = Sandbox::new();
    sandbox.file("x/a", 1);
    sandbox.file("y/b", 2);
    sandbox.file("z/d/c", 3);
    sandbox
        .run(["cp", "-r", "x/a", "y/b", "z/d", "into/"])
        .exits(0)
        .says(&["copied 3 objects"]);
    assert_eq!(sandbox.names("into"), ["a", "b", "d"]);
}

#[test]
fn sources_that_would_replace_each_other_are_refused_before_anything_is_copied() {
    let sandbox = Sandbox::new();
    sandbox.file("a/x", 1);
    sandbox.file("b/x", 2);
    sandbox.file("a/t/f", 1);
    sandbox.file("b/t/g", 2);
    for args in [
        &["cp", "a/x", "b/x", "to/"][..],
        &["cp", "-r", "a/t", "b/t", "to/"],
        &["cp", "-r", "a/t", "b/t/", "to/"],
        &["cp", "a/x", "a/x", "to/"],
        &["cp", "a/x", "a/../a/x", "to/"],
        &["cp", "-r", "mem://m", "a/x", "to/"],
        &["cp", "-r", "a/x", "mem://m", "to/"],
    ] {
        sandbox
            .run(args)
            .exits(2)
            .says(&["would get the same name", "hint: "]);
        assert!(!sandbox.path("to").exists(), "{args:?}");
    }
    sandbox.run(["cp", "-r", "a", "b", "to/"]).exits(0);
    assert_eq!(sandbox.names("to"), ["a", "b"]);
}

#[test]
fn files_that_are_no_objects_are_left_out_and_counted() {
    let sandbox = Sandbox::new();
    sandbox.file("t/a", 1);
    let _socket = std::os::unix::net::UnixListener::bind(sandbox.path("t/socket")).unwrap();
    sandbox.run(["cp", "-r", "-v", "t", "u"]).exits(0).says(&[
        "copied 1 object, 1 B in",
        "1 special file left out",
        "left out: ",
        "socket",
    ]);
    assert_eq!(sandbox.names("u"), ["a"]);
    let json = sandbox.run(["cp", "--json", "-r", "t", "v"]).exits(0).json();
    assert_eq!(json["skipped_special"], 1);
    let ran = sandbox.run(["ls", "t"]).exits(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("a\n", ""));
}
