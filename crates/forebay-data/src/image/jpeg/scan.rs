//! The scan of a usual JPEG, unit by unit, into the planes of a picture.
//!
//! Codes must be read one after the other, but only blocks that the view touches are transformed, and nothing below it is read at all. A file
//! that does not close with the end marker is read to its last unit all the same: whether it is whole must not depend on which part is wanted.

#![expect(
    clippy::inline_always,
    reason = "these run for every number of an image; a call costs more than what they do"
)]

use super::Damaged;
use super::frame::{Books, COMPONENTS_MAX, Component, Frame};
use super::huffman::{Bits, Kind, NUMBERS_PER_REFILL, SKIP_END, Table};
use super::transform::{self, Block, PLACES, SIDE, Scale};
use crate::image::draw::{Draw, Rectangle};
use crate::image::picture::{Picture, Plane};

/// Samples that must be left for each pixel of the result when blocks are decoded at a reduced size: with three of them, as Pillow's manual has it
/// for its `reducing_gap`, the result can hardly be told from that of a full decode.
const SAMPLES_PER_PIXEL_MIN: f64 = 3.0;

/// A range of units.
#[derive(Debug, Clone, Copy)]
struct Units {
    left: u32,
    top: u32,
    right: u32,
    bottom: u32,
}

/// A component while it is decoded.
struct Channel<'a> {
    component: &'a Component,
    mean: &'a Table,
    detail: &'a Table,
    factors: [f32; SIDE * SIDE],
    /// Mean of the block before.
    last: i32,
}

