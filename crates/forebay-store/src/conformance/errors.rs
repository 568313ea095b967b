//! What errors and ledgers say: kind, operation, place; bytes and requests.

use forebay_core::{DataPath, ErrorKind, Key, PathPolicy, Span};
use forebay_io::{AlignedBuf, Buf, Pages};

use super::{Miss, Suite, Verdict, ensure, expect_error, pattern};
use crate::store::{PutOptions, ReadOptions};

pub(super) async fn missing(suite: &Suite) -> Verdict {
    suite.put("dir/there", b"content").await?;
    for name in ["missing", "dir/missing", "no/such/dir", "dir/there/below", "dir"] {
        let head = suite.store.head(&suite.key(name)?).await;
        expect_error(&format!("head of '{name}'"), head, ErrorKind::NotFound, name)?;
        let read = suite.read(name, Span::first(1), &ReadOptions::default()).await;
        expect_error(&format!("read of '{name}'"), read, ErrorKind::NotFound, name)?;
        let read = suite.read(name, Span::first(0), &ReadOptions::default()).await;
        expect_error(
            &format!("empty read of '{name}'"),
            read,
            ErrorKind::NotFound,
            name,
        )?;
    }
    Ok(())
}

pub(super) async fn whole_store(suite: &Suite) -> Verdict {
    let (store, root) = (&suite.store, Key::ROOT);
    let body = || Buf::copy_of(b"content");
    let buf = AlignedBuf::alloc(1, Pages::Small)?;
    let results = [
        ("head", store.head(&root).await.map(drop)),
        (
            "put",
            store
                .put(&root, body()?.into(), &PutOptions::default())
                .await
                .map(drop),
        ),
        (
            "read",
            store
                .read_into(&root, Span::first(1), buf, &ReadOptions::default())
                .await
                .map(drop),
        ),
        (
            "upload",
            store.upload(&root, &PutOptions::default()).await.map(drop),
        ),
        ("delete", store.delete(&root).await),
    ];
    for (what, result) in results {
        expect_error(
            &format!("{what} of the whole store"),
            result,
            ErrorKind::InvalidInput,
            "",
        )?;
    }
    Ok(())
}

pub(super) async fn version(suite: &Suite) -> Verdict {
    if !suite.capabilities.version_match.is_shown() {
        let why = format!("{:?}", suite.capabilities.version_match);
        return Err(Miss::Skipped(format!("versions are not promised: {why}")));
    }
    let (old, new) = (pattern(1, 9000), pattern(2, 9000));
    suite.put("object", &old).await?;
    let version = suite.store.head(&suite.key("object")?).await?.version;
    ensure!(version.is_some(), "versions are promised, but head tells none");
    let options = ReadOptions {
        version,
        ..ReadOptions::default()
    };
    let span = Span::new(100, 9000)?;
    let done = suite.read("object", span, &options).await?;
    ensure!(done.buf[..] == old[100..], "the right version gave other bytes");
    suite.put("object", &new).await?;
    expect_error(
        "reading a version that was replaced",
        suite.read("object", span, &options).await,
        ErrorKind::Precondition,
        "object",
    )?;
    suite.store.delete(&suite.key("object")?).await?;
    expect_error(
        "reading a version that was deleted",
        suite.read("object", span, &options).await,
        ErrorKind::NotFound,
        "object",
    )
}

pub(super) async fn required_path(suite: &Suite) -> Verdict {
    suite.put("object", &pattern(3, 70_000)).await?;
    let policy = PathPolicy::Require(DataPath::Gds);
    let options = ReadOptions {
        policy,
        ..ReadOptions::default()
    };
    let read = suite.read("object", Span::first(100), &options).await;
    expect_error(
        "reading by a path that is not there",
        read,
        ErrorKind::Unsupported,
        "object",
    )?;
    let options = PutOptions {
        policy,
        ..PutOptions::default()
    };
    let body = Buf::copy_of(&pattern(4, 70_000))?.into();
    let put = suite.store.put(&suite.key("other")?, body, &options).await;
    expect_error(
        "writing by a path that is not there",
        put,
        ErrorKind::Unsupported,
        "other",
    )?;
    ensure!(
        suite.list("", true).await? == ["object"],
        "a refused write left something behind"
    );
    Ok(())
}

pub(super) async fn ledger(suite: &Suite) -> Verdict {
    for size in [1u64, 4096, 70_001, 3_000_000] {
        let done = suite.put("object", &pattern(size, size as usize)).await?;
        ensure!(
            done.ledger.bytes() == size,
            "{size} bytes put, the ledger says {}",
            done.ledger.bytes()
        );
        let requests: u64 = done.ledger.paths.values().map(|totals| totals.requests).sum();
        ensure!(requests > 0, "{size} bytes put without a request");
        for span in [Span::first(size), Span::new(size / 3, size)?] {
            let done = suite.read("object", span, &ReadOptions::default()).await?;
            ensure!(
                done.ledger.bytes() == span.len(),
                "{} bytes read, the ledger says {}",
                span.len(),
                done.ledger.bytes()
            );
            ensure!(
                done.ledger.verified_bytes <= span.len(),
                "more bytes verified than read"
            );
        }
    }
    Ok(())
}

pub(super) async fn capabilities_agree(suite: &Suite) -> Verdict {
    let again = suite.store.capabilities().await?;
    for ((name, before), (_, after)) in suite.capabilities.rows().into_iter().zip(again.rows()) {
        ensure!(before == after, "{name}: first {before:?}, then {after:?}");
    }
    Ok(())
}
