//! Loads and saves of real files in a temporary folder.

use std::fs;
use std::path::Path;

use forebay_core::safetensors::{Dtype, HeaderBuilder};
use forebay_core::{Location, PathPolicy};
use forebay_io::DiskConfig;

use super::*;
use crate::hashes::{CHUNK_BYTES, SIDE_SUFFIX, Verify};
use crate::save::{KeepHashes, SaveOptions, TensorSpec, save_at};
use crate::select::Shard;
use crate::source::{OpenOptions, write_hashes};

pub(super) fn context() -> Context {
    Context::open(DiskConfig::default()).unwrap()
}

fn location(path: &Path) -> Location {
    Location::from_path(path, Path::new("/")).unwrap()
}

/// Bytes that differ from place to place.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| ((at + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

fn specs(tensors: &[(&str, Dtype, &[u64])]) -> (Vec<TensorSpec>, Vec<Vec<u8>>) {
    let specs: Vec<TensorSpec> = tensors
        .iter()
        .map(|(name, dtype, shape)| TensorSpec {
            name: (*name).to_owned(),
            dtype: *dtype,
            shape: shape.to_vec(),
        })
        .collect();
    let bytes = specs
        .iter()
        .zip(1..)
        .map(|(spec, seed)| {
            let bits = spec.shape.iter().product::<u64>() * spec.dtype.bits();
            noise((bits / 8) as usize, seed * 1_000_003)
        })
        .collect();
    (specs, bytes)
}

const MODEL: &[(&str, Dtype, &[u64])] = &[
    ("a.weight", Dtype::Bf16, &[1024, 1024]),
    ("a.bias", Dtype::F32, &[1024]),
    ("b.weight", Dtype::F8E4M3, &[300, 7000]),
    ("empty", Dtype::F32, &[0, 4]),
    ("scalar", Dtype::I64, &[]),
];

pub(super) async fn save_model(path: &Path, options: &SaveOptions, context: &Context) -> Vec<Vec<u8>> {
    let (specs, bytes) = specs(MODEL);
    let done = save_at(&location(path), &specs, &bytes, options, context)
        .await
        .unwrap();
    assert_eq!(done.size, fs::metadata(path).unwrap().len());
    bytes
}

/// A file of several pieces, whatever the sink.
pub(super) async fn save_large(path: &Path, context: &Context) {
    let (specs, bytes) = specs(&[("x", Dtype::U8, &[3, 9 << 20]), ("y", Dtype::F32, &[100])]);
    let options = SaveOptions::default();
    save_at(&location(path), &specs, &bytes, &options, context)
        .await
        .unwrap();
}

pub(super) async fn open(path: &Path, verify: Verify, context: &Context) -> Result<Source> {
    let options = OpenOptions {
        verify,
        ..OpenOptions::default()
    };
    Source::open(&[location(path)], &options, context).await
}

async fn load(path: &Path, verify: Verify, options: &LoadOptions) -> Result<(Vec<HostTensor>, LoadReport)> {
    let context = context();
    let source = open(path, verify, &context).await?;
    load_host(&source, options, &context).await
}

fn direct() -> LoadOptions {
    LoadOptions {
        policy: PathPolicy::Fastest,
        ..LoadOptions::default()
    }
}

