//! A decoded image as planes: what the decoders write and the resampling reads.
//!
//! The planes are the image's own: red, green and blue, or brightness and two colour differences that may be coarser. They are
//! resized as they are, and colours are computed for the few pixels of the result only.

use super::draw::Rectangle;
use super::plan::Size;

/// What the planes mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Model {
    /// One plane.
    #[default]
    Gray,
    /// Red, green, blue.
    Rgb,
    /// Brightness, blue and red difference, as JFIF has them.
    Ycc,
}

/// An image in memory; its buffers are used again for the next one.
#[derive(Debug, Default)]
pub(super) struct Picture {
    model: Model,
    planes: [Plane; 3],
    /// Pixels of decoders that give all channels of a pixel together.
    pub(super) packed: Vec<u8>,
}

/// Samples of one component, of the whole image or a part of it, row by row without gaps.
#[derive(Debug, Default)]
pub(super) struct Plane {
    data: Vec<u8>,
    /// Columns and rows that are stored.
    stored: (u32, u32),
    /// Columns and rows of these that belong to the image.
    valid: (u32, u32),
    /// Place of the first of them in the whole plane.
    origin: (u32, u32),
    /// Samples for each pixel of the image, across and down: 1, or less for a coarser plane.
    density: (f64, f64),
}

impl Picture {
    /// What the planes mean.
    pub(super) fn model(&self) -> Model {
        self.model
    }

    /// Planes in use.
    pub(super) fn planes(&self) -> &[Plane] {
        let count = if self.model == Model::Gray { 1 } else { 3 };
        &self.planes[..count]
    }

    /// Begin another image; the planes it has are given back, to be [`reset`](Plane::reset).
    pub(super) fn begin(&mut self, model: Model) -> &mut [Plane] {
        self.model = model;
        let count = if model == Model::Gray { 1 } else { 3 };
        &mut self.planes[..count]
    }

    /// Take the image from `packed`, which has `channels` bytes for each pixel: the first, or the first three.
    pub(super) fn unpack(&mut self, size: Size, channels: usize) {
        let model = if channels < 3 { Model::Gray } else { Model::Rgb };
        let packed = std::mem::take(&mut self.packed);
        let pixels = size.width as usize * size.height as usize;
        for (channel, plane) in self.begin(model).iter_mut().enumerate() {
            let shape = (size.width, size.height);
            plane.reset(shape, shape, (0, 0), (1.0, 1.0));
            let source = packed.chunks_exact(channels.max(1)).take(pixels);
            for (sample, pixel) in plane.data.iter_mut().zip(source) {
                *sample = pixel.get(channel).copied().unwrap_or_default();
            }
        }
        self.packed = packed;
    }
}

impl Plane {
    /// Become a plane of that shape, with memory for all of it. What was in it before shows through until it is written.
    pub(super) fn reset(
        &mut self,
        stored: (u32, u32),
        valid: (u32, u32),
        origin: (u32, u32),
        density: (f64, f64),
    ) {
        (self.stored, self.valid, self.origin, self.density) = (stored, valid, origin, density);
        let bytes = stored.0 as usize * stored.1 as usize;
        if self.data.len() < bytes {
            self.data.resize(bytes, 0);
        }
    }

    /// Columns and rows that are stored.
    pub(super) fn stored(&self) -> (u32, u32) {
        self.stored
    }

    /// Columns and rows that belong to the image.
    pub(super) fn valid(&self) -> (u32, u32) {
        self.valid
    }

    /// Samples for each pixel of the image, across and down.
    pub(super) fn density(&self) -> (f64, f64) {
        self.density
    }

    /// All samples that are stored.
    pub(super) fn samples(&self) -> &[u8] {
        let bytes = self.stored.0 as usize * self.stored.1 as usize;
        self.data.get(..bytes).unwrap_or_default()
    }

    /// Write a block, counted in blocks of that size; what is outside is dropped.
    #[inline]
    pub(super) fn put<const N: usize>(&mut self, column: usize, row: usize, block: &[[u8; N]; N]) {
        let width = self.stored.0 as usize;
        let start = row * N * width + column * N;
        let Some(rows) = self.data.get_mut(start..) else {
            return;
        };
        for (target, source) in rows.chunks_mut(width.max(1)).zip(block) {
            if let Some(target) = target.first_chunk_mut::<N>() {
                *target = *source;
            }
        }
    }

    /// A rectangle of the image, in samples of this plane as it is stored.
    pub(super) fn project(&self, area: Rectangle) -> Rectangle {
        Rectangle {
            left: area.left * self.density.0 - f64::from(self.origin.0),
            top: area.top * self.density.1 - f64::from(self.origin.1),
            width: area.width * self.density.0,
            height: area.height * self.density.1,
        }
    }
}
