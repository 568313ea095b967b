//! Headers of safetensors files: no input panics, and what is accepted says the same when it is written again.

#![no_main]

use forebay_core::safetensors::{Header, HeaderBuilder, Order};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // The first two bytes make the data area longer than the input could.
    let Some((extra, bytes)) = input.split_first_chunk::<2>() else {
        return;
    };
    let file_len = bytes.len() as u64 + u64::from(u16::from_le_bytes(*extra));
    let Ok(header) = Header::parse(bytes, file_len) else {
        return;
    };
    let mut builder = HeaderBuilder::new()
        .order(Order::Given)
        .metadata(header.metadata().cloned());
    for tensor in header.tensors() {
        assert!(header.data_span().contains(tensor.span));
        builder.tensor(&tensor.name, tensor.dtype, tensor.shape.clone());
    }
    let encoded = builder.encode().expect("what was read can be written");
    let again = Header::parse(&encoded.bytes, encoded.header.file_len()).expect("what was written can be read");
    assert_eq!(again, encoded.header);
    assert_eq!(again.tensors().len(), header.tensors().len());
    assert_eq!(again.data_span().len(), header.data_span().len());
});
