//! Objects: written, read, listed, removed; whole and in parts.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_core::{DataPath, ErrorKind, Key, Span, crc64nvme};
use forebay_io::{AlignedBuf, Buf, Pages};
use forebay_store::{
    Body, Checksum, Context, Entry, ListOptions, PutMode, PutOptions, ReadOptions, Store, WriteCheck,
};
use futures::{StreamExt, TryStreamExt};

use crate::support::origin::Origin;
use crate::support::{Server, context, key, pattern, put, read};

/// The origin, and the real server where there is one.
async fn servers() -> Vec<Server> {
    let origin = Origin::start(&[]).await;
    let mut servers = vec![Server::of_origin(&origin)];
    servers.extend(Server::from_env());
    servers
}

async fn names(store: &dyn Store, prefix: &str, recursive: bool) -> Vec<String> {
    let prefix = if prefix.is_empty() { Key::ROOT } else { key(prefix) };
    let entries: Vec<Entry> = store
        .list(&prefix, ListOptions { recursive })
        .try_collect()
        .await
        .unwrap();
    let name = |entry: &Entry| match entry {
        Entry::Object(meta) => meta.key.to_string(),
        Entry::Prefix(key) => format!("{key}/"),
    };
    entries.iter().map(name).collect()
}

#[tokio::test]
async fn server_objects_come_back_as_they_were_written() {
    let context = context();
    for server in servers().await {
        let store = server.store("objects", &context).await;
        let bytes = pattern(3 << 20, 1);
        let half = bytes.len() / 2 + 11;
        let pieces = vec![
            Buf::copy_of(&bytes[..half]).unwrap(),
            Buf::copy_of(&bytes[half..]).unwrap(),
        ];
        let done = store
            .put(&key("a/b.bin"), Body::from(pieces), &PutOptions::default())
            .await
            .unwrap();
        assert_eq!(
            (done.size, done.crc64nvme),
            (bytes.len() as u64, crc64nvme(&bytes))
        );
        assert_eq!(done.ledger.path(DataPath::Http).requests, 1);
        let meta = store.head(&key("a/b.bin")).await.unwrap();
        assert_eq!(meta.size, bytes.len() as u64);
        assert_eq!(meta.version, done.version);
        assert!(meta.modified.is_some());
        let kept = Some(Checksum::Crc64Nvme(crc64nvme(&bytes)));
        // Ceph 16 takes checksums and keeps none.
        if server.kind != "ceph" {
            assert_eq!(meta.checksum, kept, "{}", server.kind);
        }
        for range in [0..1, 0..3 << 20, 4095..70_001, (3 << 20) - 1..3 << 20] {
            let got = read(&*store, "a/b.bin", range.clone()).await.unwrap();
            assert_eq!(got, bytes[range.start as usize..range.end as usize], "{range:?}");
        }
        store.delete(&key("a/b.bin")).await.unwrap();
        store.delete(&key("a/b.bin")).await.unwrap();
        let error = read(&*store, "a/b.bin", 0..1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.location().unwrap().ends_with("/a/b.bin"), "{error}");
        assert_eq!(
            store.head(&key("a/b.bin")).await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
}

#[tokio::test]
async fn server_spans_beyond_the_object_are_refused() {
    let context = context();
    for server in servers().await {
        let store = server.store("spans", &context).await;
        put(&*store, "o", &pattern(100, 2)).await.unwrap();
        put(&*store, "empty", b"").await.unwrap();
        for range in [0..101, 100..101, 500..600] {
            let error = read(&*store, "o", range.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{range:?}: {error}");
        }
        assert!(read(&*store, "o", 100..100).await.unwrap().is_empty());
        assert!(read(&*store, "empty", 0..0).await.unwrap().is_empty());
        assert_eq!(
            read(&*store, "o", 101..101).await.unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        assert_eq!(
            read(&*store, "gone", 0..0).await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let short = AlignedBuf::alloc(10, Pages::Small).unwrap();
        let options = ReadOptions::default();
        let error = store
            .read_into(&key("o"), Span::first(11), short, &options)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test]
async fn server_a_replaced_object_is_not_read_under_its_old_version() {
    let context = context();
    for server in servers().await {
        let store = server.store("version", &context).await;
        let version = put(&*store, "o", &pattern(1000, 3)).await.unwrap().version;
        put(&*store, "o", &pattern(1000, 4)).await.unwrap();
        for len in [0, 10] {
            let buf = AlignedBuf::alloc(10, Pages::Small).unwrap();
            let options = ReadOptions {
                version: version.clone(),
                ..ReadOptions::default()
            };
            let error = store
                .read_into(&key("o"), Span::first(len), buf, &options)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        }
    }
}

/// Names that are mangled where someone encodes twice, or not at all.
const ODD_NAMES: [&str; 15] = [
    "plain",
    "with space",
    "plus+plus",
    "per%cent",
    "per%20cent",
    "hash#frag?query=1&x=2",
    "star*tilde~",
    "\u{e9}t\u{e9}/\u{4f60}\u{597d}",
    "quote'\"",
    "br[ack]e{t}s|^`",
    "<xml>&amp;</xml>",
    "semi;colon:comma,equals=at@dollar$",
    "...dots",
    "deep/a b/c%2Fd/e",
    BACKSLASH,
];

/// SeaweedFS takes a backslash for a slash.
const BACKSLASH: &str = "back\\slash";

#[tokio::test]
async fn server_odd_names_survive() {
    let context = context();
    for server in servers().await {
        let store = server.store("odd names", &context).await;
        let names_kept = |name: &&str| *name != BACKSLASH || server.kind != "seaweedfs";
        let odd_names: Vec<&str> = ODD_NAMES.into_iter().filter(names_kept).collect();
        for (salt, name) in odd_names.iter().enumerate() {
            put(&*store, name, &pattern(64, salt as u64)).await.unwrap();
        }
        for (salt, name) in odd_names.iter().enumerate() {
            let got = read(&*store, name, 0..64).await.unwrap();
            assert_eq!(got, pattern(64, salt as u64), "{name} on {}", server.kind);
            assert_eq!(store.head(&key(name)).await.unwrap().size, 64);
        }
        let listed = names(&*store, "", true).await;
        let mut expected: Vec<String> = odd_names.iter().map(|name| (*name).to_owned()).collect();
        expected.sort();
        assert_eq!(listed, expected, "{}", server.kind);
        for name in odd_names {
            store.delete(&key(name)).await.unwrap();
        }
        assert!(names(&*store, "", true).await.is_empty());
        let error = put(&*store, "tab\there", b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test]
async fn server_listings_are_whole_sorted_and_by_level() {
    let context = context();
    for server in servers().await {
        let store = server.store("list", &context).await;
        for name in ["a", "a-b", "a/1", "a/2/x", "a/2/y", "ab", "b/c/d"] {
            put(&*store, name, b"x").await.unwrap();
        }
        // On SeaweedFS a name cannot be a file and a directory at once in every version, so `a` may be listed or not.
        let all = names(&*store, "", true).await;
        let expected = ["a", "a-b", "a/1", "a/2/x", "a/2/y", "ab", "b/c/d"];
        assert_eq!(all, expected, "{}", server.kind);
        assert_eq!(
            names(&*store, "a", true).await,
            ["a", "a/1", "a/2/x", "a/2/y"],
            "{}",
            server.kind
        );
        assert_eq!(
            names(&*store, "", false).await,
            ["a", "a-b", "a/", "ab", "b/"],
            "{}",
            server.kind
        );
        assert_eq!(names(&*store, "a/2", false).await, ["a/2/x", "a/2/y"]);
        assert!(names(&*store, "nothing", true).await.is_empty());
    }
}

#[tokio::test]
async fn server_listings_go_over_many_pages() {
    let Some(server) = Server::from_env() else { return };
    let context = context();
    let store = server.store("pages", &context).await;
    let count = 1_234;
    futures::stream::iter(0..count)
        .map(|n| {
            let store = Arc::clone(&store);
            async move { put(&*store, &format!("o{n:05}"), b"x").await.unwrap() }
        })
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await;
    let listed = names(&*store, "", true).await;
    let expected: Vec<String> = (0..count).map(|n| format!("o{n:05}")).collect();
    assert_eq!(listed, expected);
    futures::stream::iter(listed)
        .map(|name| {
            let store = Arc::clone(&store);
            async move { store.delete(&key(&name)).await.unwrap() }
        })
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await;
}

async fn upload_parts(
    store: &dyn Store,
    name: &str,
    options: &PutOptions,
) -> (Vec<u8>, forebay_store::PutDone) {
    let upload = store.upload(&key(name), options).await.unwrap();
    let part = upload.part_bytes() as usize;
    let bytes = pattern(part * 2 + 12_345, 5);
    let piece =
        |index: usize| Buf::copy_of(&bytes[index * part..bytes.len().min((index + 1) * part)]).unwrap();
    // The last part first, the others side by side.
    upload.put_part(2, piece(2).into()).await.unwrap();
    let (one, zero) = tokio::join!(
        upload.put_part(1, piece(1).into()),
        upload.put_part(0, piece(0).into())
    );
    one.unwrap();
    zero.unwrap();
    assert_eq!(
        store.head(&key(name)).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let done = upload.complete().await.unwrap();
    (bytes, done)
}

#[tokio::test]
async fn server_parts_in_any_order_make_the_object() {
    let context = context();
    for server in servers().await {
        let store = server.store("parts", &context).await;
        let capabilities = store.capabilities().await.unwrap();
        let (bytes, done) = upload_parts(&*store, "big", &PutOptions::default()).await;
        assert_eq!(
            (done.size, done.crc64nvme),
            (bytes.len() as u64, crc64nvme(&bytes))
        );
        let check = if capabilities.checksum.is_shown() {
            WriteCheck::ByStore
        } else {
            WriteCheck::Unchecked
        };
        assert_eq!(done.check, check, "{}", server.kind);
        let got = read(&*store, "big", 0..bytes.len() as u64).await.unwrap();
        assert!(got == bytes, "{}", server.kind);
        let meta = store.head(&key("big")).await.unwrap();
        assert!(
            done.version.is_none() || meta.version == done.version,
            "{}",
            server.kind
        );
        if let Some(Checksum::Crc64Nvme(sum)) = meta.checksum {
            assert_eq!(sum, crc64nvme(&bytes), "{}", server.kind);
        }
        // Nothing at all is an empty object.
        let upload = store.upload(&key("empty"), &PutOptions::default()).await.unwrap();
        let done = upload.complete().await.unwrap();
        assert_eq!((done.size, done.crc64nvme), (0, crc64nvme(b"")));
        assert_eq!(store.head(&key("empty")).await.unwrap().size, 0);
    }
}

#[tokio::test]
async fn server_an_upload_is_resumed_by_another_process() {
    let context = context();
    for server in servers().await {
        let store = server.store("resume", &context).await;
        let options = PutOptions::default();
        let upload = store.upload(&key("big"), &options).await.unwrap();
        let part = upload.part_bytes() as usize;
        let bytes = pattern(part + 77, 6);
        upload
            .put_part(0, Buf::copy_of(&bytes[..part]).unwrap().into())
            .await
            .unwrap();
        let state = upload.checkpoint().unwrap();
        let text = state.to_string();
        assert!(!text.contains(&server.secret_key) && !text.contains(&server.access_key));
        // As if the process had ended.
        drop(upload);
        let other = Context::clone(&context);
        let url = store.location().to_string();
        let store = crate::support::open(&url, &server.vars(), &other).await.unwrap();
        let state: serde_json::Value = serde_json::from_str(&text).unwrap();
        let upload = store
            .resume_upload(&key("big"), state.clone(), &options)
            .await
            .unwrap();
        upload
            .put_part(1, Buf::copy_of(&bytes[part..]).unwrap().into())
            .await
            .unwrap();
        let done = upload.complete().await.unwrap();
        assert_eq!(done.crc64nvme, crc64nvme(&bytes), "{}", server.kind);
        assert!(read(&*store, "big", 0..bytes.len() as u64).await.unwrap() == bytes);
        // The upload is over: going on with it is an error, not another object.
        let stale = store.resume_upload(&key("big"), state, &options).await.unwrap();
        let body = Buf::copy_of(&bytes[part..]).unwrap();
        assert_eq!(
            stale.put_part(1, body.into()).await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
        for nonsense in [serde_json::json!({}), serde_json::json!({"version": 9})] {
            let error = store
                .resume_upload(&key("big"), nonsense, &options)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }
}

/// Uploads whose process is gone are found over several pages, below their prefix alone, and given up.
#[tokio::test]
async fn server_uploads_that_were_left_are_found_and_given_up() {
    let context = context();
    for server in servers().await {
        let store = server.store("left", &context).await;
        let begun = ["a/1", "a/2 +&", "a/2 +&", "a/b/3", "ab/4"];
        for name in begun {
            let upload = store.upload(&key(name), &PutOptions::default()).await.unwrap();
            upload
                .put_part(0, Buf::copy_of(b"part").unwrap().into())
                .await
                .unwrap();
            // Nobody gives up one that another process may go on with.
            upload.checkpoint().unwrap();
        }
        let left = async |prefix: &Key| {
            let mut names: Vec<String> = Vec::new();
            for upload in store.open_uploads(prefix).await.unwrap() {
                assert!(upload.begun.is_some(), "{}", server.kind);
                names.push(upload.key.to_string());
            }
            names.sort();
            names
        };
        assert_eq!(left(&key("a")).await, begun[..4], "{}", server.kind);
        assert_eq!(left(&Key::ROOT).await, begun, "{}", server.kind);
        let below = forebay_store::wrap::Prefixed::new(Arc::clone(&store), key("a"));
        let inside = below.open_uploads(&key("b")).await.unwrap();
        assert_eq!(inside[0].key, key("b/3"), "{}", server.kind);
        below.abort_upload(&inside[0]).await.unwrap();
        for upload in store.open_uploads(&key("a")).await.unwrap() {
            store.abort_upload(&upload).await.unwrap();
            // One that is gone is gone.
            store.abort_upload(&upload).await.unwrap();
        }
        assert_eq!(left(&Key::ROOT).await, ["ab/4"], "{}", server.kind);
        assert!(names(&*store, "", true).await.is_empty(), "{}", server.kind);
        for upload in store.open_uploads(&Key::ROOT).await.unwrap() {
            store.abort_upload(&upload).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_upload_that_is_dropped_or_aborted_leaves_nothing() {
    let origin = Origin::start(&[]).await;
    let context = context();
    let store = Server::of_origin(&origin).store("drop", &context).await;
    let upload = store.upload(&key("x"), &PutOptions::default()).await.unwrap();
    upload
        .put_part(0, Buf::copy_of(b"part").unwrap().into())
        .await
        .unwrap();
    assert_eq!(origin.uploads(), 1);
    drop(upload);
    while origin.uploads() > 0 {
        tokio::task::yield_now().await;
    }
    let upload = store.upload(&key("x"), &PutOptions::default()).await.unwrap();
    upload.abort().await.unwrap();
    upload.abort().await.unwrap();
    assert_eq!((origin.uploads(), origin.names().len()), (0, 0));
}

#[tokio::test]
async fn parts_that_do_not_fit_are_refused() {
    let origin = Origin::start(&[]).await;
    let context = context();
    let store = Server::of_origin(&origin).store("fit", &context).await;
    let upload = store.upload(&key("x"), &PutOptions::default()).await.unwrap();
    let part = upload.part_bytes() as usize;
    let body = |len| Buf::copy_of(&vec![0; len]).unwrap();
    let kind = |result: forebay_core::Result<forebay_core::Ledger>| result.unwrap_err().kind();
    assert_eq!(
        kind(upload.put_part(0, body(part + 1).into()).await),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(upload.put_part(10_000, body(1).into()).await),
        ErrorKind::LimitExceeded
    );
    upload.put_part(1, body(1).into()).await.unwrap();
    assert_eq!(
        upload.complete().await.unwrap_err().kind(),
        ErrorKind::InvalidInput,
        "part 0 is missing"
    );
    upload.put_part(0, body(1).into()).await.unwrap();
    assert_eq!(
        upload.complete().await.unwrap_err().kind(),
        ErrorKind::InvalidInput,
        "part 0 is short"
    );
    let options = PutOptions {
        size_hint: Some(1 << 40),
        ..PutOptions::default()
    };
    let upload = store.upload(&key("y"), &options).await;
    match upload {
        Ok(upload) => assert!((1u64 << 40).div_ceil(upload.part_bytes()) <= 10_000),
        Err(error) => assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}"),
    }
}

#[tokio::test]
async fn server_only_one_of_many_writers_makes_an_object() {
    let context = context();
    for server in servers().await {
        let store = server.store("absent", &context).await;
        let options = PutOptions {
            mode: PutMode::IfAbsent,
            ..PutOptions::default()
        };
        let capabilities = store.capabilities().await.unwrap();
        if !capabilities.put_if_absent.is_shown() {
            let body = Body::from(Buf::copy_of(b"x").unwrap());
            let error = store.put(&key("o"), body, &options).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", server.kind);
            continue;
        }
        let writers = (0..8u64).map(|writer| {
            let (store, options) = (Arc::clone(&store), options.clone());
            tokio::spawn(async move {
                let body = Body::from(Buf::copy_of(&pattern(500, writer)).unwrap());
                (writer, store.put(&key("o"), body, &options).await)
            })
        });
        let mut winners = BTreeSet::new();
        for writer in futures::future::join_all(writers).await {
            match writer.unwrap() {
                (writer, Ok(_)) => {
                    winners.insert(writer);
                }
                (_, Err(error)) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}"),
            }
        }
        assert_eq!(winners.len(), 1, "{}", server.kind);
        let winner = *winners.first().unwrap();
        assert_eq!(read(&*store, "o", 0..500).await.unwrap(), pattern(500, winner));
        if capabilities.upload_if_absent.is_shown() {
            let upload = store.upload(&key("o"), &options).await.unwrap();
            upload
                .put_part(0, Buf::copy_of(b"other").unwrap().into())
                .await
                .unwrap();
            assert_eq!(
                upload.complete().await.unwrap_err().kind(),
                ErrorKind::AlreadyExists
            );
            assert_eq!(read(&*store, "o", 0..500).await.unwrap(), pattern(500, winner));
        }
    }
}
