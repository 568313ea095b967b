//! Objects one at a time: written, looked at, read whole and in ranges, removed.

use forebay_core::{ErrorKind, Seed, Span, crc64nvme};
use forebay_io::{AlignedBuf, Buf, Pages};

use super::{Miss, Suite, Verdict, ensure, expect_error, pattern};
use crate::ext::StoreExt;
use crate::store::{Body, PutOptions, ReadOptions};

/// Around pages and blocks, where files are cut and padded.
const SIZES: [usize; 8] = [1, 511, 4095, 4096, 4097, 65_536, 70_001, 300_000];

pub(super) async fn put_then_read(suite: &Suite) -> Verdict {
    for size in SIZES {
        let (name, bytes) = (format!("size-{size}"), pattern(size as u64, size));
        let done = suite.put(&name, &bytes).await?;
        ensure!(
            done.size == size as u64,
            "{size} bytes were put, {} reported",
            done.size
        );
        ensure!(
            done.crc64nvme == crc64nvme(&bytes),
            "wrong checksum of {size} bytes reported"
        );
        let meta = suite.store.head(&suite.key(&name)?).await?;
        ensure!(
            meta.key == suite.key(&name)?,
            "head of '{name}' speaks of '{}'",
            meta.key
        );
        ensure!(
            meta.size == size as u64,
            "{size} bytes were put, head says {}",
            meta.size
        );
        ensure!(
            done.version.is_none() || done.version == meta.version,
            "put says version {:?}, head says {:?}",
            done.version,
            meta.version
        );
        ensure!(
            suite.get(&name).await? == bytes,
            "{size} bytes did not come back as they were"
        );
    }
    Ok(())
}

pub(super) async fn small_objects_together(suite: &Suite) -> Verdict {
    let mut whole = Vec::new();
    let mut objects = Vec::new();
    for size in [1, 0, 4096, 70_001, 3] {
        let (name, bytes) = (format!("small-{size}"), pattern(size as u64, size));
        suite.put(&name, &bytes).await?;
        whole.extend_from_slice(&bytes);
        objects.push((suite.key(&name)?, size as u64));
    }
    let read = |objects: Vec<_>, len: usize| async move {
        let buf = AlignedBuf::alloc(len, Pages::default())?;
        suite
            .store
            .read_small(&objects, buf, &ReadOptions::default())
            .await
    };
    let done = read(objects.clone(), whole.len() + 10).await?;
    ensure!(
        done.buf.get(..whole.len()) == Some(&whole[..]),
        "objects that were read together are not what they were"
    );
    let short = read(objects.clone(), whole.len() - 1).await;
    expect_error("a buffer too short", short, ErrorKind::InvalidInput, "")?;
    let longer = vec![(suite.key("small-3")?, 4)];
    let longer = read(longer, 10).await;
    expect_error(
        "an object that shrank",
        longer,
        ErrorKind::Precondition,
        "small-3",
    )?;
    let missing = read(vec![(suite.key("small-none")?, 4)], 10).await;
    expect_error("one that is missing", missing, ErrorKind::NotFound, "small-none")?;
    Ok(())
}

pub(super) async fn empty_object(suite: &Suite) -> Verdict {
    let key = suite.key("no-piece")?;
    suite
        .store
        .put(&key, Body::default(), &PutOptions::default())
        .await?;
    suite.put("empty-piece", b"").await?;
    for name in ["no-piece", "empty-piece"] {
        let size = suite.store.head(&suite.key(name)?).await?.size;
        ensure!(size == 0, "{name}: an empty object has {size} bytes");
        ensure!(
            suite.get(name).await?.is_empty(),
            "{name}: an empty object has content"
        );
        let beyond = suite.read(name, Span::first(1), &ReadOptions::default()).await;
        expect_error("a byte of nothing", beyond, ErrorKind::InvalidInput, name)?;
    }
    ensure!(
        suite.list("", true).await?.len() == 2,
        "empty objects are not listed"
    );
    Ok(())
}

