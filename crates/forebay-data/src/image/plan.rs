//! What is to be done with every image, read from a short text such as `rrc:224,flip,normalize`.
//!
//! The steps are separated by commas; sizes are one number (a square) or `HEIGHT`x`WIDTH`:
//!
//! | step | meaning |
//! |---|---|
//! | `rrc:224` | random-resized-crop: a random rectangle, resized to that size |
//! | `scale:0.08-1`, `ratio:0.75-1.3333` | of the rectangle: share of the image's area, width over height (these are the defaults) |
//! | `resize:256` | the shorter side becomes that long, the other one in proportion |
//! | `resize:256x320` | exactly that size |
//! | `crop:224` | the centre of it, after `resize` or of the image as it is |
//! | `flip`, `flip:0.3` | mirror left and right, with probability one half or the one given |
//! | `normalize` | f32, `(value / 255 - mean) / std` with ImageNet's means and deviations |
//! | `normalize:0.5/0.5/0.5:0.5/0.5/0.5` | the same with other means and deviations |
//! | `float` | f32 from 0 to 1 |
//!
//! Without `normalize` and `float` the result is u8. Every plan ends in one size, so that images fit into one batch.

use forebay_core::{Error, ErrorKind, Result};

/// Longest side of a result: 16 times what the largest usual models take, and small enough that no product of sides overflows.
const SIDE_MAX: u32 = 8192;

/// Means and deviations of ImageNet's training images, as everybody uses them.
const IMAGENET: ([f32; 3], [f32; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);

/// Height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Rows.
    pub height: u32,
    /// Pixels of a row.
    pub width: u32,
}

/// How an image becomes one of the plan's size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Geometry {
    /// A random rectangle, resized.
    Random {
        /// Share of the image's area, least and most.
        scale: (f64, f64),
        /// Width over height, least and most.
        ratio: (f64, f64),
    },
    /// All of it, resized without regard to proportions.
    Exact,
    /// The centre, after the shorter side was resized to that, or as it is.
    Centre(Option<Resized>),
}

/// What `resize` says before `crop`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resized {
    /// Length of the shorter side.
    Shorter(u32),
    /// Both sides.
    Exact(Size),
}

/// What the numbers of the result are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Values {
    /// 0 to 255.
    Bytes,
    /// `byte * factor + offset` for each channel.
    Floats { factor: [f32; 3], offset: [f32; 3] },
}

/// What is to be done with every image.
#[derive(Debug, Clone, PartialEq)]
pub struct ImagePlan {
    pub(super) size: Size,
    pub(super) geometry: Geometry,
    /// Probability of mirroring.
    pub(super) flip: f64,
    pub(super) values: Values,
}

impl ImagePlan {
    /// Read a plan; an error names the step that is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let mut steps = Steps::default();
        for step in text.split(',') {
            let step = step.trim();
            let (name, argument) = match step.split_once(':') {
                Some((name, argument)) => (name.trim(), Some(argument.trim())),
                None => (step, None),
            };
            steps.take(name, argument).map_err(|error| {
                let message = format!("step `{step}`: {}", error.message());
                let known = "steps are rrc:SIZE, resize:SIZE, crop:SIZE, scale:MIN-MAX, ratio:MIN-MAX, flip, normalize, float";
                let hint = error.hint().unwrap_or(known).to_owned();
                wrong(message).with_hint(hint)
            })?;
        }
        steps.finish()
    }

    /// Size of every result.
    pub fn size(&self) -> Size {
        self.size
    }

    /// True for f32 results, false for u8.
    pub fn is_float(&self) -> bool {
        matches!(self.values, Values::Floats { .. })
    }

    /// Bytes of one result: 3 channels, one after the other.
    pub fn output_bytes(&self) -> usize {
        3 * self.pixels() * if self.is_float() { size_of::<f32>() } else { 1 }
    }

    /// Pixels of one result.
    pub(super) fn pixels(&self) -> usize {
        self.size.height as usize * self.size.width as usize
    }
}

/// The steps as they were read, before they are seen together.
#[derive(Default)]
struct Steps {
    random: Option<Size>,
    resize: Option<Resized>,
    crop: Option<Size>,
    scale: Option<(f64, f64)>,
    ratio: Option<(f64, f64)>,
    flip: Option<f64>,
    values: Option<Values>,
}

