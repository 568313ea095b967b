//! Reading a pickle without running it.
//!
//! A pickle is a program for a stack machine that may import and call anything. This machine has no imports and no calls: a name is looked up in a list of
//! those that may occur, and a call is recorded with its arguments. What comes out is a tree of plain values, in an arena; nothing recurses.

mod names;
mod opcodes;

use std::collections::HashMap;

use forebay_core::{Error, ErrorKind, Result};

/// Longest pickle: a schema of a thousand fields takes 100 KiB.
pub const PICKLE_BYTES_MAX: usize = 16 << 20;

/// Most steps of the machine, and so most values: a pickle of all repeats could make as many as it has bytes.
const STEPS_MAX: usize = 1_000_000;

/// A value in the arena.
pub(super) type Id = usize;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// A tuple, list or set.
    Sequence(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function of the list.
    Name {
        module: String,
        name: String,
    },
    /// An object: what made it, of what, and what it was given afterwards.
    Object(Box<Object>),
}

/// An object that was never made.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Object {
    pub(super) class: Id,
    pub(super) args: Vec<Id>,
    pub(super) state: Option<Id>,
    /// For those that are dicts.
    pub(super) items: Vec<(Id, Id)>,
}

/// The values of a pickle.
#[derive(Debug)]
pub(super) struct Tree {
    values: Vec<Value>,
    pub(super) root: Id,
}

impl Tree {
    /// Interpret a pickle.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > PICKLE_BYTES_MAX {
            let message = format!(
                "a pickle of {} bytes; {PICKLE_BYTES_MAX} are allowed",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::LimitExceeded, "read pickle", message));
        }
        let mut machine = Machine::new(bytes);
        for _ in 0..STEPS_MAX {
            if let Some(root) = machine.step()? {
                return Ok(Self {
                    values: machine.values,
                    root,
                });
            }
        }
        let message = format!("a pickle of more than {STEPS_MAX} steps");
        Err(Error::new(ErrorKind::LimitExceeded, "read pickle", message))
    }

    pub(super) fn get(&self, id: Id) -> &Value {
        self.values.get(id).unwrap_or(&Value::None)
    }

    /// The value that a dict, or an object that is one, has for a key.
    pub(super) fn item(&self, id: Id, key: &str) -> Option<Id> {
        let items = self.items(id)?;
        let found = items.iter().rev().find(|(name, _)| self.text(*name) == Some(key));
        found.map(|(_, value)| *value)
    }

    /// Keys and values of a dict, or of an object that is one.
    pub(super) fn items(&self, id: Id) -> Option<Vec<(Id, Id)>> {
        match self.get(id) {
            Value::Dict(items) => Some(items.clone()),
            Value::Object(object) => {
                // Older pickles give the pairs of an ordered dict to its constructor.
                let given = object
                    .args
                    .first()
                    .map(|list| self.sequence(*list))
                    .unwrap_or_default();
                let pairs = given.iter().filter_map(|pair| match self.sequence(*pair) {
                    [key, value] => Some((*key, *value)),
                    _ => None,
                });
                Some(pairs.chain(object.items.iter().copied()).collect())
            }
            _ => None,
        }
    }

    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub(super) fn sequence(&self, id: Id) -> &[Id] {
        match self.get(id) {
            Value::Sequence(values) => values,
            _ => &[],
        }
    }

    /// Module and name of the class of an object, or of a class itself.
    pub(super) fn class(&self, id: Id) -> Option<(&str, &str)> {
        let id = match self.get(id) {
            Value::Object(object) => object.class,
            _ => id,
        };
        match self.get(id) {
            Value::Name { module, name } => Some((module, name)),
            _ => None,
        }
    }

    pub(super) fn object(&self, id: Id) -> Option<&Object> {
        match self.get(id) {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }
}

