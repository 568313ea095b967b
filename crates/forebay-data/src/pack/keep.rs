//! Which samples are wanted: a filter over the fields of a sample, its key and what is in its JSON.
//!
//! Names in the filter are fields; `__key__` is the key; `meta.width` is `width` in the object of the JSON field `meta`, for any depth. What a JSON value is
//! follows from what it is compared with.

use forebay_core::Result;
use serde_json::Value;

use super::shape::KEY_FIELD;
use crate::filter::{Bound, Filter, Wanted};
use crate::schema::{Dtype, Field, Kind};

/// A filter that knows its input.
#[derive(Debug)]
pub(super) struct Keep {
    bound: Bound,
    /// Number of the fields of the input; those behind are the key and the paths.
    fields: usize,
    paths: Vec<Path>,
}

/// A value in a JSON field.
#[derive(Debug)]
struct Path {
    field: usize,
    steps: Vec<String>,
    wanted: Wanted,
}

impl Keep {
    /// Parse a filter for samples of these fields.
    pub(super) fn new(text: &str, fields: &[Field]) -> Result<Self> {
        let filter = Filter::parse(text)?;
        let mut known = fields.to_vec();
        let mut key = Field::new(KEY_FIELD, Kind::Text);
        if fields.iter().any(|field| field.name == KEY_FIELD) {
            // The field of that name is the key; this one only keeps the place.
            key.name.push(' ');
        }
        known.push(key);
        let mut paths = Vec::new();
        for name in filter.columns() {
            if known.iter().any(|field| field.name == name) {
                continue;
            }
            let Some((field, steps)) = json_path(name, fields) else {
                // Binding says which fields there are.
                continue;
            };
            let wanted = filter.wanted(name);
            known.push(Field::new(name, kind_of(wanted)));
            paths.push(Path { field, steps, wanted });
        }
        Ok(Self {
            bound: filter.bind(&known)?,
            fields: fields.len(),
            paths,
        })
    }

    /// True when a field of the input is looked at.
    pub(super) fn looks_at(&self, field: usize) -> bool {
        self.bound.columns().contains(&field) || self.paths.iter().any(|path| path.field == field)
    }

    /// True when a sample is wanted.
    pub(super) fn keeps<'a>(&self, value: &dyn Fn(usize) -> Option<&'a [u8]>, key: &str) -> bool {
        let found: Vec<Option<Vec<u8>>> = self
            .paths
            .iter()
            .map(|path| value(path.field).and_then(|json| path.find(json)))
            .collect();
        self.bound.keeps(&|column| {
            let Some(behind) = column.checked_sub(self.fields) else {
                return value(column);
            };
            match behind.checked_sub(1) {
                None => Some(key.as_bytes()),
                Some(path) => found.get(path)?.as_deref(),
            }
        })
    }
}

impl Path {
    /// The value in the encoding of its kind; `None` where it is not there, or is something else.
    fn find(&self, json: &[u8]) -> Option<Vec<u8>> {
        let mut at = &serde_json::from_slice::<Value>(json).ok()?;
        for step in &self.steps {
            at = at.get(step)?;
        }
        match (self.wanted, at) {
            (Wanted::Bool, Value::Bool(truth)) => Some(vec![u8::from(*truth)]),
            (Wanted::Number, Value::Number(number)) => Some(number.to_string().into_bytes()),
            (Wanted::Text, Value::String(text)) => Some(text.clone().into_bytes()),
            (_, Value::Null) => None,
            (Wanted::Nothing, _) => Some(Vec::new()),
            _ => None,
        }
    }
}

/// The JSON field that the front of a name is, and the steps behind it.
fn json_path(name: &str, fields: &[Field]) -> Option<(usize, Vec<String>)> {
    let dots = name.match_indices('.').map(|(dot, _)| dot);
    dots.rev().find_map(|dot| {
        let (front, steps) = (name.get(..dot)?, name.get(dot + 1..)?);
        let field = fields
            .iter()
            .position(|field| field.name == front && field.kind == Kind::Json)?;
        Some((field, steps.split('.').map(str::to_owned).collect()))
    })
}

fn kind_of(wanted: Wanted) -> Kind {
    match wanted {
        Wanted::Number => Kind::Decimal,
        Wanted::Text => Kind::Text,
        Wanted::Bool => Kind::Array {
            dtype: Dtype::Bool,
            shape: Vec::new(),
        },
        Wanted::Nothing => Kind::Bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_see_fields_keys_and_json() {
        let fields = [
            Field::new("cls", Kind::Decimal),
            Field::new("json", Kind::Json),
            Field::new("txt", Kind::Text),
        ];
        let keeps = |text: &str| {
            let values: [Option<&[u8]>; 3] = [
                Some(b"7"),
                Some(br#"{"w": 640, "ok": true, "tag": "a", "in": {"depth": 2.5}, "none": null}"#),
                None,
            ];
            let keep = Keep::new(text, &fields)?;
            Ok::<_, forebay_core::Error>(
                keep.keeps(&|index| values.get(index).copied().flatten(), "train/0001"),
            )
        };
        for (text, expected) in [
            ("cls = 7", true),
            ("cls > 7", false),
            ("txt is null", true),
            ("__key__ = 'train/0001'", true),
            ("json.w >= 640 and json.ok = true", true),
            ("json.tag = 'b'", false),
            ("json.in.depth < 3", true),
            ("json.none is null and json.missing is null", true),
            ("json.w is not null", true),
            ("json.tag = 3", false),
        ] {
            assert_eq!(keeps(text).unwrap(), expected, "{text}");
        }
        for text in ["other = 3", "txt.a = 3", "cls = 'x'"] {
            assert!(keeps(text).is_err(), "{text}");
        }
    }
}
