//! A filter that knows its columns: comparing rows, and ruling out many rows at once.

use std::cmp::Ordering;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};

use super::members::{Item, Members, member};
use super::value::Value;
use super::{Expr, Literal, Op};
use crate::format::tfrecord::decode;
use crate::schema::{Dtype, Field, Kind, Unit};

/// A filter bound to the fields of a shard. Clones share what they have seen.
#[derive(Debug, Clone)]
pub struct Bound {
    expr: Expr<Column, Constant>,
    columns: Vec<usize>,
    members: Arc<Members>,
}

/// What is known of the values of one column in many rows, without looking at them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outline<'a> {
    /// No value is below; `None` where nothing is known.
    pub low: Option<Value<'a>>,
    /// No value is above.
    pub high: Option<Value<'a>>,
    /// Some rows may have no value.
    pub may_have_nulls: bool,
    /// Some rows may have a value.
    pub may_have_values: bool,
}

impl Outline<'_> {
    /// When nothing is known.
    pub const UNKNOWN: Self = Self {
        low: None,
        high: None,
        may_have_nulls: true,
        may_have_values: true,
    };
}

/// A column and how to read its values.
#[derive(Debug, Clone, PartialEq)]
struct Column {
    index: usize,
    reader: Reader,
}

#[derive(Debug, Clone, PartialEq)]
enum Reader {
    Number(Dtype),
    NumberText,
    /// Decimals of more digits than 64 bits have.
    Wide {
        scale: u8,
    },
    /// Varints: one of them is a number, none or several cannot be compared.
    Varint,
    Bytes,
    /// A member of JSON, by the names of the objects on the way.
    Json(Vec<String>),
    /// Cannot be compared, only asked for null.
    Opaque,
}

/// A literal in the type of its column.
#[derive(Debug, Clone, PartialEq)]
enum Constant {
    Number(Value<'static>),
    Text(String),
}

impl Constant {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Number(value) => *value,
            Self::Text(text) => Value::Bytes(text.as_bytes()),
        }
    }
}

/// Which results an expression can have over many rows.
#[derive(Debug, Clone, Copy)]
struct Possible {
    yes: bool,
    no: bool,
}

impl Bound {
    pub(super) fn new(expr: &Expr<String>, fields: &[Field]) -> Result<Self> {
        let expr = bind(expr, fields)?;
        let mut columns = Vec::new();
        expr.visit(&mut |column| columns.push(column.index));
        columns.sort_unstable();
        columns.dedup();
        let mut members = Members::default();
        compared(&expr, &mut |column| {
            let Some(Field { name, kind, .. }) = fields.get(column.index) else {
                return;
            };
            match (&column.reader, kind) {
                (Reader::Json(path), _) => members.ask_for(name, column.index, path),
                (Reader::Number(dtype), Kind::List { .. }) => {
                    members.count_several(name, column.index, Item::Bytes(dtype.bytes()));
                }
                (Reader::Varint, _) => members.count_several(name, column.index, Item::Varint),
                _ => {}
            }
        });
        Ok(Self {
            expr,
            columns,
            members: Arc::new(members),
        })
    }

    /// What to tell people of comparisons that could not be made in the rows that were looked at, where there are such: with members of JSON that none of them had, which may
    /// be misspelt, and with lists of several numbers.
    pub fn note_unmet(&self) -> Option<String> {
        self.members.note_unmet()
    }

    /// Fields it looks at, ascending.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// True when a row remains; `value` gives the bytes of a field, `None` where the row does not have it.
    pub fn keeps<'a>(&self, value: &dyn Fn(usize) -> Option<&'a [u8]>) -> bool {
        self.members.look(value);
        truth(&self.expr, value) == Some(true)
    }

    /// False when no row of many can remain; `outline` tells what is known of a field in them.
    pub fn may_keep<'a>(&self, outline: &dyn Fn(usize) -> Outline<'a>) -> bool {
        possible(&self.expr, outline).yes
    }
}

