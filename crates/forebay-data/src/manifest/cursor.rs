//! Reads the manifest out of untrusted bytes, and knows numbers that lie by planes: all first bytes, then all second ones.

use forebay_core::Result;
pub(super) use forebay_core::wire::Cursor;

/// A cursor at the start of `bytes`, the `what` of a manifest.
pub(super) fn cursor<'a>(bytes: &'a [u8], what: &'static str) -> Cursor<'a> {
    Cursor::new(bytes, "read manifest", what)
}

/// Numbers by planes.
pub(super) trait Planes {
    /// `count` numbers of 32 bits.
    fn planes_u32(&mut self, count: usize) -> Result<Vec<u32>>;
    /// `count` numbers of 64 bits.
    fn planes_u64(&mut self, count: usize) -> Result<Vec<u64>>;
}

impl Planes for Cursor<'_> {
    fn planes_u32(&mut self, count: usize) -> Result<Vec<u32>> {
        let len = count.checked_mul(4);
        let bytes = self.take(len.ok_or_else(|| self.corrupt("it ends too early"))?)?;
        let (low, high) = bytes.split_at(2 * count);
        let ((a, b), (c, d)) = (low.split_at(count), high.split_at(count));
        let values = a.iter().zip(b).zip(c.iter().zip(d));
        Ok(values
            .map(|((a, b), (c, d))| u32::from_le_bytes([*a, *b, *c, *d]))
            .collect())
    }

    fn planes_u64(&mut self, count: usize) -> Result<Vec<u64>> {
        let low = self.planes_u32(count)?;
        let high = self.planes_u32(count)?;
        let values = low.into_iter().zip(high);
        Ok(values
            .map(|(low, high)| u64::from(low) | u64::from(high) << 32)
            .collect())
    }
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
