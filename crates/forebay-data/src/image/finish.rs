//! From planes of the result's size to the result: colours, borders, and numbers as the plan wants them.
//!
//! Written row by row, channel by channel, straight into the caller's bytes. Arithmetic is in 16 bits as far as it goes, so that the compiler
//! can do eight pixels at once.

use super::draw::Draw;
use super::picture::Model;
use super::plan::{ImagePlan, Values};

/// Rows of the three channels; the buffers are used again.
#[derive(Debug, Default)]
pub(super) struct Finisher {
    rows: [Vec<u8>; 3],
}

impl Finisher {
    /// Write the result. `planes` are of the size of the place that is filled, `out` is as long as the plan says.
    pub(super) fn finish(
        &mut self,
        plan: &ImagePlan,
        draw: &Draw,
        model: Model,
        planes: [&[u8]; 3],
        out: &mut [u8],
    ) {
        let width = plan.size.width as usize;
        let place = draw.target;
        let filled = place.size.width as usize;
        let left = if draw.flip {
            width - filled - place.left as usize
        } else {
            place.left as usize
        };
        for row in &mut self.rows {
            row.clear();
            row.resize(width, 0);
        }
        let channel_bytes = out.len() / 3;
        let row_bytes = channel_bytes / plan.size.height as usize;
        for index in 0..plan.size.height as usize {
            let inside = index
                .checked_sub(place.top as usize)
                .filter(|row| *row < place.size.height as usize);
            let source = inside.map(|row| planes.map(|plane| &plane[row * filled..(row + 1) * filled]));
            self.colour(model, source, left..left + filled);
            for (channel, row) in self.rows.iter().enumerate() {
                let start = channel * channel_bytes + index * row_bytes;
                write(plan.values, channel, row, &mut out[start..start + row_bytes]);
            }
        }
    }

    /// One row as red, green and blue; black where there is no source.
    fn colour(&mut self, model: Model, source: Option<[&[u8]; 3]>, filled: std::ops::Range<usize>) {
        let [red, green, blue] = &mut self.rows;
        let Some(source) = source else {
            for row in [red, green, blue] {
                row.fill(0);
            }
            return;
        };
        let targets = [
            &mut red[filled.clone()],
            &mut green[filled.clone()],
            &mut blue[filled],
        ];
        if model == Model::Ycc {
            rgb_from_ycc(source, targets);
            return;
        }
        for (target, source) in targets.into_iter().zip(source) {
            target.copy_from_slice(source);
        }
    }
}

/// JFIF's colours, with the fixed-point constants of libjpeg.
fn rgb_from_ycc(source: [&[u8]; 3], targets: [&mut [u8]; 3]) {
    // Of 2^16; parts above one half are taken off before, so that they fit into 16 bits.
    const RED_OF_CR: i32 = 26_345; // 1.402 - 1
    const BLUE_OF_CB: i32 = -14_942; // 1.772 - 2
    const GREEN_OF_CB: i32 = -22_554; // -0.344136
    const GREEN_OF_CR: i32 = 18_734; // 1 - 0.714136
    const HALF: i32 = 1 << 15;
    let [y, cb, cr] = source;
    let [red, green, blue] = targets;
    let pixels = red.iter_mut().zip(green.iter_mut()).zip(blue.iter_mut());
    for (((red, green), blue), ((y, cb), cr)) in pixels.zip(y.iter().zip(cb).zip(cr)) {
        let y = i16::from(*y);
        let cb = i16::from(*cb) - 128;
        let cr = i16::from(*cr) - 128;
        let (wide_cb, wide_cr) = (i32::from(cb), i32::from(cr));
        let red_part = ((wide_cr * RED_OF_CR + HALF) >> 16) as i16 + cr;
        let blue_part = ((wide_cb * BLUE_OF_CB + HALF) >> 16) as i16 + 2 * cb;
        let green_part = ((wide_cb * GREEN_OF_CB + wide_cr * GREEN_OF_CR + HALF) >> 16) as i16 - cr;
        *red = (y + red_part).clamp(0, 255) as u8;
        *green = (y + green_part).clamp(0, 255) as u8;
        *blue = (y + blue_part).clamp(0, 255) as u8;
    }
}

fn write(values: Values, channel: usize, row: &[u8], out: &mut [u8]) {
    match values {
        Values::Bytes => out.copy_from_slice(row),
        Values::Floats { factor, offset } => {
            let (factor, offset) = (factor[channel], offset[channel]);
            for (out, byte) in out.chunks_exact_mut(size_of::<f32>()).zip(row) {
                out.copy_from_slice(&(f32::from(*byte) * factor + offset).to_le_bytes());
            }
        }
    }
}
