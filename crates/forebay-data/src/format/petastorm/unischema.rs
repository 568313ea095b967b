//! The schema of a Petastorm data set, out of the tree of its pickle.

use forebay_core::{Error, ErrorKind, Result};

use super::pickle::{Id, Tree, Value};
use crate::schema::{Dtype, Kind};
use crate::table::FIELDS_MAX;

/// Most dimensions of an array: numpy's own bound.
const DIMS_MAX: usize = 64;

/// What a data set says of its fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unischema {
    /// Its name.
    pub name: String,
    /// Its fields, in order.
    pub fields: Vec<UnischemaField>,
}

/// One field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnischemaField {
    /// Its name, and that of its column.
    pub name: String,
    /// Name of its type in numpy (or `Decimal`).
    pub dtype: String,
    /// Its shape; `None` for a dimension of any length.
    pub shape: Vec<Option<u64>>,
    /// How its values are kept.
    pub codec: UnischemaCodec,
    /// Whether it may be absent.
    pub is_nullable: bool,
}

/// How values are kept in their column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnischemaCodec {
    /// As Parquet keeps them.
    Scalar,
    /// As a `.npy` file.
    Ndarray,
    /// As a `.npz` file with a member `arr`.
    CompressedNdarray,
    /// As an image file.
    CompressedImage,
}