impl Steps {
    fn take(&mut self, name: &str, argument: Option<&str>) -> Result<()> {
        match name {
            "rrc" => once(&mut self.random, size(needed(argument)?)?),
            "resize" if self.crop.is_some() => {
                Err(wrong("it comes after crop").with_hint("resize first, then crop"))
            }
            "resize" => {
                let argument = needed(argument)?;
                let given = size(argument)?;
                let shorter = !argument.contains('x');
                once(
                    &mut self.resize,
                    if shorter {
                        Resized::Shorter(given.height)
                    } else {
                        Resized::Exact(given)
                    },
                )
            }
            "crop" => once(&mut self.crop, size(needed(argument)?)?),
            "scale" => {
                let (least, most) = range(needed(argument)?)?;
                if most > 1.0 {
                    return Err(wrong("a share above 1"));
                }
                once(&mut self.scale, (least, most))
            }
            "ratio" => once(&mut self.ratio, range(needed(argument)?)?),
            "flip" => {
                let share = argument.map_or(Ok(0.5), number)?;
                if !(0.0..=1.0).contains(&share) {
                    return Err(wrong("a probability is between 0 and 1"));
                }
                once(&mut self.flip, share)
            }
            "normalize" => once(&mut self.values, normalized(argument)?),
            "float" if argument.is_none() => once(&mut self.values, floats([0.0; 3], [1.0; 3])),
            "float" => Err(wrong("it takes no value")),
            "" => Err(wrong("it is empty")),
            _ => Err(wrong("there is no such step")),
        }
    }

    fn finish(self) -> Result<ImagePlan> {
        let (size, geometry) = match (self.random, self.resize, self.crop) {
            (Some(size), None, None) => {
                let scale = self.scale.unwrap_or((0.08, 1.0));
                let ratio = self.ratio.unwrap_or((3.0 / 4.0, 4.0 / 3.0));
                (size, Geometry::Random { scale, ratio })
            }
            (Some(_), _, _) => {
                return Err(wrong(
                    "rrc chooses and resizes; resize and crop cannot stand beside it",
                ));
            }
            (None, resize, Some(size)) => (size, Geometry::Centre(resize)),
            (None, Some(Resized::Exact(size)), None) => (size, Geometry::Exact),
            (None, Some(Resized::Shorter(side)), None) => {
                let hint = format!("add crop:{side}, or give both sides as in resize:{side}x{side}");
                return Err(
                    wrong("images would keep their proportions and not fit into one batch").with_hint(hint),
                );
            }
            (None, None, None) => {
                let hint = "begin with rrc:224 or resize:256,crop:224";
                return Err(wrong("no size is given").with_hint(hint));
            }
        };
        if self.random.is_none() && (self.scale.is_some() || self.ratio.is_some()) {
            return Err(wrong("scale and ratio belong to rrc").with_hint("begin with rrc:224"));
        }
        Ok(ImagePlan {
            size,
            geometry,
            flip: self.flip.unwrap_or(0.0),
            values: self.values.unwrap_or(Values::Bytes),
        })
    }
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "plan images", message)
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(wrong("it is there twice, or stands against another step")),
    }
}

fn needed(argument: Option<&str>) -> Result<&str> {
    argument.ok_or_else(|| wrong("it needs a value after a colon"))
}

fn number(text: &str) -> Result<f64> {
    let value = text.trim().parse::<f64>().ok();
    value
        .filter(|value| value.is_finite())
        .ok_or_else(|| wrong(format!("`{text}` is not a number")))
}

fn side(text: &str) -> Result<u32> {
    let value = text.trim().parse::<u32>().ok();
    value.filter(|side| (1..=SIDE_MAX).contains(side)).ok_or_else(|| {
        wrong(format!("`{text}` is not a side"))
            .with_hint(format!("a side is between 1 and {SIDE_MAX} pixels"))
    })
}

fn size(text: &str) -> Result<Size> {
    let (height, width) = match text.split_once('x') {
        Some((height, width)) => (side(height)?, side(width)?),
        None => (side(text)?, side(text)?),
    };
    Ok(Size { height, width })
}

/// Two positive numbers, the first not above the second.
fn range(text: &str) -> Result<(f64, f64)> {
    let (least, most) = text
        .split_once('-')
        .ok_or_else(|| wrong("it needs two numbers, as in 0.25-1"))?;
    let (least, most) = (number(least)?, number(most)?);
    if least <= 0.0 || least > most {
        return Err(wrong(
            "the numbers must be above 0, the first not above the second",
        ));
    }
    Ok((least, most))
}

