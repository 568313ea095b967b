//! Token files that numpy and Megatron-LM wrote, read by us and compared with the values that `fixtures/tokens/make.py` wrote beside them; and what we
//! write, compared with Megatron's bytes.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::Key;
use forebay_data::format::tokens::{Cut, MegatronWriter, Tokens};
use forebay_data::format::{SampleRef, ShardWriter, scan_bytes, tabulate};
use forebay_data::{Block, Dtype, Field, Kind, ShardSource};
use forebay_io::DiskConfig;
use forebay_store::{Context, MemoryStore, PutOptions, Store, StoreExt};
use serde_json::{Value, json};

fn fixture(name: &str) -> Bytes {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tokens");
    std::fs::read(folder.join(name)).unwrap().into()
}

fn expected(name: &str) -> Value {
    let all: Value = serde_json::from_slice(&fixture("expected.json")).unwrap();
    all[name].clone()
}

/// Tokens of every sample, as numbers.
fn samples(block: &Block) -> Vec<Vec<i64>> {
    let dtype = match &block.fields()[0].kind {
        Kind::Array { dtype, .. } | Kind::List { dtype } => *dtype,
        kind => panic!("{kind:?}"),
    };
    let number = |word: &[u8]| match dtype {
        Dtype::Uint16 => i64::from(u16::from_le_bytes(word.try_into().unwrap())),
        Dtype::Uint32 => i64::from(u32::from_le_bytes(word.try_into().unwrap())),
        Dtype::Int32 => i64::from(i32::from_le_bytes(word.try_into().unwrap())),
        Dtype::Int64 => i64::from_le_bytes(word.try_into().unwrap()),
        _ => panic!("{dtype}"),
    };
    (0..block.len())
        .map(|sample| {
            assert!(block.is_whole(sample));
            let bytes = block.field(sample, 0).unwrap();
            bytes.chunks(dtype.bytes() as usize).map(number).collect()
        })
        .collect()
}

async fn read(format: Tokens, names: &[&str]) -> Block {
    let context = Context::open(DiskConfig::default()).unwrap().with_state_dir(None);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in names {
        let key = Key::parse(&format!("set/{name}")).unwrap();
        store
            .put_bytes(&key, &fixture(name), &PutOptions::default())
            .await
            .unwrap();
    }
    let key = Key::parse(&format!("set/{}", names[0])).unwrap();
    let source = ShardSource::open(store, &key, &context).await.unwrap();
    let table = tabulate(&format, &source).await.unwrap().table;
    table.check(source.size()).unwrap();
    let count = table.samples();
    Block::from_bytes(Arc::new(table), 0..count, fixture(names[0]), 0).unwrap()
}

#[tokio::test]
async fn megatron_pairs_have_the_documents_megatron_reads() {
    let documents = Tokens::new(None, Cut::Documents).unwrap();
    for (stem, expected_as) in [("single", "single"), ("several", "several"), ("modes", "several")] {
        let names = [format!("{stem}.bin"), format!("{stem}.idx")];
        let block = read(documents, &[&names[0], &names[1]]).await;
        let expected = expected(expected_as);
        let Kind::List { dtype } = block.fields()[0].kind else {
            panic!("{:?}", block.fields());
        };
        assert_eq!(json!(dtype.name()), expected["dtype"]);
        assert_eq!(json!(samples(&block)), expected["documents"], "{stem}");
    }
    let windows = Tokens::new(None, Cut::Windows(3)).unwrap();
    let block = read(windows, &["several.bin", "several.idx"]).await;
    assert_eq!(samples(&block), [[1, -2, 3], [4, 5, 6], [7, 8, 9]]);
}

#[tokio::test]
async fn a_bin_without_an_index_is_raw() {
    let raw = Tokens::new(Some(Dtype::Uint16), Cut::Windows(2)).unwrap();
    let block = read(raw, &["single.bin"]).await;
    assert_eq!(samples(&block)[..2], [[1, 2], [3, 65535]]);
}

#[tokio::test]
async fn npy_files_of_every_version_have_the_values_numpy_wrote() {
    let expected = expected("npy");
    let expected = expected.as_array().unwrap();
    for name in ["tokens-v1.npy", "tokens-v2.npy", "tokens-v3.npy"] {
        let block = read(Tokens::new(None, Cut::Windows(100)).unwrap(), &[name]).await;
        let found: Vec<i64> = samples(&block).concat();
        assert_eq!(found.len(), expected.len() / 100 * 100);
        assert_eq!(json!(found), json!(expected[..found.len()]), "{name}");
    }
}

#[test]
fn what_we_write_is_byte_for_byte_what_megatron_writes() {
    let (bin, idx) = (fixture("single.bin"), fixture("single.idx"));
    let documents = Tokens::new(None, Cut::Documents).unwrap();
    let scan = documents.start_megatron(&idx, bin.len() as u64).unwrap();
    let table = Arc::new(scan_bytes(scan, &bin, 5).unwrap());
    let block = Block::from_bytes(Arc::clone(&table), 0..table.samples(), bin.clone(), 0).unwrap();
    let field = Field::new("tokens", Kind::List { dtype: Dtype::Uint16 });
    let mut writer = Box::new(MegatronWriter::new(Dtype::Uint16).unwrap());
    for sample in 0..block.len() {
        let fields: &[(&Field, &[u8])] = &[(&field, block.field(sample, 0).unwrap())];
        writer.add(SampleRef { key: "", fields }).unwrap();
    }
    let sides = writer.sides().unwrap();
    assert_eq!(sides.len(), 1);
    assert!(sides[0].0 == "idx" && sides[0].1 == idx);
    assert!(writer.finish().unwrap()[..] == bin[..]);
}
