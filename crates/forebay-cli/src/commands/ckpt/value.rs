//! Typed values as JSON and as one line of text.

use std::fmt::Write;

use forebay_ckpt::Value;
use serde_json::{Map, json};

/// As JSON. What JSON has no word for becomes an object that says what it is.
pub(super) fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::None => serde_json::Value::Null,
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::BigInt { negative, magnitude } => {
            let sign = if *negative { "-0x" } else { "0x" };
            let digits = magnitude.iter().rev().fold(sign.to_owned(), |mut text, byte| {
                // Writing to a string cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            });
            json!({ "int": digits })
        }
        Value::Float(value) => match serde_json::Number::from_f64(*value) {
            Some(number) => serde_json::Value::Number(number),
            None => json!({ "float": value.to_string() }),
        },
        Value::Complex(real, imaginary) => json!({ "complex": [real.to_string(), imaginary.to_string()] }),
        Value::Text(text) => json!(text),
        Value::Bytes(bytes) => json!({ "bytes": bytes.len() }),
        Value::List(values) | Value::Tuple(values) => values.iter().map(to_json).collect(),
        Value::Dict(pairs) => pairs
            .iter()
            .map(|(key, value)| (key_text(key), to_json(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(array) => json!({ "array": array.dtype, "shape": array.shape }),
        Value::Tensor(name) => json!({ "tensor": name }),
        Value::Named(named, value) => json!({ named.text(): to_json(value) }),
    }
}

fn key_text(key: &Value) -> String {
    match key {
        Value::Text(text) => text.clone(),
        other => to_json(other).to_string(),
    }
}

/// The pairs of a dict as `key=value`, for a line of a table.
pub(super) fn one_line(value: &Value) -> String {
    let Value::Dict(pairs) = value else {
        return to_json(value).to_string();
    };
    let words = pairs.iter().map(|(key, value)| {
        let text = match value {
            Value::Text(text) => text.clone(),
            other => to_json(other).to_string(),
        };
        format!("{}={text}", key_text(key))
    });
    words.collect::<Vec<_>>().join(" ")
}
