//! Reads numbers and text out of untrusted bytes: every step checks what is left, nothing is allocated by what a length claims.

use forebay_core::{Error, ErrorKind, Result};

/// A place in bytes that were read.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// What is being read, for messages.
    what: &'static str,
}

macro_rules! numbers {
    ($( $name:ident: $number:ty; )*) => {
        $(
            pub(super) fn $name(&mut self) -> Result<$number> {
                self.array().map(<$number>::from_le_bytes)
            }
        )*
    };
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, at: 0, what }
    }

    /// Bytes that were read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self
            .at
            .checked_add(len)
            .and_then(|end| Some((end, self.bytes.get(self.at..end)?)));
        let Some((end, bytes)) = taken else {
            return Err(self.corrupt("it ends too early"));
        };
        self.at = end;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let error = self.corrupt("it ends too early");
        self.take(N)?.try_into().map_err(|_| error)
    }

    numbers! {
        u8: u8;
        u16: u16;
        u32: u32;
        u64: u64;
    }

    pub(super) fn text(&mut self, len: usize) -> Result<&'a str> {
        let at = self.at;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes)
            .map_err(|error| corrupt(self.what, at, "text is not UTF-8").with_source(error))
    }

    /// `count` numbers of 32 bits, by planes.
    pub(super) fn planes_u32(&mut self, count: usize) -> Result<Vec<u32>> {
        let bytes = self.planes(count, 4)?;
        let (low, high) = bytes.split_at(2 * count);
        let ((a, b), (c, d)) = (low.split_at(count), high.split_at(count));
        let values = a.iter().zip(b).zip(c.iter().zip(d));
        Ok(values
            .map(|((a, b), (c, d))| u32::from_le_bytes([*a, *b, *c, *d]))
            .collect())
    }

    /// `count` numbers of 64 bits, by planes.
    pub(super) fn planes_u64(&mut self, count: usize) -> Result<Vec<u64>> {
        let low = self.planes_u32(count)?;
        let high = self.planes_u32(count)?;
        let values = low.into_iter().zip(high);
        Ok(values
            .map(|(low, high)| u64::from(low) | u64::from(high) << 32)
            .collect())
    }

    fn planes(&mut self, count: usize, width: usize) -> Result<&'a [u8]> {
        let Some(len) = count.checked_mul(width) else {
            return Err(self.corrupt("it ends too early"));
        };
        self.take(len)
    }

    /// Nothing may follow.
    pub(super) fn finish(self) -> Result<()> {
        if self.left() == 0 {
            return Ok(());
        }
        Err(self.corrupt("something follows its end"))
    }

    /// An error at this place.
    pub(super) fn corrupt(&self, message: &str) -> Error {
        corrupt(self.what, self.at, message)
    }
}

fn corrupt(what: &str, at: usize, message: &str) -> Error {
    let message = format!("{message} (byte {at} of the {what})");
    Error::new(ErrorKind::Corrupt, "read manifest", message)
}

/// Write numbers of 32 bits by planes.
pub(super) fn put_planes_u32(out: &mut Vec<u8>, values: &(impl Iterator<Item = u32> + Clone)) {
    for plane in 0..4 {
        out.extend(values.clone().map(|value| value.to_le_bytes()[plane]));
    }
}

/// Write numbers of 64 bits by planes.
pub(super) fn put_planes_u64(out: &mut Vec<u8>, values: &(impl Iterator<Item = u64> + Clone)) {
    put_planes_u32(out, &values.clone().map(|value| value as u32));
    put_planes_u32(out, &values.clone().map(|value| (value >> 32) as u32));
}
