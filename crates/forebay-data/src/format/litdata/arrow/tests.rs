//! Damage to rows of Arrow that were never compared with a checksum, and files that no litdata wrote: no panic, no memory by what bytes claim.

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int8Array, Int64Array, LargeListArray, NullArray, RecordBatch,
    StringArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_ipc::{
    CompressionType, KeyValue, KeyValueArgs, Message, MessageArgs, MessageHeader, RecordBatchArgs,
    root_as_message,
};
use arrow_schema::Field as ArrowField;
use flatbuffers::FlatBufferBuilder;
use forebay_core::Key;
use forebay_io::DiskConfig;
use forebay_store::{Context, MemoryStore, PutOptions, Store, StoreExt};
use serde_json::json;

use super::super::{Chunk, corrupt};
use super::*;
use crate::dataset::{Dataset, OpenOptions, Progress, Silent};
use crate::filter::Filter;
use crate::format::scan_bytes;
use crate::loader::{Loader, StreamSpec};
use crate::order::OrderSpec;
use crate::schema::{Dtype, Kind};

const PLAIN: &[u8] = include_bytes!("../../../../../../fixtures/litdata/arrow/chunk-0-1.bin");
const ZSTD: &[u8] = include_bytes!("../../../../../../fixtures/litdata/arrow-zstd/chunk-0-0.bin");

fn known(items: u64, bytes: &[u8]) -> Chunk {
    Chunk {
        key: Key::parse("chunk-0-0.bin").unwrap(),
        bytes: bytes.len() as u64,
        items,
        tokens: None,
    }
}

/// All of a chunk, as it says itself that it is.
fn read(bytes: &[u8], items: u64) -> Result<Vec<Block>> {
    let bytes = Bytes::copy_from_slice(bytes);
    let chunk = ArrowChunk::of_bytes(&bytes)?.ok_or_else(|| corrupt("no rows"))?;
    let table = Arc::new(scan_bytes(
        chunk.clone().scan(&known(items, &bytes)),
        &bytes,
        1000,
    )?);
    let Layout::Groups(groups) = &table.layout else {
        unreachable!()
    };
    let decoder = Decoder::new(chunk, groups);
    let columns: Vec<usize> = (0..table.fields.len()).collect();
    let chunks = Chunks::whole(0, bytes);
    (0..groups.list.len())
        .map(|group| decoder.decode(&chunks, &table, group, &columns))
        .collect()
}

#[test]
fn a_table_does_not_depend_on_how_the_chunk_is_cut() {
    let bytes = Bytes::from_static(ZSTD);
    let chunk = ArrowChunk::of_bytes(&bytes).unwrap().unwrap();
    let pass = |step| scan_bytes(chunk.clone().scan(&known(12, ZSTD)), &bytes, step).unwrap();
    let whole = pass(usize::MAX);
    whole.check(ZSTD.len() as u64).unwrap();
    for step in 1..ZSTD.len() {
        assert_eq!(pass(step), whole, "{step}");
    }
}

#[test]
fn damage_that_nobody_has_a_checksum_of_is_an_error_or_another_value() {
    for (bytes, items) in [(PLAIN, 40), (ZSTD, 12)] {
        assert!(read(bytes, items).is_ok());
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len], items).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= change;
                let Ok(blocks) = read(&bytes, items) else {
                    continue;
                };
                assert_eq!(blocks.iter().map(|block| block.len() as u64).sum::<u64>(), items);
                for block in blocks {
                    let fields = block.fields().len();
                    let places = (0..block.len()).flat_map(|row| (0..fields).map(move |field| (row, field)));
                    let taken: usize = places
                        .filter_map(|(row, field)| block.field(row, field))
                        .map(<[u8]>::len)
                        .sum();
                    assert!(taken < 1 << 20, "{at}");
                }
            }
        }
    }
}

