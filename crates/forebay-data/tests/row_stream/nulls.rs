//! Lists with a null in them: NaN among floats, and nothing that a list of integers can hold.

use arrow_array::builder::{FixedSizeListBuilder, Float32Builder, Int32Builder, ListBuilder};
use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use forebay_data::dataset::{Progress, Silent};
use forebay_data::filter::Filter;
use parquet::arrow::ArrowWriter;

use super::*;

/// Rows of a number and a list; the list of row 5 has a null where that is asked for.
fn file(has_null: bool, is_fixed: bool) -> Vec<u8> {
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(0..9));
    let element = |row: i32| (row != 5 || !has_null).then_some(row);
    let tags: ArrayRef = if is_fixed {
        let mut lists = FixedSizeListBuilder::new(Int32Builder::new(), 2);
        for row in 0..9 {
            lists.values().append_value(row);
            lists.values().append_option(element(row));
            lists.append(true);
        }
        Arc::new(lists.finish())
    } else {
        let mut lists = ListBuilder::new(Int32Builder::new());
        for row in 0..9 {
            lists.append_value([Some(row), element(row)]);
        }
        Arc::new(lists.finish())
    };
    let batch = RecordBatch::try_from_iter([("id", id), ("tags", tags)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_null_among_floats_is_nan() {
    let mut lists = ListBuilder::new(Float32Builder::new());
    let mut fixed = FixedSizeListBuilder::new(Float32Builder::new(), 2);
    for row in [vec![Some(1.5), None], vec![], vec![None, Some(2.0)]] {
        let pair = if row.is_empty() {
            vec![None; 2]
        } else {
            row.clone()
        };
        for value in pair {
            fixed.values().append_option(value);
        }
        fixed.append(true);
        lists.append_value(row);
    }
    let (lists, fixed): (ArrayRef, ArrayRef) = (Arc::new(lists.finish()), Arc::new(fixed.finish()));
    let batch = RecordBatch::try_from_iter([("lists", lists), ("fixed", fixed)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    put(&store, "a.parquet", &bytes).await;
    let rows = drain(&mut Loader::new(open(&store, None).await, &spec(false)).unwrap()).await;
    let bytes = |values: &[f32]| {
        hex(&values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<_>>())
    };
    let nan = f32::NAN;
    assert_eq!(rows[0].1, [bytes(&[1.5, nan]), bytes(&[1.5, nan])]);
    assert_eq!(rows[1].1, [bytes(&[]), bytes(&[nan, nan])]);
    assert_eq!(rows[2].1, [bytes(&[nan, 2.0]), bytes(&[nan, 2.0])]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_for_a_null_is_nan_or_what_was_asked_for() {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None, Some(9)]));
    let weights: ArrayRef = Arc::new(Float32Array::from(vec![None, Some(0.5), None]));
    let batch = RecordBatch::try_from_iter([("id", ids), ("weight", weights)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    put(&store, "a.parquet", &bytes).await;
    let dataset = open(&store, None).await;
    let int = |value: i64| hex(&value.to_le_bytes());
    for (decode, nothing, half) in [
        ("", hex(&f32::NAN.to_le_bytes()), hex(&0.5f32.to_le_bytes())),
        ("float", hex(&f64::NAN.to_le_bytes()), hex(&0.5f64.to_le_bytes())),
        (
            "float:-2",
            hex(&(-2f64).to_le_bytes()),
            hex(&0.5f64.to_le_bytes()),
        ),
    ] {
        let mut spec = spec(false);
        spec.decode = vec![("id".to_owned(), "int:-1".parse().unwrap())];
        if !decode.is_empty() {
            spec.decode.push(("weight".to_owned(), decode.parse().unwrap()));
        }
        let mut loader = Loader::new(dataset.clone(), &spec).unwrap();
        let rows = drain(&mut loader).await;
        let rows: Vec<&[String]> = rows.iter().map(|(_, row)| row.as_slice()).collect();
        assert_eq!(rows[0], [int(7), nothing.clone()]);
        assert_eq!(rows[1], [int(-1), half]);
        assert_eq!(rows[2], [int(9), nothing]);
        let missing = loader.report().missing_values;
        assert_eq!(missing, [("id".to_owned(), 1), ("weight".to_owned(), 2)].into());
    }
    let mut plain = Loader::new(dataset, &spec(false)).unwrap();
    let error = plain.next_batch().await.unwrap().unwrap_err();
    let words = format!("{error} {}", error.hint().unwrap_or_default());
    assert!(
        words.contains("'id' is missing") && words.contains("int:-1"),
        "{words}"
    );
}

/// A file of these columns.
fn file_of(columns: Vec<(&'static str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_a_file_does_not_have_is_not_made_of_nan() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..8));
    let weights: Float32Array = (0..8).map(|row| (row > 0).then_some(0.5)).collect();
    let weights: ArrayRef = Arc::new(weights);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    put(
        &store,
        "2024-01.parquet",
        &file_of(vec![("id", Arc::clone(&ids))]),
    )
    .await;
    put(
        &store,
        "2024-03.parquet",
        &file_of(vec![("id", ids), ("weight", weights)]),
    )
    .await;
    let dataset = open(&store, None).await;
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    for decode in ["", "float"] {
        let mut spec = spec(false);
        spec.decode = [("weight", decode)]
            .into_iter()
            .filter(|(_, decode)| !decode.is_empty())
            .map(|(name, decode)| (name.to_owned(), decode.parse().unwrap()))
            .collect();
        let mut loader = Loader::new(dataset.clone(), &spec).unwrap();
        let error = loader.next_batch().await.unwrap().unwrap_err();
        let told = error.to_string();
        for word in ["2024-01.parquet", "field 'weight'", "its shard does not have it"] {
            assert!(told.contains(word), "no {word:?} in {told}");
        }
        // A null of the file that has the column is still one.
        spec.bad = BadPolicy::Skip { max: 8 };
        let filter = Filter::parse("weight is not null or id = 0").unwrap();
        let later = dataset.keep(&filter, 2, 64 << 20, &progress).await;
        let mut loader = Loader::new(later.unwrap(), &spec).unwrap();
        while let Some(batch) = loader.next_batch().await {
            batch.unwrap();
        }
        let report = loader.report();
        assert_eq!(report.bad_samples, 1, "{:?}", report.bad);
        // Once more in the place of the bad one.
        assert_eq!(report.missing_values, [("weight".to_owned(), 2)].into());
    }
    let mut asked = spec(false);
    asked.decode = vec![("weight".to_owned(), "float:-2".parse().unwrap())];
    let mut loader = Loader::new(dataset, &asked).unwrap();
    let rows = drain(&mut loader).await;
    assert!(
        rows[..9]
            .iter()
            .all(|(_, row)| row[1] == hex(&(-2f64).to_le_bytes())),
        "{rows:?}"
    );
    assert_eq!(rows[9].1[1], hex(&0.5f64.to_le_bytes()));
    assert_eq!(loader.report().missing_values, [("weight".to_owned(), 9)].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_null_in_a_list_is_refused_by_name_and_other_columns_are_streamed() {
    for is_fixed in [false, true] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        put(&store, "a.parquet", &file(true, is_fixed)).await;
        let dataset = open(&store, None).await;
        let only_id = StreamSpec {
            fields: Some(vec!["id".to_owned()]),
            ..spec(false)
        };
        let rows = drain(&mut Loader::new(dataset.clone(), &only_id).unwrap()).await;
        let ids: Vec<u64> = rows.iter().map(|(row, _)| *row).collect();
        assert_eq!(ids, (0..9).collect::<Vec<_>>());
        assert_eq!(rows[5].1, ["0500000000000000"]);

        let mut loader = Loader::new(dataset, &spec(false)).unwrap();
        let error = loader.next_batch().await.unwrap().unwrap_err();
        let mut words = format!("{error} {}", error.hint().unwrap_or_default());
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            words = format!("{words}: {cause}");
            source = cause.source();
        }
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{words}");
        for word in [
            "tags",
            "a list has a null in it",
            "leave the column out",
            "a.parquet",
        ] {
            assert!(words.contains(word), "no {word:?} in {words}");
        }

        // It is the null alone that is in the way.
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        put(&store, "a.parquet", &file(false, is_fixed)).await;
        let rows = drain(&mut Loader::new(open(&store, None).await, &spec(false)).unwrap()).await;
        assert_eq!(rows[5].1, ["0500000000000000", "0500000005000000"]);
    }
}
