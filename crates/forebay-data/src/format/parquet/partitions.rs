//! Columns that stand in the names of folders alone: `day=2024-05-31/part-0.parquet`, as Spark, Hive and pyarrow split a data set.
//!
//! ```text
//! names of all shards --Partitions::of--> columns and their kinds --> parameter `partitions` of the format, in the manifest
//!                                                                          |
//! name of one shard --Partitions::constants--> one value for all its rows <-'  --> File
//! ```
//!
//! What such a column is, all names together say, so it is found out once and kept; a shard that is opened later, or alone, has the same kinds. A value is never read from the file, and is as
//! certain as the name of the shard, which the manifest has.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Result};
use percent_encoding::percent_decode_str;
use serde_json::Value as Json;

use super::OP;
use crate::block::{Column, Shape};
use crate::filter::{Outline, Value};
use crate::schema::{Dtype, Field, Kind};

/// What all of them write for a row without a value.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Most columns of that sort: nobody nests folders deeper.
const COLUMNS_MAX: usize = 64;

/// Columns named in one message.
const NAMED_MAX: usize = 20;

/// The columns that the folders of a data set say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Partitions {
    columns: Vec<Field>,
}

impl Partitions {
    /// The columns that the names of all shards say, and those that only some of them do, which are none. A column is of integers where all its values are some, and of text otherwise.
    pub fn of<'a>(keys: impl Iterator<Item = &'a Key>) -> (Self, BTreeSet<String>) {
        let (mut columns, mut others): (Option<Vec<(Field, bool)>>, _) = (None, BTreeSet::new());
        for key in keys {
            let values: HashMap<_, _> = said(key.as_str()).collect();
            let known = columns.get_or_insert_with(|| {
                let names = said(key.as_str()).map(|(name, _)| name.into_owned());
                let mut named: Vec<(Field, bool)> = Vec::new();
                for name in names.take(COLUMNS_MAX) {
                    if !named.iter().any(|(column, _)| column.name == name) {
                        named.push((Field::new(name, int_kind()), false));
                    }
                }
                named
            });
            known.retain_mut(|(column, has_value)| {
                let Some(value) = values.get(column.name.as_str()) else {
                    others.insert(column.name.clone());
                    return false;
                };
                *has_value |= value.is_some();
                if value.as_ref().is_some_and(|value| int(value).is_none()) {
                    column.kind = Kind::Text;
                }
                true
            });
            for name in values.keys() {
                if others.len() < COLUMNS_MAX && !known.iter().any(|(column, _)| column.name == *name) {
                    others.insert(name.clone().into_owned());
                }
            }
        }
        let columns = columns.unwrap_or_default().into_iter();
        let columns = columns.map(|(mut column, has_value)| {
            if !has_value {
                column.kind = Kind::Text; // Nobody knows what it would be.
            }
            column
        });
        let columns = columns.collect();
        (Self { columns }, others)
    }

    /// The same, with text for those that `is_text` says are some.
    pub(crate) fn with_text(mut self, is_text: impl Fn(&str) -> bool) -> Self {
        for column in &mut self.columns {
            if is_text(&column.name) {
                column.kind = Kind::Text;
            }
        }
        self
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// True when one of them has that name.
    pub(super) fn have(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name)
    }

    /// As the parameter of a format.
    pub(crate) fn to_param(&self) -> Json {
        let pair = |column: &Field| {
            let kind = if column.kind == Kind::Text {
                "text"
            } else {
                "int64"
            };
            Json::from(vec![column.name.as_str(), kind])
        };
        self.columns.iter().map(pair).collect()
    }

    /// From that parameter; `None` where it is none.
    pub(crate) fn from_param(param: &Json) -> Option<Self> {
        let column = |pair: &Json| {
            let [name, kind] = pair.as_array()?.as_slice() else {
                return None;
            };
            let kind = match kind.as_str()? {
                "text" => Kind::Text,
                "int64" => int_kind(),
                _ => return None,
            };
            Some(Field::new(name.as_str()?, kind))
        };
        let pairs = param.as_array().filter(|pairs| pairs.len() <= COLUMNS_MAX)?;
        let columns = pairs.iter().map(column).collect::<Option<_>>()?;
        Some(Self { columns })
    }

    /// Refuse columns that no folder of these shards says, and integers where a folder says none: whoever names columns may misspell them, and a column of
    /// nulls would be all that is seen of it.
    pub(crate) fn check<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Result<()> {
        let mut unsaid: Vec<&Field> = self.columns.iter().collect();
        let mut others = BTreeSet::new();
        for key in keys {
            let values: HashMap<_, _> = said(key.as_str()).collect();
            unsaid.retain(|column| !values.contains_key(column.name.as_str()));
            for (name, value) in values {
                let Some(column) = self.columns.iter().find(|column| column.name == name) else {
                    if others.len() < COLUMNS_MAX {
                        others.insert(name.into_owned());
                    }
                    continue;
                };
                let text = value.filter(|text| column.kind != Kind::Text && int(text).is_none());
                if let Some(text) = text {
                    return Err(no_int(column, &text, key));
                }
            }
        }
        unsaid
            .first()
            .map_or(Ok(()), |column| Err(no_folder(column, &others)))
    }

    /// The value of each column in the rows of the shard of that name.
    pub(crate) fn constants(&self, key: &Key) -> Result<Vec<Constant>> {
        let values: Vec<_> = said(key.as_str()).collect();
        let constant = |column: &Field| {
            // Of folders that say the same column, the innermost is the one that was split last.
            let value = values.iter().rfind(|(name, _)| *name == column.name);
            let value = match value.and_then(|(_, value)| value.as_deref()) {
                None => None,
                Some(text) if column.kind == Kind::Text => Some(Bytes::copy_from_slice(text.as_bytes())),
                Some(text) => {
                    let value = int(text).ok_or_else(|| not_an_int(column, text))?;
                    Some(Bytes::copy_from_slice(&value.to_le_bytes()))
                }
            };
            Ok(Constant {
                field: column.clone(),
                value,
            })
        };
        self.columns.iter().map(constant).collect()
    }
}

