//! Reading a request: every value is held against what its field takes, so that an error says which field is wrong, what is
//! wrong with it, and as a hint what would be right. The field is in the error as data too, as a dotted path: `tiers.hot.write`.

use forebay_core::{Error, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Field, Kind};
use crate::near;
use crate::sheet::{item_names, wrong};

/// Items of a list in a request, such as tiers: far more than there are kinds of storage, and few enough for any table.
pub const LIST_ITEMS_MAX: usize = 64;

/// Characters of a refused value that its error repeats.
const VALUE_CHARS_MAX: usize = 64;

/// Reads a request, naming the field that is wrong.
pub(crate) fn read<T: DeserializeOwned>(model: &str, fields: &[Field], value: &Value) -> Result<T> {
    let Value::Object(map) = value else {
        let message = format!("a request to {model} is a table of names and values");
        return Err(wrong(message, format!("write {{ {} }}", example(fields))));
    };
    Place { model, path: "" }.table(fields, map)?;
    // What the fields take is what the types read; were they to differ, the types are right.
    T::deserialize(value).map_err(|error| {
        wrong(
            format!("{model}: {error}"),
            format!("write {{ {} }}", example(fields)),
        )
    })
}

fn example(fields: &[Field]) -> String {
    let shown = fields.iter().take(3);
    let shown: Vec<String> = shown
        .map(|field| format!("{} = {}", field.name, field.kind))
        .collect();
    shown.join(", ")
}

/// Where in a request a value stands.
struct Place<'a> {
    model: &'a str,
    path: &'a str,
}

