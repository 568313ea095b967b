//! From the frequencies of a block to samples.
//!
//! Whole blocks by the factorisation of Arai, Agui and Nakajima in single precision: five multiplications for eight numbers, the rest of its factors
//! being part of the quantisation tables. Floating point without fused operations gives the same bits on every machine.
//! Reduced blocks by the cosine transform of the lowest frequencies, of half, a quarter and an eighth of the size.

#![expect(
    clippy::inline_always,
    reason = "these run for every number of an image; a call costs more than what they do"
)]

/// Samples of a block, across and down.
pub(super) const SIDE: usize = 8;

/// Frequencies of a block: the place of a number is `horizontal * 8 + vertical`, so that columns come first.
pub(super) type Block = [f32; SIDE * SIDE];

/// Order of the numbers in the data, as places in a [`Block`].
pub(super) const PLACES: [u8; SIDE * SIDE] = places();

const fn places() -> [u8; SIDE * SIDE] {
    let mut places = [0; SIDE * SIDE];
    let (mut across, mut down, mut index) = (0_usize, 0_usize, 0);
    while index < SIDE * SIDE {
        places[index] = (across * SIDE + down) as u8;
        // Along diagonals, turning at the edges.
        if (across + down) % 2 == 0 {
            if across == SIDE - 1 {
                down += 1;
            } else if down == 0 {
                across += 1;
            } else {
                across += 1;
                down -= 1;
            }
        } else if down == SIDE - 1 {
            across += 1;
        } else if across == 0 {
            down += 1;
        } else {
            across -= 1;
            down += 1;
        }
        index += 1;
    }
    places
}

/// How large blocks are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Whole,
    Half,
    Quarter,
    Eighth,
}

impl Scale {
    /// Samples of a block, across and down.
    pub(super) fn side(self) -> usize {
        match self {
            Self::Whole => 8,
            Self::Half => 4,
            Self::Quarter => 2,
            Self::Eighth => 1,
        }
    }

    /// The factors of a quantisation table for this transform, in the order of the data.
    pub(super) fn factors(self, steps: &[u16; SIDE * SIDE]) -> [f32; SIDE * SIDE] {
        let mut factors = [0.0; SIDE * SIDE];
        for (factor, (step, place)) in factors.iter_mut().zip(steps.iter().zip(PLACES)) {
            let place = usize::from(place);
            let own = match self {
                Self::Whole => AAN[place / SIDE] * AAN[place % SIDE] / 8.0,
                _ => 1.0,
            };
            *factor = (f64::from(*step) * own) as f32;
        }
        factors
    }
}

/// Factors of the frequencies: cos(k pi / 16) * sqrt(2), and 1 for the first.
const AAN: [f64; SIDE] = [
    1.0,
    1.387_039_845,
    1.306_562_965,
    1.175_875_602,
    1.0,
    0.785_694_958,
    0.541_196_100,
    0.275_899_379,
];

type Row = [f32; SIDE];

/// Samples of a whole block, row by row.
#[inline(never)]
pub(super) fn whole(block: &Block) -> [[u8; SIDE]; SIDE] {
    let mut rows = [[0.0; SIDE]; SIDE];
    for (row, values) in rows.iter_mut().zip(block.chunks_exact(SIDE)) {
        row.copy_from_slice(values);
    }
    pass(&mut rows);
    let mut turned = [[0.0; SIDE]; SIDE];
    for (lane, row) in rows.iter().enumerate() {
        for (turned, value) in turned.iter_mut().zip(row) {
            turned[lane] = *value;
        }
    }
    pass(&mut turned);
    let mut samples = [[0; SIDE]; SIDE];
    for (samples, row) in samples.iter_mut().zip(&turned) {
        for (sample, value) in samples.iter_mut().zip(row) {
            *sample = self::sample(*value);
        }
    }
    samples
}

/// One dimension of eight columns at once.
#[inline(always)]
fn pass(rows: &mut [Row; SIDE]) {
    let [a0, a1, a2, a3, a4, a5, a6, a7] = *rows;
    let (sum04, difference04) = (add(a0, a4), subtract(a0, a4));
    let sum26 = add(a2, a6);
    let turned26 = subtract(scale(subtract(a2, a6), std::f32::consts::SQRT_2), sum26);
    let (even0, even3) = (add(sum04, sum26), subtract(sum04, sum26));
    let (even1, even2) = (add(difference04, turned26), subtract(difference04, turned26));

    let (sum53, difference53) = (add(a5, a3), subtract(a5, a3));
    let (sum17, difference17) = (add(a1, a7), subtract(a1, a7));
    let odd0 = add(sum17, sum53);
    let middle = scale(subtract(sum17, sum53), std::f32::consts::SQRT_2);
    let shared = scale(add(difference53, difference17), 1.847_759_1);
    let odd1 = subtract(subtract(shared, scale(difference53, 2.613_126)), odd0);
    let odd2 = subtract(middle, odd1);
    let odd3 = subtract(subtract(shared, scale(difference17, 1.082_392_2)), odd2);

    *rows = [
        add(even0, odd0),
        add(even1, odd1),
        add(even2, odd2),
        add(even3, odd3),
        subtract(even3, odd3),
        subtract(even2, odd2),
        subtract(even1, odd1),
        subtract(even0, odd0),
    ];
}

#[inline(always)]
fn add(mut one: Row, other: Row) -> Row {
    for (one, other) in one.iter_mut().zip(other) {
        *one += other;
    }
    one
}

#[inline(always)]
fn subtract(mut one: Row, other: Row) -> Row {
    for (one, other) in one.iter_mut().zip(other) {
        *one -= other;
    }
    one
}

#[inline(always)]
fn scale(mut row: Row, factor: f32) -> Row {
    for value in &mut row {
        *value *= factor;
    }
    row
}

