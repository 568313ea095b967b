//! Listings: every object once, in key order, below whole parts of a prefix.

use futures::StreamExt;

use super::{Suite, Verdict, ensure};
use crate::store::{Entry, ListOptions};

/// In byte order. `-` and `.` sort before `/`, letters and digits after it: a directory walked name by name gets this wrong.
const NAMES: [&str; 10] = [
    "a-b", "a.txt", "a/b-c", "a/b/c", "a/b/d", "a/bc", "a0", "ab/a", "b", "\u{e9}",
];

async fn fill(suite: &Suite) -> Verdict {
    // Not in order, so that the order of writing cannot pass for the order of names.
    for name in NAMES.iter().rev() {
        suite.put(name, name.as_bytes()).await?;
    }
    Ok(())
}

pub(super) async fn order(suite: &Suite) -> Verdict {
    fill(suite).await?;
    let listed = suite.list("", true).await?;
    ensure!(listed == NAMES, "listed {listed:?}, expected {NAMES:?}");
    Ok(())
}

pub(super) async fn prefixes(suite: &Suite) -> Verdict {
    fill(suite).await?;
    for (prefix, expected) in [
        ("a", &["a/b-c", "a/b/c", "a/b/d", "a/bc"][..]),
        ("a/b", &["a/b/c", "a/b/d"]),
        ("a/b/c", &["a/b/c"]),
        ("ab", &["ab/a"]),
        ("b", &["b"]),
        ("a/", &["a/b-c", "a/b/c", "a/b/d", "a/bc"]),
        ("a/b/", &["a/b/c", "a/b/d"]),
        ("missing", &[]),
        ("b/below-an-object", &[]),
        ("a/b/c/d", &[]),
    ] {
        let listed = suite.list(prefix, true).await?;
        ensure!(
            listed == expected,
            "below '{prefix}': listed {listed:?}, expected {expected:?}"
        );
    }
    Ok(())
}

pub(super) async fn levels(suite: &Suite) -> Verdict {
    fill(suite).await?;
    for (prefix, expected) in [
        ("", &["a-b", "a.txt", "a/", "a0", "ab/", "b", "\u{e9}"][..]),
        ("a", &["a/b-c", "a/b/", "a/bc"]),
        ("a/b", &["a/b/c", "a/b/d"]),
        ("b", &["b"]),
        ("missing", &[]),
    ] {
        let listed = suite.list(prefix, false).await?;
        ensure!(
            listed == expected,
            "one level below '{prefix}': listed {listed:?}, expected {expected:?}"
        );
    }
    Ok(())
}

pub(super) async fn agrees_with_head(suite: &Suite) -> Verdict {
    fill(suite).await?;
    let mut rows = suite.store.list(&suite.base, ListOptions { recursive: true });
    let mut count = 0;
    while let Some(row) = rows.next().await {
        let Entry::Object(listed) = row? else {
            ensure!(false, "a prefix in a recursive listing");
            continue;
        };
        let head = suite.store.head(&listed.key).await?;
        ensure!(
            listed.size == head.size,
            "'{}': listed {} bytes, head says {}",
            listed.key,
            listed.size,
            head.size
        );
        ensure!(
            listed.version.is_none() || listed.version == head.version,
            "'{}': listed version {:?}, head says {:?}",
            listed.key,
            listed.version,
            head.version
        );
        count += 1;
    }
    ensure!(count == NAMES.len(), "{count} rows for {} objects", NAMES.len());
    Ok(())
}
