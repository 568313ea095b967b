//! From the planes of an image to planes of the result's size: bilinear with antialias, as Pillow's `BILINEAR` and torchvision's default.
//!
//! A pixel of the result is the mean of the samples around the same place of the image, weighted by a triangle that reaches as far as one pixel of the
//! result (or one sample, whichever is more) to either side. Rows are done first, then columns, with bytes in between. Both are the same loop,
//! which adds weighted rows: the plane is turned in between and turned back afterwards, and mirrored on that occasion.
//!
//! Pillow makes coarse colour planes as fine as the brightness before it resizes. Here they are resized as they are, with a triangle that is wider by
//! what that step would have blurred.

use super::draw::Draw;
use super::picture::{Picture, Plane};

/// Blur of libjpeg's interpolation between two samples to four, as a variance in fine samples.
const BLUR_DOUBLING: f64 = 0.75;

/// Variance of a triangle is the square of its reach over this.
const TRIANGLE: f64 = 6.0;

/// Rows that are turned at once.
const TILE: usize = 8;

/// Planes of the result's size; buffers are used again.
#[derive(Debug, Default)]
pub(super) struct Resampler {
    down: Weights,
    across: Weights,
    sums: Vec<u16>,
    /// Rows done.
    short: Vec<u8>,
    /// The same, turned.
    turned: Vec<u8>,
    /// Columns done as well.
    done: Vec<u8>,
    planes: [Vec<u8>; 3],
}

impl Resampler {
    /// Resize every plane of the picture; gives the first of them three times where there is one.
    pub(super) fn resample(&mut self, picture: &Picture, draw: &Draw) -> [&[u8]; 3] {
        let sources = picture.planes();
        let finest = sources
            .iter()
            .fold((0.0, 0.0), |(across, down): (f64, f64), plane| {
                (across.max(plane.density().0), down.max(plane.density().1))
            });
        for (index, plane) in sources.iter().enumerate() {
            self.plane(index, plane, finest, draw);
        }
        let last = sources.len().saturating_sub(1);
        std::array::from_fn(|index| self.planes[index.min(last)].as_slice())
    }

    fn plane(&mut self, index: usize, plane: &Plane, finest: (f64, f64), draw: &Draw) {
        let (view, source) = (plane.project(draw.view), plane.project(draw.source));
        let size = draw.target.size;
        let (valid_across, valid_down) = plane.valid();
        let rows = covered(view.top, view.height, valid_down);
        let columns = covered(view.left, view.width, valid_across);
        let width = columns.1 - columns.0;
        let down = reach(source.height, size.height, finest.1 / plane.density().1);
        self.down
            .compute(source.top, source.height, size.height, rows, down);
        let across = reach(source.width, size.width, finest.0 / plane.density().0);
        self.across
            .compute(source.left, source.width, size.width, columns, across);

        let stride = plane.stored().0 as usize;
        let samples = plane.samples().get(columns.0..).unwrap_or_default();
        add_rows(
            &self.down,
            samples,
            stride,
            width,
            &mut self.sums,
            &mut self.short,
        );
        turn(&self.short, width, size.height as usize, false, &mut self.turned);
        // What were columns begin at the first of the view.
        self.across.shift(columns.0);
        let height = size.height as usize;
        add_rows(
            &self.across,
            &self.turned,
            height,
            height,
            &mut self.sums,
            &mut self.done,
        );
        turn(
            &self.done,
            height,
            size.width as usize,
            draw.flip,
            &mut self.planes[index],
        );
    }
}

/// How far the triangle reaches, in samples of a plane that has `coarseness` fine samples in one of its own.
fn reach(length: f64, pixels: u32, coarseness: f64) -> f64 {
    let own = (length / f64::from(pixels)).max(1.0 / coarseness);
    let fine = own * coarseness;
    let blur = match coarseness {
        1.0 => 0.0,
        2.0 => BLUR_DOUBLING,
        other => (other * other - 1.0) / 12.0,
    };
    ((fine * fine + TRIANGLE * blur).sqrt() / coarseness).max(1.0)
}

