//! Fields that say themselves what they are, taken apart for Python: the parts are ranges of the bytes given, which Python cuts out itself.

use forebay_data::format::value::Value;
use pyo3::prelude::*;

use crate::errors;

/// What it is, the type or mode of it, its shape, and where its parts are.
type Opened = (&'static str, String, Vec<u64>, Vec<(usize, usize)>);

/// Take a value of that encoding apart: `("array", dtype, shape, [range])`, `("image", mode, [width, height], [range])` or `("list", "", [], ranges)`.
#[pyfunction]
pub(crate) fn stream_value(py: Python<'_>, encoding: &str, data: &[u8]) -> PyResult<Opened> {
    // Values are slices of the data.
    let place = |part: &[u8]| {
        let start = part.as_ptr().addr() - data.as_ptr().addr();
        (start, start + part.len())
    };
    let value = Value::open(encoding, data).map_err(|error| errors::raise(py, &error))?;
    Ok(match value {
        Value::Array(array) => {
            let parts = vec![place(array.values)];
            ("array", array.dtype.name().to_owned(), array.shape, parts)
        }
        Value::Image(image) => {
            let size = vec![image.width.into(), image.height.into()];
            ("image", image.mode.to_owned(), size, vec![place(image.pixels)])
        }
        Value::List(parts) => {
            // A part of no bytes may be anywhere.
            let parts = parts
                .into_iter()
                .map(|part| if part.is_empty() { (0, 0) } else { place(part) });
            ("list", String::new(), Vec::new(), parts.collect())
        }
    })
}