/// The columns that are compared with something: whoever asks for null may well know that nobody has them.
fn compared<'a>(expr: &'a Expr<Column, Constant>, visitor: &mut dyn FnMut(&'a Column)) {
    match expr {
        Expr::Compare { column, .. } | Expr::In { column, .. } => visitor(column),
        Expr::IsNull(_) => {}
        Expr::Not(inner) => compared(inner, visitor),
        Expr::All(inner) | Expr::Any(inner) => inner.iter().for_each(|expr| compared(expr, visitor)),
    }
}

fn bind(expr: &Expr<String>, fields: &[Field]) -> Result<Expr<Column, Constant>> {
    let all = |inner: &[Expr<String>]| inner.iter().map(|expr| bind(expr, fields)).collect::<Result<_>>();
    Ok(match expr {
        Expr::Compare { column, op, literal } => {
            let (field, column) = find(column, fields)?;
            Expr::Compare {
                op: *op,
                literal: constant(field, &column.reader, literal)?,
                column,
            }
        }
        Expr::In { column, literals } => {
            let (field, column) = find(column, fields)?;
            let literals = literals.iter();
            Expr::In {
                literals: literals
                    .map(|literal| constant(field, &column.reader, literal))
                    .collect::<Result<_>>()?,
                column,
            }
        }
        Expr::IsNull(column) => Expr::IsNull(find(column, fields)?.1),
        Expr::Not(inner) => Expr::Not(Box::new(bind(inner, fields)?)),
        Expr::All(inner) => Expr::All(all(inner)?),
        Expr::Any(inner) => Expr::Any(all(inner)?),
    })
}

fn find<'f>(name: &str, fields: &'f [Field]) -> Result<(&'f Field, Column)> {
    let found = fields.iter().enumerate().find(|(_, field)| field.name == name);
    let Some((index, field)) = found else {
        if let Some(found) = find_member(name, fields) {
            return Ok(found);
        }
        let known: Vec<&str> = fields.iter().take(20).map(|field| field.name.as_str()).collect();
        let message = format!("there is no column '{}'", name.escape_debug());
        return Err(invalid(message).with_hint(format!("there are: {}", known.join(", ").escape_debug())));
    };
    let reader = match &field.kind {
        Kind::Array { dtype, shape } if shape.is_empty() => Reader::Number(*dtype),
        Kind::Decimal => Reader::NumberText,
        Kind::Varints => Reader::Varint,
        // One of them is a number; none or several have no order.
        Kind::List { dtype } => Reader::Number(*dtype),
        Kind::Text | Kind::Bytes => Reader::Bytes,
        Kind::Encoded { encoding } => {
            wide_scale(encoding).map_or(Reader::Opaque, |scale| Reader::Wide { scale })
        }
        _ => Reader::Opaque,
    };
    Ok((field, Column { index, reader }))
}

/// Digits behind the point of decimals that are integers of 128 bits.
fn wide_scale(encoding: &str) -> Option<u8> {
    let (_, scale) = encoding.strip_prefix("decimal128:")?.split_once(',')?;
    scale.parse().ok()
}

/// A member of a field of JSON: `json.size.width` in field `json`, where no field has that name.
fn find_member<'f>(name: &str, fields: &'f [Field]) -> Option<(&'f Field, Column)> {
    let dots = name.match_indices('.').map(|(at, _)| at).rev();
    dots.into_iter().find_map(|at| {
        let (field_name, path) = (name.get(..at)?, name.get(at + 1..)?);
        let is_json = |field: &Field| field.name == field_name && field.kind == Kind::Json;
        let index = fields.iter().position(is_json)?;
        let reader = Reader::Json(path.split('.').map(str::to_owned).collect());
        Some((fields.get(index)?, Column { index, reader }))
    })
}

