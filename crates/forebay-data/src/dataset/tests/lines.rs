//! A format for tests: each line is a sample, `key value`.

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Result};

use crate::format::{Format, Scan};
use crate::schema::{Field, Kind};
use crate::source::ShardSource;
use crate::table::{Table, TableBuilder};

#[derive(Debug)]
pub(crate) struct Lines;

#[async_trait]
impl Format for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    async fn scan(&self, _source: &ShardSource) -> Result<Box<dyn Scan>> {
        Ok(Box::new(LineScan {
            builder: TableBuilder::new(vec![Field::new("value", Kind::Text)]),
            line: Vec::new(),
            at: 0,
        }))
    }
}

struct LineScan {
    builder: TableBuilder,
    line: Vec<u8>,
    at: u64,
}

impl Scan for LineScan {
    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        for byte in bytes {
            self.line.push(*byte);
            if *byte == b'\n' {
                self.sample()?;
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        if !self.line.is_empty() {
            return Err(self.corrupt("the last line does not end"));
        }
        self.builder.finish()
    }
}

impl LineScan {
    fn sample(&mut self) -> Result<()> {
        let text = String::from_utf8_lossy(&self.line).into_owned();
        // A comment belongs to no sample, like headers and padding in real formats.
        if !text.starts_with('#') {
            let Some((key, value)) = text.trim_end_matches('\n').split_once(' ') else {
                return Err(self.corrupt("a line without a blank"));
            };
            self.builder.begin(self.at, Some(key))?;
            self.builder.absorb(&self.line);
            self.builder
                .field(0, self.at + key.len() as u64 + 1, value.len() as u64)?;
            self.builder.end()?;
        }
        self.at += self.line.len() as u64;
        self.line.clear();
        Ok(())
    }

    fn corrupt(&self, message: &str) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            "read lines",
            format!("{message} (byte {})", self.at),
        )
    }
}
