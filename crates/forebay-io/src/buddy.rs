//! Which pages of an arena are free: a buddy allocator over page numbers, pure and without unsafe code.
//!
//! Free space is kept as power-of-two blocks at multiples of their size, lowest address first, so that small use
//! touches little memory. An allocation takes the smallest block that fits and gives the unused tail back at once: a request for
//! 5 MiB holds 5 MiB, not 8.

use std::collections::BTreeSet;

/// Free pages of an arena.
#[derive(Debug)]
pub(crate) struct Buddy {
    /// `free[order]` holds the first pages of free blocks of `1 << order` pages.
    free: Vec<BTreeSet<usize>>,
    pages_free: usize,
}

impl Buddy {
    /// An arena of `pages` pages, all free.
    pub(crate) fn new(pages: usize) -> Self {
        let orders = usize::BITS as usize - pages.leading_zeros() as usize;
        let mut buddy = Self {
            free: vec![BTreeSet::new(); orders],
            pages_free: 0,
        };
        buddy.release(0, pages);
        buddy
    }

    /// Pages in the largest block an empty arena of this size can give.
    pub(crate) fn largest(pages: usize) -> usize {
        if pages == 0 { 0 } else { 1 << pages.ilog2() }
    }

    pub(crate) fn pages_free(&self) -> usize {
        self.pages_free
    }

    /// Take `count` pages in a row; `None` when no free block is large enough right now.
    pub(crate) fn take(&mut self, count: usize) -> Option<usize> {
        let order = count.max(1).next_power_of_two().ilog2() as usize;
        let from = (order..self.free.len()).find(|&from| !self.free[from].is_empty())?;
        let first = self.free[from].pop_first()?;
        self.pages_free -= 1 << from;
        self.release(first + count, (1 << from) - count);
        Some(first)
    }

    /// Give `count` pages from `first` back, joining them with free neighbours.
    pub(crate) fn release(&mut self, mut first: usize, mut count: usize) {
        while count > 0 {
            let aligned = if first == 0 {
                usize::BITS
            } else {
                first.trailing_zeros()
            };
            let order = aligned.min(count.ilog2()) as usize;
            self.insert(first, order);
            first += 1 << order;
            count -= 1 << order;
        }
    }

    fn insert(&mut self, mut first: usize, mut order: usize) {
        self.pages_free += 1 << order;
        while order + 1 < self.free.len() && self.free[order].remove(&(first ^ (1 << order))) {
            first &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(first);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain map of pages: no overlap, exact accounting, and everything joins again.
        #[test]
        fn agrees_with_a_plain_map(pages in 1usize..300, ops in prop::collection::vec((any::<bool>(), 1usize..40, any::<usize>()), 1..200)) {
            let mut buddy = Buddy::new(pages);
            let mut used = vec![false; pages];
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (take, count, pick) in ops {
                if take {
                    if let Some(first) = buddy.take(count) {
                        for page in &mut used[first..first + count] {
                            prop_assert!(!*page);
                            *page = true;
                        }
                        held.push((first, count));
                    }
                } else if !held.is_empty() {
                    let (first, count) = held.swap_remove(pick % held.len());
                    used[first..first + count].fill(false);
                    buddy.release(first, count);
                }
                prop_assert_eq!(buddy.pages_free(), used.iter().filter(|page| !**page).count());
            }
            for (first, count) in held {
                buddy.release(first, count);
            }
            prop_assert_eq!(buddy.pages_free(), pages);
            prop_assert_eq!(buddy.take(Buddy::largest(pages)), Some(0));
        }
    }
}