fn constant(field: &Field, reader: &Reader, literal: &Literal) -> Result<Constant> {
    if let Some(counted) = counted(field, reader, literal)? {
        return Ok(Constant::Number(counted));
    }
    match (reader, literal) {
        (Reader::Json(_) | Reader::Number(Dtype::Bool), Literal::Bool(value)) => {
            Ok(Constant::Number(Value::Bool(*value)))
        }
        // As every database does: 0.1 means the float32 that is nearest to it.
        (Reader::Number(Dtype::Float32), Literal::Float(value, _)) => {
            Ok(Constant::Number(Value::Float((*value as f32).into())))
        }
        (Reader::Number(dtype), Literal::Int(value)) if *dtype != Dtype::Bool => {
            Ok(Constant::Number(Value::Int(*value)))
        }
        (Reader::Number(dtype), Literal::Float(value, _)) if *dtype != Dtype::Bool => {
            Ok(Constant::Number(Value::Float(*value)))
        }
        (Reader::Json(_) | Reader::NumberText | Reader::Varint, Literal::Int(value)) => {
            Ok(Constant::Number(Value::Int(*value)))
        }
        (Reader::Json(_) | Reader::NumberText | Reader::Varint, Literal::Float(value, _)) => {
            Ok(Constant::Number(Value::Float(*value)))
        }
        (Reader::Json(_) | Reader::Bytes, Literal::Text(text)) => Ok(Constant::Text(text.clone())),
        _ => Err(mismatch(field, reader, literal)),
    }
}

/// A literal as what the integers of a column count: ticks of a date, a decimal without its point.
fn counted(field: &Field, reader: &Reader, literal: &Literal) -> Result<Option<Value<'static>>> {
    match (reader, field.unit, literal) {
        (Reader::Number(_), Some(Unit::Decimal { scale, .. }), _) => Ok(scaled(literal, scale)),
        (Reader::Wide { scale }, _, _) => Ok(scaled(literal, *scale)),
        (Reader::Number(_), Some(unit), Literal::Text(text)) if unit.example().is_some() => {
            let halves = unit.halves(text).ok_or_else(|| {
                let name = field.name.escape_debug();
                let hint = format!("write {}", unit.example().unwrap_or_default());
                invalid(format!(
                    "column '{name}' is a {unit}, and '{}' is none",
                    text.escape_debug()
                ))
                .with_hint(hint)
            })?;
            // Between two ticks, where no value is.
            Ok(Some(match halves % 2 {
                0 => Value::Int(halves / 2),
                _ => Value::Float(halves as f64 / 2.0),
            }))
        }
        _ => Ok(None),
    }
}

/// A number times ten to the scale, exactly as it is written; `None` where the literal is none.
fn scaled(literal: &Literal, scale: u8) -> Option<Value<'static>> {
    let text = match literal {
        Literal::Int(value) => value.to_string(),
        // What has an exponent is as exact as a float is.
        Literal::Float(value, text) if text.contains(['e', 'E']) => value.to_string(),
        Literal::Float(_, text) => text.clone(),
        _ => return None,
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let missing = usize::from(scale).checked_sub(fraction.len());
    let exact = missing.and_then(|zeros| format!("{whole}{fraction}{}", "0".repeat(zeros)).parse().ok());
    // Between two values, or beyond all of them.
    let rounded = || {
        text.parse()
            .map(|value: f64| Value::Float(value * 10f64.powi(scale.into())))
    };
    exact.map(Value::Int).or_else(|| rounded().ok())
}

fn mismatch(field: &Field, reader: &Reader, literal: &Literal) -> Error {
    let literal = match literal {
        Literal::Int(_) | Literal::Float(..) => "a number",
        Literal::Bool(_) => "a truth value",
        Literal::Text(_) => "text",
    };
    let hint = match reader {
        Reader::Number(Dtype::Bool) => "write true or false",
        Reader::Number(_) | Reader::NumberText | Reader::Wide { .. } | Reader::Varint => {
            "write a number without quotes"
        }
        Reader::Bytes | Reader::Json(_) => "write text in single quotes",
        Reader::Opaque => "only `is null` and `is not null` work with it",
    };
    let name = field.name.escape_debug();
    invalid(format!("column '{name}' cannot be compared with {literal}")).with_hint(hint)
}

