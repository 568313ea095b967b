//! Numbers that formats keep in ways of their own: as varints, as lists, as bytes, as `.npy`.

use super::*;
use crate::filter::Filter;
use crate::format::parquet::{ParquetOptions, ParquetWriter};
use crate::format::tfrecord::TfRecordWriter;
use crate::format::wds::WdsWriter;
use crate::format::{SampleRef, ShardWriter};
use crate::schema::Unit;

/// Fields of a sample, with the bytes that they have.
type Sample = Vec<(Field, Vec<u8>)>;

const SAMPLES: i64 = 10;

async fn stored(name: &str, mut writer: Box<dyn ShardWriter>, samples: &[Sample]) -> Dataset {
    for (number, sample) in samples.iter().enumerate() {
        let fields: Vec<(&Field, &[u8])> = sample
            .iter()
            .map(|(field, bytes)| (field, bytes.as_slice()))
            .collect();
        let key = &format!("k{number}");
        writer.add(SampleRef { key, fields: &fields }).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let key = Key::parse(name).unwrap();
    store
        .put_bytes(&key, &bytes, &PutOptions::default())
        .await
        .unwrap();
    Dataset::open(store, &context(), &OpenOptions::default())
        .await
        .unwrap()
}

fn little(numbers: impl IntoIterator<Item = i64>) -> Vec<u8> {
    numbers.into_iter().flat_map(i64::to_le_bytes).collect()
}

/// A label, `number` ids, three floats and two 16-bit integers as bytes.
fn sample(number: i64) -> Sample {
    let list = |dtype| Kind::List { dtype };
    let floats = [number as f32, 0.5, -1.0];
    vec![
        (Field::new("label", list(Dtype::Int64)), little([number - 5])),
        (
            Field::new("ids", list(Dtype::Int64)),
            little((0..number).map(|id| id << (6 * id))),
        ),
        (
            Field::new("x", list(Dtype::Float32)),
            floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ),
        (Field::new("raw", Kind::Bytes), vec![number as u8, 1, 2, 3]),
    ]
}

async fn records() -> Dataset {
    let samples: Vec<Sample> = (0..SAMPLES).map(sample).collect();
    stored("a.tfrecord", Box::new(TfRecordWriter::new()), &samples).await
}

fn in_order(decode: &[(&str, &str)]) -> StreamSpec {
    let decode = decode
        .iter()
        .map(|(name, how)| ((*name).to_owned(), how.parse().unwrap()));
    StreamSpec {
        order: OrderSpec {
            batch_size: SAMPLES as u64,
            lanes: 1,
            ..OrderSpec::default()
        },
        decode: decode.collect(),
        ..StreamSpec::default()
    }
}

async fn one_batch(dataset: Dataset, spec: &StreamSpec) -> Batch {
    let mut loader = Loader::new(dataset, spec).unwrap();
    loader.next_batch().await.unwrap().unwrap()
}

fn values(batch: &Batch, name: &str) -> (Kind, Vec<Vec<u8>>) {
    let mut fields = batch.fields().iter();
    let field = fields.find(|field| field.field.name == name).unwrap();
    let values = (0..batch.len()).map(|row| batch.value(field, row).unwrap().to_vec());
    (field.field.kind.clone(), values.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn varints_are_integers_in_a_batch() {
    let dataset = records().await;
    assert_eq!(dataset.schema().fields()[0].kind, Kind::Varints);
    let batch = one_batch(dataset, &in_order(&[])).await;
    let expected = |field: usize| {
        (0..SAMPLES)
            .map(|number| sample(number)[field].1.clone())
            .collect()
    };
    let list = Kind::List { dtype: Dtype::Int64 };
    assert_eq!(values(&batch, "label"), (list.clone(), expected(0)));
    assert_eq!(values(&batch, "ids"), (list, expected(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_become_arrays_of_one_shape() {
    let array = |dtype, shape: &[u64]| Kind::Array {
        dtype,
        shape: shape.to_vec(),
    };
    let decode = [
        ("label", "int"),
        ("x", "array:float32:3"),
        ("raw", "array:uint16:2,1"),
    ];
    let batch = one_batch(records().await, &in_order(&decode)).await;
    let expected = |field: usize| {
        (0..SAMPLES)
            .map(|number| sample(number)[field].1.clone())
            .collect()
    };
    assert_eq!(values(&batch, "label"), (array(Dtype::Int64, &[]), expected(0)));
    assert_eq!(values(&batch, "x"), (array(Dtype::Float32, &[3]), expected(2)));
    assert_eq!(
        values(&batch, "raw"),
        (array(Dtype::Uint16, &[2, 1]), expected(3))
    );
    // Samples of another shape are bad ones.
    let mut loader = Loader::new(records().await, &in_order(&[("ids", "array:int64:3")])).unwrap();
    let error = loader.next_batch().await.unwrap().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("field 'ids': it has 0 numbers instead of 3"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn npy_files_become_arrays_of_one_shape() {
    let npy = |descr: &str, order: &str, values: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': (2, 2), }}\n");
        let head = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..]].concat();
        [&head, header.as_bytes(), values].concat()
    };
    let field = Field::new(
        "npy",
        Kind::Encoded {
            encoding: "npy".to_owned(),
        },
    );
    let files = [
        npy("<u2", "False", &[1, 0, 2, 0, 3, 0, 4, 0]),
        npy("<u2", "True", &[1, 0, 3, 0, 2, 0, 4, 0]),
        npy(">u2", "False", &[0, 1, 0, 2, 0, 3, 0, 4]),
    ];
    let samples: Vec<Sample> = files.map(|file| vec![(field.clone(), file)]).to_vec();
    let dataset = stored("a.tar", Box::new(WdsWriter::default()), &samples).await;
    let mut spec = in_order(&[("npy", "array:uint16:2,2")]);
    spec.order.batch_size = 3;
    let (_, values) = values(&one_batch(dataset.clone(), &spec).await, "npy");
    assert_eq!(values, vec![vec![1, 0, 2, 0, 3, 0, 4, 0]; 3]);
    spec.decode[0].1 = "array:uint16:4".parse().unwrap();
    let error = Loader::new(dataset, &spec)
        .unwrap()
        .next_batch()
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("'<u2' [2, 2] where uint16 [4] is to be"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_such_array_is_refused_before_anything_is_read() {
    let dataset = records().await;
    for (field, how, hint) in [
        ("x", "array:float64:3", "of the same type"),
        ("x", "float", "array:float32"),
        ("ids", "array:int32:3", "of the same type"),
        ("x", "image:rrc:8", "JPEG and PNG"),
    ] {
        let error = Loader::new(dataset.clone(), &in_order(&[(field, how)])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{how}: {error}");
        assert!(error.hint().unwrap().contains(hint), "{how}: {error:?}");
    }
    for how in [
        "array",
        "array:",
        "array:int",
        "array:int64:x",
        "array:int64:0",
        "array:int64:1,",
        "array:int64:99999999999,9",
    ] {
        assert_eq!(
            how.parse::<Decode>().unwrap_err().kind(),
            ErrorKind::InvalidInput,
            "{how}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn single_numbers_of_lists_can_be_compared() {
    // Lists of several numbers are neither larger nor not.
    for (text, kept) in [
        ("label >= 2", Some(3)),
        ("label = -5", Some(1)),
        ("ids = 0", Some(1)),
        ("not ids = 0", None),
        ("x > 0 or not x > 0", None),
    ] {
        let filter = Filter::parse(text).unwrap();
        let progress: Arc<dyn crate::dataset::Progress> = Arc::new(crate::dataset::Silent);
        let dataset = records().await.keep(&filter, 2, 8 << 20, &progress).await;
        assert_eq!(dataset.ok().map(|dataset| dataset.samples_kept()), kept, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_mixture_have_their_own_keys() {
    let text = || Field::new("txt", Kind::Bytes);
    let samples: Vec<Sample> = (0..4).map(|_| vec![(text(), b"t".to_vec())]).collect();
    let tar = stored("a.tar", Box::new(WdsWriter::default()), &samples).await;
    let options = ParquetOptions {
        has_keys: true,
        ..ParquetOptions::default()
    };
    let writer = ParquetWriter::new(&[tar.schema().fields()[0].clone()], options).unwrap();
    let samples: Vec<Sample> = (0..4)
        .map(|_| vec![(tar.schema().fields()[0].clone(), b"t".to_vec())])
        .collect();
    let parquet = stored("a.parquet", Box::new(writer), &samples).await;
    for datasets in [vec![tar.clone(), parquet.clone()], vec![parquet, tar]] {
        let sources = Sources::mixed(datasets, None).unwrap();
        let mut spec = in_order(&[]);
        spec.order.shuffle = true;
        spec.order.batch_size = 8;
        let mut loader = Loader::new(sources, &spec).unwrap();
        let batch = loader.next_batch().await.unwrap().unwrap();
        let is_named = |key: &SampleKey| matches!(key, SampleKey::Named(name) if name.starts_with('k'));
        assert!(batch.keys().iter().all(is_named), "{:?}", batch.keys());
        assert_eq!(batch.fields().len(), 1);
    }
}

/// A Parquet file of one column of single numbers.
async fn column(dtype: Dtype, values: &[[u8; 8]]) -> Dataset {
    let shape = Vec::new();
    column_of(Field::new("n", Kind::Array { dtype, shape }), values).await
}

async fn column_of(field: Field, values: &[[u8; 8]]) -> Dataset {
    let writer = ParquetWriter::new(std::slice::from_ref(&field), ParquetOptions::default()).unwrap();
    let samples: Vec<Sample> = values
        .iter()
        .map(|value| vec![(field.clone(), value.to_vec())])
        .collect();
    stored("a.parquet", Box::new(writer), &samples).await
}

#[tokio::test(flavor = "multi_thread")]
async fn integers_that_a_float_would_round_are_bad_samples() {
    const EXACT: u64 = 1 << 53;
    let unsigned = [0, EXACT, EXACT + 1, u64::MAX].map(u64::to_le_bytes);
    let exact = EXACT as i64;
    let signed = [-1, -exact, -exact - 1, i64::MIN].map(i64::to_le_bytes);
    for (dtype, values, whole, named) in [
        (Dtype::Uint64, unsigned, [0.0, EXACT as f64], "9007199254740993"),
        (Dtype::Int64, signed, [-1.0, -(EXACT as f64)], "-9007199254740993"),
    ] {
        let dataset = column(dtype, &values).await;
        let mut spec = in_order(&[("n", "float")]);
        spec.order.batch_size = 4;
        let error = Loader::new(dataset.clone(), &spec)
            .unwrap()
            .next_batch()
            .await
            .unwrap()
            .unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
        spec.bad = BadPolicy::Skip { max: 2 };
        let mut loader = Loader::new(dataset, &spec).unwrap();
        let batch = loader.next_batch().await.unwrap().unwrap();
        let given = values_of(&batch);
        assert_eq!(given[..2], whole);
        assert!(given[2..].iter().all(|value| whole.contains(value)), "{given:?}");
        assert_eq!(loader.report().bad_samples, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decimal_becomes_the_number_it_stands_for() {
    let stored = [9995, -1, 0, 9_007_199_254_740_993].map(i64::to_le_bytes);
    let (dtype, shape) = (Dtype::Int64, Vec::new());
    let decimal = |scale| Some(Unit::Decimal { digits: 18, scale });
    let field = Field::new("n", Kind::Array { dtype, shape });
    let dataset = column_of(field.clone().counting(decimal(2)), &stored).await;
    let mut spec = in_order(&[("n", "float")]);
    spec.order.batch_size = 4;
    let batch = one_batch(dataset.clone(), &spec).await;
    assert_eq!(values_of(&batch), [99.95, -0.01, 0.0, 90_071_992_547_409.93]);
    assert_eq!(batch.fields()[0].field.unit, None, "it counts nothing any more");
    spec.decode[0].1 = "int".parse().unwrap();
    let error = Loader::new(dataset, &spec).unwrap_err();
    assert!(error.hint().unwrap().contains("float"), "{error:?}");
    let whole = column_of(field.counting(decimal(0)), &stored).await;
    let (_, given) = values(&one_batch(whole, &spec).await, "n");
    assert_eq!(given, stored.map(Vec::from));
}

#[tokio::test(flavor = "multi_thread")]
async fn integers_in_text_are_not_rounded_either() {
    let field = Field::new("cls", Kind::Bytes);
    let long = format!("1{}1", "0".repeat(40));
    let texts = ["9007199254740992", " -3 ", "0.1", "-0", "9007199254740993", &long];
    let sample = |text: &str| vec![(field.clone(), text.as_bytes().to_vec())];
    let samples: Vec<Sample> = texts.map(sample).to_vec();
    let dataset = self::stored("a.tar", Box::new(WdsWriter::default()), &samples).await;
    let mut spec = in_order(&[("cls", "float")]);
    spec.order.batch_size = 6;
    let mut loader = Loader::new(dataset.clone(), &spec).unwrap();
    let error = loader.next_batch().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("9007199254740993"), "{error}");
    spec.bad = BadPolicy::Skip { max: 2 };
    let (_, given) = values(&one_batch(dataset, &spec).await, "cls");
    let expected = [9_007_199_254_740_992.0, -3.0, 0.1f64, -0.0].map(|number| number.to_le_bytes().to_vec());
    assert_eq!(given[..4], expected);
}

fn values_of(batch: &Batch) -> Vec<f64> {
    let (_, values) = values(batch, "n");
    let values = values
        .into_iter()
        .map(|value| f64::from_le_bytes(value.try_into().unwrap()));
    values.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_half_a_number_is_a_bad_sample() {
    let samples: [&[u8]; 4] = [&[1; 8], &[2; 12], &[], &[3; 16]];
    let dataset = lists(Dtype::Int64, &samples).await;
    let mut spec = in_order(&[]);
    spec.order.batch_size = 4;
    let error = Loader::new(dataset.clone(), &spec)
        .unwrap()
        .next_batch()
        .await
        .unwrap()
        .unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("sample 1 ") && told.contains("field 'ids' has 12 bytes"),
        "{told}"
    );
    spec.bad = BadPolicy::Skip { max: 1 };
    let batch = one_batch(dataset, &spec).await;
    let (_, given) = values(&batch, "ids");
    assert_eq!(given, [samples[0], samples[2], samples[2], samples[3]]);
}
