//! `rm`: what it is told and no more, counted as it happens.

use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};

use super::listing::tree;
use super::sandbox::{Sandbox, wait_until};

#[test]
fn rm_removes_what_it_is_told_and_no_more() {
    let sandbox = tree();
    sandbox.run(["rm", "d/a"]).exits(0).says(&["removed 1 object"]);
    assert_eq!(sandbox.names("d"), ["b c", "sub"]);
    sandbox
        .run(["rm", "d/sub"])
        .exits(2)
        .says(&["this is a directory", "hint: add -r"]);
    assert_eq!(sandbox.names("d/sub"), ["deep", "x"]);
    sandbox
        .run(["rm", "-r", "d/sub", "d/nothing"])
        .exits(2)
        .says(&["not found", "removed 2 objects"]);
    assert_eq!(sandbox.names("d"), ["b c"]);
    sandbox
        .run(["rm", "-r", "/"])
        .exits(2)
        .says(&["whole store", "--all"]);
    sandbox
        .run(["rm", "-r", "s3://bucket"])
        .exits(2)
        .says(&["whole store"]);
    let json = sandbox.run(["rm", "--json", "d/b c", "d/none"]).exits(2).json();
    assert_eq!(
        (&json["objects_removed"], &json["objects_failed"]),
        (&1.into(), &1.into())
    );
    assert_eq!(json["failures"][0]["kind"], "not_found");
}

#[test]
fn rm_does_not_follow_links() {
    let sandbox = tree();
    sandbox.file("precious/p", 3);
    symlink(sandbox.path("precious"), sandbox.path("d/link")).unwrap();
    symlink(sandbox.path("precious"), sandbox.path("direct")).unwrap();
    sandbox.run(["rm", "-r", "d"]).exits(0);
    assert!(!sandbox.path("d").exists());
    sandbox.run(["rm", "-r", "direct"]).exits(0);
    assert!(!sandbox.path("direct").exists());
    assert_eq!(sandbox.names("precious"), ["p"]);
}

#[test]
fn rm_with_a_slash_behind_a_link_is_refused() {
    let sandbox = tree();
    symlink("d", sandbox.path("link")).unwrap();
    sandbox.run(["rm", "-r", "link/"]).exits(2).says(&[
        "this is a link",
        "leave the slash",
        "removed 0 objects",
    ]);
    assert!(sandbox.path("link").is_symlink());
    assert_eq!(sandbox.names("d"), ["a", "b c", "sub"]);
}

#[test]
fn rm_refuses_the_ground_it_stands_on() {
    let sandbox = tree();
    for name in [".", "..", "./", "d/..", "../here", "../../"] {
        sandbox
            .run(["rm", "-r", "d/a", name])
            .exits(2)
            .says(&["current directory"]);
    }
    let here = sandbox.work();
    let args = ["rm".as_ref(), "-r".as_ref(), here.as_os_str()];
    sandbox.run(args).exits(2).says(&["current directory"]);
    assert_eq!(
        sandbox.names("d"),
        ["a", "b c", "sub"],
        "nothing at all is removed"
    );
}

#[test]
fn rm_tells_each_file_when_asked() {
    let sandbox = tree();
    symlink("nowhere", sandbox.path("d/link")).unwrap();
    sandbox.run(["rm", "-r", "-v", "d"]).exits(0).says(&[
        "removed [DIR]/here/d/a\n",
        "removed [DIR]/here/d/b c\n",
        "removed [DIR]/here/d/link\n",
        "removed [DIR]/here/d/sub/deep/y\n",
        "removed 5 objects\n",
    ]);
    sandbox.file("f", 1);
    symlink("f", sandbox.path("link")).unwrap();
    sandbox
        .run(["rm", "-v", "link", "f"])
        .exits(0)
        .says(&["here/link\n", "here/f\n"]);
}

#[test]
fn one_file_that_cannot_be_removed_stops_no_other() {
    let sandbox = tree().without_privileges();
    for path in ["d", "d/sub"] {
        sandbox.give(sandbox.path(path));
    }
    // Nobody may take a name out of this one.
    std::fs::set_permissions(sandbox.path("d/sub/deep"), PermissionsExt::from_mode(0o555)).unwrap();
    sandbox.run(["rm", "-r", "d"]).exits(2).says(&[
        "permission denied",
        "d/sub/deep/y",
        "removed 3 objects",
        "1 object not removed",
    ]);
    assert_eq!(sandbox.names("d"), ["sub"]);
    assert_eq!(sandbox.names("d/sub"), ["deep"]);
    let json = sandbox.run(["rm", "--json", "-r", "d"]).exits(2).json();
    assert_eq!(
        (&json["objects_removed"], &json["objects_failed"]),
        (&0.into(), &1.into())
    );
    std::fs::set_permissions(sandbox.path("d/sub/deep"), PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn an_interrupted_rm_tells_what_it_removed_and_removes_no_more() {
    const FILES: usize = 3000;
    let sandbox = Sandbox::new();
    for index in 0..FILES {
        let name = format!("d/a-rather-long-name-so-that-the-pipe-is-full-before-the-end-{index}");
        sandbox.file(&name, 0);
    }
    let mut child = sandbox
        .command(["rm", "-r", "-v", "d"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Nobody reads along, so it stands still in the middle of its work.
    let stderr = child.stderr.as_ref().unwrap();
    let stderr = stderr.as_fd().try_clone_to_owned().unwrap();
    wait_until(&mut child, || ioctl_fionread(&stderr).unwrap() >= 60_000);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let ran = sandbox.ran(&output).exits(130);
    let left = sandbox.names("d").len();
    assert!(left > 0);
    assert!(
        ran.err.ends_with(&format!(
            "removed {} objects\nerror: cancelled: run: interrupted\n",
            FILES - left
        )),
        "{left} left: {}",
        &ran.err[ran.err.len() - 200..]
    );
}
