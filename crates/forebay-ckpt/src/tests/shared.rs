//! Tensors that share memory: other names of them, and memory that is laid out as the file will be.

use std::sync::Arc;

use forebay_core::{ErrorKind, Location, Seed};
use forebay_io::{AlignedBuf, Pages};
use forebay_store::{LocalStore, Store};

use super::support::*;
use crate::*;

fn alias(target: &str, first_element: u64, shape: &[u64], strides: &[u64]) -> ItemData {
    ItemData::Alias(Alias {
        target: target.to_owned(),
        dtype: Dtype::F32,
        first_element,
        shape: shape.to_vec(),
        strides: strides.to_vec(),
    })
}

fn item(name: &str, data: ItemData) -> Item {
    let name = name.to_owned();
    Item { name, data }
}

async fn save_items(store: &Arc<dyn Store>, items: Vec<Item>) -> Checkpoint {
    let context = context();
    let save = Save::begin(Arc::clone(store), &context, options(1, 1, 1))
        .await
        .unwrap();
    save.rank(0, items).await.unwrap();
    save.commit(metadata(1.0), NO_WAIT).await.unwrap();
    open(store, &context, 1).await
}

/// The model: elements of a view, one by one.
fn view(tensor: &Tensor, first: u64, shape: &[u64], strides: &[u64], offsets: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    for number in 0..shape.iter().product::<u64>() {
        let (mut rest, mut element) = (number, first);
        for dim in (0..shape.len()).rev() {
            element += (offsets[dim] + rest % shape[dim]) * strides[dim];
            rest /= shape[dim];
        }
        out.extend_from_slice(&tensor.bytes[element as usize * 4..][..4]);
    }
    out
}

#[tokio::test]
async fn aliases_are_views_of_what_is_stored() {
    let store = memory();
    let tensor = Tensor::new(Dtype::F32, &[48, 64], &mut Seed(3).rng());
    let stored = forebay_io::Buf::copy_of(&tensor.bytes).unwrap();
    let spec = SliceSpec::whole(tensor.dtype, &tensor.shape);
    let views: [(&str, u64, &[u64], &[u64]); 6] = [
        ("tied", 0, &[48, 64], &[64, 1]),
        ("turned", 0, &[64, 48], &[1, 64]),
        ("rows", 640, &[5, 64], &[64, 1]),
        ("columns", 3, &[48, 7], &[64, 1]),
        ("element", 1000, &[], &[]),
        ("spread", 5, &[2, 3, 4], &[0, 128, 16]),
    ];
    let mut items = vec![item("weight", ItemData::Slice(spec, stored))];
    for (name, first, shape, strides) in views {
        items.push(item(name, alias("weight", first, shape, strides)));
    }
    let checkpoint = save_items(&store, items).await;
    for (name, first, shape, strides) in views {
        let spec = checkpoint.tensor(name).await.unwrap().unwrap();
        assert_eq!((spec.dtype, &spec.shape[..]), (Dtype::F32, shape), "{name}");
        // All of it, and all but the first of each dimension.
        for less in [0, 1] {
            let offsets: Vec<u64> = shape.iter().map(|_| less).collect();
            let lengths: Vec<u64> = shape.iter().map(|size| size - less).collect();
            let wanted = Tensor {
                shape: shape.to_vec(),
                ..tensor.clone()
            };
            let loaded = checkpoint
                .load(vec![want(name, &wanted, &offsets, &lengths)])
                .await
                .unwrap();
            let expected = view(&tensor, first, &lengths, strides, &offsets);
            assert_eq!(loaded.memory[0][..], expected[..], "{name} without {less}");
        }
    }
}

/// Name, target, first element, shape, strides.
type Bad = (&'static str, &'static str, u64, &'static [u64], &'static [u64]);

#[tokio::test]
async fn aliases_of_what_is_not_there_are_refused() {
    let store = memory();
    let tensor = Tensor::new(Dtype::F32, &[4, 4], &mut Seed(3).rng());
    let stored = forebay_io::Buf::copy_of(&tensor.bytes).unwrap();
    let spec = SliceSpec::whole(tensor.dtype, &tensor.shape);
    let bad: [Bad; 4] = [
        ("beyond", "weight", 1, &[4, 4], &[4, 1]),
        ("far", "weight", u64::MAX, &[1], &[1]),
        ("wide", "weight", 0, &[3], &[u64::MAX]),
        ("nothing", "no such tensor", 0, &[4, 4], &[4, 1]),
    ];
    let mut items = vec![item("weight", ItemData::Slice(spec, stored))];
    for (name, target, first, shape, strides) in bad {
        items.push(item(name, alias(target, first, shape, strides)));
    }
    items.push(item("twice", alias("beyond", 0, &[4, 4], &[4, 1])));
    let checkpoint = save_items(&store, items).await;
    let of_twice: (&str, &[u64]) = ("twice", &[4, 4]);
    for (name, shape) in bad
        .map(|(name, _, _, shape, _)| (name, shape))
        .into_iter()
        .chain([of_twice])
    {
        let wanted = Tensor {
            shape: shape.to_vec(),
            ..tensor.clone()
        };
        let zeros = vec![0; shape.len()];
        let loaded = checkpoint.load(vec![want(name, &wanted, &zeros, shape)]).await;
        assert_eq!(loaded.unwrap_err().kind(), ErrorKind::Corrupt, "{name}");
    }
}

