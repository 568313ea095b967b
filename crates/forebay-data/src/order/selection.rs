//! A part of the samples of a shard.
//!
//! The order counts only what is kept: a shard of 1,000 samples of which 10 are kept is a shard of 10. [`Selection::get`] finds the number in the shard again, and
//! [`Selection::rank`] goes the other way. Kept numbers are a list or a bitmap with counts, whichever takes less memory: at most a bit and a sixteenth per sample.

use forebay_core::{Result, Seed};

use super::{Cut, ShardSize, invalid};

/// Words of a bitmap between two counts.
const WORDS_PER_COUNT: usize = 8;

/// What a selection is in a file.
const KIND_ALL: u32 = 0;
const KIND_LIST: u32 = 1;
const KIND_BITS: u32 = 2;

/// Which samples of a shard are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    samples: u64,
    kept: Kept,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kept {
    All,
    List(Vec<u32>),
    Bits {
        words: Vec<u64>,
        /// Kept before each run of words.
        counts: Vec<u32>,
        kept: u64,
    },
}

impl Selection {
    /// All `samples` of a shard.
    pub fn all(samples: u64) -> Self {
        Self {
            samples,
            kept: Kept::All,
        }
    }

    /// Those of `samples` for which `keep` says so.
    pub fn from_fn(samples: u64, mut keep: impl FnMut(u64) -> bool) -> Result<Self> {
        check_samples(samples)?;
        let mut words = vec![0_u64; samples.div_ceil(64) as usize];
        for sample in (0..samples).filter(|sample| keep(*sample)) {
            words[(sample / 64) as usize] |= 1 << (sample % 64);
        }
        Ok(Self::from_words(samples, words))
    }

    /// Those with the given numbers, which grow and are below `samples`.
    pub fn from_sorted(samples: u64, numbers: Vec<u32>) -> Result<Self> {
        check_samples(samples)?;
        let grow = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        let below = numbers.last().is_none_or(|last| u64::from(*last) < samples);
        if !grow || !below {
            return Err(invalid(format!(
                "selected samples must be in growing order and below {samples}"
            )));
        }
        if numbers.len() as u64 * 32 <= samples {
            let kept = Kept::List(numbers);
            return Ok(Self { samples, kept });
        }
        let mut words = vec![0_u64; samples.div_ceil(64) as usize];
        for number in numbers {
            words[(number / 64) as usize] |= 1 << (number % 64);
        }
        Ok(Self::from_words(samples, words))
    }

    /// Those whose bit is set: sample `i` is bit `i mod 64` of word `i div 64`. Bits behind the last sample must not be.
    pub(crate) fn from_words(samples: u64, words: Vec<u64>) -> Self {
        let mut counts = Vec::with_capacity(words.len().div_ceil(WORDS_PER_COUNT));
        let mut kept = 0_u64;
        for run in words.chunks(WORDS_PER_COUNT) {
            counts.push(kept as u32);
            kept += run.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        }
        let bits = Self {
            samples,
            kept: Kept::Bits { words, counts, kept },
        };
        if kept == samples {
            return Self::all(samples);
        }
        if kept * 32 <= samples {
            let list = (0..kept)
                .filter_map(|ordinal| bits.get(ordinal))
                .map(|number| number as u32);
            let kept = Kept::List(list.collect());
            return Self { samples, kept };
        }
        bits
    }

