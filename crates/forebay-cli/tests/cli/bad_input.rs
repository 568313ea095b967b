//! What people get wrong, and what machines get wrong: each with a clear error and its exit status.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;

use super::sandbox::Sandbox;
use super::stub::{Answer, Stub};

#[test]
fn a_copy_never_takes_the_place_of_a_device_or_socket() {
    let sandbox = Sandbox::new();
    sandbox.file("small", 1000);
    sandbox.file("large", 20_000_000);
    let _listener = std::os::unix::net::UnixListener::bind(sandbox.path("socket")).unwrap();
    for from in ["small", "large"] {
        sandbox
            .run(["cp", from, "socket"])
            .exits(2)
            .says(&["socket", "a device, pipe or socket stands there"]);
        let there = std::fs::metadata(sandbox.path("socket")).unwrap();
        assert!(!there.is_file(), "{from}");
    }
    let left = std::fs::read_dir(sandbox.work()).unwrap().count();
    assert_eq!(left, 3, "nothing half-made stays");
}

#[test]
fn missing_things_are_named() {
    let sandbox = Sandbox::new();
    sandbox.file("f", 3);
    for args in [
        &["ls", "nothing"][..],
        &["stat", "nothing"],
        &["cat", "nothing"],
        &["cp", "nothing", "x"],
        &["rm", "nothing"],
        &["bench", "disk", "nothing"],
        &["demo", "--dir", "nothing"],
    ] {
        let ran = sandbox.run(args).exits(2).says(&["error: not found", "nothing"]);
        assert_eq!(ran.out, "", "{args:?}");
    }
    assert!(!sandbox.path("x").exists());
    let error = sandbox.run(["cat", "--json", "nothing"]).exits(2).json_error();
    assert_eq!(
        (&error["kind"], &error["location"]),
        (&"not_found".into(), &"[DIR]/here/nothing".into())
    );
    sandbox.run(["cat", "f/below"]).exits(2).says(&["f/below"]);
}

#[test]
fn directories_are_no_files_and_files_no_directories() {
    let sandbox = Sandbox::new();
    sandbox.file("d/f", 3);
    sandbox
        .run(["cat", "d"])
        .exits(2)
        .says(&["directory", "hint: forebay ls"]);
    sandbox
        .run(["cat", "d/f/"])
        .exits(2)
        .says(&["file, not a directory"]);
    sandbox
        .run(["ls", "d/f/"])
        .exits(2)
        .says(&["file, not a directory"]);
    sandbox
        .run(["bench", "disk", "d/f"])
        .exits(2)
        .says(&["not a directory"]);
    sandbox.file("g", 1);
    std::fs::create_dir(sandbox.path("e")).unwrap();
    std::fs::create_dir(sandbox.path("e/g")).unwrap();
    sandbox
        .run(["cp", "g", "e"])
        .exits(2)
        .says(&["a directory stands where the object should be"]);
}

#[test]
fn typos_in_urls_get_a_hint() {
    let sandbox = Sandbox::new();
    for (url, words) in [
        ("s4://bucket/key", "did you mean s3://"),
        ("htps://host/key", "did you mean https://"),
        ("ftp://host/key", "known schemes"),
        ("s3://", "bucket or host is missing"),
        ("s3://b/a/../c", "'.' or '..'"),
        ("https://host/k?token=1", "query"),
        ("", "empty"),
    ] {
        sandbox
            .run(["cat", url])
            .exits(2)
            .says(&["error: invalid input", words]);
    }
    sandbox
        .run(["ls", "nvme+tcp://host/x"])
        .exits(2)
        .says(&["not supported"]);
}