fn truth<'a>(expr: &Expr<Column, Constant>, value: &dyn Fn(usize) -> Option<&'a [u8]>) -> Option<bool> {
    match expr {
        Expr::Compare { column, op, literal } => {
            let read = column.read(value)?;
            let order = read.value().order(literal.value());
            // A member of JSON may be of another type in every row: then it is as if it were not there.
            let is_told = order.is_some() || !matches!(column.reader, Reader::Json(_));
            is_told.then(|| holds(*op, order))
        }
        Expr::In { column, literals } => {
            let read = column.read(value)?;
            let orders = literals.iter().map(|literal| read.value().order(literal.value()));
            let is_told =
                !matches!(column.reader, Reader::Json(_)) || orders.clone().any(|order| order.is_some());
            is_told.then(|| orders.clone().any(|order| order == Some(Ordering::Equal)))
        }
        Expr::IsNull(column) => Some(match &column.reader {
            Reader::Json(path) => value(column.index).is_none_or(|json| !has_member(json, path)),
            _ => value(column.index).is_none(),
        }),
        Expr::Not(inner) => truth(inner, value).map(|truth| !truth),
        Expr::All(inner) => settle(inner, value, false),
        Expr::Any(inner) => settle(inner, value, true),
    }
}

/// `end` where one of the branches has that truth; unknown where none has and one is unknown.
fn settle<'a>(
    inner: &[Expr<Column, Constant>],
    value: &dyn Fn(usize) -> Option<&'a [u8]>,
    end: bool,
) -> Option<bool> {
    let mut settled = Some(!end);
    for expr in inner {
        match truth(expr, value) {
            Some(truth) if truth == end => return Some(end),
            Some(_) => {}
            None => settled = None,
        }
    }
    settled
}

/// A value that was read: from the bytes of its field, or made of them.
enum Read<'a> {
    Value(Value<'a>),
    Text(String),
}

impl Read<'_> {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Value(value) => *value,
            Self::Text(text) => Value::Bytes(text.as_bytes()),
        }
    }
}

impl Column {
    fn read<'a>(&self, value: &dyn Fn(usize) -> Option<&'a [u8]>) -> Option<Read<'a>> {
        let bytes = value(self.index)?;
        match &self.reader {
            Reader::Number(dtype) => Value::read(*dtype, bytes).map(Read::Value),
            Reader::NumberText => Value::read_text(bytes).map(Read::Value),
            Reader::Wide { .. } => {
                let wide = bytes.try_into().ok().map(i128::from_le_bytes)?;
                Some(Read::Value(Value::Int(wide)))
            }
            Reader::Varint => {
                let mut number = [0; 8];
                let is_one = decode::varints_into(bytes, &mut number).ok()? == number.len();
                let number = is_one.then_some(number)?;
                Some(Read::Value(Value::Int(i64::from_le_bytes(number).into())))
            }
            Reader::Bytes => Some(Read::Value(Value::Bytes(bytes))),
            Reader::Json(path) => member(bytes, path).and_then(scalar),
            Reader::Opaque => None,
        }
    }

    /// What is known of its values. Of members of JSON nothing is, but that there are none where there is no JSON.
    fn outline<'a>(&self, outline: &dyn Fn(usize) -> Outline<'a>) -> Outline<'a> {
        let known = outline(self.index);
        match &self.reader {
            Reader::Json(_) => Outline {
                may_have_values: known.may_have_values,
                ..Outline::UNKNOWN
            },
            _ => known,
        }
    }

    /// NaN is outside of every minimum and maximum.
    fn may_be_nan(&self) -> bool {
        match &self.reader {
            Reader::Number(dtype) => matches!(
                dtype,
                Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64
            ),
            Reader::NumberText => true,
            Reader::Wide { .. } | Reader::Varint | Reader::Bytes | Reader::Json(_) | Reader::Opaque => false,
        }
    }
}

