//! Byte planes: elements of 2, 4 or 8 bytes taken apart into one run for each of their bytes, and put together again.
//!
//! Loops go over blocks of a fixed number of elements, whose bytes the compiler keeps in vector registers; `rotated` moves the sign of a floating-point number to its
//! lowest bit, so that the highest plane is its exponent. Pure; bytes beyond whole elements are the caller's concern.

/// Elements of a block: one vector of planes, whatever the width of an element.
const BLOCK: usize = 32;

/// Take apart: plane `i` of `planes` (one behind the other, each of `raw.len() / width` bytes) gets byte `i` of each element.
pub(crate) fn split(raw: &[u8], width: usize, rotated: bool, planes: &mut [u8]) {
    let count = raw.len() / width.max(1);
    match (width, rotated) {
        (2, true) => split_2::<true>(raw, count, planes),
        (2, false) => split_2::<false>(raw, count, planes),
        (4, true) => split_4::<true>(raw, count, planes),
        (4, false) => split_4::<false>(raw, count, planes),
        (8, true) => split_8::<true>(raw, count, planes),
        (8, false) => split_8::<false>(raw, count, planes),
        _ => {}
    }
}

/// Put together what [`split`] took apart.
pub(crate) fn join(planes: &[&[u8]], rotated: bool, raw: &mut [u8]) {
    match (planes, rotated) {
        ([a, b], true) => join_2::<true>(a, b, raw),
        ([a, b], false) => join_2::<false>(a, b, raw),
        ([a, b, c, d], true) => join_4::<true>(a, b, c, d, raw),
        ([a, b, c, d], false) => join_4::<false>(a, b, c, d, raw),
        (planes, rotated) => join_8(planes, rotated, raw),
    }
}

fn split_2<const ROTATED: bool>(raw: &[u8], count: usize, planes: &mut [u8]) {
    let (mut low, mut high) = planes.split_at_mut(count);
    let (elements, _) = raw.as_chunks::<2>();
    let (blocks, last) = elements.as_chunks::<BLOCK>();
    let mut words = [0u16; BLOCK];
    for block in blocks.iter().map(<[_; BLOCK]>::as_slice).chain([last]) {
        for (word, from) in words.iter_mut().zip(block) {
            let value = u16::from_le_bytes(*from);
            *word = if ROTATED { value.rotate_left(1) } else { value };
        }
        low = fill(low, block.len(), &words, |word| *word as u8);
        high = fill(high, block.len(), &words, |word| (*word >> 8) as u8);
    }
}

fn join_2<const ROTATED: bool>(low: &[u8], high: &[u8], raw: &mut [u8]) {
    let one = |low: u8, high: u8| {
        let value = u16::from(low) | u16::from(high) << 8;
        let value = if ROTATED { value.rotate_right(1) } else { value };
        value.to_le_bytes()
    };
    let (blocks, rest) = raw.as_chunks_mut::<{ 2 * BLOCK }>();
    let (low_blocks, low_rest) = low.as_chunks::<BLOCK>();
    let (high_blocks, high_rest) = high.as_chunks::<BLOCK>();
    for ((to, low), high) in blocks.iter_mut().zip(low_blocks).zip(high_blocks) {
        let (elements, _) = to.as_chunks_mut::<2>();
        for ((to, low), high) in elements.iter_mut().zip(low).zip(high) {
            *to = one(*low, *high);
        }
    }
    let (elements, _) = rest.as_chunks_mut::<2>();
    for ((to, low), high) in elements.iter_mut().zip(low_rest).zip(high_rest) {
        *to = one(*low, *high);
    }
}

fn split_4<const ROTATED: bool>(raw: &[u8], count: usize, planes: &mut [u8]) {
    let (mut a, rest) = planes.split_at_mut(count);
    let (mut b, rest) = rest.split_at_mut(count);
    let (mut c, mut d) = rest.split_at_mut(count);
    let (elements, _) = raw.as_chunks::<4>();
    let (blocks, last) = elements.as_chunks::<BLOCK>();
    let mut words = [0u32; BLOCK];
    for block in blocks.iter().map(<[_; BLOCK]>::as_slice).chain([last]) {
        for (word, from) in words.iter_mut().zip(block) {
            let value = u32::from_le_bytes(*from);
            *word = if ROTATED { value.rotate_left(1) } else { value };
        }
        a = fill(a, block.len(), &words, |word| *word as u8);
        b = fill(b, block.len(), &words, |word| (*word >> 8) as u8);
        c = fill(c, block.len(), &words, |word| (*word >> 16) as u8);
        d = fill(d, block.len(), &words, |word| (*word >> 24) as u8);
    }
}