/// A field that has one value in all rows of a file, or none in all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Constant {
    pub(super) field: Field,
    value: Option<Bytes>,
}

impl Constant {
    /// The column, of however many rows.
    pub(super) fn column(&self) -> Column {
        match &self.value {
            None => super::absent(),
            Some(value) => Column {
                data: value.clone(),
                shape: Shape::Same,
                present: None,
            },
        }
    }

    /// Everything is known of it.
    pub(super) fn outline(&self) -> Outline<'_> {
        let value = self.value.as_deref().and_then(|value| match self.field.kind {
            Kind::Text => Some(Value::Bytes(value)),
            _ => Value::read(Dtype::Int64, value),
        });
        Outline {
            low: value,
            high: value,
            may_have_nulls: self.value.is_none(),
            may_have_values: self.value.is_some(),
        }
    }
}

/// The columns that the folders of a key say, with their values.
fn said(key: &str) -> impl Iterator<Item = (Cow<'_, str>, Option<Cow<'_, str>>)> {
    let folders = key.rsplit_once('/').map_or("", |(folders, _)| folders);
    let pairs = folders.split('/').filter_map(|folder| folder.split_once('='));
    pairs
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (plain(name), (value != NULL).then(|| plain(value))))
}

/// Without the `%3A` that stand for characters which names of files had better not have. What is no text then was no such name.
fn plain(text: &str) -> Cow<'_, str> {
    percent_decode_str(text)
        .decode_utf8()
        .unwrap_or(Cow::Borrowed(text))
}

/// Digits with or without a sign, leading zeros among them: `month=05` is five.
fn int(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn int_kind() -> Kind {
    Kind::Array {
        dtype: Dtype::Int64,
        shape: Vec::new(),
    }
}

fn not_an_int(column: &Field, text: &str) -> Error {
    let message = format!(
        "the folder says '{}' for '{}', which has integers in the index",
        text.escape_debug(),
        column.name.escape_debug()
    );
    Error::new(ErrorKind::Precondition, OP, message).with_hint("index the data set again")
}

/// An integer that was asked for is none.
fn no_int(column: &Field, text: &str, key: &Key) -> Error {
    let name = column.name.escape_debug();
    let message = format!(
        "the folder {:?} says '{}' for '{name}', which is to be an integer",
        key.parent(),
        text.escape_debug()
    );
    wrong(message).with_hint(format!("ask for [\"{name}\", \"text\"]"))
}

fn no_folder(column: &Field, others: &BTreeSet<String>) -> Error {
    let message = format!("no folder says '{}'", column.name.escape_debug());
    if others.is_empty() {
        return wrong(message).with_hint("folders that say a column are called name=value");
    }
    let others: Vec<String> = others
        .iter()
        .take(NAMED_MAX)
        .map(|name| format!("'{}'", name.escape_debug()))
        .collect();
    wrong(message).with_hint(format!("there are: {}", others.join(", ")))
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "open data set", message).with_field("partitions")
}

