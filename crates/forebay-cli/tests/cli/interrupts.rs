//! Ctrl-C, kill, and readers that stop reading: nothing half-made stays, and the same command works afterwards.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};

use super::sandbox::{Sandbox, wait_until};

/// Large enough that no machine copies it before the signal comes.
const LARGE: usize = 600_000_000;

/// A sandbox with a large file, sparse so that making it costs nothing.
fn with_large_file() -> Sandbox {
    let sandbox = Sandbox::new();
    let file = std::fs::File::create(sandbox.path("large")).unwrap();
    file.set_len(LARGE as u64).unwrap();
    std::fs::create_dir(sandbox.path("to")).unwrap();
    sandbox
}

/// More names in `d` than a pipe holds.
fn with_long_listing(sandbox: &Sandbox) {
    for index in 0..3000 {
        let name = format!("d/a-rather-long-name-so-that-the-pipe-is-full-before-the-end-{index}");
        sandbox.file(&name, 0);
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Start a copy and wait until its temporary file is there, so that it is under way.
fn copy_under_way(sandbox: &Sandbox) -> Child {
    let mut child = sandbox
        .command([
            "cp",
            "large",
            "to/copy",
            "--part-size",
            "1MiB",
            "--concurrency",
            "2",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(&mut child, || !sandbox.names("to").is_empty());
    child
}

#[test]
fn ctrl_c_leaves_nothing_half_made() {
    let sandbox = with_large_file();
    let child = copy_under_way(&sandbox);
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    let ran = sandbox.ran(&output).exits(130).says(&["interrupted"]);
    assert!(!ran.err.contains("verified"), "{}", ran.err);
    assert_eq!(sandbox.names("to"), [""; 0]);
    sandbox.run(["cp", "large", "to/copy"]).exits(0);
    assert_eq!(
        std::fs::metadata(sandbox.path("to/copy")).unwrap().len(),
        LARGE as u64
    );
    assert_eq!(sandbox.names("to"), ["copy"]);
    assert_eq!(sandbox.journals(), [""; 0]);
}

#[test]
fn termination_is_as_clean() {
    let sandbox = with_large_file();
    let child = copy_under_way(&sandbox);
    signal(&child, Signal::TERM);
    let output = child.wait_with_output().unwrap();
    sandbox.ran(&output).exits(143);
    assert_eq!(sandbox.names("to"), [""; 0]);
}

#[test]
fn a_killed_copy_shows_nothing_and_the_next_one_cleans_up() {
    let sandbox = with_large_file();
    let mut child = copy_under_way(&sandbox);
    signal(&child, Signal::KILL);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert!(!sandbox.path("to/copy").exists());
    assert_eq!(
        sandbox.run(["ls", "to"]).exits(0).out,
        "",
        "a file in the making is no object"
    );
    sandbox.run(["cp", "large", "to/copy"]).exits(0);
    // The kernel tears the killed process's ring down in its own time, and only then is the file free to be removed by whoever meets it.
    while sandbox.names("to") != ["copy"] {
        assert_eq!(sandbox.run(["ls", "to"]).exits(0).out, "copy\n");
    }
}

#[test]
fn a_tree_goes_on_where_it_was_interrupted() {
    let sandbox = Sandbox::new();
    for index in 0..400 {
        sandbox.file(&format!("from/k{index:03}"), 200_000);
    }
    let mut child = sandbox
        .command(["cp", "-r", "from", "to", "--concurrency", "1"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Until some objects are there.
    wait_until(&mut child, || {
        std::fs::read_dir(sandbox.path("to")).map_or(0, Iterator::count) >= 30
    });
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let before = sandbox.names("to").len();
    assert_eq!(sandbox.journals().len(), 1);
    let json = sandbox.run(["cp", "--json", "-r", "from", "to"]).exits(0).json();
    let (copied, skipped) = (&json["objects_copied"], &json["objects_skipped"]);
    assert_eq!(
        copied.as_u64().unwrap() + skipped.as_u64().unwrap(),
        400,
        "{json}"
    );
    // The one object under way at the signal may be there and yet not be written down; it is copied again.
    let skipped = skipped.as_u64().unwrap() as usize;
    assert!(
        (before - 1..=before).contains(&skipped),
        "what was there is skipped: {json}"
    );
    assert_eq!(
        sandbox.names("to").len(),
        400,
        "the same command goes on, it does not copy into the new directory"
    );
    assert_eq!(sandbox.journals(), [""; 0]);
}

#[test]
fn a_killed_tree_is_finished_by_the_same_command() {
    let sandbox = Sandbox::new();
    for index in 0..200 {
        sandbox.file(&format!("from/k{index:03}"), 50_000);
    }
    let mut child = sandbox
        .command(["cp", "-r", "from", "to", "--concurrency", "1"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(&mut child, || {
        std::fs::read_dir(sandbox.path("to")).map_or(0, Iterator::count) >= 5
    });
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    sandbox.run(["cp", "-r", "from", "to"]).exits(0);
    assert_eq!(sandbox.names("to"), sandbox.names("from"));
    for index in 0..200 {
        let name = format!("k{index:03}");
        assert_eq!(
            sandbox.read(&format!("to/{name}")),
            sandbox.read(&format!("from/{name}"))
        );
    }
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let sandbox = with_large_file();
    let child = copy_under_way(&sandbox);
    signal(&child, Signal::INT);
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(!sandbox.path("to/copy").exists());
}

#[test]
fn a_reader_that_does_not_read_holds_nobody() {
    let sandbox = with_large_file();
    with_long_listing(&sandbox);
    for args in [&["cat", "large"][..], &["ls", "d"], &["ls", "--json", "d"]] {
        for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let mut child = sandbox
                .command(args)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // The pipe is full, and nobody will ever read from it.
            let stdout = child.stdout.take().unwrap();
            wait_until(&mut child, || ioctl_fionread(&stdout).unwrap() >= 65_536);
            signal(&child, sent);
            assert_eq!(child.wait().unwrap().code(), Some(code), "{args:?}");
        }
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let sandbox = with_large_file();
    with_long_listing(&sandbox);
    for args in [&["ls", "d"][..], &["ls", "--json", "d"], &["cat", "large"]] {
        let mut child = sandbox
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), output.stderr.len()),
            (Some(0), 0),
            "{args:?}: {output:?}"
        );
    }
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let sandbox = Sandbox::new();
    let mut child = sandbox
        .command(["demo", "--size", "256MiB"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until(&mut child, || !sandbox.names(".").is_empty());
    signal(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    sandbox.ran(&output).exits(130);
    assert_eq!(sandbox.names("."), [""; 0]);
}
