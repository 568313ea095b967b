//! PNG, by the `png` crate: every colour type and depth, interlaced or not; the first image of an animated one.
//!
//! Palettes and small depths become bytes, of 16 bits the upper 8 are taken, transparency is dropped: what Pillow's `convert("RGB")` does.

use std::io::Cursor;

use forebay_core::{Error, Result};
use png::{DecodingError, Transformations};

use super::picture::Picture;
use super::plan::Size;
use super::{corrupt, size_checked};

/// First bytes of every PNG.
pub(super) const MAGIC: &[u8] = &[0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a];

/// Deflate cannot do better: 258 bytes for two bits.
const DEFLATE_RATIO_MAX: u64 = 1032;

/// Memory for chunks beside the image (palettes, colour profiles), which is not ours to keep.
const CHUNK_BYTES_MAX: usize = 16 << 20;

/// A PNG whose header was read.
pub(super) struct Png<'a> {
    decoder: png::Decoder<Cursor<&'a [u8]>>,
    size: Size,
}

impl<'a> Png<'a> {
    /// Read the header and hold it against the limits; nothing is allocated by what it claims.
    pub(super) fn open(bytes: &'a [u8], pixels_max: u64) -> Result<Self> {
        let mut decoder = png::Decoder::new(Cursor::new(bytes));
        decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let info = decoder.read_header_info().map_err(said)?;
        let size = Size {
            height: info.height,
            width: info.width,
        };
        let row_bytes = info.raw_row_length() as u64;
        size_checked(size, pixels_max)?;
        if row_bytes.saturating_mul(u64::from(size.height)) / DEFLATE_RATIO_MAX > bytes.len() as u64 {
            let message = format!(
                "png: {} bytes cannot hold {} x {} pixels",
                bytes.len(),
                size.width,
                size.height
            );
            return Err(corrupt(message));
        }
        // The size was found good; rows are a part of it.
        let limit = CHUNK_BYTES_MAX
            .saturating_add(usize::try_from(row_bytes).unwrap_or(usize::MAX).saturating_mul(4));
        decoder.set_limits(png::Limits { bytes: limit });
        Ok(Self { decoder, size })
    }

    /// Size of the image.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// Decode all of it: rows depend on the ones above, and interlaced images have no order of rows.
    pub(super) fn decode(self, picture: &mut Picture) -> Result<()> {
        let mut reader = self.decoder.read_info().map_err(said)?;
        let channels = reader.output_color_type().0.samples();
        let bytes = reader
            .output_buffer_size()
            .ok_or_else(|| corrupt("png: the size does not fit into memory"))?;
        picture.packed.clear();
        picture.packed.resize(bytes, 0);
        reader.next_frame(&mut picture.packed).map_err(said)?;
        picture.unpack(self.size, channels);
        Ok(())
    }
}

/// What the decoder says, as an error.
#[expect(clippy::needless_pass_by_value, reason = "what `map_err` wants")]
fn said(error: DecodingError) -> Error {
    corrupt(format!("png: {error}").to_lowercase())
}