/// Decode what the draw needs.
pub(super) fn decode(
    frame: &Frame<'_>,
    is_closed: bool,
    books: &Books,
    draw: &Draw,
    picture: &mut Picture,
) -> Result<(), Damaged> {
    let scale = scale_for(draw);
    let units_across = frame.size.width.div_ceil(SIDE as u32 * frame.across_max);
    let units_down = frame.size.height.div_ceil(SIDE as u32 * frame.down_max);
    let wanted = units_of(draw.view, frame, units_across, units_down);
    let planes = picture.begin(frame.model);
    let mut channels: [Option<Channel<'_>>; COMPONENTS_MAX] = [const { None }; COMPONENTS_MAX];
    for ((component, plane), channel) in frame
        .components
        .list()
        .iter()
        .zip(planes.iter_mut())
        .zip(&mut channels)
    {
        lay_out(plane, component, frame, wanted, scale);
        *channel = Some(Channel {
            component,
            mean: books.means.get(component.mean).ok_or(Damaged)?,
            detail: books.details.get(component.detail).ok_or(Damaged)?,
            factors: scale.factors(&component.steps),
            last: 0,
        });
    }
    let last = if is_closed { wanted.bottom } else { units_down };
    let mut bits = Bits::new(frame.data);
    let mut until_restart = frame.restart_units;
    for row in 0..last {
        for column in 0..units_across {
            if frame.restart_units > 0 {
                if until_restart == 0 {
                    bits.restart()?;
                    channels.iter_mut().flatten().for_each(|channel| channel.last = 0);
                    until_restart = frame.restart_units;
                }
                until_restart -= 1;
            }
            let is_wanted =
                (wanted.left..wanted.right).contains(&column) && (wanted.top..wanted.bottom).contains(&row);
            for (channel, plane) in channels.iter_mut().flatten().zip(planes.iter_mut()) {
                if is_wanted {
                    let unit = (column - wanted.left, row - wanted.top);
                    channel.unit(&mut bits, unit, scale, plane)?;
                } else {
                    channel.skip_unit(&mut bits)?;
                }
            }
        }
        if bits.is_overdrawn() {
            return Err(Damaged);
        }
    }
    Ok(())
}

/// The smallest scale that leaves enough samples for each pixel of the result.
fn scale_for(draw: &Draw) -> Scale {
    let across = draw.source.width / f64::from(draw.target.size.width);
    let down = draw.source.height / f64::from(draw.target.size.height);
    let samples = across.min(down) / SAMPLES_PER_PIXEL_MIN;
    [(8.0, Scale::Eighth), (4.0, Scale::Quarter), (2.0, Scale::Half)]
        .into_iter()
        .find(|(factor, _)| samples >= *factor)
        .map_or(Scale::Whole, |(_, scale)| scale)
}

/// Units that a rectangle touches.
fn units_of(view: Rectangle, frame: &Frame<'_>, across: u32, down: u32) -> Units {
    let span = |start: f64, length: f64, side: u32, limit: u32| {
        let side = f64::from(SIDE as u32 * side);
        let first = ((start / side).floor() as u32).min(limit.saturating_sub(1));
        (
            first,
            (((start + length) / side).ceil() as u32).clamp(first + 1, limit.max(first + 1)),
        )
    };
    let (left, right) = span(view.left, view.width, frame.across_max, across);
    let (top, bottom) = span(view.top, view.height, frame.down_max, down);
    Units {
        left,
        top,
        right,
        bottom,
    }
}

/// Make a plane ready for the wanted units of a component.
fn lay_out(plane: &mut Plane, component: &Component, frame: &Frame<'_>, wanted: Units, scale: Scale) {
    let side = scale.side() as u32;
    let (across, down) = (component.across * side, component.down * side);
    let density = (
        f64::from(across) / f64::from(frame.across_max * SIDE as u32),
        f64::from(down) / f64::from(frame.down_max * SIDE as u32),
    );
    let origin = (wanted.left * across, wanted.top * down);
    let stored = (
        (wanted.right - wanted.left) * across,
        (wanted.bottom - wanted.top) * down,
    );
    // Blocks reach beyond the image; these samples are not part of it.
    let whole = |length: u32, density: f64| (f64::from(length) * density).ceil() as u32;
    let valid = (
        stored.0.min(whole(frame.size.width, density.0) - origin.0),
        stored.1.min(whole(frame.size.height, density.1) - origin.1),
    );
    plane.reset(stored, valid, origin, density);
}

impl Channel<'_> {
    /// The blocks of one unit, into the plane.
    #[inline(always)]
    fn unit(
        &mut self,
        bits: &mut Bits<'_>,
        unit: (u32, u32),
        scale: Scale,
        plane: &mut Plane,
    ) -> Result<(), Damaged> {
        for down in 0..self.component.down {
            for across in 0..self.component.across {
                let mut block = [0.0; SIDE * SIDE];
                let is_flat = self.block(bits, &mut block)?;
                let column = (unit.0 * self.component.across + across) as usize;
                let row = (unit.1 * self.component.down + down) as usize;
                match scale {
                    Scale::Whole if is_flat => {
                        plane.put(column, row, &[[transform::sample(block[0]); SIDE]; SIDE]);
                    }
                    Scale::Whole => plane.put(column, row, &transform::whole(&block)),
                    Scale::Half => plane.put(column, row, &transform::reduced::<4>(&block)),
                    Scale::Quarter => plane.put(column, row, &transform::reduced::<2>(&block)),
                    Scale::Eighth => plane.put(column, row, &transform::reduced::<1>(&block)),
                }
            }
        }
        Ok(())
    }

    /// The numbers of one block; true when there is nothing but its mean.
    #[inline(always)]
    fn block(&mut self, outer: &mut Bits<'_>, block: &mut Block) -> Result<bool, Damaged> {
        // A copy of its own stays in registers.
        let mut bits = *outer;
        block[0] = self.mean(&mut bits)? as f32 * self.factors[0];
        let mut is_flat = true;
        let mut keep = |index: usize, value: i32| {
            is_flat = false;
            block[usize::from(PLACES[index]) % (SIDE * SIDE)] = value as f32 * self.factors[index];
        };
        details(&mut bits, self.detail, &mut keep)?;
        *outer = bits;
        Ok(is_flat)
    }

    /// The same without the numbers.
    #[inline(always)]
    fn skip_unit(&mut self, outer: &mut Bits<'_>) -> Result<(), Damaged> {
        let mut bits = *outer;
        for _ in 0..self.component.across * self.component.down {
            self.mean(&mut bits)?;
            details(&mut bits, self.detail, &mut |_, _| {})?;
        }
        *outer = bits;
        Ok(())
    }

    /// The mean of the next block, which is stored as the step from the last one.
    #[inline(always)]
    fn mean(&mut self, bits: &mut Bits<'_>) -> Result<i32, Damaged> {
        bits.refill();
        let (_, step) = bits.next(Kind::Mean, self.mean)?;
        self.last = self.last.wrapping_add(step);
        Ok(self.last)
    }
}

/// The numbers of a block after its mean, each with its place in the data, from 1 to 63.
#[inline(always)]
fn details(bits: &mut Bits<'_>, table: &Table, keep: &mut impl FnMut(usize, i32)) -> Result<(), Damaged> {
    let mut index = 1;
    loop {
        bits.refill();
        for _ in 0..NUMBERS_PER_REFILL {
            let (skip, value) = bits.next(Kind::Detail, table)?;
            index += skip as usize;
            if index >= SIDE * SIDE {
                return if skip == SKIP_END { Ok(()) } else { Err(Damaged) };
            }
            keep(index, value);
            index += 1;
            if index == SIDE * SIDE {
                return Ok(());
            }
            if !bits.is_enough() {
                break;
            }
        }
    }
}
