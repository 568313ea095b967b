//! JPEG: the usual kind by a decoder that is made for it, every other kind by the `zune-jpeg` crate.
//!
//! Training images are nearly all of one kind: one scan of Huffman codes, 8 bits deep. For these, [`scan`] reads the codes several times as fast as
//! general decoders do, and transforms only the blocks that are wanted, at a reduced size where the result is much smaller; the planes are left as coarse as they are
//! stored. [`general`] takes progressive files, CMYK and the rest, and also whatever [`scan`] finds odd: it is the one that says what is wrong.

mod frame;
mod general;
mod huffman;
mod scan;
mod transform;

use forebay_core::Result;

use super::draw::Draw;
use super::picture::Picture;
use super::plan::Size;
use super::{corrupt, size_checked};

/// First bytes of every JPEG.
pub(super) const MAGIC: &[u8] = &[0xff, 0xd8, 0xff];

/// Most bytes behind the end marker: some cameras and tools pad.
const PADDING_BYTES_MAX: usize = 64;

/// Something is wrong with the data; the general decoder finds out what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Damaged;

/// Decodes JPEGs; its tables are used again.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    books: Box<frame::Books>,
}

impl Decoder {
    /// Decode what the draw needs, which is chosen once the size is known.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        pixels_max: u64,
        choose: impl FnOnce(Size) -> Draw,
        picture: &mut Picture,
    ) -> Result<Draw> {
        let Some(frame) = frame::read(bytes, &mut self.books) else {
            let image = general::Image::open(bytes, pixels_max)?;
            let draw = choose(image.size());
            image.decode(picture)?;
            return Ok(draw);
        };
        believable(frame.size, bytes, pixels_max)?;
        let draw = choose(frame.size);
        if scan::decode(&frame, is_closed(bytes), &self.books, &draw, picture).is_err() {
            general::Image::open(bytes, pixels_max)?.decode(picture)?;
        }
        Ok(draw)
    }
}

/// Hold a claimed size against the limit and the number of bytes.
fn believable(size: Size, bytes: &[u8], pixels_max: u64) -> Result<()> {
    size_checked(size, pixels_max)?;
    let side = transform::SIDE as u32;
    // Every block takes at least one bit.
    let blocks = u64::from(size.width.div_ceil(side)) * u64::from(size.height.div_ceil(side));
    if blocks / 8 > bytes.len() as u64 {
        let message = format!(
            "jpeg: {} bytes cannot hold {} x {} pixels",
            bytes.len(),
            size.width,
            size.height
        );
        return Err(corrupt(message));
    }
    Ok(())
}

/// True when the file ends with its end marker.
fn is_closed(bytes: &[u8]) -> bool {
    let tail = bytes.get(bytes.len().saturating_sub(PADDING_BYTES_MAX)..);
    tail.unwrap_or_default()
        .windows(2)
        .any(|pair| pair == [0xff, 0xd9])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::draw::{Place, Rectangle};

    fn fixture(name: &str) -> Vec<u8> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/image");
        std::fs::read(folder.join(name)).unwrap()
    }

    /// All of `view`, at its own size.
    fn plain(view: Rectangle) -> Draw {
        let size = Size {
            height: view.height as u32,
            width: view.width as u32,
        };
        Draw {
            source: view,
            view,
            target: Place {
                left: 0,
                top: 0,
                size,
            },
            flip: false,
        }
    }

    fn rectangle(left: f64, top: f64, width: f64, height: f64) -> Rectangle {
        Rectangle {
            left,
            top,
            width,
            height,
        }
    }

    fn usual(bytes: &[u8], view: Rectangle) -> Result<Picture, Damaged> {
        let mut books = Box::default();
        let frame = frame::read(bytes, &mut books).unwrap();
        let mut picture = Picture::default();
        scan::decode(&frame, is_closed(bytes), &books, &plain(view), &mut picture)?;
        Ok(picture)
    }

    /// Sample of a pixel of the image.
    fn sample(picture: &Picture, plane: usize, x: u32, y: u32) -> u8 {
        let plane = &picture.planes()[plane];
        let place = plane.project(rectangle(f64::from(x), f64::from(y), 1.0, 1.0));
        plane.samples()[place.top as usize * plane.stored().0 as usize + place.left as usize]
    }

    #[test]
    fn both_decoders_agree() {
        for name in ["gray.jpg", "rgb.jpg"] {
            let bytes = fixture(name);
            let ours = usual(&bytes, rectangle(0.0, 0.0, 97.0, 75.0)).unwrap();
            let mut general = Picture::default();
            general::Image::open(&bytes, 1 << 20)
                .unwrap()
                .decode(&mut general)
                .unwrap();
            assert_eq!(ours.model(), general.model());
            for plane in 0..ours.planes().len() {
                for (x, y) in (0..75).flat_map(|y| (0..97).map(move |x| (x, y))) {
                    let (one, other) = (sample(&ours, plane, x, y), sample(&general, plane, x, y));
                    assert!(one.abs_diff(other) <= 1, "{name}: {one} and {other} at {x}, {y}");
                }
            }
        }
    }

    #[test]
    fn a_part_is_the_same_as_of_the_whole() {
        for name in ["ycc420.jpg", "ycc422.jpg", "restarts.jpg", "gray.jpg"] {
            let bytes = fixture(name);
            let whole = usual(&bytes, rectangle(0.0, 0.0, 97.0, 75.0)).unwrap();
            for (left, top, width, height) in
                [(0, 0, 1, 1), (33, 17, 40, 30), (90, 70, 7, 5), (15, 16, 2, 59)]
            {
                let [x, y, w, h] = [left, top, width, height].map(f64::from);
                let part = usual(&bytes, rectangle(x, y, w, h)).unwrap();
                for plane in 0..part.planes().len() {
                    for (x, y) in (top..top + height).flat_map(|y| (left..left + width).map(move |x| (x, y)))
                    {
                        assert_eq!(
                            sample(&part, plane, x, y),
                            sample(&whole, plane, x, y),
                            "{name} {x} {y}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_file_without_its_end_is_read_to_its_end() {
        let bytes = fixture("ycc420.jpg");
        let top = rectangle(0.0, 0.0, 97.0, 8.0);
        assert!(usual(&bytes, top).is_ok());
        assert!(
            usual(&bytes[..bytes.len() - 2], top).is_ok(),
            "only the marker is missing"
        );
        assert_eq!(usual(&bytes[..bytes.len() - 40], top).unwrap_err(), Damaged);
    }

    #[test]
    fn unusual_kinds_are_left_to_the_general_decoder() {
        for name in ["progressive.jpg", "cmyk.jpg", "ycck.jpg"] {
            assert!(
                frame::read(&fixture(name), &mut Box::default()).is_none(),
                "{name}"
            );
        }
        let mut bytes = fixture("gray.jpg");
        let end = bytes.len() / 2;
        bytes.truncate(end);
        assert!(frame::read(&bytes, &mut Box::default()).is_some());
    }
}
