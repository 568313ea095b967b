//! The fields of requests: declared once, with type, default and doc, and read (`read.rs`) from JSON or TOML with an error that names the field.
//!
//! The `request!` macro makes a request struct and the list of its [`Field`]s from the same lines, so help texts, web forms
//! and the documentation cannot disagree with what is read. `choice!` does the same for words to choose from.

mod read;

use std::fmt;

use serde::{Serialize, Serializer};

use crate::quantity::Unit;

pub use read::LIST_ITEMS_MAX;
pub(crate) use read::read;

/// What a caller may say to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name in JSON and TOML; the command line writes `_` as `-`.
    pub name: &'static str,
    /// What is to be written.
    pub kind: Kind,
    /// Default in words; nothing when there is none.
    pub default: Option<String>,
    /// What it is and where its default comes from.
    pub doc: &'static str,
}

/// What a field takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A number, or a text such as `1.5TB`.
    Quantity(Unit),
    /// One of these words.
    Choice(Vec<&'static str>),
    /// Any text.
    Text,
    /// A table with these fields.
    Table(Vec<Field>),
    /// A list of such.
    List(Box<Kind>),
    /// A table with the fields of another model, which is the one to read it.
    Section,
}

/// In words: `size`, `one of a, b`, `list of tables with a, b`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantity(unit) => f.write_str(unit.noun()),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::Text => f.write_str("text"),
            Self::Table(fields) => {
                let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
                write!(f, "tables with {}", names.join(", "))
            }
            Self::List(kind) => write!(f, "list of {kind}"),
            Self::Section => f.write_str("a table with the fields of that model"),
        }
    }
}

/// A type a field can have.
pub(crate) trait FieldValue {
    fn kind() -> Kind;

    /// The value in words; nothing for an absent one.
    fn text(&self) -> Option<String>;
}

impl Field {
    pub(crate) fn of<T: FieldValue>(name: &'static str, doc: &'static str, default: &T) -> Self {
        Self {
            name,
            kind: T::kind(),
            default: default.text(),
            doc: doc.trim(),
        }
    }

    /// Unit of a plain number, where it is a quantity.
    pub fn unit(&self) -> Option<Unit> {
        match self.kind {
            Kind::Quantity(unit) => Some(unit),
            _ => None,
        }
    }

    /// Words to choose from, where it is a choice.
    pub fn choices(&self) -> &[&'static str] {
        match &self.kind {
            Kind::Choice(words) => words,
            _ => &[],
        }
    }

    /// Fields of the table or of the tables of the list, where it is one.
    pub fn fields(&self) -> &[Field] {
        let kind = match &self.kind {
            Kind::List(kind) => kind,
            kind => kind,
        };
        match kind {
            Kind::Table(fields) => fields,
            _ => &[],
        }
    }

    /// Whether one word can give it.
    pub fn is_single(&self) -> bool {
        matches!(self.kind, Kind::Quantity(_) | Kind::Choice(_) | Kind::Text)
    }
}

impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            name: &'a str,
            kind: String,
            unit: Option<Unit>,
            default: Option<&'a str>,
            choices: &'a [&'static str],
            fields: &'a [Field],
            doc: &'a str,
        }
        let written = Written {
            name: self.name,
            kind: self.kind.to_string(),
            unit: self.unit(),
            default: self.default.as_deref(),
            choices: self.choices(),
            fields: self.fields(),
            doc: self.doc,
        };
        written.serialize(serializer)
    }
}

impl<T: FieldValue> FieldValue for Option<T> {
    fn kind() -> Kind {
        T::kind()
    }

    fn text(&self) -> Option<String> {
        self.as_ref().and_then(T::text)
    }
}

impl<T: FieldValue> FieldValue for Vec<T> {
    fn kind() -> Kind {
        Kind::List(Box::new(T::kind()))
    }

    fn text(&self) -> Option<String> {
        let items: Vec<String> = self.iter().filter_map(T::text).collect();
        (!items.is_empty()).then(|| items.join("; "))
    }
}

impl FieldValue for String {
    fn kind() -> Kind {
        Kind::Text
    }

    fn text(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.clone())
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
            fn kind() -> $crate::field::Kind {
                $crate::field::Kind::Table(Self::fields())
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
            fn kind() -> $crate::field::Kind {
                $crate::field::Kind::Choice(Self::ALL.iter().map(|(name, _)| *name).collect())
            }

            fn text(&self) -> Option<String> {
                Some(self.name().to_owned())
            }
        }
    };
}

pub(crate) use {choice, request};
