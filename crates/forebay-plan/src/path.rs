//! Dotted places in a request: `checkpoint.storage`.

use forebay_core::Result;
use serde_json::{Map, Value};

use crate::sheet::wrong;

/// Puts a value at a dotted place, making tables on the way; a value on the way is not replaced by a table.
pub fn put(request: &mut Value, path: &str, value: Value) -> Result<()> {
    let mut place = request;
    for key in path.split('.') {
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(map) = place else {
            let message = format!(
                "{} is in no table: what is before '{}' is a value",
                path.escape_debug(),
                key.escape_debug()
            );
            return Err(wrong(message, "write table.field=value"));
        };
        place = map.entry(key).or_insert(Value::Null);
    }
    *place = value;
    Ok(())
}

/// The value at a dotted place.
pub(crate) fn at<'a>(request: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(request, |value, key| value.get(key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dotted_names_make_tables_and_never_replace_values() {
        let mut request = json!({ "gpus": 8 });
        put(&mut request, "checkpoint.storage", json!("1TB/s")).unwrap();
        assert_eq!(
            request,
            json!({ "gpus": 8, "checkpoint": { "storage": "1TB/s" } })
        );
        assert_eq!(at(&request, "checkpoint.storage"), Some(&json!("1TB/s")));
        assert_eq!(at(&request, "gpus.many"), None);
        let error = put(&mut request, "gpus.many", json!(1)).unwrap_err();
        assert!(error.message().contains("before 'many'") && error.hint().is_some());
    }
}