    /// Append its bytes, as `docs/formats/selections.md` has them.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, items) = match &self.kept {
            Kept::All => (KIND_ALL, 0),
            Kept::List(numbers) => (KIND_LIST, numbers.len()),
            Kept::Bits { words, .. } => (KIND_BITS, words.len()),
        };
        out.extend(kind.to_le_bytes());
        // A shard has at most `u32::MAX` samples.
        out.extend((items as u32).to_le_bytes());
        match &self.kept {
            Kept::All => {}
            Kept::List(numbers) => out.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
            Kept::Bits { words, .. } => out.extend(words.iter().flat_map(|word| word.to_le_bytes())),
        }
    }

    /// The selection of `samples` at the front of `bytes`, which lose it; nothing where they hold none.
    pub(crate) fn decode(samples: u64, bytes: &mut &[u8]) -> Option<Self> {
        let mut number = || Some(u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?));
        let (kind, items) = (number()?, number()? as usize);
        match kind {
            KIND_ALL if items == 0 => Some(Self::all(samples)),
            KIND_LIST => {
                let list = bytes.split_off(..items.checked_mul(4)?)?;
                let numbers = list
                    .as_chunks()
                    .0
                    .iter()
                    .map(|number| u32::from_le_bytes(*number));
                Self::from_sorted(samples, numbers.collect()).ok()
            }
            KIND_BITS if items as u64 == samples.div_ceil(64) => {
                let bits = bytes.split_off(..items.checked_mul(8)?)?;
                let words = bits.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
                let words: Vec<u64> = words.collect();
                let behind = words.last().filter(|_| !samples.is_multiple_of(64));
                let ends = behind.is_none_or(|last| last >> (samples % 64) == 0);
                ends.then(|| Self::from_words(samples, words))
            }
            _ => None,
        }
    }

    /// Samples that are kept.
    pub fn count(&self) -> u64 {
        match &self.kept {
            Kept::All => self.samples,
            Kept::List(numbers) => numbers.len() as u64,
            Kept::Bits { kept, .. } => *kept,
        }
    }

    /// Number in the shard of a kept sample, counted among those that are kept.
    pub fn get(&self, ordinal: u64) -> Option<u64> {
        if ordinal >= self.count() {
            return None;
        }
        match &self.kept {
            Kept::All => Some(ordinal),
            Kept::List(numbers) => numbers.get(ordinal as usize).map(|number| u64::from(*number)),
            Kept::Bits { words, counts, .. } => {
                let run = counts.partition_point(|count| u64::from(*count) <= ordinal) - 1;
                let mut left = ordinal - u64::from(counts[run]);
                let first = run * WORDS_PER_COUNT;
                for (index, word) in words[first..].iter().enumerate() {
                    let ones = u64::from(word.count_ones());
                    if left < ones {
                        let bit = bit_of(*word, left);
                        return Some((first + index) as u64 * 64 + bit);
                    }
                    left -= ones;
                }
                None
            }
        }
    }

    /// Kept samples whose number in the shard is below `sample`.
    pub fn rank(&self, sample: u64) -> u64 {
        let sample = sample.min(self.samples);
        match &self.kept {
            Kept::All => sample,
            Kept::List(numbers) => numbers.partition_point(|number| u64::from(*number) < sample) as u64,
            Kept::Bits { words, counts, kept } => {
                let word = (sample / 64) as usize;
                let Some(last) = words.get(word) else {
                    return *kept;
                };
                let run = word / WORDS_PER_COUNT;
                let whole = &words[run * WORDS_PER_COUNT..word];
                let before: u32 = whole.iter().map(|word| word.count_ones()).sum();
                let within = (last & ((1 << (sample % 64)) - 1)).count_ones();
                u64::from(counts[run] + before + within)
            }
        }
    }

    /// A number that another selection does not have.
    pub fn fingerprint(&self) -> u64 {
        let print = Seed(self.samples).derive(self.count());
        let print = match &self.kept {
            Kept::All => print,
            Kept::List(numbers) => numbers
                .iter()
                .fold(print, |print, number| print.derive(u64::from(*number))),
            Kept::Bits { words, .. } => words.iter().fold(print, |print, word| print.derive(*word)),
        };
        print.0
    }

    /// True when a sample of the shard is kept.
    pub fn contains(&self, sample: u64) -> bool {
        match &self.kept {
            Kept::All => sample < self.samples,
            Kept::List(numbers) => {
                u32::try_from(sample).is_ok_and(|sample| numbers.binary_search(&sample).is_ok())
            }
            Kept::Bits { words, .. } => {
                let word = usize::try_from(sample / 64).ok().and_then(|word| words.get(word));
                word.is_some_and(|word| word >> (sample % 64) & 1 == 1)
            }
        }
    }

    /// Memory of what is listed.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        match &self.kept {
            Kept::All => 0,
            Kept::List(numbers) => size_of_val(&numbers[..]),
            Kept::Bits { words, counts, .. } => size_of_val(&words[..]) + size_of_val(&counts[..]),
        }
    }

    /// The size of a shard with nothing but the kept samples in it.
    pub fn size(&self, size: &ShardSize) -> Result<ShardSize> {
        if size.samples != self.samples {
            return Err(invalid(format!(
                "a selection of {} samples is not for a shard of {}",
                self.samples, size.samples
            )));
        }
        let cut = match &size.cut {
            Cut::Groups(groups) => {
                let mut end = 0_u64;
                let kept = groups.iter().map(|group| {
                    let start = end;
                    end = end.saturating_add(*group);
                    self.rank(end) - self.rank(start)
                });
                Cut::Groups(kept.collect())
            }
            other => other.clone(),
        };
        Ok(ShardSize {
            samples: self.count(),
            bytes: size.bytes_of(self.count()),
            cut,
        })
    }
}

/// Place of the one-bit number `index` of a word.
fn bit_of(mut word: u64, index: u64) -> u64 {
    for _ in 0..index {
        word &= word - 1;
    }
    u64::from(word.trailing_zeros())
}

fn check_samples(samples: u64) -> Result<()> {
    if samples > u64::from(u32::MAX) {
        return Err(super::limit(format!("a shard has at most {} samples", u32::MAX)));
    }
    Ok(())
}
