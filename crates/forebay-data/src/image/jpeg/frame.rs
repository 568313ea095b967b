//! The header of a JPEG of the usual kind: one scan of Huffman codes with all of its one or three components, 8 bits deep.
//!
//! Anything else, and anything odd, is `None`: it is left to the general decoder, which knows more kinds and says what is wrong.

use super::huffman::{Kind, Table};
use super::transform::SIDE;
use crate::image::picture::Model;
use crate::image::plan::Size;

/// Components of a picture.
pub(super) const COMPONENTS_MAX: usize = 3;

/// Quantisation tables, and code books of each kind.
const TABLES_MAX: usize = 4;

/// Largest sampling factor.
const SAMPLING_MAX: u8 = 4;

/// Code books, which are large and used again for the next image.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) means: [Table; TABLES_MAX],
    pub(super) details: [Table; TABLES_MAX],
}

/// One component.
#[derive(Debug, Clone, Copy)]
pub(super) struct Component {
    id: u8,
    /// Blocks of a unit, across and down.
    pub(super) across: u32,
    pub(super) down: u32,
    quantisation: u8,
    /// Which code books.
    pub(super) mean: usize,
    pub(super) detail: usize,
    /// Steps of its frequencies, in the order of the data.
    pub(super) steps: [u16; SIDE * SIDE],
}

impl Default for Component {
    fn default() -> Self {
        Self {
            id: 0,
            across: 1,
            down: 1,
            quantisation: 0,
            mean: 0,
            detail: 0,
            steps: [0; SIDE * SIDE],
        }
    }
}

/// What the header says.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) size: Size,
    pub(super) model: Model,
    pub(super) components: Components,
    /// Blocks of a unit of the largest component.
    pub(super) across_max: u32,
    pub(super) down_max: u32,
    /// Units between restart markers; 0 for none.
    pub(super) restart_units: u32,
    /// The scan and what follows.
    pub(super) data: &'a [u8],
}

/// One or three components.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Components {
    list: [Component; COMPONENTS_MAX],
    count: usize,
}

impl Components {
    pub(super) fn list(&self) -> &[Component] {
        &self.list[..self.count]
    }

    fn list_mut(&mut self) -> &mut [Component] {
        &mut self.list[..self.count]
    }
}

/// What was seen of the header so far.
#[derive(Default)]
struct Seen {
    size: Option<Size>,
    components: Components,
    steps: [Option<[u16; SIDE * SIDE]>; TABLES_MAX],
    means: [bool; TABLES_MAX],
    details: [bool; TABLES_MAX],
    restart_units: u32,
    is_jfif: bool,
    adobe: Option<u8>,
}

/// Read the header.
pub(super) fn read<'a>(bytes: &'a [u8], books: &mut Books) -> Option<Frame<'a>> {
    let mut seen = Seen::default();
    let mut rest = bytes.get(2..)?;
    loop {
        let [0xff, marker, high, low, ..] = rest else {
            return None;
        };
        let length = usize::from(*high) << 8 | usize::from(*low);
        let body = rest.get(4..2 + length)?;
        let marker = *marker;
        rest = rest.get(2 + length..)?;
        match marker {
            0xc0 | 0xc1 => seen.frame(body)?,
            0xc4 => seen.codes(body, books)?,
            0xda => return seen.scan(body, rest),
            0xdb => seen.quantisation(body)?,
            0xdd => {
                let [high, low] = body else {
                    return None;
                };
                seen.restart_units = u32::from(*high) << 8 | u32::from(*low);
            }
            0xe0 => seen.is_jfif |= body.starts_with(b"JFIF\0"),
            0xee if body.starts_with(b"Adobe") => seen.adobe = Some(*body.get(11)?),
            0xe1..=0xef | 0xfe => {}
            _ => return None,
        }
    }
}