/// The samples that a part of a row or column touches, as far as there are any.
fn covered(start: f64, length: f64, limit: u32) -> (usize, usize) {
    let first = (start.max(0.0).floor() as u32).min(limit.saturating_sub(1));
    let end = ((start + length).ceil().max(0.0) as u32).clamp(first, limit);
    (first as usize, end.max(first + 1) as usize)
}

/// For each pixel of the result: the first sample that takes part, and the weights of it and those after it.
#[derive(Debug, Default)]
struct Weights {
    firsts: Vec<usize>,
    /// As many for each pixel, the last ones being 0 where fewer are needed.
    taps: usize,
    /// In parts of 2^16; one is 2^16 - 1.
    values: Vec<u16>,
}

impl Weights {
    /// Weights for `pixels` that cover `length` samples from `start`, using only samples of `range`.
    fn compute(&mut self, start: f64, length: f64, pixels: u32, range: (usize, usize), reach: f64) {
        let step = length / f64::from(pixels);
        let most = range.1 - range.0;
        self.taps = ((2.0 * reach).ceil() as usize + 1).min(most);
        self.firsts.clear();
        self.values.clear();
        for pixel in 0..pixels {
            let centre = start + (f64::from(pixel) + 0.5) * step;
            let lowest =
                ((centre - reach + 0.5).floor().max(0.0) as usize).clamp(range.0, range.1 - self.taps);
            let weight = |tap: usize| (1.0 - ((lowest + tap) as f64 + 0.5 - centre).abs() / reach).max(0.0);
            let total: f64 = (0..self.taps).map(weight).sum();
            self.firsts.push(lowest);
            if total > 0.0 {
                let scale = f64::from(u16::MAX) / total;
                self.values
                    .extend((0..self.taps).map(|tap| (weight(tap) * scale + 0.5) as u16));
            } else {
                // The place is beyond the samples: the nearest one counts.
                let nearest = if centre < lowest as f64 { 0 } else { self.taps - 1 };
                self.values
                    .extend((0..self.taps).map(|tap| if tap == nearest { u16::MAX } else { 0 }));
            }
        }
    }

    /// Count samples from another one on.
    fn shift(&mut self, start: usize) {
        self.firsts
            .iter_mut()
            .for_each(|first| *first = first.saturating_sub(start));
    }
}

/// Rows of the result as weighted sums of rows of the source, the first `width` samples of each. Sums are in parts of 256.
fn add_rows(
    weights: &Weights,
    source: &[u8],
    stride: usize,
    width: usize,
    sums: &mut Vec<u16>,
    out: &mut Vec<u8>,
) {
    const HALF: u16 = 128;
    out.resize(weights.firsts.len() * width, 0);
    sums.resize(width, 0);
    let rows = out.chunks_exact_mut(width.max(1)).zip(&weights.firsts);
    for ((out, first), weights) in rows.zip(weights.values.chunks_exact(weights.taps.max(1))) {
        sums.fill(HALF);
        let below = source.get(first * stride..).unwrap_or_default();
        for (row, weight) in below.chunks(stride.max(1)).zip(weights) {
            if *weight > 0 {
                for (sum, sample) in sums.iter_mut().zip(row) {
                    *sum = sum.wrapping_add(product(*sample, *weight));
                }
            }
        }
        for (out, sum) in out.iter_mut().zip(sums.iter()) {
            *out = (*sum >> 8) as u8;
        }
    }
}

/// A sample times a weight, in parts of 256. The two halves of the weight are multiplied apart, since sixteen bits are what eight samples at once have.
#[inline]
fn product(sample: u8, weight: u16) -> u16 {
    let sample = u16::from(sample);
    let (upper, lower) = (weight >> 8, weight & 255);
    (sample * upper).wrapping_add((sample * lower) >> 8)
}