impl Unischema {
    /// From the pickle, which is not run.
    pub fn from_pickle(pickle: &[u8]) -> Result<Self> {
        let tree = Tree::read(pickle)?;
        let Some((module, "Unischema")) = tree.class(tree.root) else {
            return Err(wrong("the pickle is not one of a Unischema"));
        };
        if !module.ends_with("unischema") {
            return Err(wrong("the pickle is not one of a Unischema"));
        }
        let state = tree.object(tree.root).and_then(|object| object.state);
        let fields = state.and_then(|state| tree.item(state, "_fields"));
        let fields = fields.and_then(|fields| tree.items(fields));
        let fields = fields.ok_or_else(|| wrong("the Unischema has no fields"))?;
        if fields.len() > FIELDS_MAX {
            let message = format!("a Unischema of {} fields; {FIELDS_MAX} are allowed", fields.len());
            return Err(Error::new(ErrorKind::LimitExceeded, "read unischema", message));
        }
        let name = state.and_then(|state| tree.text(tree.item(state, "_name")?));
        let fields = fields.iter().map(|(_, field)| field_of(&tree, *field));
        Ok(Self {
            name: name.unwrap_or_default().to_owned(),
            fields: fields.collect::<Result<_>>()?,
        })
    }

    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&UnischemaField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl UnischemaField {
    /// What the values of its column become, once they are taken out of their `.npy` or `.npz`.
    pub(super) fn kind(&self) -> Kind {
        match self.codec {
            UnischemaCodec::CompressedImage => Kind::Image,
            UnischemaCodec::Scalar => Kind::Bytes,
            UnischemaCodec::Ndarray | UnischemaCodec::CompressedNdarray => {
                let known: Option<Vec<u64>> = self.shape.iter().copied().collect();
                match (Dtype::parse(&self.dtype), known, self.shape.as_slice()) {
                    (Some(dtype), Some(shape), _) => Kind::Array { dtype, shape },
                    (Some(dtype), None, [None]) => Kind::List { dtype },
                    _ => Kind::Encoded {
                        encoding: "npy".to_owned(),
                    },
                }
            }
        }
    }
}

fn field_of(tree: &Tree, id: Id) -> Result<UnischemaField> {
    let missing = || wrong("a field of the Unischema has another form than known ones");
    let object = tree.object(id).ok_or_else(missing)?;
    let values: &[Id] = match tree.class(id) {
        Some((module, "UnischemaField")) if module.ends_with("unischema") => &object.args,
        // Name of the class, names of its members, their values.
        Some(("pyspark.serializers", _)) => match object.args.as_slice() {
            [name, _, values] if tree.text(*name) == Some("UnischemaField") => tree.sequence(*values),
            _ => return Err(missing()),
        },
        _ => return Err(missing()),
    };
    let [name, dtype, shape, rest @ ..] = values else {
        return Err(missing());
    };
    let name = tree.text(*name).ok_or_else(missing)?.to_owned();
    let named = |error: Error| {
        let part = format!("field '{}'", name.escape_debug());
        error.within(part).with_field(&name)
    };
    Ok(UnischemaField {
        dtype: dtype_of(tree, *dtype).map_err(named)?,
        shape: shape_of(tree, *shape).map_err(named)?,
        codec: codec_of(tree, rest.first().copied()).map_err(named)?,
        is_nullable: rest.get(1).is_some_and(|id| *tree.get(*id) == Value::Bool(true)),
        name,
    })
}

fn dtype_of(tree: &Tree, id: Id) -> Result<String> {
    if let (Some(("numpy", "dtype")), Some(object)) = (tree.class(id), tree.object(id)) {
        let text = object.args.first().and_then(|text| tree.text(*text));
        let dtype = text.and_then(|text| {
            super::arrays::descr_dtype(&format!("<{}", text.trim_start_matches(['<', '=', '|'])))
        });
        return match (dtype, text) {
            (Some(dtype), _) => Ok(dtype.name().to_owned()),
            (None, text) => Err(wrong(&format!("numpy type {:?}", text.unwrap_or_default()))),
        };
    }
    let (Value::Name { .. }, Some(("numpy" | "decimal", name))) = (tree.get(id), tree.class(id)) else {
        return Err(wrong("its type is not one of numpy"));
    };
    Ok(match name {
        "bool_" | "bool8" => "bool",
        "int_" | "longlong" => "int64",
        "uint" | "ulonglong" => "uint64",
        "intc" => "int32",
        "uintc" => "uint32",
        "half" => "float16",
        "single" => "float32",
        "float_" | "double" => "float64",
        "unicode_" => "str_",
        "string_" => "bytes_",
        name => name,
    }
    .to_owned())
}

fn shape_of(tree: &Tree, id: Id) -> Result<Vec<Option<u64>>> {
    let Value::Sequence(dims) = tree.get(id) else {
        return Err(wrong("its shape is not a tuple"));
    };
    if dims.len() > DIMS_MAX {
        return Err(wrong("its shape has more dimensions than numpy knows"));
    }
    let dim = |id: &Id| match tree.get(*id) {
        Value::None => Ok(None),
        Value::Int(len) => u64::try_from(*len)
            .map(Some)
            .map_err(|_| wrong("a dimension is negative")),
        Value::Object(_) => scalar_of(tree, *id).map(Some),
        _ => Err(wrong("a dimension is not a number")),
    };
    dims.iter().map(dim).collect()
}

/// A numpy integer: its type and its bytes.
fn scalar_of(tree: &Tree, id: Id) -> Result<u64> {
    let bytes = match (tree.class(id), tree.object(id)) {
        (Some(("numpy.core.multiarray" | "numpy._core.multiarray", "scalar")), Some(object)) => {
            object.args.get(1)
        }
        _ => None,
    };
    match bytes.map(|bytes| tree.get(*bytes)) {
        Some(Value::Bytes(bytes)) if bytes.len() <= 8 => Ok(bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))),
        _ => Err(wrong("a dimension is not a number")),
    }
}

fn codec_of(tree: &Tree, id: Option<Id>) -> Result<UnischemaCodec> {
    let Some(id) = id.filter(|id| *tree.get(*id) != Value::None) else {
        return Ok(UnischemaCodec::Scalar);
    };
    match tree.class(id) {
        Some((module, name)) if module.ends_with("codecs") => match name {
            "ScalarCodec" => Ok(UnischemaCodec::Scalar),
            "NdarrayCodec" => Ok(UnischemaCodec::Ndarray),
            "CompressedNdarrayCodec" => Ok(UnischemaCodec::CompressedNdarray),
            "CompressedImageCodec" => Ok(UnischemaCodec::CompressedImage),
            other => {
                let message = format!("its codec is {}", other.escape_debug());
                Err(Error::new(ErrorKind::Unsupported, "read unischema", message))
            }
        },
        _ => Err(wrong("its codec is not one of Petastorm")),
    }
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorKind::Unsupported, "read unischema", message)
        .with_hint("read the data set as plain Parquet")
}