#[test]
fn wrong_arguments_are_told_with_the_right_ones() {
    let sandbox = Sandbox::new();
    sandbox
        .run(["lss"])
        .exits(2)
        .says(&["unrecognized subcommand", "ls"]);
    sandbox.run(["ls"]).exits(2).says(&["<URL>"]);
    sandbox.run(["cp", "a"]).exits(2);
    sandbox
        .run(["cat", "--range", "9-1", "x"])
        .exits(2)
        .says(&["not a range"]);
    sandbox
        .run(["cp", "--verify", "maybe", "a", "b"])
        .exits(2)
        .says(&["auto", "read-back", "none"]);
    sandbox
        .run(["demo", "--size", "lots"])
        .exits(2)
        .says(&["not a size"]);
    let error = sandbox.run(["--json", "lss"]).exits(2).json_error();
    assert_eq!(error["kind"], "invalid_input");
    assert!(error["hint"].as_str().unwrap().contains("'ls'"), "{error}");
    let error = sandbox.run(["--json", "cat"]).exits(2).json_error();
    assert!(error["message"].as_str().unwrap().contains("<URL>"), "{error}");
    let args = ["--json", "cp", "--verify", "maybe", "a", "b"];
    let error = sandbox.run(args).exits(2).json_error();
    assert!(
        error["message"].as_str().unwrap().contains("read-back"),
        "{error}"
    );
    let error = sandbox.run(["--json"]).exits(2).json_error();
    assert!(
        error["message"].as_str().unwrap().contains("command is missing"),
        "{error}"
    );
    // Behind `--` it is a name.
    let ran = sandbox.run(["cat", "--", "--json", "b"]).exits(2);
    assert!(ran.err.starts_with("error: unexpected argument"), "{}", ran.err);
    let error = sandbox
        .run(["ls", "--json", "--buffer-memory", "x", "."])
        .exits(2)
        .json_error();
    assert_eq!(error["location"], "--buffer-memory");
    assert_eq!(
        sandbox.run(["--version"]).exits(0).out,
        format!("forebay {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert!(sandbox.run(["cp", "--help"]).exits(0).out.contains("--verify"));
}

#[test]
fn names_that_are_not_utf8_are_refused_as_arguments_and_reported_in_listings() {
    let sandbox = Sandbox::new();
    let odd = OsString::from_vec(b"caf\xe9".to_vec());
    std::fs::create_dir(sandbox.path("d")).unwrap();
    sandbox.file("d/fine", 1);
    std::fs::write(sandbox.path("d").join(&odd), "x").unwrap();
    let argument = OsString::from_vec(b"d/caf\xe9".to_vec());
    sandbox
        .run([OsString::from("cat"), argument])
        .exits(2)
        .says(&["not valid UTF-8", "hint: "]);
    let ran = sandbox.run(["ls", "d"]).exits(2).says(&["UTF-8"]);
    assert_eq!(ran.out, "fine\n", "the others are listed");
    sandbox
        .run(["cp", "-r", "d", "e"])
        .exits(2)
        .says(&["UTF-8", "copied 1 object"]);
    assert_eq!(sandbox.names("e"), ["fine"]);
}

#[test]
fn odd_names_are_ordinary() {
    let sandbox = Sandbox::new();
    for name in [
        "with space",
        "-dash",
        "tab\there",
        "new\nline",
        "\u{e9}\u{4e2d}",
        "...",
        "a%2Fb",
        "*",
    ] {
        let content = sandbox.file(&format!("t/{name}"), 10);
        let path = sandbox.path("t").join(name);
        let output = sandbox
            .command(["cat".as_ref(), path.as_os_str()])
            .output()
            .unwrap();
        assert!(output.status.success() && output.stdout == content, "{name:?}");
    }
    sandbox
        .run(["cp", "-r", "t", "u"])
        .exits(0)
        .says(&["copied 8 objects"]);
    assert_eq!(sandbox.names("u"), sandbox.names("t"));
}

#[test]
fn paths_resolve_lexically() {
    let sandbox = Sandbox::new();
    sandbox.file("a/f", 4);
    assert_eq!(sandbox.run(["ls", "a/../a/./f"]).exits(0).out, "f\n");
}

#[test]
fn links_in_a_loop_are_told() {
    let sandbox = Sandbox::new();
    std::os::unix::fs::symlink("loop", sandbox.path("loop")).unwrap();
    sandbox
        .run(["cat", "loop"])
        .exits(2)
        .says(&["loop", "symbolic links"]);
    std::fs::create_dir(sandbox.path("d")).unwrap();
    sandbox.file("d/f", 1);
    std::os::unix::fs::symlink("..", sandbox.path("d/up")).unwrap();
    let ran = sandbox.run(["ls", "-r", "d"]);
    assert!(
        ran.out.contains("f\n") && ran.out.lines().count() < 100,
        "{ran:?}"
    );
}

#[test]
fn unreadable_files_and_unwritable_places_are_told() {
    let sandbox = Sandbox::new().without_privileges();
    sandbox.file("secret", 3);
    std::fs::set_permissions(sandbox.path("secret"), PermissionsExt::from_mode(0o000)).unwrap();
    sandbox
        .run(["cat", "secret"])
        .exits(2)
        .says(&["permission denied", "secret"]);
    std::fs::create_dir(sandbox.path("ro")).unwrap();
    std::fs::set_permissions(sandbox.path("ro"), PermissionsExt::from_mode(0o555)).unwrap();
    sandbox.file("f", 3);
    sandbox
        .run(["cp", "f", "ro/f"])
        .exits(2)
        .says(&["permission denied"]);
    assert_eq!(sandbox.names("ro"), [""; 0]);
}

#[test]
fn what_a_plain_web_server_does_not_have_is_not_found() {
    let server = Stub::start(|method, _| match method {
        "HEAD" | "GET" => Answer::Status("404 Not Found"),
        _ => Answer::Status("405 Method Not Allowed"),
    });
    let sandbox = Sandbox::new();
    for args in [["cat"], ["stat"], ["ls"]] {
        let url = server.url("missing");
        let ran = sandbox.run([args[0], &url]).exits(2);
        assert!(ran.err.starts_with("error: not found"), "{args:?}: {}", ran.err);
    }
    // With a slash only a listing could find it, and there is none.
    sandbox
        .run(["ls", &server.url("missing/")])
        .exits(2)
        .says(&["not supported"]);
}

#[test]
fn a_place_that_takes_no_files_is_told() {
    // The kernel's own tree refuses new files from everybody, root included.
    let sandbox = Sandbox::new();
    sandbox.file("f", 3);
    let ran = sandbox.run(["cp", "f", "/proc/sys/forebay-test"]).exits(2);
    assert!(ran.err.starts_with("error: "), "{}", ran.err);
    sandbox.run(["demo", "--dir", "/proc", "--size", "8MiB"]).exits(2);
}

#[test]
fn more_than_fits_is_refused_before_anything_is_written() {
    let sandbox = Sandbox::new();
    sandbox
        .run(["demo", "--size", "8000PB"])
        .exits(2)
        .says(&["out of space", "smaller --size"]);
    sandbox
        .run(["bench", "disk", "--size", "8000PB", "."])
        .exits(2)
        .says(&["out of space"]);
    assert_eq!(sandbox.names("."), [""; 0]);
}

#[test]
fn stores_without_credentials_are_told() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(["ls", "s3://bucket/prefix/"]).exits(2);
    assert!(
        ran.err.contains("error: not authenticated") && ran.err.contains("hint: "),
        "{}",
        ran.err
    );
}

#[test]
fn servers_that_are_not_there_are_told() {
    // Nothing listens on a port that was just given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let sandbox = Sandbox::new()
        .var("AWS_ACCESS_KEY_ID", "someone")
        .var("AWS_SECRET_ACCESS_KEY", "something");
    let file = sandbox.path("fast.toml");
    std::fs::write(&file, "[limits]\ntries_max = 2\nretry_pause_ms = 1\n").unwrap();
    let ran = sandbox.run([
        "cat",
        "s3://bucket/key",
        "--config",
        "fast.toml",
        "--s3-endpoint",
        &format!("http://127.0.0.1:{port}"),
    ]);
    assert!(
        ran.code == Some(2) && ran.err.contains("error: unavailable"),
        "{ran:?}"
    );
    assert!(ran.err.contains("s3://bucket/key"), "{}", ran.err);
}
