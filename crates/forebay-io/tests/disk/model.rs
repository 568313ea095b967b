//! A file, what must be in it, and what ledgers must say about how it came there.

use std::sync::Arc;

use forebay_core::{ErrorKind, Ledger, Span};
use forebay_io::{Access, File};
use proptest::prelude::*;

use crate::rig::{MIB, Rig, align_of, pattern, shifted};

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Read {
        start: u64,
        len: u64,
    },
    ReadInto {
        start: u64,
        len: u64,
        shift: usize,
        extra: usize,
    },
    Write {
        offset: u64,
        len: u64,
        shift: usize,
    },
    SetLen {
        len: u64,
    },
}

/// Places in a small file, most of them near where requests are cut.
pub(crate) fn places() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..10_000u64,
        (1..3u64, 0..9_000u64).prop_map(|(mib, near)| mib * MIB - 4500 + near),
        (0..600u64).prop_map(|page| page * 4096),
    ]
}

pub(crate) fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..1500u64,
        3 => 0..70_000u64,
        1 => MIB - 5000..2 * MIB + 5000,
        1 => (1..300u64).prop_map(|page| page * 4096),
    ]
}

/// How far off a page buffers lie: often not at all, or on a sector.
pub(crate) fn shifts() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), (0..8usize).prop_map(|sector| sector * 512), 0..4096usize]
}

pub(crate) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (places(), lengths()).prop_map(|(start, len)| Op::Read { start, len }),
        // A read that a direct file can serve in place after its head: buffer and span lie alike.
        2 => (places(), lengths()).prop_map(|(start, len)| {
            Op::ReadInto { start, len, shift: start as usize % 4096, extra: 0 }
        }),
        3 => (places(), lengths(), shifts(), 0..9000usize)
            .prop_map(|(start, len, shift, extra)| Op::ReadInto { start, len, shift, extra }),
        4 => (places(), lengths(), shifts()).prop_map(|(offset, len, shift)| Op::Write { offset, len, shift }),
        1 => places().prop_map(|len| Op::SetLen { len }),
    ];
    prop::collection::vec(op, 1..12)
}

/// A file and what must be in it.
pub(crate) struct Model<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) file: Arc<File>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) writes: u64,
}

impl Model<'_> {
    pub(crate) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Read { start, len } => self.read(Span::at(start, len).unwrap()),
            Op::ReadInto {
                start,
                len,
                shift,
                extra,
            } => {
                self.read_into(Span::at(start, len).unwrap(), shift, extra);
            }
            Op::Write { offset, len, shift } => self.write(offset, len as usize, shift),
            Op::SetLen { len } => {
                self.rig.set_len(&self.file, len);
                self.bytes.resize(len as usize, 0);
            }
        }
    }

    pub(crate) fn read(&self, span: Span) {
        match self.rig.read(&self.file, span) {
            Ok((buf, ledger)) => {
                self.check_found(span, &buf);
                self.check_ledger(&ledger, span.len(), 0);
            }
            Err(error) => self.check_missing(span, &error),
        }
    }

    pub(crate) fn read_into(&self, span: Span, shift: usize, extra: usize) {
        let len = span.len() as usize + extra;
        let buf = shifted(len, shift);
        let (address, capacity) = (buf.as_ptr(), buf.capacity() as u64);
        match self.rig.read_into(&self.file, span, buf) {
            Ok((buf, ledger)) => {
                assert_eq!(
                    (buf.as_ptr(), buf.len()),
                    (address, len),
                    "the same buffer comes back whole"
                );
                self.check_found(span, &buf[..span.len() as usize]);
                self.check_ledger(
                    &ledger,
                    span.len(),
                    self.copied_by_read(span, address as u64, capacity, len as u64 == span.len()),
                );
            }
            Err(error) => self.check_missing(span, &error),
        }
    }

    /// Bytes that cannot land where they are wanted: all of them when buffer and span lie differently, else the ends. The last block may
    /// land behind the span only where nothing of the caller's is (`alone`).
    pub(crate) fn copied_by_read(&self, span: Span, address: u64, capacity: u64, alone: bool) -> u64 {
        let align = align_of(&self.file);
        if address % align != span.start() % align {
            return span.len();
        }
        let head = (span.start().next_multiple_of(align) - span.start()).min(span.len());
        let rest = span.len() - head;
        if alone && head + rest.next_multiple_of(align) <= capacity {
            head
        } else {
            head + rest % align
        }
    }

    pub(crate) fn write(&mut self, offset: u64, len: usize, shift: usize) {
        let align = align_of(&self.file);
        self.writes += 1;
        let bytes = pattern(self.writes, len);
        let mut buf = shifted(len, shift);
        buf.copy_from_slice(&bytes);
        let copied = if (buf.as_ptr() as u64).is_multiple_of(align) {
            len as u64 % align
        } else {
            len as u64
        };
        if !offset.is_multiple_of(align) && len > 0 {
            let error = self.rig.write(&self.file, offset, buf.freeze()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            return;
        }
        let ledger = self.rig.write(&self.file, offset, buf.freeze()).unwrap();
        self.check_ledger(&ledger, len as u64, copied);
        // A tail off the alignment keeps what is behind it in the file, and is padded with zeros at the end.
        let (start, end) = (offset as usize, offset as usize + len);
        let padded = end.next_multiple_of(align as usize);
        if len > 0 {
            self.bytes.resize(self.bytes.len().max(padded), 0);
            self.bytes[start..end].copy_from_slice(&bytes);
        }
    }

    pub(crate) fn check_found(&self, span: Span, found: &[u8]) {
        let size = self.bytes.len() as u64;
        assert!(span.is_empty() || span.end() <= size, "{span} read of {size}");
        assert!(
            span.is_empty() || *found == self.bytes[span.start() as usize..span.end() as usize],
            "wrong bytes at {span}"
        );
    }

    pub(crate) fn check_missing(&self, span: Span, error: &forebay_core::Error) {
        let size = self.bytes.len() as u64;
        assert!(!span.is_empty() && span.end() > size, "{span} of {size}: {error}");
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert_eq!(error.location(), self.file.path().to_str());
    }

    pub(crate) fn check_ledger(&self, ledger: &Ledger, bytes: u64, copied_bytes: u64) {
        let path = self.rig.disk.path_of(&self.file);
        let totals = ledger.path(path);
        assert_eq!((ledger.bytes(), totals.bytes), (bytes, bytes), "{ledger:?}");
        assert_eq!(totals.copied_bytes, copied_bytes, "{ledger:?}");
        assert_eq!(totals.requests > 0, bytes > 0, "{ledger:?}");
        let reasons: Vec<&str> = ledger
            .downgrades
            .iter()
            .map(|step| step.reason.as_str())
            .collect();
        match (self.file.access(), self.rig.disk.report().fallback_reason) {
            (Access::Buffered { reason }, _) => assert_eq!(reasons, [reason]),
            (Access::Direct { .. }, Some(reason)) => assert_eq!(reasons, [reason]),
            (Access::Direct { .. }, None) => assert!(reasons.is_empty(), "{reasons:?}"),
        }
        assert!(ledger.downgrades.iter().all(|step| step.taken == path));
    }
}
