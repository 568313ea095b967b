//! The one pass over a file that makes its table: a CRC-32C of each column chunk that is a field, and of the footer, as the bytes pass.
//!
//! The footer was read before and says where chunks lie. They are disjoint, so that one running checksum is enough, and no byte is summed up twice.

use forebay_core::{Crc32c, Error, ErrorKind, Result, Span};

use super::OP;
use super::footer::File;
use crate::format::Scan;
use crate::table::{Group, Groups, Layout, Table};

/// What every file begins with.
const MAGIC: &[u8; 4] = b"PAR1";

impl File {
    /// A pass over the bytes of the file.
    pub fn scan(self) -> Box<dyn Scan> {
        let mut stretches = Vec::with_capacity(self.groups.len() * self.leaves.len() + 1);
        let mut slot = 0;
        for group in 0..self.groups.len() {
            for leaf in &self.leaves {
                // All chunks were looked at when the footer was; one without a place would have no checksum, and never be decoded.
                if let Ok(span) = self.span_of(group, leaf) {
                    stretches.push(Stretch { span, slot });
                }
                slot += 1;
            }
            // No bytes have the checksum of none.
            slot += self.constants.len();
        }
        stretches.push(Stretch {
            span: self.footer.extent,
            slot,
        });
        stretches.sort_unstable_by_key(|stretch| (stretch.span.start(), stretch.span.end()));
        Box::new(Pass {
            file: self,
            stretches,
            crcs: vec![0; slot + 1],
            crc: Crc32c::default(),
            at: 0,
            next: 0,
        })
    }
}

/// Bytes that have a checksum of their own.
#[derive(Debug)]
struct Stretch {
    span: Span,
    /// Where the checksum goes: chunks in the order of the table, then the footer.
    slot: usize,
}

/// Computes checksums as the bytes of a file pass.
struct Pass {
    file: File,
    /// By their place in the file.
    stretches: Vec<Stretch>,
    crcs: Vec<u32>,
    /// Of the stretch that is open.
    crc: Crc32c,
    /// Bytes that have passed.
    at: u64,
    /// The first stretch whose end has not passed.
    next: usize,
}

impl Scan for Pass {
    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(magic) = MAGIC.get(self.at.min(4) as usize..) {
            let seen = bytes.get(..magic.len().min(bytes.len())).unwrap_or_default();
            if !magic.starts_with(seen) {
                return Err(corrupt("it does not begin with PAR1 (byte 0)"));
            }
        }
        let fed = Span::at(self.at, bytes.len() as u64)?;
        while let Some(Stretch { span, slot }) = self.stretches.get(self.next) {
            if let Some(part) = span.intersect(fed) {
                let part_bytes = bytes.get(part.relative_to(fed.start())).unwrap_or_default();
                self.crc.update(part_bytes);
            }
            if span.end() > fed.end() {
                break;
            }
            let crc = std::mem::take(&mut self.crc).value();
            if let Some(kept) = self.crcs.get_mut(*slot) {
                *kept = crc;
            }
            self.next += 1;
        }
        self.at = fed.end();
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Table> {
        if let Some(stretch) = self.stretches.get(self.next) {
            let what = match stretch.slot.checked_div(self.file.fields().len()) {
                Some(group) if group < self.file.groups.len() => format!("row group {group}"),
                _ => "its footer".to_owned(),
            };
            return Err(corrupt(&format!("it ends at byte {}, within {what}", self.at)));
        }
        let footer = self.file.footer;
        if self.crcs.pop() != Some(footer.crc) {
            let message = format!(
                "its footer at byte {} changed while it was read",
                footer.extent.start()
            );
            return Err(corrupt(&message));
        }
        let list = self.file.groups().iter().map(|group| Group {
            extent: group.extent,
            samples: group.rows,
        });
        Ok(Table {
            fields: self.file.fields().to_vec(),
            layout: Layout::Groups(Groups {
                footer,
                list: list.collect(),
                chunk_crcs: self.crcs,
            }),
        })
    }
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}
