//! Compressed, sealed and signed checkpoints that were written once and must be readable for ever: `fixtures/ckpt/format-1-coded`, by
//! `cargo test -p forebay-ckpt write_coded_golden -- --ignored`.
//!
//! Only reading is held to them: what a compressor writes may change with its version, and sealing draws keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::golden::store_at;
use super::support::*;
use crate::*;

/// Wrapping key of the fixture. The key that signed it was thrown away.
const KEY: [u8; 32] = [0x5e; 32];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/ckpt/format-1-coded")
}

fn key() -> Keys {
    Keys::new([KeyWrap::of("file", KEY)])
}

/// Numbers of every codec's liking: few exponents, runs, and noise made without a generator that may change.
fn coded_state(step: u64) -> State {
    let tensor = |dtype: Dtype, shape: &[u64], byte: &dyn Fn(usize) -> u8| Tensor {
        dtype,
        shape: shape.to_vec(),
        bytes: (0..dtype.bytes_of(shape).unwrap() as usize).map(byte).collect(),
    };
    let noise = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    let soft = |width: usize| {
        move |at: usize| {
            if at % width == width - 1 {
                0x38 | noise(at) & 3
            } else {
                noise(at)
            }
        }
    };
    State::from([
        ("bf16".to_owned(), tensor(Dtype::Bf16, &[64, 96], &soft(2))),
        ("f32".to_owned(), tensor(Dtype::F32, &[48, 64], &soft(4))),
        ("f64".to_owned(), tensor(Dtype::F64, &[24, 64], &soft(8))),
        (
            "i64".to_owned(),
            tensor(Dtype::I64, &[24, 64], &|at| {
                if at % 8 == 0 { noise(at) } else { 0 }
            }),
        ),
        (
            "u8".to_owned(),
            tensor(Dtype::U8, &[9000], &|at| (at / 100) as u8),
        ),
        (
            "noise".to_owned(),
            tensor(Dtype::U8, &[5000], &|at| noise(at * 7) ^ noise(at) ^ step as u8),
        ),
    ])
}

/// Each way to compress, one sealed on it, one on that, and one signed.
fn coded_options(step: u64, signer: Option<&SigningKey>) -> SaveOptions {
    let plain = options(step, 1, 2);
    match step {
        1 => SaveOptions {
            compress: Compress::Auto,
            ..plain
        },
        2 => SaveOptions {
            compress: Compress::Lz4,
            ..plain
        },
        3 => SaveOptions {
            compress: Compress::Zstd { level: 3 },
            base_step: Some(1),
            ..plain
        },
        4 => SaveOptions {
            compress: Compress::Auto,
            seal: key(),
            ..plain
        },
        5 => SaveOptions {
            seal: key(),
            base_step: Some(4),
            ..plain
        },
        _ => SaveOptions {
            compress: Compress::Auto,
            hash: HashKind::Blake3,
            seal: key(),
            sign: signer.cloned(),
            ..plain
        },
    }
}

#[tokio::test]
async fn coded_format_1_is_read() {
    let (store, context) = store_at(&folder());
    let mut features = Vec::new();
    for step in 1..=6 {
        let state = coded_state(step);
        let checkpoint = open(&store, &context, step).await;
        let manifest = checkpoint.manifest();
        features.extend(manifest.features.clone());
        assert_eq!(manifest.is_sealed(), step >= 4);
        assert_eq!(
            manifest.base.map(|base| base.step),
            coded_options(step, None).base_step
        );
        load_all(&checkpoint.with_keys(key()), &state).await.unwrap();
        assert_eq!(load_all(&checkpoint, &state).await.is_err(), step >= 4);
        let report = verify(&checkpoint.with_keys(key()), &|_| {}).await.unwrap();
        assert!(report.is_whole(), "{:?}", report.damages);
        let public = std::fs::read_to_string(folder().join("signer.pub")).unwrap();
        let signed = checkpoint.require_signature(&[PublicKey::parse(&public).unwrap()]);
        assert_eq!(signed.is_ok(), step == 6);
    }
    features.sort();
    features.dedup();
    assert_eq!(features, ["aes-256-gcm", "lz4", "planes", "zstd"]);
}

#[tokio::test]
#[ignore = "writes the fixture anew"]
async fn write_coded_golden() {
    let root = folder();
    drop(std::fs::remove_dir_all(&root));
    std::fs::create_dir_all(&root).unwrap();
    let (signer, _) = SigningKey::generate().unwrap();
    std::fs::write(root.join("signer.pub"), signer.public().to_pem()).unwrap();
    let (store, context) = store_at(&root);
    for step in 1..=6 {
        save_with(
            &Arc::clone(&store),
            &context,
            coded_options(step, Some(&signer)),
            &coded_state(step),
            0,
        )
        .await
        .unwrap();
    }
}
