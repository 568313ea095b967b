//! How many files waves keep open: a share of what the process may, so that those who store what is read, and the rest of the program, find descriptors for theirs.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};

/// Part of the limit of a process that all waves together take.
const LIMIT_PART: u64 = 2;

/// Part of what is left that one wave takes: threads that come later find some, too.
const LEFT_PART: usize = 4;

/// Files that waves have open, of all threads.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Files that one wave may have open, until this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    files: usize,
}

impl Share {
    /// At most as many as are wanted, and one even where none is left: nobody waits here.
    pub(super) fn take(wanted: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(limit / LIMIT_PART).unwrap_or(usize::MAX);
        let mut files = 0;
        // Relaxed: a number, nothing is read or written in its order.
        let _ = OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            files = share(most, open, wanted);
            Some(open + files)
        });
        Self { files }
    }

    pub(super) fn files(&self) -> usize {
        self.files
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        OPEN.fetch_sub(self.files, Ordering::Relaxed);
    }
}

fn share(most: usize, open: usize, wanted: usize) -> usize {
    (most.saturating_sub(open) / LEFT_PART).clamp(1, wanted.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_leave_some_for_others() {
        assert_eq!(share(512, 0, 64), 64);
        assert_eq!(share(512, 500, 64), 3);
        assert_eq!(share(512, 600, 64), 1);
        assert_eq!(share(usize::MAX, 0, 2), 2);
        // However many threads there are, their waves stay within what all may have, but for the one file that each may open.
        let mut open = 0;
        for thread in 0..100 {
            open += share(512, open, 64);
            assert!(open <= 512 + thread, "{open}");
        }
    }

    #[test]
    fn a_share_is_given_back() {
        let shares: Vec<Share> = (0..1000).map(|_| Share::take(64)).collect();
        assert!(shares.iter().all(|share| share.files() >= 1));
        drop(shares);
        assert!(Share::take(4).files() == 4 || getrlimit(Resource::Nofile).current < Some(32));
    }
}
