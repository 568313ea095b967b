//! Images in Rust threads: JPEG and PNG bytes to one [3, H, W] of a batch.
//!
//! ```text
//! bytes -- header: size, held against limits --> draw: which rectangle, mirrored or not (seed, epoch, identity)
//!   |                                               |
//!   +-- jpeg / png: planes, no further down than the rectangle needs
//!                     |
//!                 resample: planes of the result's size --> finish: colours, mirror, u8 or f32 --> the caller's slice
//! ```
//!
//! An [`ImagePlan`] says what to do, a [`Decoder`] does it; each thread has one and its buffers are used again for every image. The result is a
//! function of the bytes, the plan, the seed, the epoch and the sample's identity, and of nothing else. Orientation notes (EXIF) and colour
//! profiles are not applied, as torchvision does not apply them. See docs/concepts/images.md for what exactly is computed.

mod draw;
mod finish;
mod jpeg;
mod picture;
mod plan;
mod png;
mod resample;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result, Seed};

use draw::Draw;
use finish::Finisher;
use picture::Picture;
pub use plan::{ImagePlan, Size};
use png::Png;
use resample::Resampler;

/// Most pixels of an image: where Pillow begins to warn of decompression bombs. A decoder needs 3 bytes for each (9 for progressive ones).
pub const IMAGE_PIXELS_MAX: u64 = 89_478_485;

/// First bytes of formats that are images but not ours, for a message that helps.
const OTHERS: [(&str, &[u8]); 5] = [
    ("GIF", b"GIF8"),
    ("WebP", b"RIFF"),
    ("BMP", b"BM"),
    ("TIFF", b"II*\0"),
    ("TIFF", b"MM\0*"),
];

/// Turns images into tensors; one for each thread.
#[derive(Debug)]
pub struct Decoder {
    plan: Arc<ImagePlan>,
    seed: Seed,
    epoch: u64,
    pixels_max: u64,
    jpeg: jpeg::Decoder,
    picture: Picture,
    resampler: Resampler,
    finisher: Finisher,
}

impl Decoder {
    /// A decoder for that plan; random choices follow from seed and epoch.
    pub fn new(plan: Arc<ImagePlan>, seed: Seed, epoch: u64) -> Self {
        Self {
            plan,
            seed,
            epoch,
            pixels_max: IMAGE_PIXELS_MAX,
            jpeg: jpeg::Decoder::default(),
            picture: Picture::default(),
            resampler: Resampler::default(),
            finisher: Finisher::default(),
        }
    }

    /// Refuse larger images; [`IMAGE_PIXELS_MAX`] unless said.
    pub fn with_pixels_max(mut self, pixels_max: u64) -> Self {
        self.pixels_max = pixels_max;
        self
    }

    /// What it does.
    pub fn plan(&self) -> &ImagePlan {
        &self.plan
    }

    /// Go on with another epoch: other random choices for the same images.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Decode one image into `out`, which has [`ImagePlan::output_bytes`]: channels, rows, columns; floats are little-endian.
    ///
    /// Damaged data is [`ErrorKind::Corrupt`] with what the decoder said; `out` is not written then.
    pub fn decode_into(&mut self, bytes: &[u8], identity: u64, out: &mut [u8]) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        let (seed, epoch) = (self.seed, self.epoch);
        self.decode_chosen(bytes, |size| draw::draw(&plan, size, seed, epoch, identity), out)
    }

    /// The same with the choice made by `choose`, which is told the size of the image.
    fn decode_chosen(
        &mut self,
        bytes: &[u8],
        choose: impl FnOnce(Size) -> Draw,
        out: &mut [u8],
    ) -> Result<()> {
        if out.len() != self.plan.output_bytes() {
            let message = format!(
                "the result has {} bytes, not {}",
                self.plan.output_bytes(),
                out.len()
            );
            return Err(Error::new(ErrorKind::InvalidInput, "decode image", message));
        }
        let draw = if bytes.starts_with(jpeg::MAGIC) {
            self.jpeg
                .decode(bytes, self.pixels_max, choose, &mut self.picture)?
        } else if bytes.starts_with(png::MAGIC) {
            let image = Png::open(bytes, self.pixels_max)?;
            let draw = choose(image.size());
            image.decode(&mut self.picture)?;
            draw
        } else {
            return Err(unknown(bytes));
        };
        let planes = self.resampler.resample(&self.picture, &draw);
        self.finisher
            .finish(&self.plan, &draw, self.picture.model(), planes, out);
        Ok(())
    }
}

fn size_checked(size: Size, pixels_max: u64) -> Result<()> {
    let pixels = u64::from(size.width) * u64::from(size.height);
    if pixels == 0 {
        return Err(corrupt(format!(
            "the image has {} x {} pixels",
            size.width, size.height
        )));
    }
    if pixels > pixels_max {
        let message = format!(
            "the image has {} x {} pixels, more than {pixels_max}",
            size.width, size.height
        );
        return Err(Error::new(ErrorKind::LimitExceeded, "decode image", message));
    }
    Ok(())
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, "decode image", message)
}

fn unknown(bytes: &[u8]) -> Error {
    match OTHERS.iter().find(|(_, magic)| bytes.starts_with(magic)) {
        Some((name, _)) => Error::new(
            ErrorKind::Unsupported,
            "decode image",
            format!("the image is {name}"),
        )
        .with_hint("JPEG and PNG are decoded; hand other formats to a decode function of your own"),
        None => corrupt(format!("{} bytes that are neither JPEG nor PNG", bytes.len())),
    }
}