fn normalized(argument: Option<&str>) -> Result<Values> {
    let Some(text) = argument.filter(|text| *text != "imagenet") else {
        return Ok(floats(IMAGENET.0, IMAGENET.1));
    };
    let (means, deviations) = text
        .split_once(':')
        .ok_or_else(|| wrong("it needs means and deviations, as in 0.5/0.5/0.5:0.5/0.5/0.5"))?;
    let (means, deviations) = (triple(means)?, triple(deviations)?);
    if deviations.iter().any(|deviation| *deviation <= 0.0) {
        return Err(wrong("a deviation must be above 0"));
    }
    Ok(floats(means, deviations))
}

fn triple(text: &str) -> Result<[f32; 3]> {
    let mut values = [0.0; 3];
    let mut parts = text.split('/');
    for value in &mut values {
        *value = number(parts.next().unwrap_or_default())? as f32;
    }
    match parts.next() {
        None => Ok(values),
        Some(_) => Err(wrong("there are three channels")),
    }
}

/// `(byte / 255 - mean) / std` as one multiplication and one addition.
fn floats(means: [f32; 3], deviations: [f32; 3]) -> Values {
    let factor = deviations.map(|deviation| (1.0 / (255.0 * f64::from(deviation))) as f32);
    let mut offset = [0.0; 3];
    for (offset, (mean, deviation)) in offset.iter_mut().zip(means.into_iter().zip(deviations)) {
        *offset = (-f64::from(mean) / f64::from(deviation)) as f32;
    }
    Values::Floats { factor, offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read() {
        let plan = ImagePlan::parse("rrc:224,flip,normalize").unwrap();
        assert_eq!(
            plan.size(),
            Size {
                height: 224,
                width: 224
            }
        );
        assert_eq!(plan.output_bytes(), 3 * 224 * 224 * 4);
        assert!(plan.is_float() && plan.flip > 0.49);
        let plan = ImagePlan::parse(" resize:256 , crop:192x224 ").unwrap();
        assert_eq!(plan.geometry, Geometry::Centre(Some(Resized::Shorter(256))));
        assert_eq!((plan.output_bytes(), plan.flip), (3 * 192 * 224, 0.0));
        let plan = ImagePlan::parse("rrc:8x16,scale:0.25-1,ratio:1-1,flip:0.1,float").unwrap();
        let expected = Geometry::Random {
            scale: (0.25, 1.0),
            ratio: (1.0, 1.0),
        };
        assert_eq!((plan.geometry, plan.size.width), (expected, 16));
        assert_eq!(ImagePlan::parse("resize:2x3").unwrap().geometry, Geometry::Exact);
        let own = ImagePlan::parse("crop:1,normalize:0.485/0.456/0.406:0.229/0.224/0.225").unwrap();
        assert_eq!(own.values, ImagePlan::parse("crop:1,normalize").unwrap().values);
    }

    #[test]
    fn wrong_plans_name_the_step_and_what_to_do() {
        for (text, message, hint) in [
            ("", "step ``: it is empty", "steps are"),
            ("rrc", "step `rrc`: it needs a value", "steps are"),
            ("rrc:0", "`0` is not a side", "between 1 and 8192"),
            ("rrc:9000", "`9000` is not a side", "between 1 and 8192"),
            ("rrc:224,resize:256", "cannot stand beside", ""),
            ("rrc:224,rrc:225", "step `rrc:225`: it is there twice", ""),
            ("resize:256", "not fit into one batch", "crop:256"),
            ("flip", "no size is given", "rrc:224"),
            ("crop:224,resize:256", "it comes after crop", "resize first"),
            ("crop:224,scale:0.1-1", "belong to rrc", "rrc:224"),
            ("rrc:224,scale:0.1-1.5", "a share above 1", ""),
            ("rrc:224,ratio:2-1", "the first not above the second", ""),
            ("rrc:224,ratio:nan-1", "`nan` is not a number", ""),
            ("rrc:224,flip:1.5", "between 0 and 1", ""),
            ("rrc:224,normalize:0.5/0.5:1/1/1", "is not a number", ""),
            ("rrc:224,normalize:1/1/1:1/1/0", "above 0", ""),
            ("rrc:224,normalize,float", "stands against another step", ""),
            ("rrc:224,blur", "step `blur`: there is no such step", "steps are"),
        ] {
            let error = ImagePlan::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.message().contains(message), "{text}: {error}");
            assert!(
                error.hint().unwrap_or_default().contains(hint),
                "{text}: {error:?}"
            );
        }
    }
}
