//! The extension module `forebay._forebay`: stores, buffers and ledgers for Python.
//!
//! Conversions only; what bytes do is decided in the crates below. A call walks like this:
//!
//! ```text
//! Python --str, int, bytes-like--> store.rs --Key, Span, AlignedBuf--> forebay-store
//!        <--Buffer, Ledger-------  wait.rs   (interpreter lock released, signals looked at)  <--
//! ```
//!
//! - `process`: the runtime and the context of this process, made anew in a forked child;
//! - `fork`: values that stay with the process that made them;
//! - `ending`: calls into Python by threads of ours, which the end of the interpreter waits for;
//! - `wait`: blocks on a future without the interpreter lock, and lets Ctrl-C through;
//! - `buffer`: the classes `Buffer` and `MutableBuffer` with the buffer protocol, over raw FFI;
//! - `view`: memory of other Python objects, borrowed by the same protocol;
//! - `errors`: one exception class per error kind;
//! - `copy`: copies between stores;
//! - `ckpt`: checkpoints, saved in the background and loaded;
//! - `stream`: batches of data sets;
//! - `weights`: tensors of files, loaded and saved;
//! - `settings`, `log`: what arguments and the environment say;
//! - `store`, `listing`, `upload`, `rows`, `ledger`: the other classes.

use pyo3::prelude::*;

mod buffer;
mod ckpt;
mod copy;
mod ending;
mod errors;
mod ffi;
mod fork;
mod ledger;
mod listing;
mod log;
mod process;
mod rows;
mod settings;
mod store;
mod stream;
mod upload;
mod view;
mod wait;
mod weights;

/// Everything `forebay` gets from Rust.
#[pymodule(name = "_forebay")]
fn forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    errors::add_classes(module)?;
    buffer::add_classes(module)?;
    fork::register(module)?;
    ending::register(module)?;
    module.add_class::<ckpt::PyEntryName>()?;
    module.add_class::<ckpt::PyNativeAttempt>()?;
    module.add_class::<ckpt::PyNativeCheckpoint>()?;
    module.add_class::<ckpt::PyNativeCheckpoints>()?;
    module.add_class::<ckpt::PyNativeSave>()?;
    module.add_class::<ckpt::PyTyped>()?;
    module.add_class::<copy::PyCopyResult>()?;
    module.add_class::<ledger::PyLedger>()?;
    module.add_class::<listing::PyListing>()?;
    module.add_class::<rows::PyObjectMeta>()?;
    module.add_class::<rows::PyPrefix>()?;
    module.add_class::<rows::PyProof>()?;
    module.add_class::<rows::PyWriteResult>()?;
    module.add_class::<store::PyStore>()?;
    module.add_class::<stream::PyNativeBatch>()?;
    module.add_class::<stream::PyNativeStream>()?;
    module.add_class::<upload::PyUpload>()?;
    module.add_class::<weights::PyNativeWeights>()?;
    module.add_class::<weights::PyDeviceTensor>()?;
    module.add_function(wrap_pyfunction!(buffer::alloc, module)?)?;
    module.add_function(wrap_pyfunction!(buffer::buffer_pin, module)?)?;
    module.add_function(wrap_pyfunction!(buffer::buffer_unpin, module)?)?;
    module.add_function(wrap_pyfunction!(ckpt::ckpt_copy, module)?)?;
    module.add_function(wrap_pyfunction!(ckpt::ckpt_encode, module)?)?;
    module.add_function(wrap_pyfunction!(ckpt::ckpt_layout, module)?)?;
    module.add_function(wrap_pyfunction!(copy::copy, module)?)?;
    module.add_function(wrap_pyfunction!(settings::configure, module)?)?;
    module.add_function(wrap_pyfunction!(process::engine, module)?)?;
    module.add_function(wrap_pyfunction!(stream::stream_value, module)?)?;
    module.add_function(wrap_pyfunction!(weights::weights_header, module)?)?;
    module.add_function(wrap_pyfunction!(weights::weights_load_device, module)?)?;
    module.add_function(wrap_pyfunction!(weights::weights_warm, module)?)?;
    module.add_function(wrap_pyfunction!(weights::gds_probe, module)?)?;
    module.add_function(wrap_pyfunction!(weights::weights_save, module)?)?;
    module.add_function(wrap_pyfunction!(weights::weights_serialize, module)?)?;
    module.add(
        "__version__",
        pyo3::types::PyString::new(py, env!("CARGO_PKG_VERSION")),
    )
}