fn bytes_of<'a>(tensors: &'a [HostTensor], name: &str) -> &'a [u8] {
    &tensors.iter().find(|tensor| tensor.name == name).unwrap().bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_saved_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let context = context();
    for (hashes, align) in [
        (KeepHashes::No, 8),
        (KeepHashes::No, 4096),
        (KeepHashes::InHeader, 4096),
        (KeepHashes::Beside, 8),
    ] {
        let path = dir.path().join("m.safetensors");
        let options = SaveOptions {
            hashes,
            align,
            metadata: Some([("format".to_owned(), "pt".to_owned())].into()),
            ..SaveOptions::default()
        };
        let bytes = save_model(&path, &options, &context).await;
        let (tensors, report) = load(&path, Verify::Prefer, &direct()).await.unwrap();
        assert_eq!(tensors.len(), MODEL.len());
        for ((name, dtype, shape), bytes) in MODEL.iter().zip(&bytes) {
            let tensor = tensors.iter().find(|tensor| tensor.name == *name).unwrap();
            assert_eq!((tensor.dtype, &tensor.shape[..]), (*dtype, *shape));
            assert_eq!(&tensor.bytes[..], &bytes[..], "{name} {hashes:?} {align}");
            assert!(tensor.bytes.is_aligned(dtype.align() as usize));
        }
        if hashes == KeepHashes::No {
            assert_eq!(report.ledger.verified_bytes, 0);
        } else {
            assert!(report.ledger.verified_bytes >= report.tensor_bytes, "{report:?}");
        }
        assert_eq!(
            dir.path().join(format!("m.safetensors{SIDE_SUFFIX}")).exists(),
            hashes == KeepHashes::Beside
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_direct_path_is_taken_and_the_cache_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let bytes = save_model(&path, &SaveOptions::default(), &context()).await;
    // Warm it up.
    fs::read(&path).unwrap();
    let (tensors, report) = load(&path, Verify::Off, &LoadOptions::default()).await.unwrap();
    assert_eq!(bytes_of(&tensors, "a.weight"), &bytes[0][..]);
    assert_eq!(report.files_hot, 1);
    assert_eq!(report.ledger.path(DataPath::Buffered).bytes, report.read_bytes);
    assert!(
        report.ledger.downgrades[0].reason.contains("in the page cache"),
        "{report:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_named_by_tensor_and_range() {
    let dir = tempfile::tempdir().unwrap();
    let context = context();
    for hashes in [KeepHashes::InHeader, KeepHashes::Beside] {
        let path = dir.path().join("m.safetensors");
        let options = SaveOptions {
            hashes,
            ..SaveOptions::default()
        };
        save_model(&path, &options, &context).await;
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - 100_000;
        bytes[at] ^= 16;
        fs::write(&path, &bytes).unwrap();
        let error = load(&path, Verify::Prefer, &direct()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("'b.weight'") && text.contains("m.safetensors"),
            "{text}"
        );
        let chunk: u64 = text
            .split("bytes ")
            .nth(1)
            .and_then(|rest| rest.split("..").next()?.parse().ok())
            .unwrap();
        assert!(chunk <= at as u64 && (at as u64) < chunk + CHUNK_BYTES, "{text}");
        // Nobody looked: nobody knows.
        load(&path, Verify::Off, &direct()).await.unwrap();
        // A part without the bad chunk is fine.
        let only = LoadOptions {
            selection: Selection::new(&["a.bias".to_owned()], None).unwrap(),
            ..LoadOptions::default()
        };
        let (_, report) = load(&path, Verify::Prefer, &only).await.unwrap();
        assert!(report.ledger.verified_bytes >= 4096);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_header_is_noticed_where_there_are_checksums() {
    let dir = tempfile::tempdir().unwrap();
    for hashes in [KeepHashes::InHeader, KeepHashes::Beside] {
        let path = dir.path().join("m.safetensors");
        let options = SaveOptions {
            hashes,
            ..SaveOptions::default()
        };
        save_model(&path, &options, &context()).await;
        let mut bytes = fs::read(&path).unwrap();
        // BF16 to F16 with a space is another valid header.
        let at = bytes.windows(6).position(|window| window == b"\"BF16\"").unwrap();
        bytes[at..at + 6].copy_from_slice(b" \"F16\"");
        fs::write(&path, &bytes).unwrap();
        let error = load(&path, Verify::Prefer, &direct()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("header"), "{error}");
        load(&path, Verify::Off, &direct()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn required_checksums_that_are_not_there_are_an_error_and_can_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let context = context();
    save_model(&path, &SaveOptions::default(), &context).await;
    let error = open(&path, Verify::Require, &context).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let source = open(&path, Verify::Off, &context).await.unwrap();
    write_hashes(&source.files()[0], &context).await.unwrap();
    let (_, report) = load(&path, Verify::Require, &direct()).await.unwrap();
    assert!(report.ledger.verified_bytes >= report.tensor_bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_during_the_load_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let context = context();
    save_model(&path, &SaveOptions::default(), &context).await;
    save_large(&path, &context).await;
    let other = dir.path().join("other.safetensors");
    // Left alone, replaced by a rename, and written to in place.
    for (change, is_noticed) in [
        (Change::Nothing, false),
        (Change::Replace(other.clone()), true),
        (Change::Append, true),
    ] {
        fs::copy(&path, &other).unwrap();
        let source = open(&path, Verify::Off, &context).await.unwrap();
        let sink = Arc::new(Meddling {
            inner: HostSink::new(context.pool(), None),
            path: path.clone(),
            change,
            is_done: tokio::sync::watch::Sender::new(false),
        });
        let loaded = load_into(&source, &direct(), Arc::<Meddling>::clone(&sink), &context).await;
        assert!(
            *sink.is_done.borrow(),
            "the first piece came from the file as it was"
        );
        let error = loaded.err();
        let kind = error.as_ref().map(Error::kind);
        assert_eq!(kind, is_noticed.then_some(ErrorKind::Precondition), "{error:?}");
    }
}

#[derive(Debug)]
enum Change {
    Nothing,
    Replace(std::path::PathBuf),
    Append,
}

/// A sink that changes the file once it has the first piece, and lets the others be read only then.
#[derive(Debug)]
struct Meddling {
    inner: HostSink,
    path: std::path::PathBuf,
    change: Change,
    is_done: tokio::sync::watch::Sender<bool>,
}

#[async_trait::async_trait]
impl Sink for Meddling {
    fn placement(&self) -> crate::load_plan::Placement {
        self.inner.placement()
    }

    fn piece_bytes_max(&self) -> u64 {
        PIECE_BYTES_MIN
    }

    async fn prepare(&self, plan: &Arc<Plan>) -> Result<()> {
        assert!(plan.pieces().len() > 1);
        self.inner.prepare(plan).await
    }

    async fn lease(&self, piece: &crate::load_plan::Piece) -> Result<forebay_io::AlignedBuf> {
        if piece.index > 0 {
            let mut done = self.is_done.subscribe();
            done.wait_for(|is_done| *is_done).await.unwrap();
        }
        self.inner.lease(piece).await
    }

    async fn accept(&self, piece: &crate::load_plan::Piece, buf: forebay_io::AlignedBuf) -> Result<Ledger> {
        let ledger = self.inner.accept(piece, buf).await;
        if piece.index == 0 {
            match &self.change {
                Change::Nothing => {}
                Change::Replace(other) => fs::rename(other, &self.path).unwrap(),
                Change::Append => {
                    let mut bytes = fs::read(&self.path).unwrap();
                    bytes.push(0);
                    fs::write(&self.path, bytes).unwrap();
                }
            }
            self.is_done.send_replace(true);
        }
        ledger
    }

    async fn finish(&self) -> Result<()> {
        self.inner.finish().await
    }
}

/// The file is open from the first load, so that no read of the second looks at its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changed_while_it_was_kept_open_is_noticed() {
    let (dir, context) = (tempfile::tempdir().unwrap(), context());
    let path = dir.path().join("m.safetensors");
    let with_hashes = SaveOptions {
        hashes: KeepHashes::InHeader,
        ..SaveOptions::default()
    };
    let options = LoadOptions {
        policy: PathPolicy::Require(DataPath::Buffered),
        ..LoadOptions::default()
    };
    for (replaced, verify) in [
        (false, Verify::Off),
        (true, Verify::Off),
        (false, Verify::Require),
        (true, Verify::Require),
    ] {
        save_model(&path, &with_hashes, &context).await;
        let source = open(&path, verify, &context).await.unwrap();
        load_host(&source, &options, &context).await.unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[5_000] ^= 1;
        let target = if replaced {
            dir.path().join("other")
        } else {
            path.clone()
        };
        fs::write(&target, &bytes).unwrap();
        fs::rename(&target, &path).unwrap();
        let error = load_host(&source, &options, &context).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(error.to_string().contains("changed"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_little_memory_is_said_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    save_model(&path, &SaveOptions::default(), &context()).await;
    let progress = Arc::new(Progress::default());
    let options = LoadOptions {
        memory_bytes_max: Some(1 << 20),
        progress: Some(Arc::clone(&progress)),
        ..LoadOptions::default()
    };
    let error = load(&path, Verify::Off, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(error.to_string().contains("4.0 MiB"), "{error}");
    assert_eq!(progress.done_bytes.load(Ordering::Relaxed), 0);
}

/// Sparse files are cheap, and their tensors are not: such a load was killed, and said nothing.
#[tokio::test(flavor = "multi_thread")]
async fn more_than_the_machine_has_is_said_before_anything_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let bytes = 10u64 << 40;
    let mut builder = HeaderBuilder::new();
    builder.tensor("huge", Dtype::U8, vec![bytes]);
    let header = builder.encode().unwrap();
    fs::write(&path, &header.bytes).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(header.bytes.len() as u64 + bytes).unwrap();
    let error = load(&path, Verify::Off, &LoadOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
    assert!(error.to_string().contains("10.0 TiB"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_together_have_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let options = SaveOptions {
        hashes: KeepHashes::InHeader,
        ..SaveOptions::default()
    };
    let bytes = save_model(&path, &options, &context()).await;
    let mut columns = vec![Vec::new(); 300];
    let mut rows = Vec::new();
    for rank in 0..3 {
        let dims = [("b.*".to_owned(), 1), ("a.weight".to_owned(), 0)];
        let options = LoadOptions {
            selection: Selection::new(&[], Some(Shard::new(rank, 3, &dims).unwrap())).unwrap(),
            ..LoadOptions::default()
        };
        let (tensors, report) = load(&path, Verify::Require, &options).await.unwrap();
        assert!(report.ledger.verified_bytes > 0);
        let part = tensors.iter().find(|tensor| tensor.name == "b.weight").unwrap();
        let width = part.shape[1] as usize;
        for (row, bytes) in columns.iter_mut().zip(part.bytes.chunks(width)) {
            row.extend_from_slice(bytes);
        }
        rows.extend_from_slice(bytes_of(&tensors, "a.weight"));
        assert_eq!(bytes_of(&tensors, "a.bias").len(), 4096, "not divided");
    }
    assert_eq!(columns.concat(), bytes[2]);
    assert_eq!(rows, bytes[0]);
}

async fn save_one(path: &Path, name: &str, context: &Context) -> Vec<u8> {
    let (specs, bytes) = specs(&[(name, Dtype::F32, &[500])]);
    save_at(&location(path), &specs, &bytes, &SaveOptions::default(), context)
        .await
        .unwrap();
    bytes[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_with_and_without_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let context = context();
    let first = save_one(&dir.path().join("m-1.safetensors"), "x", &context).await;
    save_one(&dir.path().join("m-2.safetensors"), "y", &context).await;
    let (tensors, report) = load(dir.path(), Verify::Prefer, &direct()).await.unwrap();
    assert_eq!((tensors.len(), report.files), (2, 2));
    assert_eq!(bytes_of(&tensors, "x"), &first[..]);
    // The same name twice: which one is meant?
    save_one(&dir.path().join("m-3.safetensors"), "x", &context).await;
    let error = load(dir.path(), Verify::Prefer, &direct()).await.unwrap_err();
    assert!(error.to_string().contains("'x'"), "{error}");
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(
        &index,
        r#"{"weight_map":{"x":"m-1.safetensors","y":"m-2.safetensors"}}"#,
    )
    .unwrap();
    for path in [dir.path(), &index] {
        let (tensors, _) = load(path, Verify::Prefer, &direct()).await.unwrap();
        assert_eq!(tensors.len(), 2);
    }
    // A tensor that is not where the index says, and a file that is not there at all.
    fs::write(&index, r#"{"weight_map":{"x":"m-2.safetensors"}}"#).unwrap();
    let error = load(dir.path(), Verify::Prefer, &direct()).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Corrupt && error.to_string().contains("'x'"),
        "{error}"
    );
    fs::write(&index, r#"{"weight_map":{"x":"m-9.safetensors"}}"#).unwrap();
    let error = load(dir.path(), Verify::Prefer, &direct()).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound && error.to_string().contains("m-9"),
        "{error}"
    );
    assert!(error.to_string().contains("the index names"), "{error}");
    fs::write(&index, r#"{"weight_map":{"x":"../m-1.safetensors"}}"#).unwrap();
    let error = load(dir.path(), Verify::Prefer, &direct()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_without_weights_say_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("pytorch_model.bin"), b"x").unwrap();
    let error = load(dir.path(), Verify::Prefer, &direct()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.hint().unwrap().contains("convert"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    save_model(&path, &SaveOptions::default(), &context()).await;
    let whole = fs::read(&path).unwrap();
    for (bytes, words) in [
        (&whole[..whole.len() - 5], "needs a file of"),
        (&whole[..100], "the file ends at 100"),
        (&whole[..3], "too short"),
        (&[][..], "too short"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = load(&path, Verify::Off, &direct()).await.unwrap_err();
        let text = error.to_string();
        assert!(
            error.kind() == ErrorKind::Corrupt && text.contains(words),
            "{text}"
        );
        assert!(text.contains("m.safetensors"), "{text}");
    }
}