impl Seen {
    fn frame(&mut self, body: &[u8]) -> Option<()> {
        let ([8, h1, h0, w1, w0, count], list) = body.split_first_chunk::<6>()? else {
            return None;
        };
        let count = usize::from(*count);
        if self.size.is_some() || !matches!(count, 1 | 3) || list.len() != 3 * count {
            return None;
        }
        let number = |high: &u8, low: &u8| u32::from(*high) << 8 | u32::from(*low);
        self.size = Some(Size {
            height: number(h1, h0),
            width: number(w1, w0),
        });
        self.components.count = count;
        for (component, entry) in self.components.list_mut().iter_mut().zip(list.chunks_exact(3)) {
            let [id, sampling, quantisation] = entry else {
                return None;
            };
            let (across, down) = (sampling >> 4, sampling & 15);
            if !(1..=SAMPLING_MAX).contains(&across) || !(1..=SAMPLING_MAX).contains(&down) {
                return None;
            }
            (component.id, component.quantisation) = (*id, *quantisation);
            // A single component is stored block by block, whatever its factors.
            let is_single = count == 1;
            component.across = if is_single { 1 } else { u32::from(across) };
            component.down = if is_single { 1 } else { u32::from(down) };
        }
        Some(())
    }

    fn quantisation(&mut self, mut body: &[u8]) -> Option<()> {
        while let [kind, rest @ ..] = body {
            let place = self.steps.get_mut(usize::from(kind & 15))?;
            let mut steps = [0; SIDE * SIDE];
            let taken = match kind >> 4 {
                0 => {
                    let bytes = rest.get(..SIDE * SIDE)?;
                    steps
                        .iter_mut()
                        .zip(bytes)
                        .for_each(|(step, byte)| *step = u16::from(*byte));
                    bytes.len()
                }
                1 => {
                    let bytes = rest.get(..2 * SIDE * SIDE)?;
                    for (step, pair) in steps.iter_mut().zip(bytes.chunks_exact(2)) {
                        *step = u16::from(pair[0]) << 8 | u16::from(pair[1]);
                    }
                    bytes.len()
                }
                _ => return None,
            };
            *place = Some(steps);
            body = rest.get(taken..)?;
        }
        Some(())
    }

    fn codes(&mut self, mut body: &[u8], books: &mut Books) -> Option<()> {
        while let [kind, rest @ ..] = body {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let total = counts.iter().map(|count| usize::from(*count)).sum();
            let symbols = rest.get(..total)?;
            let index = usize::from(kind & 15);
            match kind >> 4 {
                0 => {
                    *self.means.get_mut(index)? = true;
                    if symbols.iter().any(|size| *size > 15) {
                        return None;
                    }
                    books.means.get_mut(index)?.build(Kind::Mean, counts, symbols)?;
                }
                1 => {
                    *self.details.get_mut(index)? = true;
                    books
                        .details
                        .get_mut(index)?
                        .build(Kind::Detail, counts, symbols)?;
                }
                _ => return None,
            }
            body = rest.get(total..)?;
        }
        Some(())
    }

    /// The scan must have all components in the order of the frame, and all frequencies at once.
    fn scan<'a>(mut self, body: &[u8], data: &'a [u8]) -> Option<Frame<'a>> {
        let (count, rest) = body.split_first()?;
        let size = self.size?;
        if usize::from(*count) != self.components.count || rest.len() != 2 * usize::from(*count) + 3 {
            return None;
        }
        if !rest.ends_with(&[0, 63, 0]) {
            return None;
        }
        for (component, entry) in self.components.list_mut().iter_mut().zip(rest.chunks_exact(2)) {
            let [id, books] = entry else {
                return None;
            };
            (component.mean, component.detail) = (usize::from(books >> 4), usize::from(books & 15));
            let is_there = *self.means.get(component.mean)? && *self.details.get(component.detail)?;
            if *id != component.id || !is_there {
                return None;
            }
            component.steps = (*self.steps.get(usize::from(component.quantisation))?)?;
        }
        let components = self.components.list();
        let most = |factor: fn(&Component) -> u32| components.iter().map(factor).max();
        Some(Frame {
            size,
            model: self.model(),
            across_max: most(|component| component.across)?,
            down_max: most(|component| component.down)?,
            components: self.components,
            restart_units: self.restart_units,
            data,
        })
    }

    /// libjpeg's rules for what three components mean.
    fn model(&self) -> Model {
        let components = self.components.list();
        let is_rgb = || components.iter().map(|component| component.id).eq(*b"RGB");
        match (components.len(), self.is_jfif, self.adobe) {
            (1, _, _) => Model::Gray,
            (_, false, Some(0)) => Model::Rgb,
            (_, false, None) if is_rgb() => Model::Rgb,
            _ => Model::Ycc,
        }
    }
}