/// Make columns of rows, the first one last if asked for.
fn turn(source: &[u8], width: usize, height: usize, is_reversed: bool, out: &mut Vec<u8>) {
    out.resize(width * height, 0);
    let mut bands = source.chunks_exact(width.max(1) * TILE);
    for (band, rows) in bands.by_ref().enumerate() {
        let rows: [&[u8]; TILE] = std::array::from_fn(|row| &rows[row * width..(row + 1) * width]);
        let start = if is_reversed {
            height - (band + 1) * TILE
        } else {
            band * TILE
        };
        for (column, out) in out.chunks_exact_mut(height.max(1)).enumerate() {
            let mut tile = rows.map(|row| row[column]);
            if is_reversed {
                tile.reverse();
            }
            out[start..start + TILE].copy_from_slice(&tile);
        }
    }
    let rest = bands.remainder();
    let left = rest.len() / width.max(1);
    for (index, row) in rest.chunks_exact(width.max(1)).enumerate() {
        let place = if is_reversed {
            left - 1 - index
        } else {
            height - left + index
        };
        for (out, sample) in out.chunks_exact_mut(height.max(1)).zip(row) {
            out[place] = *sample;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_a_triangle_that_adds_up_to_one() {
        let mut weights = Weights::default();
        weights.compute(10.0, 40.0, 10, (10, 50), 4.0);
        for (pixel, values) in weights.values.chunks(weights.taps).enumerate() {
            let total: u32 = values.iter().copied().map(u32::from).sum();
            assert!(total.abs_diff(65_535) < 8);
            let first = weights.firsts[pixel];
            assert!(first >= 10 && first + weights.taps <= 50);
        }
        // The fifth pixel covers samples 26 to 30: symmetrical around 28.
        let fifth = &weights.values[4 * weights.taps..5 * weights.taps];
        let at = |sample: usize| u32::from(fifth[sample - weights.firsts[4]]);
        assert!(at(27) == at(28) && at(27).abs_diff(7 * at(24)) < 8);
    }

    #[test]
    fn same_size_is_the_same_and_turning_twice_as_well() {
        let source: Vec<u8> = (0..=255).cycle().take(40 * 30).collect();
        let mut weights = Weights::default();
        weights.compute(0.0, 30.0, 30, (0, 30), reach(30.0, 30, 1.0));
        let (mut out, mut turned, mut back) = (Vec::new(), Vec::new(), Vec::new());
        add_rows(&weights, &source, 40, 40, &mut Vec::new(), &mut out);
        assert_eq!(out, source);
        turn(&source, 40, 30, false, &mut turned);
        assert_eq!(turned[..2], [source[0], source[40]]);
        turn(&turned, 30, 40, false, &mut back);
        assert_eq!(back, source);
        turn(&turned, 30, 40, true, &mut back);
        assert_eq!(back[..2], [source[39], source[38]]);
    }

    #[test]
    fn coarse_planes_are_blurred_as_if_made_fine_first() {
        assert!((reach(40.0, 20, 1.0) - 2.0).abs() < 1e-9);
        assert!((reach(10.0, 20, 1.0) - 1.0).abs() < 1e-9);
        assert!((reach(20.0, 20, 2.0) - 8.5_f64.sqrt() / 2.0).abs() < 1e-9);
        assert!(reach(0.01, 20, 4.0) >= 1.0);
    }

    #[test]
    fn products_and_sums_stay_in_sixteen_bits() {
        assert_eq!(product(255, u16::MAX), 65_279);
        assert_eq!(product(200, 32_768), 25_600);
        assert_eq!(product(0, u16::MAX), 0);
        // Weights that were all rounded up.
        let most: u32 = (0..8).map(|_| u32::from(product(255, 8193))).sum();
        assert!(u16::try_from(most + 128).is_ok(), "{most}");
    }
}
