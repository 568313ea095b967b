//! The fields of requests: declared once, with type, default and doc, and read from JSON or TOML with an error that names the field.
//!
//! The `request!` macro makes a request struct and the list of its [`Field`]s from the same lines, so help texts, web forms
//! and the documentation cannot disagree with what is read. `choice!` does the same for words to choose from.

use forebay_core::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::near;
use crate::quantity::{self, Measure, Unit};

/// What a caller may say to a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Name in JSON and TOML; the command line writes `_` as `-`.
    pub name: &'static str,
    /// What is to be written: `size`, `one of a, b`, `list of tables`.
    pub kind: String,
    /// Unit of a plain number, where it is a quantity.
    pub unit: Option<Unit>,
    /// Default in words; nothing when there is none.
    pub default: Option<String>,
    /// Words to choose from, where it is a choice.
    pub choices: Vec<&'static str>,
    /// What it is and where its default comes from.
    pub doc: &'static str,
}

/// A type a field can have.
pub(crate) trait FieldValue {
    fn unit() -> Option<Unit> {
        None
    }

    fn kind() -> String;

    fn choices() -> Vec<&'static str> {
        Vec::new()
    }

    /// The value in words; nothing for an absent one.
    fn text(&self) -> Option<String>;
}

impl Field {
    pub(crate) fn of<T: FieldValue>(name: &'static str, doc: &'static str, default: &T) -> Self {
        Self {
            name,
            kind: T::kind(),
            unit: T::unit(),
            default: default.text(),
            choices: T::choices(),
            doc: doc.trim(),
        }
    }
}

macro_rules! measures {
    ($($name:ident)*) => { $(
        impl FieldValue for quantity::$name {
            fn unit() -> Option<Unit> {
                Some(Self::UNIT)
            }

            fn kind() -> String {
                Self::UNIT.noun().to_owned()
            }

            fn text(&self) -> Option<String> {
                Some(Self::UNIT.show(self.get()).text)
            }
        }
    )* };
}

measures! {
    Bytes BytesPerSecond Seconds Money MoneyPerHour MoneyPerGbMonth MoneyPerGb MoneyPerThousand MoneyPerKilowattHour Watts
    WattHours Flops Count PerSecond Ratio Factor
}

impl<T: FieldValue> FieldValue for Option<T> {
    fn unit() -> Option<Unit> {
        T::unit()
    }

    fn kind() -> String {
        T::kind()
    }

    fn choices() -> Vec<&'static str> {
        T::choices()
    }

    fn text(&self) -> Option<String> {
        self.as_ref().and_then(T::text)
    }
}

impl<T: FieldValue> FieldValue for Vec<T> {
    fn kind() -> String {
        format!("list of {}", T::kind())
    }

    fn text(&self) -> Option<String> {
        let items: Vec<String> = self.iter().filter_map(T::text).collect();
        (!items.is_empty()).then(|| items.join("; "))
    }
}

impl FieldValue for String {
    fn kind() -> String {
        "text".to_owned()
    }

    fn text(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.clone())
    }
}

impl FieldValue for bool {
    fn kind() -> String {
        "true or false".to_owned()
    }

    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Declares a request: a struct that is read from a table whose every key is optional and known.
macro_rules! request {
    (
        $(#[doc = $about:literal])+
        $name:ident {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr, )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }

        impl $name {
            /// Name, kind, default and doc of every field.
            pub fn fields() -> Vec<$crate::field::Field> {
                let base = Self::default();
                vec![ $( $crate::field::Field::of(stringify!($field), concat!($($doc),+), &base.$field), )* ]
            }
        }

        impl $crate::field::FieldValue for $name {
            fn kind() -> String {
                let names = [ $( stringify!($field) ),* ];
                format!("tables with {}", names.join(", "))
            }

            fn text(&self) -> Option<String> {
                let fields = Self::fields();
                let values = [ $( $crate::field::FieldValue::text(&self.$field) ),* ];
                let said = fields.iter().zip(values).filter_map(|(field, value)| {
                    value.map(|value| format!("{} {value}", field.name))
                });
                let said: Vec<String> = said.collect();
                (!said.is_empty()).then(|| said.join(", "))
            }
        }
    };
}

/// Declares words to choose from.
macro_rules! choice {
    (
        $(#[doc = $about:literal])+
        $name:ident { $( $(#[doc = $doc:literal])+ $variant:ident = $text:literal, )* }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $( $(#[doc = $doc])+ #[serde(rename = $text)] $variant, )*
        }

        impl $name {
            /// Every word with its choice.
            pub const ALL: &'static [(&'static str, Self)] = &[ $( ($text, Self::$variant) ),* ];

            /// The word.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $text, )* }
            }
        }

        impl $crate::field::FieldValue for $name {
            fn kind() -> String {
                let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
                format!("one of {}", names.join(", "))
            }

            fn choices() -> Vec<&'static str> {
                Self::ALL.iter().map(|(name, _)| *name).collect()
            }

            fn text(&self) -> Option<String> {
                Some(self.name().to_owned())
            }
        }
    };
}

pub(crate) use {choice, request};

/// Reads a request, naming the field that is wrong.
pub(crate) fn read<T: DeserializeOwned>(model: &str, fields: &[Field], value: &Value) -> Result<T> {
    let Value::Object(map) = value else {
        let message = format!("a request to {model} is a table of names and values");
        return Err(Error::new(ErrorKind::InvalidInput, "plan", message)
            .with_hint(format!("write {{ {} }}", example(fields))));
    };
    let error = match T::deserialize(value) {
        Ok(request) => return Ok(request),
        Err(error) => error,
    };
    for (key, value) in map {
        if !fields.iter().any(|field| field.name == key) {
            return Err(unknown(model, fields, key));
        }
        // Every field is optional, so a table with this one alone fails exactly when this one is wrong.
        let alone = Value::Object(Map::from_iter([(key.clone(), value.clone())]));
        if let Err(error) = T::deserialize(&alone) {
            let kind = fields.iter().find(|field| field.name == key);
            let kind = kind.map_or_else(String::new, |field| field.kind.clone());
            let message = format!("{key} of {model}: {error}");
            return Err(Error::new(ErrorKind::InvalidInput, "plan", message)
                .with_hint(format!("{key} is written as {kind}")));
        }
    }
    Err(
        Error::new(ErrorKind::InvalidInput, "plan", format!("{model}: {error}"))
            .with_hint(format!("write {{ {} }}", example(fields))),
    )
}

fn unknown(model: &str, fields: &[Field], key: &str) -> Error {
    let names = fields.iter().map(|field| field.name);
    let hint = match near::nearest(key, names.clone()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("fields are {}", names.collect::<Vec<_>>().join(", ")),
    };
    let message = format!("{model} has no field '{}'", key.escape_debug());
    Error::new(ErrorKind::InvalidInput, "plan", message).with_hint(hint)
}

fn example(fields: &[Field]) -> String {
    let shown = fields.iter().take(3);
    let shown: Vec<String> = shown
        .map(|field| format!("{} = {}", field.name, field.kind))
        .collect();
    shown.join(", ")
}