fn has_member(json: &[u8], path: &[String]) -> bool {
    member(json, path).is_some_and(|value| !value.is_null())
}

fn scalar(value: serde_json::Value) -> Option<Read<'static>> {
    match value {
        serde_json::Value::Bool(value) => Some(Read::Value(Value::Bool(value))),
        serde_json::Value::String(text) => Some(Read::Text(text)),
        serde_json::Value::Number(number) => {
            let int = number.as_i64().map(i128::from);
            let int = int.or_else(|| number.as_u64().map(i128::from)).map(Value::Int);
            int.or_else(|| number.as_f64().map(Value::Float)).map(Read::Value)
        }
        _ => None,
    }
}

/// Whether a comparison holds; what has no order is unlike everything.
fn holds(op: Op, order: Option<Ordering>) -> bool {
    match op {
        Op::Eq => order == Some(Ordering::Equal),
        Op::Ne => order != Some(Ordering::Equal),
        Op::Lt => order == Some(Ordering::Less),
        Op::Le => order.is_some_and(Ordering::is_le),
        Op::Gt => order == Some(Ordering::Greater),
        Op::Ge => order.is_some_and(Ordering::is_ge),
    }
}

fn possible<'a>(expr: &Expr<Column, Constant>, outline: &dyn Fn(usize) -> Outline<'a>) -> Possible {
    match expr {
        Expr::Compare { column, op, literal } => {
            possible_compare(column, *op, literal.value(), &column.outline(outline))
        }
        Expr::In { column, literals } => {
            let outline = column.outline(outline);
            let each = literals
                .iter()
                .map(|literal| possible_compare(column, Op::Eq, literal.value(), &outline));
            let none = Possible {
                yes: false,
                no: outline.may_have_values,
            };
            each.fold(none, |all, one| Possible {
                yes: all.yes || one.yes,
                no: all.no && one.no,
            })
        }
        Expr::IsNull(column) => {
            let outline = column.outline(outline);
            Possible {
                yes: outline.may_have_nulls,
                no: outline.may_have_values,
            }
        }
        Expr::Not(inner) => {
            let Possible { yes, no } = possible(inner, outline);
            Possible { yes: no, no: yes }
        }
        Expr::All(inner) => inner.iter().fold(Possible { yes: true, no: false }, |all, expr| {
            let one = possible(expr, outline);
            Possible {
                yes: all.yes && one.yes,
                no: all.no || one.no,
            }
        }),
        Expr::Any(inner) => inner.iter().fold(Possible { yes: false, no: true }, |all, expr| {
            let one = possible(expr, outline);
            Possible {
                yes: all.yes || one.yes,
                no: all.no && one.no,
            }
        }),
    }
}

fn possible_compare(column: &Column, op: Op, literal: Value<'_>, outline: &Outline<'_>) -> Possible {
    if !outline.may_have_values {
        return Possible {
            yes: false,
            no: false,
        };
    }
    let low = outline.low.and_then(|low| low.order(literal));
    let high = outline.high.and_then(|high| high.order(literal));
    // Where nothing is known of an end, values may be on either side of it.
    let below = low.is_none_or(|low| low == Ordering::Less);
    let above = high.is_none_or(|high| high == Ordering::Greater);
    let equal = low.is_none_or(Ordering::is_le) && high.is_none_or(Ordering::is_ge);
    let nan = column.may_be_nan();
    let (yes, no) = match op {
        Op::Eq => (equal, below || above || nan),
        Op::Ne => (below || above || nan, equal),
        Op::Lt => (below, equal || above || nan),
        Op::Le => (below || equal, above || nan),
        Op::Gt => (above, equal || below || nan),
        Op::Ge => (above || equal, below || nan),
    };
    Possible { yes, no }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "bind filter", message)
}