/// The stack machine.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack at each open mark.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    /// Arguments recorded so far: one tuple can be given to many calls.
    args: usize,
}

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            args: 0,
        }
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let taken = taken.ok_or_else(|| self.corrupt("it ends in the middle"))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn uint(&mut self, width: u64) -> Result<u64> {
        let bytes = self.take(width)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn line(&mut self) -> Result<&'a str> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|byte| *byte == b'\n');
        let len = len.ok_or_else(|| self.corrupt("a line without an end"))?;
        let line = self.take(len as u64)?;
        self.at += 1;
        std::str::from_utf8(line).map_err(|_| self.corrupt("a line that is not text"))
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.corrupt("it takes a value that is not there"));
        }
        self.stack
            .pop()
            .ok_or_else(|| self.corrupt("it takes a value that is not there"))
    }

    fn top(&self) -> Result<Id> {
        let top = self.stack.last().copied();
        top.ok_or_else(|| self.corrupt("it looks at a value that is not there"))
    }

    /// All values above the last mark, which is closed.
    fn pop_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        let mark = mark.ok_or_else(|| self.corrupt("it closes a mark that is not open"))?;
        Ok(self.stack.split_off(mark))
    }

    fn text_of(&self, id: Id) -> Result<String> {
        match self.values.get(id) {
            Some(Value::Text(text)) => Ok(text.clone()),
            _ => Err(self.corrupt("a name that is not text")),
        }
    }

    fn sequence_of(&mut self, id: Id) -> Result<Vec<Id>> {
        let Some(Value::Sequence(values)) = self.values.get(id) else {
            return Err(self.corrupt("arguments that are not a tuple"));
        };
        self.args += values.len();
        if self.args > STEPS_MAX {
            let message = format!("a pickle of more than {STEPS_MAX} arguments");
            return Err(Error::new(ErrorKind::LimitExceeded, "read pickle", message));
        }
        Ok(values.clone())
    }

    fn corrupt(&self, message: &str) -> Error {
        let message = format!(
            "the pickle does not follow the format: {message} (byte {})",
            self.at
        );
        Error::new(ErrorKind::Corrupt, "read pickle", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(bytes: &[u8]) -> Error {
        Tree::read(bytes).unwrap_err()
    }

    #[test]
    fn what_would_run_code_is_refused_by_name() {
        for (pickle, name) in [
            (&b"cos\nsystem\n(S'true'\ntR."[..], "os.system"),
            (
                b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
                "builtins.eval",
            ),
            (b"\x80\x02c__builtin__\ngetattr\n.", "__builtin__.getattr"),
            (b"(ios\nsystem\n.", "os.system"),
            (b"cpetastorm.unischema\n_x.y\n.", "petastorm.unischema._x.y"),
        ] {
            let error = refused(pickle);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains(name), "{error}");
        }
        for pickle in [&b"Pid\n."[..], b"\x80\x02NQ.", b"\x82\x01.", b"\x97."] {
            assert_eq!(refused(pickle).kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn pickles_that_are_no_pickles_are_corrupt() {
        for pickle in [
            &b""[..],
            b".",
            b"N",
            b"(.",
            b"t.",
            b"Ra.",
            b"0.",
            b"(0.",
            b"h\x00.",
            b"g5\n.",
            b"J\x01.",
            b"X\xff\xff\xff\xff.",
            b"Ix\n.",
            b"\x8a\x09123456789.",
            b"Na.",
            b"Nb.",
            b"N)R.",
            b"\xf0.",
            b"\x80\x06N.",
        ] {
            let error = refused(pickle);
            assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                "{pickle:?}: {error}"
            );
        }
        let endless = vec![b'2'; STEPS_MAX + 2];
        let endless = [b"N".to_vec(), endless].concat();
        assert_eq!(refused(&endless).kind(), ErrorKind::LimitExceeded);
        // One long tuple, given to many calls.
        let tuple = [b"(".to_vec(), vec![b'N'; 100_000], b"tp0\n0".to_vec()].concat();
        let calls = b"cdecimal\nDecimal\nh\x00R".repeat(20);
        assert_eq!(refused(&[tuple, calls].concat()).kind(), ErrorKind::LimitExceeded);
    }

    #[test]
    fn values_of_all_protocols_are_read() {
        let read = |bytes: &[u8]| {
            let tree = Tree::read(bytes).unwrap();
            tree.get(tree.root).clone()
        };
        for (pickle, value) in [
            (&b"I01\n."[..], Value::Bool(true)),
            (b"I-7\n.", Value::Int(-7)),
            (b"L300L\n.", Value::Int(300)),
            (b"J\xff\xff\xff\xff.", Value::Int(-1)),
            (b"\x8a\x01\xff.", Value::Int(-1)),
            (b"\x8a\x02\xff\x00.", Value::Int(255)),
            (b"\x8a\x00.", Value::Int(0)),
            (b"M\x01\x02.", Value::Int(513)),
            (b"F1.5\n.", Value::Float(1.5)),
            (b"G\x3f\xf8\x00\x00\x00\x00\x00\x00.", Value::Float(1.5)),
            (b"S'a\\'b'\n.", Value::Text("a'b".into())),
            (b"Va\\u00e9\n.", Value::Text("a\u{e9}".into())),
            (b"U\x01x.", Value::Text("x".into())),
            (b"C\x01\xff.", Value::Bytes(vec![255])),
            (
                b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00\x88.",
                Value::Bool(true),
            ),
        ] {
            assert_eq!(read(pickle), value, "{pickle:?}");
        }
        let tree = Tree::read(b"(dp0\nS'a'\np1\n(lp2\nI1\naI2\nas.").unwrap();
        let list = tree.item(tree.root, "a").unwrap();
        assert_eq!(tree.sequence(list).len(), 2);
    }
}