/// One byte of each word goes to the front of a plane; gives the rest of the plane.
#[inline]
fn fill<'a, T>(plane: &'a mut [u8], len: usize, words: &[T; BLOCK], byte: impl Fn(&T) -> u8) -> &'a mut [u8] {
    let (here, rest) = plane.split_at_mut(len);
    // A block of known length is what becomes vectors.
    match <&mut [u8; BLOCK]>::try_from(&mut *here) {
        Ok(here) => here.iter_mut().zip(words).for_each(|(to, word)| *to = byte(word)),
        Err(_) => here.iter_mut().zip(words).for_each(|(to, word)| *to = byte(word)),
    }
    rest
}

fn join_4<const ROTATED: bool>(a: &[u8], b: &[u8], c: &[u8], d: &[u8], raw: &mut [u8]) {
    let one = |a: u8, b: u8, c: u8, d: u8| {
        let value = u32::from_le_bytes([a, b, c, d]);
        let value = if ROTATED { value.rotate_right(1) } else { value };
        value.to_le_bytes()
    };
    let (elements, _) = raw.as_chunks_mut::<4>();
    let (blocks, rest) = elements.as_chunks_mut::<BLOCK>();
    let (a_blocks, a_rest) = a.as_chunks::<BLOCK>();
    let (b_blocks, b_rest) = b.as_chunks::<BLOCK>();
    let (c_blocks, c_rest) = c.as_chunks::<BLOCK>();
    let (d_blocks, d_rest) = d.as_chunks::<BLOCK>();
    let planes = a_blocks.iter().zip(b_blocks).zip(c_blocks.iter().zip(d_blocks));
    for (to, ((a, b), (c, d))) in blocks.iter_mut().zip(planes) {
        for (to, ((a, b), (c, d))) in to.iter_mut().zip(a.iter().zip(b).zip(c.iter().zip(d))) {
            *to = one(*a, *b, *c, *d);
        }
    }
    let planes = a_rest.iter().zip(b_rest).zip(c_rest.iter().zip(d_rest));
    for (to, ((a, b), (c, d))) in rest.iter_mut().zip(planes) {
        *to = one(*a, *b, *c, *d);
    }
}

fn split_8<const ROTATED: bool>(raw: &[u8], count: usize, planes: &mut [u8]) {
    let mut rests: Vec<&mut [u8]> = planes.chunks_exact_mut(count.max(1)).collect();
    let (elements, _) = raw.as_chunks::<8>();
    let (blocks, last) = elements.as_chunks::<BLOCK>();
    // Halves, since vectors of 64 bits have no good way to become bytes.
    let (mut lows, mut highs) = ([0u32; BLOCK], [0u32; BLOCK]);
    for block in blocks.iter().map(<[_; BLOCK]>::as_slice).chain([last]) {
        for ((low, high), from) in lows.iter_mut().zip(&mut highs).zip(block) {
            let value = u64::from_le_bytes(*from);
            let value = if ROTATED { value.rotate_left(1) } else { value };
            (*low, *high) = (value as u32, (value >> 32) as u32);
        }
        for (rest, number) in rests.iter_mut().zip(0u32..) {
            let (words, shift) = if number < 4 {
                (&lows, 8 * number)
            } else {
                (&highs, 8 * (number - 4))
            };
            *rest = fill(std::mem::take(rest), block.len(), words, |word| {
                (*word >> shift) as u8
            });
        }
    }
}

fn join_8(planes: &[&[u8]], rotated: bool, raw: &mut [u8]) {
    let [p0, p1, p2, p3, p4, p5, p6, p7] = planes else {
        return;
    };
    let (elements, _) = raw.as_chunks_mut::<8>();
    let low = p0.iter().zip(*p1).zip(p2.iter().zip(*p3));
    let high = p4.iter().zip(*p5).zip(p6.iter().zip(*p7));
    let turn = u32::from(rotated);
    for ((to, ((b0, b1), (b2, b3))), ((b4, b5), (b6, b7))) in elements.iter_mut().zip(low).zip(high) {
        let value = u64::from_le_bytes([*b0, *b1, *b2, *b3, *b4, *b5, *b6, *b7]);
        *to = value.rotate_right(turn).to_le_bytes();
    }
}
