//! Where in an image to look: the rectangle that is resized, and whether the result is mirrored.
//!
//! Random choices are drawn from a stream that the seed, the epoch and the sample's identity name, so that they are the same on every
//! thread, in every order and at every world size. The exponential is that of the `libm` crate, which computes the same bits everywhere.

use forebay_core::{Rng, Seed};

use super::plan::{Geometry, ImagePlan, Resized, Size};

/// Tries before the centre is taken, as torchvision has it.
const TRIES_MAX: u32 = 10;

/// Pixels for each sample of the coarsest planes; blocks that are decoded at a reduced size count with `source` against the result.
const COARSE_PIXELS_MAX: f64 = 4.0;

/// Streams of one sample. They are apart so that whether an image is mirrored does not depend on its size.
const STREAM_FLIP: u64 = 0;
const STREAM_RECTANGLE: u64 = 1;

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rectangle {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// What to do with one image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Draw {
    /// Part of the image that fills `target`.
    pub(super) source: Rectangle,
    /// Pixels of the image that take part: the filter does not look beyond a random rectangle, as it was cut out first, but does look
    /// beyond a centre that is cut out afterwards.
    pub(super) view: Rectangle,
    /// Place in the result that is filled; the rest is black. All of it, but for crops larger than the image.
    pub(super) target: Place,
    /// Mirror left and right.
    pub(super) flip: bool,
}

/// A rectangle of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) left: u32,
    pub(super) top: u32,
    pub(super) size: Size,
}

/// Choose for an image of that size; a pure function.
pub(super) fn draw(plan: &ImagePlan, image: Size, seed: Seed, epoch: u64, identity: u64) -> Draw {
    let sample = seed.derive(epoch).derive(identity);
    let flip = plan.flip > 0.0 && uniform(&mut sample.derive(STREAM_FLIP).rng()) < plan.flip;
    let whole = Rectangle {
        left: 0.0,
        top: 0.0,
        width: f64::from(image.width),
        height: f64::from(image.height),
    };
    let target = Place {
        left: 0,
        top: 0,
        size: plan.size,
    };
    match plan.geometry {
        Geometry::Random { scale, ratio } => {
            let mut rng = sample.derive(STREAM_RECTANGLE).rng();
            let source = rectangle(image, scale, ratio, &mut rng);
            Draw {
                source,
                view: source,
                target,
                flip,
            }
        }
        Geometry::Exact => Draw {
            source: whole,
            view: whole,
            target,
            flip,
        },
        Geometry::Centre(resized) => {
            let (source, target) = centre(image, resized, plan.size);
            Draw {
                source,
                view: around(source, target.size, whole),
                target,
                flip,
            }
        }
    }
}

/// A number in [0, 1), with 53 random bits.
fn uniform(rng: &mut Rng) -> f64 {
    const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
    (rng.next_u64() >> 11) as f64 * STEP
}

/// torchvision's RandomResizedCrop: area and logarithm of the proportion are uniform; after ten misses the centre, as far as the
/// proportions allow.
fn rectangle(image: Size, scale: (f64, f64), ratio: (f64, f64), rng: &mut Rng) -> Rectangle {
    let area = f64::from(image.width) * f64::from(image.height);
    let logarithms = (libm::log(ratio.0), libm::log(ratio.1));
    for _ in 0..TRIES_MAX {
        let wanted = area * between(scale, uniform(rng));
        let proportion = libm::exp(between(logarithms, uniform(rng)));
        let width = (wanted * proportion).sqrt().round_ties_even();
        let height = (wanted / proportion).sqrt().round_ties_even();
        let fits = |side: f64, limit: u32| side >= 1.0 && side <= f64::from(limit);
        if fits(width, image.width) && fits(height, image.height) {
            let free = |side: f64, limit: u32| u64::from(limit - side as u32) + 1;
            let top = rng.below(free(height, image.height)) as f64;
            let left = rng.below(free(width, image.width)) as f64;
            return Rectangle {
                left,
                top,
                width,
                height,
            };
        }
    }
    let (whole_width, whole_height) = (f64::from(image.width), f64::from(image.height));
    let proportion = whole_width / whole_height;
    let (mut width, mut height) = (whole_width, whole_height);
    if proportion < ratio.0 {
        height = (width / ratio.0).round_ties_even().clamp(1.0, whole_height);
    } else if proportion > ratio.1 {
        width = (height * ratio.1).round_ties_even().clamp(1.0, whole_width);
    }
    Rectangle {
        left: ((whole_width - width) / 2.0).floor(),
        top: ((whole_height - height) / 2.0).floor(),
        width,
        height,
    }
}

fn between((least, most): (f64, f64), share: f64) -> f64 {
    least + (most - least) * share
}

/// The part of the image that a centre crop after a resize shows, and where it goes: torchvision's CenterCrop, with black borders where
/// the image is smaller than the crop.
fn centre(image: Size, resized: Option<Resized>, crop: Size) -> (Rectangle, Place) {
    let full = match resized {
        None => image,
        Some(Resized::Exact(size)) => size,
        Some(Resized::Shorter(side)) => shorter(image, side),
    };
    let (source_top, target_top, height) = middle(full.height, crop.height);
    let (source_left, target_left, width) = middle(full.width, crop.width);
    let vertical = f64::from(image.height) / f64::from(full.height);
    let horizontal = f64::from(image.width) / f64::from(full.width);
    let source = Rectangle {
        left: f64::from(source_left) * horizontal,
        top: f64::from(source_top) * vertical,
        width: f64::from(width) * horizontal,
        height: f64::from(height) * vertical,
    };
    let place = Place {
        left: target_left,
        top: target_top,
        size: Size { height, width },
    };
    (source, place)
}

/// What filters can see of an image when they fill `size` with `source`.
fn around(source: Rectangle, size: Size, whole: Rectangle) -> Rectangle {
    let span = |start: f64, length: f64, pixels: u32, limit: f64| {
        let reach = (length / f64::from(pixels)).max(COARSE_PIXELS_MAX) + 1.0;
        let first = (start - reach).floor().max(0.0);
        (first, (start + length + reach).ceil().min(limit) - first)
    };
    let (left, width) = span(source.left, source.width, size.width, whole.width);
    let (top, height) = span(source.top, source.height, size.height, whole.height);
    Rectangle {
        left,
        top,
        width,
        height,
    }
}

/// Size with the shorter side as asked for and the longer one in proportion, rounded down.
fn shorter(image: Size, side: u32) -> Size {
    let longer = |long: u32, short: u32| {
        let length = u64::from(side) * u64::from(long) / u64::from(short.max(1));
        u32::try_from(length).unwrap_or(u32::MAX)
    };
    if image.width <= image.height {
        Size {
            height: longer(image.height, image.width),
            width: side,
        }
    } else {
        Size {
            height: side,
            width: longer(image.width, image.height),
        }
    }
}

/// Start in the source, start in the target, and length of the middle `wanted` of `full`.
fn middle(full: u32, wanted: u32) -> (u32, u32, u32) {
    if full >= wanted {
        let start = (f64::from(full - wanted) / 2.0).round_ties_even() as u32;
        (start, 0, wanted)
    } else {
        (0, (wanted - full) / 2, full)
    }
}