pub(super) async fn pieces_are_joined(suite: &Suite) -> Verdict {
    let bytes = pattern(1, 400_000);
    let whole = Buf::copy_of(&bytes)?;
    let mut rng = Seed(7).rng();
    for round in 0..4 {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let len = (rng.below(70_000) as usize).min(bytes.len() - at);
            pieces.push(whole.slice(at..at + len));
            at += len;
        }
        let name = format!("round-{round}");
        let done = suite
            .store
            .put(&suite.key(&name)?, Body::from(pieces), &PutOptions::default())
            .await?;
        ensure!(
            done.crc64nvme == crc64nvme(&bytes),
            "wrong checksum of joined pieces"
        );
        ensure!(
            suite.get(&name).await? == bytes,
            "pieces were not joined in order"
        );
    }
    Ok(())
}

pub(super) async fn ranges(suite: &Suite) -> Verdict {
    let bytes = pattern(2, 200_003);
    suite.put("object", &bytes).await?;
    let mut rng = Seed(3).rng();
    let mut spans = vec![
        Span::first(1),
        Span::first(4096),
        Span::new(4096, 8192)?,
        Span::new(1, 200_003)?,
        Span::new(200_002, 200_003)?,
        Span::new(200_003, 200_003)?,
        Span::new(131_072, 200_003)?,
    ];
    for _ in 0..24 {
        let start = rng.below(200_003);
        spans.push(Span::at(start, rng.below(200_004 - start))?);
    }
    for span in spans {
        // A buffer that is longer than needed comes back as long as it was.
        let spare = rng.below(9_000) as usize;
        let buf = AlignedBuf::alloc(span.len() as usize + spare, Pages::Small)?;
        let len = buf.len();
        let done = suite
            .store
            .read_into(&suite.key("object")?, span, buf, &ReadOptions::default())
            .await?;
        ensure!(
            done.buf.len() == len,
            "{span}: a buffer of {len} bytes came back with {}",
            done.buf.len()
        );
        ensure!(
            done.buf[..span.len() as usize] == bytes[span.relative_to(0)],
            "{span}: other bytes than the object's"
        );
    }
    Ok(())
}

pub(super) async fn ranges_beyond(suite: &Suite) -> Verdict {
    suite.put("object", &pattern(4, 1000)).await?;
    for span in [Span::new(0, 1001)?, Span::new(999, 1001)?, Span::new(5000, 6000)?] {
        let result = suite.read("object", span, &ReadOptions::default()).await;
        expect_error(
            &format!("range {span} of 1000 bytes"),
            result,
            ErrorKind::InvalidInput,
            "object",
        )?;
    }
    let buf = AlignedBuf::alloc(10, Pages::Small)?;
    let key = suite.key("object")?;
    let result = suite
        .store
        .read_into(&key, Span::first(11), buf, &ReadOptions::default())
        .await;
    expect_error(
        "a buffer that is too short",
        result,
        ErrorKind::InvalidInput,
        "object",
    )
}

pub(super) async fn parallel_read(suite: &Suite) -> Verdict {
    let part_bytes = suite.context.limits().part_bytes as usize;
    let bytes = pattern(5, part_bytes * 2 + 12_345);
    suite.put("object", &bytes).await?;
    let key = suite.key("object")?;
    for span in [
        Span::first(bytes.len() as u64),
        Span::new(4097, bytes.len() as u64 - 1)?,
        Span::new(10, 20)?,
    ] {
        let (read, ledger) = suite
            .store
            .read(&key, span, &ReadOptions::default(), &suite.context)
            .await?;
        ensure!(
            read[..] == bytes[span.relative_to(0)],
            "{span}: other bytes than the object's"
        );
        ensure!(
            ledger.bytes() == span.len(),
            "{span}: the ledger says {} bytes",
            ledger.bytes()
        );
    }
    Ok(())
}