impl Place<'_> {
    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The error of the value at this place.
    fn refuse(&self, message: &str, hint: impl Into<String>) -> Error {
        wrong(format!("{} of {}: {message}", self.path, self.model), hint).with_field(self.path)
    }

    fn table(&self, fields: &[Field], map: &Map<String, Value>) -> Result<()> {
        for (key, value) in map {
            let path = self.path_of(key);
            let Some(field) = fields.iter().find(|field| field.name == key) else {
                let whose = match self.path {
                    "" => self.model.to_owned(),
                    path => format!("{path} of {}", self.model),
                };
                let message = format!("{whose} has no field '{}'", key.escape_debug());
                let hint = near::hint(key, "fields", fields.iter().map(|field| field.name));
                return Err(wrong(message, hint).with_field(path));
            };
            let place = Place { path: &path, ..*self };
            place.value(&field.kind, value)?;
        }
        Ok(())
    }

    fn value(&self, kind: &Kind, value: &Value) -> Result<()> {
        match (kind, value) {
            (Kind::Text, Value::String(_)) | (Kind::Section, Value::Object(_)) => Ok(()),
            (Kind::Quantity(unit), Value::String(text)) => self.checked(unit.parse(text)),
            (Kind::Quantity(unit), Value::Number(number)) => {
                self.checked(unit.check(number.as_f64().unwrap_or(f64::INFINITY)))
            }
            (Kind::Choice(words), Value::String(word)) if words.contains(&word.as_str()) => Ok(()),
            (Kind::Table(fields), Value::Object(map)) => self.table(fields, map),
            (Kind::List(kind), Value::Array(items)) => self.list(kind, items),
            // Formats without such numbers hand them over as null.
            (_, Value::Null) => Err(self.refuse("null, nan and inf are no value", self.hint(kind))),
            (_, value) => {
                let shown: String = value.to_string().chars().take(VALUE_CHARS_MAX).collect();
                let message = match kind {
                    Kind::Quantity(unit) => format!("{shown} is not {}", unit.a_noun()),
                    kind => format!("{shown} is not {kind}"),
                };
                Err(self.refuse(&message, self.hint(kind)))
            }
        }
    }

    /// How a value is written here.
    fn hint(&self, kind: &Kind) -> String {
        match kind {
            Kind::Quantity(unit) => format!("write {} like {}", unit.a_noun(), unit.examples()),
            kind => format!("{} is written as {kind}", self.path),
        }
    }

    fn checked(&self, result: Result<f64>) -> Result<()> {
        let refused = |error: Error| self.refuse(error.message(), error.hint().unwrap_or_default());
        result.map(drop).map_err(refused)
    }

    fn list(&self, kind: &Kind, items: &[Value]) -> Result<()> {
        if items.len() > LIST_ITEMS_MAX {
            let message = format!("{} items are too many", items.len());
            return Err(self.refuse(&message, format!("give up to {LIST_ITEMS_MAX}")));
        }
        let name = |item: &'_ Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
        let names: Vec<String> = items.iter().map(|item| name(item).unwrap_or_default()).collect();
        for (item, name) in items.iter().zip(item_names(names.iter().map(String::as_str))) {
            let path = self.path_of(&name);
            let place = Place { path: &path, ..*self };
            place.value(kind, item)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::{parse_toml, run};

    #[track_caller]
    fn refused(model: &str, request: &Value) -> (String, String, String) {
        let error = run(model, request).expect_err("accepted");
        let hint = error.hint().expect("a hint").to_owned();
        let field = error.field().expect("a field").to_owned();
        (error.message().to_owned(), hint, field)
    }

    #[test]
    fn what_is_no_number_is_no_value() {
        for (text, field) in [
            ("mtbf = inf", "mtbf"),
            ("mtbf = nan", "mtbf"),
            ("gpus = nan", "gpus"),
            ("name_of_nobody = 1", "name_of_nobody"),
            ("[calibration]\nwrite = inf", "calibration.write"),
            (
                "[[tiers]]\nname = 'Far Away'\nwrite = -inf",
                "tiers.far_away.write",
            ),
        ] {
            let request = parse_toml(&format!("params = '7B'\nstorage = '1TB/s'\n{text}")).unwrap();
            let (message, _, found) = refused("checkpoint", &request);
            assert_eq!(found, field, "{message}");
            assert!(
                message.contains(field.split('.').next_back().unwrap()),
                "{message}"
            );
        }
        let request = json!({ "params": "7B", "storage": "1TB/s", "mtbf": null });
        assert_eq!(refused("checkpoint", &request).2, "mtbf");
        let request = json!({ "gpus": 8, "checkpoint": null });
        assert_eq!(refused("cluster", &request).2, "checkpoint");
    }

    #[test]
    fn advice_is_in_the_hint_and_not_in_the_message() {
        for (request, message, hint) in [
            (
                json!({ "params": "70 parsecs" }),
                "params of checkpoint: '70 parsecs' is not a count",
                "write a count like 405B",
            ),
            (
                json!({ "storage": "1TB" }),
                "storage of checkpoint: '1TB' is not a data rate",
                "a data rate ends in /s; write a data rate like",
            ),
            (
                json!({ "gpus": true }),
                "gpus of checkpoint: true is not a count",
                "write a count like",
            ),
            (
                json!({ "gpus": -1 }),
                "gpus of checkpoint: a count of -1 is negative",
                "write a count like",
            ),
            (
                json!({ "mode": "later" }),
                "mode of checkpoint: \"later\" is not one of sync, async",
                "mode is written as one of sync, async",
            ),
            (
                json!({ "tiers": [{ "write": "fast" }] }),
                "tiers.1.write of checkpoint: 'fast' is not a data rate",
                "write a data rate like",
            ),
            (
                json!({ "tiers": [{ "name": "a" }, { "name": "b", "writ": 1 }] }),
                "tiers.b of checkpoint has no field 'writ'",
                "did you mean write?",
            ),
        ] {
            let said = refused("checkpoint", &request);
            assert!(
                said.0.starts_with(message) && said.1.contains(hint),
                "{request}: {said:?}"
            );
            assert!(!said.0.contains(hint), "{said:?}");
        }
    }

    #[test]
    fn lists_have_a_longest_length() {
        let tiers = |count: usize| json!({ "size": "1TB", "tiers": vec![json!({ "keep": 1 }); count] });
        assert!(run("retention", &tiers(LIST_ITEMS_MAX)).is_ok());
        let (message, hint, field) = refused("retention", &tiers(LIST_ITEMS_MAX + 1));
        assert!(
            message.contains("65 items") && hint.contains("64"),
            "{message}: {hint}"
        );
        assert_eq!(field, "tiers");
    }
}