/// What all names say fits each of them.
#[cfg(fuzzing)]
pub(crate) fn fuzz(text: &str) {
    let keys: Vec<Key> = text.lines().filter_map(|line| Key::parse(line).ok()).collect();
    let (partitions, _) = Partitions::of(keys.iter());
    assert_eq!(
        Partitions::from_param(&partitions.to_param()).as_ref(),
        Some(&partitions)
    );
    partitions
        .check(keys.iter())
        .expect("columns that all folders say");
    for key in &keys {
        partitions.constants(key).expect("values of their kinds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::parse(name).unwrap()
    }

    fn of(names: &[&str]) -> Partitions {
        let keys: Vec<Key> = names.iter().map(|name| key(name)).collect();
        Partitions::of(keys.iter()).0
    }

    fn values(partitions: &Partitions, name: &str) -> Vec<Option<Bytes>> {
        let constants = partitions.constants(&key(name)).unwrap();
        constants.into_iter().map(|constant| constant.value).collect()
    }

    #[test]
    fn folders_say_columns() {
        let says = |name| -> Vec<_> { said(name).map(|(name, value)| (name, value.unwrap())).collect() };
        assert_eq!(
            says("year=2024/month=5/part-0.parquet"),
            [("year".into(), "2024".into()), ("month".into(), "5".into())]
        );
        assert_eq!(says("a/x=1=2/p.parquet"), [("x".into(), "1=2".into())]);
        assert_eq!(says("a%20b=x%2Fy/p"), [("a b".into(), "x/y".into())]);
        assert_eq!(says("a=%ff/p"), [("a".into(), "%ff".into())]);
        assert!(says("a/b/x=1.parquet").is_empty());
        assert!(says("=1/p.parquet").is_empty());
    }

    #[test]
    fn all_names_together_say_the_kind() {
        let found = of(&[
            "n=05/m=1/t=1/p",
            "n=-7/m=1/t=x/p",
            "n=__HIVE_DEFAULT_PARTITION__/m=99999999999999999999/t=1/p",
        ]);
        let kinds: Vec<(&str, &Kind)> = found
            .columns
            .iter()
            .map(|column| (column.name.as_str(), &column.kind))
            .collect();
        assert_eq!(
            kinds,
            [("n", &int_kind()), ("m", &Kind::Text), ("t", &Kind::Text)]
        );
        let (five, one) = (
            Bytes::copy_from_slice(&5i64.to_le_bytes()),
            Bytes::from_static(b"1"),
        );
        assert_eq!(
            values(&found, "n=05/m=1/t=1/p"),
            [Some(five), Some(one.clone()), Some(one.clone())]
        );
        assert_eq!(
            values(&found, "n=__HIVE_DEFAULT_PARTITION__/m=1/m=1/p"),
            [None, Some(one), None]
        );
        let error = found.constants(&key("n=new/p")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition);
        assert_eq!(Partitions::from_param(&found.to_param()), Some(found));
        assert_eq!(Partitions::from_param(&Json::from("n")), None);
        assert!(int("+5").is_none() && int("-").is_none() && int("").is_none());
    }

    #[test]
    fn what_only_some_folders_say_is_no_column() {
        let of = |names: &[&str]| {
            let keys: Vec<Key> = names.iter().map(|name| key(name)).collect();
            let (found, others) = Partitions::of(keys.iter());
            let names: Vec<String> = found.columns.iter().map(|column| column.name.clone()).collect();
            (names, others.into_iter().collect::<Vec<_>>())
        };
        let strings =
            |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
        assert_eq!(of(&["a=1/b=1/p", "a=2/p"]), (strings(&["a"]), strings(&["b"])));
        assert_eq!(of(&["p", "a=2/p"]), (strings(&[]), strings(&["a"])));
        assert_eq!(
            of(&["dGVzdA==/p", "dGVzdB==/p"]),
            (strings(&[]), strings(&["dGVzdA", "dGVzdB"]))
        );
        let many: Vec<String> = (0..1000).map(|number| format!("x{number}=1/p")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(of(&many).0, strings(&[]));
        assert_eq!(of(&many).1.len(), COLUMNS_MAX);
    }

    #[test]
    fn rows_share_one_value() {
        let found = of(&["n=5/t=x/p", "n=6/t=y/p"]);
        let constants = found.constants(&key("n=5/p")).unwrap();
        let column = constants[0].column();
        assert_eq!(column.get(2), Some(&5i64.to_le_bytes()[..]));
        assert_eq!(constants[0].outline().low, Some(Value::Int(5)));
        assert_eq!(constants[1].column().get(0), None);
        assert!(!constants[1].outline().may_have_values);
    }
}
