//! Every kind of JPEG by the `zune-jpeg` crate, whole and as red, green and blue; strict, so that damage is an error and not a gray area.

use forebay_core::{Error, ErrorKind, Result};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use crate::image::corrupt;
use crate::image::picture::Picture;
use crate::image::plan::Size;

/// Longest side the format can name.
const SIDE_MAX: usize = 65_535;

/// Passes over a progressive image: encoders make about ten, and every pass costs time whether it brings anything or not.
const SCANS_MAX: usize = 100;

/// A JPEG whose header was read.
pub(super) struct Image<'a> {
    decoder: JpegDecoder<ZCursor<&'a [u8]>>,
    size: Size,
}

impl<'a> Image<'a> {
    /// Read the header and hold it against the limits; nothing is allocated by what it claims.
    pub(super) fn open(bytes: &'a [u8], pixels_max: u64) -> Result<Self> {
        let options = DecoderOptions::default()
            .set_max_width(SIDE_MAX)
            .set_max_height(SIDE_MAX)
            .set_strict_mode(true)
            .jpeg_set_max_scans(SCANS_MAX)
            .jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(said)?;
        if decoder.input_colorspace() == Some(ColorSpace::Luma) {
            decoder.set_options(options.jpeg_set_out_colorspace(ColorSpace::Luma));
        }
        let info = decoder
            .info()
            .ok_or_else(|| corrupt("jpeg: there is no frame header"))?;
        let size = Size {
            height: u32::from(info.height),
            width: u32::from(info.width),
        };
        super::believable(size, bytes, pixels_max)?;
        Ok(Self { decoder, size })
    }

    /// Size of the image.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// Decode all of it, as red, green and blue: what ink does to colours cannot be computed after resizing.
    pub(super) fn decode(mut self, picture: &mut Picture) -> Result<()> {
        let channels = match self.decoder.input_colorspace() {
            Some(ColorSpace::Luma) => 1,
            Some(ColorSpace::RGB | ColorSpace::YCbCr | ColorSpace::CMYK | ColorSpace::YCCK) => 3,
            other => {
                let message = format!("jpeg: colours are stored as {other:?}");
                return Err(Error::new(ErrorKind::Unsupported, "decode image", message));
            }
        };
        let bytes = channels * self.size.width as usize * self.size.height as usize;
        picture.packed.clear();
        picture.packed.resize(bytes, 0);
        self.decoder.decode_into(&mut picture.packed).map_err(said)?;
        picture.unpack(self.size, channels);
        Ok(())
    }
}

/// What the decoder says, as an error.
#[expect(clippy::needless_pass_by_value, reason = "what `map_err` wants")]
fn said(error: DecodeErrors) -> Error {
    let text = format!("jpeg: {error}").to_lowercase();
    match error {
        DecodeErrors::Unsupported(_) => Error::new(ErrorKind::Unsupported, "decode image", text),
        _ => corrupt(text),
    }
}
