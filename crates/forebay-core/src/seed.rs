//! The only source of randomness.
//!
//! A [`Seed`] names a stream of numbers; [`Seed::derive`] gives independent streams for parts of a job, so that the same
//! seed gives the same run. The generator is SplitMix64: good enough for shuffles, jitter and simulated faults, stable for
//! ever, and nothing that needs secrecy may use it.

use serde::{Deserialize, Serialize};

/// Names a reproducible stream of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

impl Seed {
    /// A seed that differs between processes and calls: for jitter and temporary names, never for results.
    pub fn fresh() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self(RandomState::new().hash_one(std::process::id()))
    }

    /// The independent stream number `index`.
    pub fn derive(self, index: u64) -> Self {
        Self(mix(self.0 ^ mix(index.wrapping_add(GOLDEN))))
    }

    /// Start drawing.
    pub fn rng(self) -> Rng {
        Rng(self.0)
    }
}

/// A running stream of random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound`, without bias worth the name (multiply-shift); 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n` on average; never for 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    /// Fill with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Put in random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_pinned_for_ever() {
        let mut rng = Seed(0).rng();
        assert_eq!(rng.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next_u64(), 0x6e78_9e6a_a1b9_65f4);
        assert_ne!(Seed(1).derive(0), Seed(1).derive(1));
    }

    #[test]
    fn below_and_shuffle_stay_in_bounds() {
        let mut rng = Seed(7).rng();
        assert!((0..1000).all(|_| rng.below(10) < 10));
        assert_eq!(rng.below(0), 0);
        let mut items: Vec<u32> = (0..100).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
