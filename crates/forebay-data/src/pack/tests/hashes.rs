//! Checksums of MDS shards in index.json: the right ones, of both files a shard can be, and compared when shards are read.

use forebay_core::ErrorKind;

use super::*;
use crate::format::mds::{HashName, Hasher, Index};
use crate::manifest::{MANIFEST_NAME, SUMS_NAME};

/// Every field of them is in every sample, as MDS wants it.
fn hashed(compression: Option<&str>) -> PackSpec {
    PackSpec {
        fields: Some(vec!["dat".to_owned(), "txt".to_owned()]),
        compression: compression.map(str::to_owned),
        hashes: vec![HashName::Xxh64, HashName::Sha1, HashName::Xxh64],
        samples_per_shard: Some(9),
        ..small(PackFormat::Mds)
    }
}

fn hashes_of(bytes: &[u8]) -> Vec<(HashName, String)> {
    let sha1 = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, bytes);
    let mut xxh64 = Hasher::new(HashName::Xxh64);
    xxh64.update(bytes);
    vec![
        (HashName::Sha1, target::hex(sha1.as_ref())),
        (HashName::Xxh64, xxh64.finish()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn index_json_has_the_hashes_of_both_files() {
    let from = memory_store();
    folder(&*from, 40).await;
    for compression in [None, Some("zstd"), Some("gz:1")] {
        let to = memory_store();
        let report = run(&from, &to, &hashed(compression)).await.unwrap();
        let files = written(&*to).await;
        let index = Index::parse(&files["index.json"]).unwrap();
        assert!(index.shards.len() as u64 == report.shards && report.shards > 2);
        for shard in &index.shards {
            assert_eq!(shard.hashes, [HashName::Sha1, HashName::Xxh64]);
            let stored = &files[shard.stored().key.as_str()];
            let raw = match compression {
                None => stored.clone(),
                Some("zstd") => zstd::decode_all(&stored[..]).unwrap(),
                Some(_) => {
                    let mut raw = Vec::new();
                    let mut gzip = flate2::read::GzDecoder::new(&stored[..]);
                    std::io::Read::read_to_end(&mut gzip, &mut raw).unwrap();
                    raw
                }
            };
            assert_eq!(shard.raw.hashes, hashes_of(&raw), "{compression:?}");
            let zip = shard.zip.as_ref().map(|zip| zip.hashes.clone());
            assert_eq!(zip, compression.map(|_| hashes_of(stored)), "{compression:?}");
        }
    }
}

/// Read a data set without what Forebay has put beside it.
async fn open_as_theirs(store: &Arc<dyn Store>) -> Result<Dataset> {
    for name in [MANIFEST_NAME, SUMS_NAME] {
        store.delete(&key(name)).await.unwrap();
    }
    Dataset::open(Arc::clone(store), &context(), &OpenOptions::default()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_compares_them() {
    let from = memory_store();
    folder(&*from, 40).await;
    let to = memory_store();
    run(&from, &to, &hashed(None)).await.unwrap();
    let mut shard = contents(&*to).await.remove("shard.00001.mds").unwrap();
    open_as_theirs(&to).await.unwrap();
    // Within a value, where only a checksum can tell.
    *shard.last_mut().unwrap() ^= 1;
    put(&*to, "shard.00001.mds", &shard).await;
    let error = open_as_theirs(&to).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("the sha1 of the raw shard"), "{error}");

    let to = memory_store();
    run(&from, &to, &hashed(Some("zstd"))).await.unwrap();
    let text = contents(&*to).await.remove("index.json").unwrap();
    let index = Index::parse(&text).unwrap();
    let zip = index.shards[1].zip.as_ref().unwrap();
    let other = "0".repeat(zip.hashes[0].1.len());
    let text = String::from_utf8(text).unwrap().replace(&zip.hashes[0].1, &other);
    put(&*to, "index.json", text.as_bytes()).await;
    let error = open_as_theirs(&to).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(
        error.to_string().contains("the sha1 of the compressed shard"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn other_formats_have_no_place_for_them() {
    let from = memory_store();
    folder(&*from, 5).await;
    for format in [PackFormat::Wds, PackFormat::TfRecord, PackFormat::Parquet] {
        let to = memory_store();
        let spec = PackSpec {
            hashes: vec![HashName::Sha1],
            ..small(format)
        };
        let error = run(&from, &to, &spec).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let words = format!("{error} {}", error.hint().unwrap_or_default());
        assert!(
            words.contains("no place for hashes") && words.contains("mds"),
            "{words}"
        );
        assert!(contents(&*to).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_with_the_same_hashes_only() {
    let from = memory_store();
    folder(&*from, 40).await;
    let to = memory_store();
    let spec = hashed(None);
    super::going_on::end_early(&from, &to, &spec).await;
    for hashes in [vec![HashName::Md5, HashName::Sha1], Vec::new()] {
        let other = PackSpec {
            hashes,
            ..spec.clone()
        };
        let error = run(&from, &to, &other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(error.message().contains(r#"hashes ["sha1","xxh64"]"#), "{error}");
    }
    // In another order they are the same.
    let same = PackSpec {
        hashes: vec![HashName::Sha1, HashName::Xxh64],
        ..spec
    };
    assert!(run(&from, &to, &same).await.unwrap().shards_kept > 0);
}
