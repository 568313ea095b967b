//! The names that may stand in a pickled schema. Nothing is ever done with them but comparing.

/// Numpy's scalar types, by all names they have had.
const NUMPY: &[&str] = &[
    "dtype",
    "ndarray",
    "bool",
    "bool_",
    "bool8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "intc",
    "uintc",
    "int_",
    "uint",
    "longlong",
    "ulonglong",
    "float16",
    "float32",
    "float64",
    "float_",
    "half",
    "single",
    "double",
    "str_",
    "unicode_",
    "string_",
    "bytes_",
    "object_",
    "datetime64",
    "timedelta64",
    "complex64",
    "complex128",
];

/// True when a name may occur.
pub(super) fn is_allowed(module: &str, name: &str) -> bool {
    let is_plain = !name.contains('.');
    match module {
        // Petastorm has lived in three places.
        "petastorm.unischema"
        | "petastorm.codecs"
        | "dataset_toolkit.unischema"
        | "dataset_toolkit.codecs"
        | "av.experimental.deepdrive.dataset_toolkit.unischema"
        | "av.experimental.deepdrive.dataset_toolkit.codecs"
        | "pyspark.sql.types" => is_plain,
        // How namedtuples are pickled in a process that has loaded older versions of PySpark.
        "pyspark.serializers" => name == "_restore",
        "numpy" => NUMPY.contains(&name),
        "numpy.core.multiarray" | "numpy._core.multiarray" => name == "scalar",
        "collections" => matches!(name, "OrderedDict" | "namedtuple"),
        "decimal" => name == "Decimal",
        "copyreg" | "copy_reg" => name == "_reconstructor",
        "builtins" | "__builtin__" => matches!(name, "object" | "tuple"),
        _ => false,
    }
}
