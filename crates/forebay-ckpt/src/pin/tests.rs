//! Who counts as dead.

use super::*;
use crate::tests::support::context;

/// A process that has ended, and was waited for.
pub(crate) fn dead_pid() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[test]
fn only_who_would_be_seen_here_is_known_to_be_dead() {
    let alive = Pin::new(&context(), 1);
    assert!(!alive.is_of_the_dead());
    let dead = Pin {
        pid: Some(dead_pid()),
        ..alive
    };
    assert!(dead.is_of_the_dead());
    // A container beside this one has the name of this host, and other processes under the same numbers.
    let other_namespace = Pin {
        pid_namespace: dead.pid_namespace.map(|inode| inode + 1),
        ..dead.clone()
    };
    let other_machine = Pin {
        boot_id: Some("0d5a3d0c-4a4c-4f6c-9d6d-1f5f8a0f0b11".to_owned()),
        ..dead.clone()
    };
    let untold = Pin {
        boot_id: None,
        pid_namespace: None,
        ..dead.clone()
    };
    for (pin, what) in [
        (other_namespace, "namespace"),
        (other_machine, "machine"),
        (untold, "untold"),
    ] {
        assert!(!pin.is_of_the_dead(), "{what}");
    }
}
