//! Filters: which samples to keep, as a short text like `label = 3 and caption is not null`.
//!
//! ```text
//! text --parse.rs--> Filter (names) --bind to fields--> Bound (columns, typed)
//!                                                         |-- may_keep(outline): can a row group hold such a row?
//!                                                         `-- keeps(row): exact, three-valued as in SQL
//! ```
//!
//! The language is described in docs/formats/parquet.md. A filter knows nothing of a format: values are bytes in the encoding of their field's
//! [`Kind`], and what is known of many rows at once is an [`Outline`].

mod bind;
mod members;
mod parse;
#[cfg(test)]
mod tests;
mod value;

pub use bind::{Bound, Outline};
pub use value::Value;

use crate::schema::{Field, Kind};
use forebay_core::Result;

/// Longest text of a filter: far beyond what anybody writes, and what a program writes should be a list of samples instead.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// Most comparisons, list items included: each is done for every row.
pub const TERMS_MAX: usize = 10_000;

/// What filters call the key of a sample, where it has one.
pub const KEY_COLUMN: &str = "__key__";

/// The field that is the key of samples, in formats that have no other: packing writes it.
pub(crate) fn key_field(fields: &[Field]) -> Option<usize> {
    let is_key = |field: &Field| field.name == KEY_COLUMN && matches!(field.kind, Kind::Text | Kind::Bytes);
    fields.iter().position(is_key)
}

/// Deepest nesting: evaluation recurses, and stacks are finite.
pub const DEPTH_MAX: usize = 100;

/// A filter that was parsed but does not know its columns yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    expr: Expr<String>,
}

impl Filter {
    /// Parse the text of a filter.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self {
            expr: parse::parse(text)?,
        })
    }

    /// Names of the columns it asks for, each once, in the order they are first met.
    pub fn columns(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        self.expr.visit(&mut |name| {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        });
        names
    }

    /// Find its columns among the fields of a shard, and check that their kinds can be compared with what they are compared with.
    pub fn bind(&self, fields: &[Field]) -> Result<Bound> {
        Bound::new(&self.expr, fields)
    }

    /// The same for samples that have a key beside their fields: also the number that stands for it, behind those of all fields. A field that has
    /// the name of the key is what that name means.
    pub fn bind_keyed(&self, fields: &[Field], has_keys: bool) -> Result<(Bound, Option<usize>)> {
        let mut known = fields.to_vec();
        let has_field = fields.iter().any(|field| field.name == KEY_COLUMN);
        let key = (has_keys && !has_field).then_some(fields.len());
        known.extend(key.map(|_| Field::new(KEY_COLUMN, Kind::Text)));
        Ok((self.bind(&known)?, key))
    }
}

/// How two values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A value in the text of a filter.
#[derive(Debug, Clone, PartialEq)]
enum Literal {
    Int(i128),
    /// With its digits as they are written: a decimal may have more of them than a float.
    Float(f64, String),
    Bool(bool),
    Text(String),
}

/// A condition; `C` is a column.
#[derive(Debug, Clone, PartialEq)]
enum Expr<C, L = Literal> {
    Compare { column: C, op: Op, literal: L },
    In { column: C, literals: Vec<L> },
    IsNull(C),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

impl<C, L> Expr<C, L> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&'a C)) {
        match self {
            Self::Compare { column, .. } | Self::In { column, .. } | Self::IsNull(column) => visitor(column),
            Self::Not(inner) => inner.visit(visitor),
            Self::All(inner) | Self::Any(inner) => {
                for expr in inner {
                    expr.visit(visitor);
                }
            }
        }
    }
}
