//! The opcodes of protocols 0 to 5.

use forebay_core::{Error, ErrorKind, Result};

use super::names;
use super::{Id, Machine, Object, Value};

/// The newest protocol.
const PROTOCOL_MAX: u64 = 5;

impl Machine<'_> {
    /// Do one opcode; the root of the tree at the last one.
    pub(super) fn step(&mut self) -> Result<Option<Id>> {
        let opcode = self.take(1)?.first().copied().unwrap_or_default();
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => {
                let protocol = self.uint(1)?;
                if protocol > PROTOCOL_MAX {
                    return Err(self.unsupported(&format!("protocol {protocol}")));
                }
            }
            0x95 => {
                self.take(8)?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => match self.marks.last() {
                Some(mark) if *mark == self.stack.len() => {
                    self.marks.pop();
                }
                _ => {
                    self.pop()?;
                }
            },
            b'1' => {
                self.pop_mark()?;
            }
            b'2' => self.stack.push(self.top()?),
            b'p' | b'q' | b'r' | 0x94 | b'g' | b'h' | b'j' => self.memo(opcode)?,
            b'N' | 0x88 | 0x89 | b'I' | b'J' | b'K' | b'M' | b'L' | 0x8a | 0x8b | b'F' | b'G' => {
                self.number(opcode)?;
            }
            b'S' | b'T' | b'U' | b'V' | b'X' | 0x8c | 0x8d | b'B' | b'C' | 0x8e | 0x96 => {
                self.string(opcode)?;
            }
            b')' | b't' | 0x85 | 0x86 | 0x87 | b']' | b'l' | b'a' | b'e' | 0x8f | 0x90 | 0x91 => {
                self.sequence(opcode)?;
            }
            b'}' | b'd' | b's' | b'u' => self.dict(opcode)?,
            b'c' | 0x93 | b'i' | b'o' | b'R' | 0x81 | 0x92 | b'b' => self.object(opcode)?,
            b'P' | b'Q' => return Err(self.unsupported("persistent ids")),
            0x82..=0x84 => return Err(self.unsupported("extension codes")),
            0x97 | 0x98 => return Err(self.unsupported("buffers outside of the pickle")),
            other => return Err(self.corrupt(&format!("opcode {other:#04x}"))),
        }
        Ok(None)
    }

    fn memo(&mut self, opcode: u8) -> Result<()> {
        let slot = match opcode {
            b'p' | b'g' => {
                let line = self.line()?;
                line.trim()
                    .parse()
                    .map_err(|_| self.corrupt("a memo without a number"))?
            }
            b'q' | b'h' => self.uint(1)?,
            b'r' | b'j' => self.uint(4)?,
            _ => self.memo.len() as u64,
        };
        if matches!(opcode, b'g' | b'h' | b'j') {
            let id = self.memo.get(&slot).copied();
            let id = id.ok_or_else(|| self.corrupt("it recalls what it never kept"))?;
            self.stack.push(id);
        } else {
            let top = self.top()?;
            self.memo.insert(slot, top);
        }
        Ok(())
    }

    fn number(&mut self, opcode: u8) -> Result<()> {
        let value = match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'I' => match self.line()? {
                "00" => Value::Bool(false),
                "01" => Value::Bool(true),
                line => self.parse_int(line)?,
            },
            b'L' => {
                let line = self.line()?;
                self.parse_int(line.strip_suffix('L').unwrap_or(line))?
            }
            b'J' => Value::Int(i64::from(self.uint(4)? as u32 as i32)),
            b'K' => Value::Int(self.uint(1)? as i64),
            b'M' => Value::Int(self.uint(2)? as i64),
            0x8a | 0x8b => self.long(if opcode == 0x8a { 1 } else { 4 })?,
            b'F' => {
                let line = self.line()?;
                let float = line.trim().parse();
                Value::Float(float.map_err(|_| self.corrupt("a float that is none"))?)
            }
            _ => {
                // Most significant byte first, the only place in the format.
                let bits = self
                    .take(8)?
                    .iter()
                    .fold(0, |bits, byte| bits << 8 | u64::from(*byte));
                Value::Float(f64::from_bits(bits))
            }
        };
        self.push(value);
        Ok(())
    }

    fn parse_int(&self, line: &str) -> Result<Value> {
        let int = line.trim().parse().map(Value::Int);
        int.map_err(|_| self.corrupt("an integer that is none, or too large"))
    }

    /// Two's complement of any length, of which 64 bits are enough.
    fn long(&mut self, width: u64) -> Result<Value> {
        let len = self.uint(width)?;
        let bytes = self.take(len)?;
        if bytes.len() > 8 {
            return Err(self.corrupt("an integer of more than 64 bits"));
        }
        let is_negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let start = if is_negative { u64::MAX } else { 0 };
        let value = bytes
            .iter()
            .rev()
            .fold(start, |value, byte| value << 8 | u64::from(*byte));
        Ok(Value::Int(value as i64))
    }

    fn string(&mut self, opcode: u8) -> Result<()> {
        let value = match opcode {
            b'S' => {
                let line = self.line()?.trim();
                let quoted = ['\'', '"']
                    .iter()
                    .find_map(|quote| line.strip_prefix(*quote)?.strip_suffix(*quote));
                let quoted = quoted.ok_or_else(|| self.corrupt("a string without quotes"))?;
                Value::Text(self.unescape(quoted)?)
            }
            b'V' => {
                let line = self.line()?;
                Value::Text(self.unescape_unicode(line)?)
            }
            _ => {
                let width = match opcode {
                    b'U' | 0x8c | b'C' => 1,
                    b'T' | b'X' | b'B' => 4,
                    _ => 8,
                };
                let len = self.uint(width)?;
                let bytes = self.take(len)?;
                match (opcode, std::str::from_utf8(bytes)) {
                    (b'T' | b'U' | b'X' | 0x8c | 0x8d, Ok(text)) => Value::Text(text.to_owned()),
                    (b'X' | 0x8c | 0x8d, Err(_)) => return Err(self.corrupt("a text that is not UTF-8")),
                    // A string of Python 2 may be bytes too.
                    _ => Value::Bytes(bytes.to_vec()),
                }
            }
        };
        self.push(value);
        Ok(())
    }

    /// Escapes of a Python string literal.
    fn unescape(&self, text: &str) -> Result<String> {
        let mut out = String::new();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            if char != '\\' {
                out.push(char);
                continue;
            }
            match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some('x') => out.push(self.code(&mut chars, 2)?),
                Some(same @ ('\\' | '\'' | '"')) => out.push(same),
                _ => return Err(self.corrupt("an unknown escape")),
            }
        }
        Ok(out)
    }

    /// Escapes of Python's raw-unicode-escape.
    fn unescape_unicode(&self, text: &str) -> Result<String> {
        let mut out = String::new();
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            let mut ahead = chars.clone();
            let digits = match (char, ahead.next()) {
                ('\\', Some('u')) => 4,
                ('\\', Some('U')) => 8,
                _ => {
                    out.push(char);
                    continue;
                }
            };
            chars = ahead;
            out.push(self.code(&mut chars, digits)?);
        }
        Ok(out)
    }

    fn code(&self, chars: &mut std::str::Chars<'_>, digits: usize) -> Result<char> {
        let hex: String = chars.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
        let char = code.and_then(char::from_u32);
        char.ok_or_else(|| self.corrupt("an escape of no character"))
    }

    fn sequence(&mut self, opcode: u8) -> Result<()> {
        let values = match opcode {
            b')' | b']' | 0x8f => Vec::new(),
            b't' | b'l' | 0x91 => self.pop_mark()?,
            0x85..=0x87 => {
                let mut values = Vec::new();
                for _ in 0x84..opcode {
                    values.push(self.pop()?);
                }
                values.reverse();
                values
            }
            _ => {
                let added = match opcode {
                    b'a' => vec![self.pop()?],
                    _ => self.pop_mark()?,
                };
                let top = self.top()?;
                return match self.values.get_mut(top) {
                    Some(Value::Sequence(values)) => {
                        values.extend(added);
                        Ok(())
                    }
                    _ => Err(self.corrupt("it appends to what is no list")),
                };
            }
        };
        self.push(Value::Sequence(values));
        Ok(())
    }

    fn dict(&mut self, opcode: u8) -> Result<()> {
        let pairs = match opcode {
            b'}' => Vec::new(),
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };
        let mut items = Vec::with_capacity(pairs.len() / 2);
        for pair in pairs.chunks(2) {
            match pair {
                [key, value] => items.push((*key, *value)),
                _ => return Err(self.corrupt("a key without a value")),
            }
        }
        if matches!(opcode, b'}' | b'd') {
            self.push(Value::Dict(items));
            return Ok(());
        }
        let top = self.top()?;
        match self.values.get_mut(top) {
            Some(Value::Dict(known)) => known.extend(items),
            Some(Value::Object(object)) => object.items.extend(items),
            _ => return Err(self.corrupt("it sets items of what is no dict")),
        }
        Ok(())
    }

    fn object(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            b'c' => {
                let (module, name) = (self.line()?.to_owned(), self.line()?.to_owned());
                self.push_name(module, name)
            }
            0x93 => {
                let name = self.pop()?;
                let module = self.pop()?;
                let (module, name) = (self.text_of(module)?, self.text_of(name)?);
                self.push_name(module, name)
            }
            b'i' => {
                let (module, name) = (self.line()?.to_owned(), self.line()?.to_owned());
                let args = self.pop_mark()?;
                self.push_name(module, name)?;
                let class = self.pop()?;
                self.make(class, args)
            }
            b'o' => {
                let mut args = self.pop_mark()?;
                if args.is_empty() {
                    return Err(self.corrupt("an object without a class"));
                }
                let class = args.remove(0);
                self.make(class, args)
            }
            b'R' | 0x81 => {
                let args = self.pop()?;
                let class = self.pop()?;
                let args = self.sequence_of(args)?;
                self.make(class, args)
            }
            0x92 => {
                self.pop()?;
                let args = self.pop()?;
                let class = self.pop()?;
                let args = self.sequence_of(args)?;
                self.make(class, args)
            }
            _ => {
                let state = self.pop()?;
                let top = self.top()?;
                match self.values.get_mut(top) {
                    Some(Value::Object(object)) => object.state = Some(state),
                    _ => return Err(self.corrupt("it gives a state to what is no object")),
                }
                Ok(())
            }
        }
    }

    fn push_name(&mut self, module: String, name: String) -> Result<()> {
        if !names::is_allowed(&module, &name) {
            let name = format!("{}.{}", module.escape_debug(), name.escape_debug());
            return Err(self.unsupported(&format!("the name {name}")));
        }
        self.push(Value::Name { module, name });
        Ok(())
    }

    /// Record an object. The two functions that make objects of other classes are seen through.
    fn make(&mut self, class: Id, args: Vec<Id>) -> Result<()> {
        let Some(Value::Name { module, name }) = self.values.get(class) else {
            return Err(self.corrupt("it calls what is no class"));
        };
        let (class, args) = match (module.as_str(), name.as_str(), args.as_slice()) {
            // Class, base class, value of the base.
            ("copyreg" | "copy_reg", _, [class, _, base]) => match self.values.get(*base) {
                Some(Value::Sequence(_)) => (*class, self.sequence_of(*base)?),
                _ => (*class, Vec::new()),
            },
            ("copyreg" | "copy_reg", ..) => return Err(self.corrupt("a reconstruction of nothing")),
            _ => (class, args),
        };
        self.push(Value::Object(Box::new(Object {
            class,
            args,
            ..Object::default()
        })));
        Ok(())
    }

    fn unsupported(&self, what: &str) -> Error {
        let message = format!(
            "the pickle wants {what}, which no Petastorm schema needs (byte {})",
            self.at
        );
        Error::new(ErrorKind::Unsupported, "read pickle", message)
            .with_hint("read the data set as plain Parquet; no pickle is ever run")
    }
}