#[test]
fn a_buffer_that_says_it_becomes_too_much_is_refused() {
    let bytes = Bytes::from_static(ZSTD);
    let chunk = ArrowChunk::of_bytes(&bytes).unwrap().unwrap();
    let batch = chunk.batches[0];
    let whole = bytes.slice(batch.extent.relative_to(0));
    chunk.decode(0, &whole, 12, &[0]).unwrap();
    // Wherever a compressed buffer begins, its first bytes are what it becomes, and a frame is behind them.
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let mut seen = 0;
    for at in batch.message_bytes as usize..whole.len() - 12 {
        if whole[at + 8..at + 12] == magic {
            let mut bomb = whole.to_vec();
            bomb[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
            let error = chunk.decode(0, &bomb.into(), 12, &[0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            seen += 1;
        }
    }
    assert!(seen > 0);
    let error = chunk.decode(0, &whole, 13, &[0]).unwrap_err();
    assert!(error.to_string().contains("12 rows instead of 13"), "{error}");
}

#[test]
fn types_that_rows_of_json_do_not_have_are_refused() {
    for data_type in [
        DataType::Utf8View,
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        DataType::FixedSizeBinary(i32::MAX),
    ] {
        let item = arrow_schema::Field::new("item", data_type, true);
        let error = check_type("x", &DataType::List(Arc::new(item))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("'x'"), "{error}");
    }
}

/// A chunk as litdata writes it, of these columns.
fn chunk_of(columns: Vec<(&str, ArrayRef)>, compression: Option<CompressionType>) -> Vec<u8> {
    let fields = columns
        .iter()
        .map(|(name, array)| ArrowField::new(*name, array.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap();
    let options = IpcWriteOptions::default()
        .try_with_compression(compression)
        .unwrap();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
    file.write(&batch).unwrap();
    let file = file.into_inner().unwrap();
    let items = batch.num_rows() as u32;
    let mut chunk = items.to_le_bytes().to_vec();
    for _ in 0..=items {
        chunk.extend_from_slice(&(4 * (items + 2)).to_le_bytes());
    }
    chunk.extend_from_slice(&file);
    chunk.extend_from_slice(&(file.len() as u32).to_le_bytes());
    chunk.extend_from_slice(ROWS_MAGIC);
    chunk
}

fn numbers(rows: i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(0..rows))
}

#[test]
fn both_compressions_of_arrow_are_read() {
    for compression in [
        None,
        Some(CompressionType::LZ4_FRAME),
        Some(CompressionType::ZSTD),
    ] {
        let words: ArrayRef = Arc::new(StringArray::from(vec!["word"; 900]));
        let blocks = read(
            &chunk_of(vec![("n", numbers(900)), ("w", words)], compression),
            900,
        )
        .unwrap();
        assert_eq!(blocks[0].field(899, 0), Some(&899i64.to_le_bytes()[..]));
        assert_eq!(blocks[0].field(899, 1), Some(&b"word"[..]));
    }
}

#[test]
fn nulls_that_take_no_bytes_are_counted() {
    let item = Arc::new(ArrowField::new("item", DataType::Null, true));
    let nulls = |count: usize| -> ArrayRef {
        let values: ArrayRef = Arc::new(NullArray::new(count));
        let ends = OffsetBuffer::from_lengths([count]);
        Arc::new(LargeListArray::new(Arc::clone(&item), ends, values, None))
    };
    let few = read(&chunk_of(vec![("x", nulls(3))], None), 1).unwrap();
    assert_eq!(few[0].field(0, 0), Some(&b"[null,null,null]"[..]));
    // Each of them is below the limit, and all together are not.
    let names: Vec<String> = (0..8).map(|column| format!("x{column}")).collect();
    let columns = names.iter().map(|name| (name.as_str(), nulls(8 << 20)));
    let bomb = chunk_of(columns.collect(), None);
    assert!(bomb.len() < 8 << 10);
    assert_eq!(read(&bomb, 1).unwrap_err().kind(), ErrorKind::LimitExceeded);
    let names: Vec<String> = (0..8)
        .map(|column| format!("{}{column}", "x".repeat(5000)))
        .collect();
    let columns = names.iter().map(|name| (name.as_str(), numbers(1)));
    let error = read(&chunk_of(columns.collect(), None), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
}

#[test]
fn buffers_that_lie_over_each_other_are_refused() {
    let bytes = Bytes::from(chunk_of(vec![("a", numbers(64)), ("b", numbers(64))], None));
    let chunk = ArrowChunk::of_bytes(&bytes).unwrap().unwrap();
    let batch = chunk.batches[0];
    let mut whole = bytes.slice(batch.extent.relative_to(0)).to_vec();
    chunk.decode(0, &whole.clone().into(), 64, &[0, 1]).unwrap();
    let message = root_as_message(&whole[8..batch.message_bytes as usize]).unwrap();
    let last = *message
        .header_as_record_batch()
        .unwrap()
        .buffers()
        .unwrap()
        .iter()
        .next_back()
        .unwrap();
    let known = [last.offset().to_le_bytes(), last.length().to_le_bytes()].concat();
    // From the end: the length of one buffer and the offset of the next read alike.
    let at = whole.windows(16).rposition(|window| window == known).unwrap();
    whole[at..at + 8].fill(0);
    let error = chunk.decode(0, &whole.into(), 64, &[0, 1]).unwrap_err();
    assert!(error.to_string().contains("over another"), "{error}");
}

#[test]
fn rows_of_which_nothing_is_wanted_are_not_read() {
    let bytes = Bytes::from_static(PLAIN);
    let chunk = ArrowChunk::of_bytes(&bytes).unwrap().unwrap();
    let table = Arc::new(scan_bytes(chunk.clone().scan(&known(40, PLAIN)), &bytes, 1000).unwrap());
    let Layout::Groups(groups) = &table.layout else {
        unreachable!()
    };
    let decoder = Decoder::new(chunk, groups);
    assert!(decoder.spans(0, &[]).unwrap().is_empty());
    let block = decoder.decode(&Chunks::default(), &table, 0, &[]).unwrap();
    assert_eq!(block.len() as u64, groups.list[0].samples);
    assert_eq!(block.field(0, 0), None);
    let error = decoder.decode(&Chunks::default(), &table, 0, &[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_arrow_in_the_last_item_are_not_taken_for_those_of_the_chunk() {
    let inner = chunk_of(vec![("n", numbers(1))], None);
    let mut chunk = 1u32.to_le_bytes().to_vec();
    for offset in [12, 16 + inner.len() as u32] {
        chunk.extend_from_slice(&offset.to_le_bytes());
    }
    chunk.extend_from_slice(&(inner.len() as u32).to_le_bytes());
    chunk.extend_from_slice(&inner);
    assert_eq!(read(&chunk, 1).unwrap_err().kind(), ErrorKind::Corrupt);
    let dataset = dataset_of_chunks(vec![(1, chunk)]).await;
    assert_eq!(streamed(dataset, None, 1).await, [inner]);
}

/// A data set of these chunks, each of three rows.
async fn dataset_of(chunks: Vec<Vec<(&str, ArrayRef)>>) -> Dataset {
    let chunks = chunks.into_iter().map(|columns| (3, chunk_of(columns, None)));
    dataset_of_chunks(chunks.collect()).await
}

/// The same of chunks and how many items they have.
async fn dataset_of_chunks(chunks: Vec<(u64, Vec<u8>)>) -> Dataset {
    opened_of_chunks(chunks).await.unwrap()
}

async fn opened_of_chunks(chunks: Vec<(u64, Vec<u8>)>) -> Result<Dataset> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut listed = Vec::new();
    for (number, (items, bytes)) in chunks.into_iter().enumerate() {
        let name = format!("chunk-0-{number}.bin");
        listed.push(json!({"chunk_bytes": bytes.len(), "chunk_size": items, "filename": &name}));
        put(&store, &name, &bytes).await;
    }
    let config = json!({"item_loader": "PyTreeLoader", "data_format": ["bytes"]});
    let index = json!({"chunks": listed, "config": config}).to_string();
    put(&store, "index.json", index.as_bytes()).await;
    let context = Context::open(DiskConfig::default()).unwrap().with_state_dir(None);
    Dataset::open(store, &context, &OpenOptions::default()).await
}

async fn put(store: &Arc<dyn Store>, name: &str, bytes: &[u8]) {
    let key = Key::parse(name).unwrap();
    store
        .put_bytes(&key, bytes, &PutOptions::default())
        .await
        .unwrap();
}

/// The values of the first field of all samples.
async fn streamed(dataset: Dataset, fields: Option<Vec<String>>, batch_size: u64) -> Vec<Vec<u8>> {
    let order = OrderSpec {
        batch_size,
        ..OrderSpec::default()
    };
    let spec = StreamSpec {
        order,
        fields,
        ..StreamSpec::default()
    };
    let mut loader = Loader::new(dataset, &spec).unwrap();
    let mut values = Vec::new();
    while let Some(batch) = loader.next_batch().await {
        let batch = batch.unwrap();
        let field = &batch.fields()[0];
        values.extend((0..batch.len()).map(|row| batch.value(field, row).unwrap().to_vec()));
    }
    values
}

fn lists(items: ArrayRef, ends: [i64; 4]) -> ArrayRef {
    let item = Arc::new(ArrowField::new("item", items.data_type().clone(), true));
    let offsets = OffsetBuffer::new(ends.to_vec().into());
    Arc::new(LargeListArray::new(item, offsets, items, None))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_are_empty_in_a_chunk_are_those_of_the_others() {
    let empty = || ("x", lists(Arc::new(NullArray::new(0)), [0; 4]));
    let full = || ("x", lists(numbers(2), [0, 0, 1, 2]));
    let dataset = dataset_of(vec![vec![empty()], vec![full()], vec![empty()]]).await;
    assert_eq!(
        dataset.schema().fields()[0].kind,
        Kind::List { dtype: Dtype::Int64 }
    );
    for shard in 0..3 {
        let block = dataset.group(shard, 0, None).await.unwrap();
        assert_eq!(block.fields()[0].kind, Kind::List { dtype: Dtype::Int64 });
        let lens: Vec<_> = (0..3).map(|row| block.field(row, 0).map(<[u8]>::len)).collect();
        assert_eq!(
            lens,
            [
                Some(0),
                Some(if shard == 1 { 8 } else { 0 }),
                Some(if shard == 1 { 8 } else { 0 })
            ]
        );
    }
    let is_there = Filter::parse("x is not null").unwrap();
    let progress: Arc<dyn Progress> = Arc::new(Silent);
    let kept = dataset.keep(&is_there, 1, 64 << 20, &progress).await.unwrap();
    assert_eq!(kept.samples_kept(), 9, "an empty list is one");
    let values = streamed(dataset, None, 3).await;
    assert_eq!(
        values.iter().map(Vec::len).collect::<Vec<_>>(),
        [0, 0, 0, 0, 8, 8, 0, 0, 0]
    );

    let dataset = dataset_of(vec![vec![empty()]]).await;
    assert_eq!(dataset.schema().fields()[0].kind, Kind::Json);
    assert_eq!(
        dataset.group(0, 0, None).await.unwrap().fields()[0].kind,
        Kind::Json
    );
    assert_eq!(streamed(dataset, None, 3).await, [b"[]"; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nulls_in_place_of_items_are_no_empty_lists() {
    let nulls = ("x", lists(Arc::new(NullArray::new(2)), [0, 2, 2, 2]));
    let full = || ("x", lists(numbers(2), [0, 0, 1, 2]));
    let dataset = dataset_of(vec![vec![nulls], vec![full()]]).await;
    let mut loader = Loader::new(dataset, &StreamSpec::default()).unwrap();
    let error = loader.next_batch().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("a null in it"), "{error}");
    let nulls = ("x", lists(Arc::new(NullArray::new(2)), [0, 2, 2, 2]));
    let floats = (
        "x",
        lists(Arc::new(Float64Array::from(vec![1.0, 2.0])), [0, 0, 1, 2]),
    );
    let values = streamed(dataset_of(vec![vec![nulls], vec![floats]]).await, None, 3).await;
    assert_eq!(values[0], [f64::NAN.to_le_bytes(); 2].concat());
    assert_eq!(
        values.iter().map(Vec::len).collect::<Vec<_>>(),
        [16, 0, 0, 0, 8, 8]
    );
}

fn floats(values: [f64; 3]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn floats_of(values: &[Vec<u8>]) -> Vec<f64> {
    let numbers = values.iter().flat_map(|value| value.chunks(8));
    numbers
        .map(|number| f64::from_le_bytes(number.try_into().unwrap()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_are_whole_in_a_chunk_are_floats_where_others_are() {
    let most = 1 << 53;
    let ints = || -> ArrayRef { Arc::new(Int64Array::from(vec![Some(-most), None, Some(7)])) };
    let some = || ("x", floats([0.5, 2.0, -3.5]));
    for chunks in [
        [vec![("x", ints())], vec![some()]],
        [vec![some()], vec![("x", ints())]],
    ] {
        let dataset = dataset_of(chunks.to_vec()).await;
        let float = Kind::Array {
            dtype: Dtype::Float64,
            shape: Vec::new(),
        };
        assert_eq!(dataset.schema().fields()[0].kind, float);
        let shard = usize::from(chunks[0][0].1.data_type() != &DataType::Int64);
        let block = dataset.group(shard, 0, None).await.unwrap();
        assert_eq!(block.fields()[0].kind, float);
        let values: Vec<_> = (0..3)
            .map(|row| block.field(row, 0).map(<[u8]>::to_vec))
            .collect();
        let number = |value: f64| Some(value.to_le_bytes().to_vec());
        assert_eq!(values, [number(-(most as f64)), None, number(7.0)]);
        let filter = Filter::parse("x > 0.75").unwrap();
        let progress: Arc<dyn Progress> = Arc::new(Silent);
        let kept = dataset.keep(&filter, 1, 64 << 20, &progress).await.unwrap();
        let mut values = floats_of(&streamed(kept, None, 2).await);
        values.sort_by(f64::total_cmp);
        assert_eq!(values, [2.0, 7.0]);
    }
    // Lists do the same, those without items among them.
    let of = |items: ArrayRef| vec![("x", lists(items, [0, 0, 1, 2]))];
    let empty = vec![("x", lists(Arc::new(NullArray::new(0)), [0; 4]))];
    let halves: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 1.5]));
    let dataset = dataset_of(vec![empty, of(numbers(2)), of(halves)]).await;
    assert_eq!(floats_of(&streamed(dataset, None, 3).await), [0.0, 1.0, 0.5, 1.5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn integers_that_no_float_is_equal_to_are_refused_by_name() {
    let large: ArrayRef = Arc::new(Int64Array::from(vec![1, (1 << 53) + 1, 2]));
    let dataset = dataset_of(vec![vec![("x", large)], vec![("x", floats([0.5, 2.0, -3.5]))]]).await;
    let error = dataset.group(0, 0, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.message().contains("column 'x': 9007199254740993"),
        "{error}"
    );
    assert!(
        error.hint().is_some_and(|hint| hint.contains("text")),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_that_do_not_go_together_are_told_with_what_can_be_done() {
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let chunks = [
        chunk_of(vec![("x", numbers(3))], None),
        chunk_of(vec![("x", words)], None),
    ];
    let error = opened_of_chunks(chunks.map(|chunk| (3, chunk)).to_vec())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.hint().is_some_and(|hint| hint.contains("as one type")),
        "{error:?}"
    );
}

#[test]
fn a_batch_is_reckoned_by_those_before_it() {
    let bytes = Bytes::from(chunk_of(vec![("n", numbers(900))], Some(CompressionType::ZSTD)));
    let chunk = ArrowChunk::of_bytes(&bytes).unwrap().unwrap();
    let stored = chunk.batches[0].extent.len();
    let table = Arc::new(scan_bytes(chunk.clone().scan(&known(900, &bytes)), &bytes, 1000).unwrap());
    let Layout::Groups(groups) = &table.layout else {
        unreachable!()
    };
    let decoder = Decoder::new(chunk, groups);
    assert_eq!(decoder.decoded_bytes(0, &[0]), DECODED_RATIO * stored);
    assert_eq!(decoder.decoded_bytes(0, &[]), 0);
    decoder.decode(&Chunks::whole(0, bytes), &table, 0, &[0]).unwrap();
    assert_eq!(decoder.decoded_bytes(0, &[0]), (900 * 8).max(stored));
}

#[test]
fn footers_and_messages_that_say_too_much_are_a_limit_and_no_damage() {
    let names: Vec<String> = (0..FIELDS_MAX).map(|column| format!("x{column}")).collect();
    let lists = lists(numbers(2), [0, 0, 1, 2]);
    let nested = lists_of(lists_of(lists_of(lists_of(lists_of(lists_of(lists))))));
    let columns = names.iter().map(|name| (name.as_str(), Arc::clone(&nested)));
    let wide = chunk_of(columns.collect(), None);
    let error = ArrowChunk::of_bytes(&wide.into()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(error.message().len() < 200 && error.hint().is_some(), "{error}");
    assert!(
        error.message().starts_with("the footer of its rows says more"),
        "{error}"
    );
}

/// A message of a batch of three rows, beside which so many notes are; all of them say the same, which is there once.
fn message_of(notes: usize, note: &str) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let text = builder.create_string(note);
    let pair = KeyValueArgs {
        key: Some(text),
        value: None,
    };
    let pairs: Vec<_> = (0..notes)
        .map(|_| KeyValue::create(&mut builder, &pair))
        .collect();
    let pairs = builder.create_vector(&pairs);
    let batch = RecordBatchArgs {
        length: 3,
        ..RecordBatchArgs::default()
    };
    let batch = arrow_ipc::RecordBatch::create(&mut builder, &batch);
    let message = MessageArgs {
        version: MetadataVersion::V5,
        header_type: MessageHeader::RecordBatch,
        header: Some(batch.as_union_value()),
        custom_metadata: Some(pairs),
        ..MessageArgs::default()
    };
    let message = Message::create(&mut builder, &message);
    builder.finish(message, None);
    let message = builder.finished_data();
    [&[0xff; 4][..], &(message.len() as u32).to_le_bytes(), message].concat()
}

#[test]
fn messages_have_limits_of_their_own() {
    let refused = |message: &[u8]| {
        let error = batch::rows(message).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(error.message().starts_with("the message says more"), "{error}");
    };
    let tables_max = batch::MESSAGE_TABLES_MAX;
    assert_eq!(batch::rows(&message_of(tables_max - 10, "x")).unwrap(), 3);
    refused(&message_of(tables_max, "x"));
    let long = "x".repeat(SHARED_FREE_BYTES);
    assert_eq!(batch::rows(&message_of(SHARED_MAX - 1, &long)).unwrap(), 3);
    refused(&message_of(SHARED_MAX + 1, &long));
    // How long they are is known before they are read.
    let of_bytes = |message: u64| {
        let block = (8, message as i32, 8);
        batches(std::iter::once(block), Span::first(2 * MESSAGE_BYTES_MAX)).map(|batches| batches.len())
    };
    assert_eq!(of_bytes(MESSAGE_BYTES_MAX).unwrap(), 1);
    let error = of_bytes(MESSAGE_BYTES_MAX + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
}

/// What one row of a list of these items is checked with before it is decoded: up to so many bytes.
fn checked(items: ArrayRef, bytes_max: u64) -> Result<()> {
    let item = Arc::new(ArrowField::new("item", items.data_type().clone(), true));
    let ends = OffsetBuffer::from_lengths([items.len()]);
    let list: ArrayRef = Arc::new(LargeListArray::new(item, ends, items, None));
    let bytes = Bytes::from(chunk_of(vec![("x", list)], None));
    let chunk = ArrowChunk::of_bytes(&bytes)?.unwrap();
    let Batch {
        extent,
        message_bytes,
    } = chunk.batches[0];
    let whole = bytes.slice(extent.relative_to(0));
    let (message, body) = whole.split_at(message_bytes as usize);
    batch::check(chunk.schema.fields(), message, body, 1, bytes_max)
}

#[test]
fn values_are_reckoned_with_what_their_type_takes() {
    checked(Arc::new(BooleanArray::from(vec![true; 1000])), 1100).unwrap();
    checked(Arc::new(BooleanArray::from(vec![true; 1000])), 999).unwrap_err();
    checked(Arc::new(Int8Array::from(vec![1; 1000])), 1200).unwrap();
    checked(Arc::new(NullArray::new(1000)), 7999).unwrap_err();
}

#[test]
fn a_null_in_a_list_that_is_null_itself_is_nobodys() {
    let items: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let list = |is_there| -> ArrayRef {
        let item = Arc::new(ArrowField::new("item", DataType::Int64, true));
        let ends = OffsetBuffer::new(vec![0, 1, 2, 3].into());
        let nulls = NullBuffer::from(vec![true, is_there, true]);
        Arc::new(LargeListArray::new(item, ends, Arc::clone(&items), Some(nulls)))
    };
    let blocks = read(&chunk_of(vec![("x", list(false))], None), 3).unwrap();
    let lens: Vec<_> = (0..3)
        .map(|row| blocks[0].field(row, 0).map(<[u8]>::len))
        .collect();
    assert_eq!(lens, [Some(8), None, Some(8)]);
    let error = read(&chunk_of(vec![("x", list(true))], None), 3).unwrap_err();
    assert!(error.message().contains("a null in it"), "{error}");
}

/// Lists that have one of these each.
fn lists_of(items: ArrayRef) -> ArrayRef {
    lists(items, [0, 1, 2, 3])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_without_a_wanted_field_have_it_nowhere() {
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let dataset = dataset_of(vec![
        vec![("n", numbers(3))],
        vec![("n", numbers(3)), ("w", words)],
    ])
    .await;
    let values = streamed(dataset, Some(vec!["w".to_owned()]), 3).await;
    assert_eq!(values, [&b""[..], b"", b"", b"a", b"b", b"c"]);
}