/// The lowest `N` x `N` frequencies as that many samples.
pub(super) fn reduced<const N: usize>(block: &Block) -> [[u8; N]; N] {
    let basis = basis::<N>();
    let mut columns = [[0.0; N]; N];
    for (across, column) in columns.iter_mut().enumerate() {
        for (down, factors) in basis.iter().enumerate() {
            let value = block[across * SIDE + down];
            for (sample, factor) in column.iter_mut().zip(factors) {
                *sample += value * factor;
            }
        }
    }
    let mut rows = [[0.0; N]; N];
    for (column, factors) in columns.iter().zip(&basis) {
        for (row, value) in rows.iter_mut().zip(column) {
            for (sample, factor) in row.iter_mut().zip(factors) {
                *sample += value * factor;
            }
        }
    }
    rows.map(|row| row.map(sample))
}

/// What each frequency adds to each sample: a cosine, scaled so that the mean of the block stays.
fn basis<const N: usize>() -> [[f32; N]; N] {
    // The cosines of sixteenths of pi, so that nothing depends on a library's cosine.
    const COSINES: [f64; 9] = [
        1.0,
        0.980_785_280_403_230_4,
        0.923_879_532_511_286_7,
        0.831_469_612_302_545_2,
        std::f64::consts::FRAC_1_SQRT_2,
        0.555_570_233_019_602_2,
        0.382_683_432_365_089_8,
        0.195_090_322_016_128_28,
        0.0,
    ];
    let cosine = |sixteenths: usize| match sixteenths % 32 {
        angle @ 0..=8 => COSINES[angle],
        angle @ 9..=16 => -COSINES[16 - angle],
        angle @ 17..=24 => -COSINES[angle - 16],
        angle => COSINES[32 - angle],
    };
    let root = 1.0 / (SIDE as f64).sqrt();
    std::array::from_fn(|frequency| {
        std::array::from_fn(|sample| {
            let weight = if frequency == 0 {
                root
            } else {
                root * std::f64::consts::SQRT_2
            };
            (weight * cosine((2 * sample + 1) * frequency * SIDE / N)) as f32
        })
    })
}

/// A byte: centred at 128, rounded, bounded.
#[inline(always)]
pub(super) fn sample(value: f32) -> u8 {
    /// Adding this leaves the rounded number in the lowest bits.
    const ROUNDING: f32 = 12_582_912.0;
    let value = value + 128.0;
    let value = if value > 0.0 { value } else { 0.0 };
    let value = if value < 255.0 { value } else { 255.0 };
    (value + ROUNDING).to_bits() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in double precision.
    fn defined(block: &Block) -> [[f64; SIDE]; SIDE] {
        let cosine = |sample: usize, frequency: usize| {
            let weight = if frequency == 0 { 0.125_f64.sqrt() } else { 0.5 };
            weight * ((2 * sample + 1) as f64 * frequency as f64 * std::f64::consts::PI / 16.0).cos()
        };
        std::array::from_fn(|y| {
            std::array::from_fn(|x| {
                let all = (0..64).map(|at| f64::from(block[at]) * cosine(x, at / 8) * cosine(y, at % 8));
                all.sum::<f64>() + 128.0
            })
        })
    }

    fn blocks() -> impl Iterator<Item = Block> {
        let mut rng = forebay_core::Seed(3).rng();
        (0..200).map(move |index| {
            let span = [2, 40, 400][index % 3];
            std::array::from_fn(|at| {
                rng.below(span) as f32 / (1 + at / 8 + at % 8) as f32 - (span / 4) as f32 / 8.0
            })
        })
    }

    #[test]
    fn whole_blocks_are_the_cosine_transform() {
        let factors = Scale::Whole.factors(&[1; 64]);
        for block in blocks() {
            let mut scaled = [0.0; 64];
            for (place, factor) in PLACES.iter().zip(factors) {
                scaled[usize::from(*place)] = block[usize::from(*place)] * factor;
            }
            for (row, expected) in whole(&scaled).iter().zip(defined(&block)) {
                for (sample, expected) in row.iter().zip(expected) {
                    let expected = expected.clamp(0.0, 255.0);
                    assert!(
                        (f64::from(*sample) - expected).abs() < 0.501,
                        "{sample} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn reduced_blocks_keep_the_mean_and_follow_the_whole() {
        let smooth: Block = std::array::from_fn(|at| match at {
            0 => 80.0,
            1 => 60.0,
            8 => -50.0,
            _ => 0.0,
        });
        let full = defined(&smooth);
        let means = |side: usize, row: usize, column: usize| {
            let span = SIDE / side;
            let all = (0..span * span).map(|at| full[row * span + at / span][column * span + at % span]);
            all.sum::<f64>() / (span * span) as f64
        };
        let near = |sample: u8, mean: f64| assert!((f64::from(sample) - mean).abs() < 2.5, "{sample} {mean}");
        for (row, samples) in reduced::<4>(&smooth).iter().enumerate() {
            (0..4).for_each(|column| near(samples[column], means(4, row, column)));
        }
        for (row, samples) in reduced::<2>(&smooth).iter().enumerate() {
            (0..2).for_each(|column| near(samples[column], means(2, row, column)));
        }
        assert_eq!(reduced::<1>(&smooth), [[138]]);
    }

    #[test]
    fn the_order_is_the_zigzag() {
        let first = [0, 8, 1, 2, 9, 16, 24, 17, 10, 3];
        assert_eq!(PLACES[..10], first);
        let mut sorted = PLACES;
        sorted.sort_unstable();
        assert!(
            sorted
                .iter()
                .enumerate()
                .all(|(index, place)| index == usize::from(*place))
        );
        assert_eq!(PLACES[63], 63);
    }
}