pub(super) async fn delete(suite: &Suite) -> Verdict {
    suite.put("dir/object", b"content").await?;
    suite.put("dir/other", b"content").await?;
    let key = suite.key("dir/object")?;
    suite.store.delete(&key).await?;
    ensure!(
        suite.is_absent("dir/object").await?,
        "a deleted object is still there"
    );
    let read = suite
        .read("dir/object", Span::first(1), &ReadOptions::default())
        .await;
    expect_error(
        "reading what was deleted",
        read,
        ErrorKind::NotFound,
        "dir/object",
    )?;
    suite.store.delete(&key).await?;
    suite.store.delete(&suite.key("never/was")?).await?;
    ensure!(
        suite.get("dir/other").await? == b"content",
        "deleting took another object along"
    );
    suite.put("dir/object", b"again").await?;
    ensure!(
        suite.get("dir/object").await? == b"again",
        "a name cannot be used again"
    );
    Ok(())
}

/// Bytes of the longest name. S3 allows 1024, but servers fit names into what they have: Garage into keys of LMDB, which end at 511, a Ceph
/// of few resources into 256, each with what else is in there. With the prefix of the check this stays below.
const LONG_NAME_BYTES: usize = 140;

/// Backslashes are left out: AWS advises against them, and servers are known that take them for slashes.
pub(super) async fn odd_names(suite: &Suite) -> Verdict {
    let long = ["x".repeat(LONG_NAME_BYTES - 41), "y".repeat(40)].join("/");
    let names = [
        "with space",
        " leading and trailing ",
        "dir with space/a  b",
        "umlaut-\u{fc}\u{f6}",
        "emoji-\u{1f600}",
        "combining-e\u{301}",
        "percent%2Fsign%",
        "plus+sign",
        "hash#question?and&equals=",
        "quotes'\"`",
        "semi;colon:comma,",
        "at@tilde~caret^",
        "brackets[](){}<>",
        "pipe|star*",
        "dollar$bang!",
        ".hidden",
        "...",
        "trailing.",
        "Case",
        "case",
        long.as_str(),
    ];
    for (seed, name) in names.iter().enumerate() {
        suite
            .put(name, &pattern(seed as u64, 100))
            .await
            .map_err(|miss| in_name(name, miss))?;
    }
    let mut listed = suite.list("", true).await?;
    let mut expected: Vec<String> = names.iter().map(ToString::to_string).collect();
    expected.sort_unstable();
    ensure!(
        listed == expected,
        "names do not come back: listed {listed:?}, expected {expected:?}"
    );
    for (seed, name) in names.iter().enumerate() {
        let bytes = suite.get(name).await.map_err(|miss| in_name(name, miss))?;
        ensure!(
            bytes == pattern(seed as u64, 100),
            "'{name}' has the content of another name"
        );
        suite.store.delete(&suite.key(name)?).await?;
    }
    listed = suite.list("", true).await?;
    ensure!(listed.is_empty(), "left after deleting all: {listed:?}");
    Ok(())
}

fn in_name(name: &str, miss: Miss) -> Miss {
    match miss {
        Miss::Failed(why) => Miss::Failed(format!("'{name}': {why}")),
        skipped @ Miss::Skipped(_) => skipped,
    }
}

pub(super) async fn overwrite(suite: &Suite) -> Verdict {
    let mut before = None;
    for (seed, size) in [(1, 5000), (2, 5000), (3, 200_000), (4, 10), (5, 0), (6, 4096)] {
        let bytes = pattern(seed, size);
        suite.put("object", &bytes).await?;
        ensure!(
            suite.get("object").await? == bytes,
            "not the newest content after replacing"
        );
        let version = suite.store.head(&suite.key("object")?).await?.version;
        ensure!(
            version.is_none() || version != before,
            "the version did not change with the content: {version:?}"
        );
        before = version;
    }
    ensure!(
        suite.list("", true).await? == ["object"],
        "replacing made another object"
    );
    Ok(())
}
