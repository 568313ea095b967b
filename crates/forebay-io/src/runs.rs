//! Which pages of an arena are free: runs of pages, pure and without unsafe code.
//!
//! Free runs are kept by place, to join neighbours, and by length, to find the smallest one that fits; among equals the lowest, so that small
//! use touches little memory. A request for 5 MiB holds 5 MiB, and an arena of any size can be given out as one.

use std::collections::{BTreeMap, BTreeSet};

/// Free pages of an arena.
#[derive(Debug)]
pub(crate) struct Runs {
    /// First page -> number of pages.
    by_place: BTreeMap<usize, usize>,
    /// (number of pages, first page).
    by_length: BTreeSet<(usize, usize)>,
    pages_free: usize,
    /// Runs do not go across multiples of this.
    segment: usize,
}

impl Runs {
    /// An arena of `pages` pages, all free, in segments that are given out apart: memory that was registered with a device in pieces is refused
    /// by it where a copy goes across two of them.
    pub(crate) fn new(pages: usize, segment: usize) -> Self {
        let mut runs = Self {
            by_place: BTreeMap::new(),
            by_length: BTreeSet::new(),
            pages_free: 0,
            segment: segment.max(1),
        };
        runs.open(0, pages);
        runs
    }

    /// Add `count` free pages from `first` on.
    pub(crate) fn open(&mut self, first: usize, count: usize) {
        let (mut start, end) = (first, first + count);
        while start < end {
            let next = (start / self.segment + 1).saturating_mul(self.segment).min(end);
            self.release(start, next - start);
            start = next;
        }
    }

    fn is_border(&self, page: usize) -> bool {
        page.is_multiple_of(self.segment)
    }

    pub(crate) fn pages_free(&self) -> usize {
        self.pages_free
    }

    /// Take `count` pages in a row; `None` when no free run is long enough right now.
    pub(crate) fn take(&mut self, count: usize) -> Option<usize> {
        let count = count.max(1);
        let (length, first) = *self.by_length.range((count, 0)..).next()?;
        self.remove(first, length);
        self.insert(first + count, length - count);
        self.pages_free -= count;
        Some(first)
    }

    /// Give `count` pages from `first` back, joining them with free neighbours.
    pub(crate) fn release(&mut self, first: usize, count: usize) {
        let (mut start, mut length) = (first, count);
        if let Some((&before, &pages)) = self.by_place.range(..first).next_back()
            && before + pages == first
            && !self.is_border(first)
        {
            self.remove(before, pages);
            start = before;
            length += pages;
        }
        if let Some(&pages) = self.by_place.get(&(first + count))
            && !self.is_border(first + count)
        {
            self.remove(first + count, pages);
            length += pages;
        }
        self.insert(start, length);
        self.pages_free += count;
    }

    fn insert(&mut self, first: usize, length: usize) {
        if length > 0 {
            self.by_place.insert(first, length);
            self.by_length.insert((length, first));
        }
    }

    fn remove(&mut self, first: usize, length: usize) {
        self.by_place.remove(&first);
        self.by_length.remove(&(length, first));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain map of pages: no overlap, exact accounting, and everything joins again.
        #[test]
        fn agrees_with_a_plain_map(
            pages in 1usize..300,
            segment in prop::option::of(1usize..100),
            ops in prop::collection::vec((any::<bool>(), 1usize..40, any::<usize>()), 1..200),
        ) {
            let segment = segment.unwrap_or(usize::MAX);
            let mut runs = Runs::new(pages, segment);
            let mut used = vec![false; pages];
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (take, count, pick) in ops {
                if take {
                    let mut segments = used.chunks(segment.min(pages));
                    let room = segments.any(|pages| {
                        pages.chunk_by(|a, b| a == b).any(|run| !run[0] && run.len() >= count)
                    });
                    let taken = runs.take(count);
                    prop_assert_eq!(taken.is_some(), room, "a run that is there must be found");
                    if let Some(first) = taken {
                        prop_assert_eq!(first / segment, (first + count - 1) / segment);
                        for page in &mut used[first..first + count] {
                            prop_assert!(!*page);
                            *page = true;
                        }
                        held.push((first, count));
                    }
                } else if !held.is_empty() {
                    let (first, count) = held.swap_remove(pick % held.len());
                    used[first..first + count].fill(false);
                    runs.release(first, count);
                }
                prop_assert_eq!(runs.pages_free(), used.iter().filter(|page| !**page).count());
            }
            for (first, count) in held {
                runs.release(first, count);
            }
            prop_assert_eq!(runs.pages_free(), pages);
            prop_assert_eq!(runs.take(pages.min(segment)), Some(0));
        }
    }
}
