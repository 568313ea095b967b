//! Equal strips at equal distances: a slice of rows of a matrix, and what one copy of the device takes.

use forebay_core::Result;

use super::driver::misuse;

/// Strips of a buffer, and where they go in device memory; all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strips {
    /// Where the first one begins in the source.
    pub from: usize,
    /// Where it goes in the target.
    pub to: usize,
    /// Length of a strip.
    pub bytes: usize,
    /// How many.
    pub rows: usize,
    /// From the start of one to that of the next, in the source.
    pub from_stride: usize,
    /// The same in the target.
    pub to_stride: usize,
}

/// The longest distance between rows that every device takes in one copy of rows.
const STRIDE_MAX: usize = i32::MAX as usize;

impl Strips {
    /// One run of bytes.
    pub fn run(from: usize, to: usize, bytes: usize) -> Self {
        Self {
            from,
            to,
            bytes,
            rows: 1,
            from_stride: bytes,
            to_stride: bytes,
        }
    }

    /// The same bytes in as few copies as a device takes: as one run where rows touch on both sides, row by row where they are too far apart or
    /// overlap.
    pub(super) fn simplest(self) -> Self {
        if self.rows > 1 && self.from_stride == self.bytes && self.to_stride == self.bytes {
            return Self::run(self.from, self.to, self.bytes.saturating_mul(self.rows));
        }
        self
    }

    /// True when rows can be copied together.
    pub(super) fn is_grid(&self) -> bool {
        self.from_stride.min(self.to_stride) >= self.bytes
            && self.from_stride.max(self.to_stride) <= STRIDE_MAX
    }

    /// Each row by itself.
    pub(super) fn single_rows(self) -> impl Iterator<Item = Self> {
        (0..self.rows).map(move |row| {
            Self::run(
                self.from + row * self.from_stride,
                self.to + row * self.to_stride,
                self.bytes,
            )
        })
    }

    /// Check that all of it lies within a source and a target of these lengths.
    pub(super) fn check(&self, source: usize, target: usize) -> Result<()> {
        let end = |start: usize, stride: usize| {
            stride
                .checked_mul(self.rows.saturating_sub(1))?
                .checked_add(start)?
                .checked_add(self.bytes)
        };
        let fits = |start, stride, len| end(start, stride).is_some_and(|end| end <= len);
        if fits(self.from, self.from_stride, source) && fits(self.to, self.to_stride, target) {
            return Ok(());
        }
        let message = format!("{self:?} do not fit a source of {source} and a target of {target} bytes");
        Err(misuse("copy to device", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_that_touch_are_one_run_and_bounds_hold() {
        let strips = Strips {
            from: 8,
            to: 0,
            bytes: 4,
            rows: 3,
            from_stride: 4,
            to_stride: 4,
        };
        assert_eq!(strips.simplest(), Strips::run(8, 0, 12));
        strips.check(20, 12).unwrap();
        assert!(strips.check(19, 12).is_err() && strips.check(20, 11).is_err());
        let wide = Strips {
            from_stride: 10,
            ..strips
        };
        assert_eq!(wide.simplest(), wide);
        assert_eq!(wide.single_rows().last(), Some(Strips::run(28, 8, 4)));
        let endless = Strips {
            rows: usize::MAX,
            ..wide
        };
        assert!(endless.check(usize::MAX, usize::MAX).is_err());
        assert!(
            wide.is_grid()
                && !Strips {
                    from_stride: 3,
                    ..wide
                }
                .is_grid()
        );
    }
}