#[tokio::test]
async fn memory_in_the_order_of_the_file_is_not_gathered() {
    let context = context();
    let dir = tempfile::tempdir().unwrap();
    let location = Location::from_path(dir.path(), dir.path()).unwrap();
    let store: Arc<dyn Store> = Arc::new(LocalStore::open(&location, &context).unwrap());
    let mut rng = Seed(5).rng();
    let shapes: [&[u64]; 4] = [&[3, 4096], &[100], &[9, 8192], &[7, 33]];
    let tensors: Vec<(String, Tensor)> = (0..)
        .zip(shapes)
        .map(|(number, shape): (u32, _)| (format!("t{number}"), Tensor::new(Dtype::Bf16, shape, &mut rng)))
        .collect();
    let specs: Vec<SliceSpec> = tensors
        .iter()
        .map(|(_, tensor)| SliceSpec::whole(tensor.dtype, &tensor.shape))
        .collect();
    let named: Vec<(&str, &SliceSpec)> = tensors
        .iter()
        .map(|(name, _)| name.as_str())
        .zip(&specs)
        .collect();
    let total: usize = tensors.iter().map(|(_, tensor)| tensor.bytes.len()).sum();
    let mut staging = AlignedBuf::alloc(total, Pages::Small).unwrap();
    let (mut at, mut places) = (0, Vec::new());
    for index in file_order(&named) {
        let bytes = &tensors[index].1.bytes;
        staging[at..at + bytes.len()].copy_from_slice(bytes);
        places.push((index, at..at + bytes.len()));
        at += bytes.len();
    }
    let staging = staging.freeze();
    let items = places.into_iter().map(|(index, range)| {
        let data = ItemData::Slice(specs[index].clone(), staging.slice(range));
        item(&tensors[index].0, data)
    });
    let items = items.collect();
    let save = Save::begin(Arc::clone(&store), &context, options(1, 1, 1))
        .await
        .unwrap();
    let saved = save.rank(0, items).await.unwrap();
    save.commit(metadata(1.0), NO_WAIT).await.unwrap();
    let copied: u64 = saved.ledger.paths.values().map(|path| path.copied_bytes).sum();
    // The first part has the header before the data, and tails are padded; the other parts go out as they are.
    assert!(total as u64 > 8 * limits().part_bytes, "{total}");
    assert!(
        copied <= 3 * limits().part_bytes,
        "{copied} of {total} bytes were copied"
    );
    let state: State = tensors.into_iter().collect();
    load_all(&open(&store, &context, 1).await, &state).await.unwrap();
}

#[tokio::test]
async fn other_ranks_learn_of_the_commit() {
    let (context, store, state) = (context(), memory(), state(4));
    let first = Save::begin(Arc::clone(&store), &context, options(1, 1, 2))
        .await
        .unwrap();
    let second = Save::join(Arc::clone(&store), &context, options(1, 1, 2), NO_WAIT)
        .await
        .unwrap();
    second.rank(1, items(&state, 0, 1, 2)).await.unwrap();
    let error = second.published(NO_WAIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    first.rank(0, items(&state, 0, 0, 2)).await.unwrap();
    first.commit(metadata(1.0), NO_WAIT).await.unwrap();
    assert_eq!(second.published(NO_WAIT).await.unwrap().step, 1);
    let first = Save::begin(Arc::clone(&store), &context, options(2, 1, 2))
        .await
        .unwrap();
    let second = Save::join(Arc::clone(&store), &context, options(2, 1, 2), NO_WAIT)
        .await
        .unwrap();
    first.abandon().await;
    let error = second.published(NO_WAIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    let mine = open(&store, &context, 1).await;
    assert!(mine.value_of("extra", 0).await.unwrap().is_some());
    assert!(mine.value_of("extra", 1).await.unwrap().is_none());
}
