//! The bytes of one simulated file: what a reader sees, and what a power loss may leave.
//!
//! Changes are applied to the volatile view at once and kept in a log in the order they were made. A sync marks the changes that
//! had been answered by then and folds them into the durable bytes; a failed sync leaves changes that later syncs pass over. A crash
//! starts from the durable bytes and replays the log, with a fate drawn for every change that was not synced.

use forebay_core::{Rng, Span};

/// What a disk writes as one: a sector is old or new after a power loss, never half of each.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// The content of a file in its two views.
#[derive(Debug, Default)]
pub(crate) struct Content {
    durable: Vec<u8>,
    volatile: Vec<u8>,
    log: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    change: Change,
    state: State,
}

#[derive(Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
    Grow(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody was told yet that it is done, so a sync does not cover it.
    InFlight,
    /// Done, and waiting for a sync.
    Landed,
    /// A sync failed on it: the kernel forgot about it, and no later sync makes it durable.
    Doubtful,
    /// Durable, but after a change that is not.
    Synced,
}

/// How a crash treats the changes of one file: extremes are rare among independent draws, so they are drawn first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaning {
    AllLost,
    AllKept,
    Mixed,
}

impl Leaning {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0 => Self::AllLost,
            1 => Self::AllKept,
            _ => Self::Mixed,
        }
    }
}

impl Content {
    /// Durable from the start.
    pub(crate) fn durable(bytes: Vec<u8>) -> Self {
        Self {
            durable: bytes.clone(),
            volatile: bytes,
            log: Vec::new(),
        }
    }

    /// What a reader sees.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.volatile
    }

    /// Write, extending with zeros as needed; a sync covers it once it has [`land`](Self::land)ed.
    pub(crate) fn write(&mut self, ticket: u64, offset: usize, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.push(ticket, Change::Write { offset, bytes });
    }

    /// Write only some of the sectors, drawn at random.
    pub(crate) fn write_torn(&mut self, ticket: u64, offset: usize, bytes: &[u8], rng: &mut Rng) {
        for sector in sectors(offset, bytes.len()) {
            if rng.one_in(2) {
                let part = &bytes[sector.relative_to(offset as u64)];
                self.write(ticket, sector.start() as usize, part);
            }
        }
    }

    /// Set the length; a sync covers it once it has landed.
    pub(crate) fn set_len(&mut self, ticket: u64, len: usize) {
        self.push(ticket, Change::SetLen(len));
    }

    /// Make it at least that long; a sync covers it once it has landed.
    pub(crate) fn grow(&mut self, ticket: u64, len: usize) {
        self.push(ticket, Change::Grow(len));
    }

    fn push(&mut self, ticket: u64, change: Change) {
        change.apply(&mut self.volatile);
        self.log.push(Entry {
            ticket,
            change,
            state: State::InFlight,
        });
    }

    /// The caller was told that these changes are done.
    pub(crate) fn land(&mut self, ticket: u64) {
        for entry in &mut self.log {
            if entry.ticket == ticket && entry.state == State::InFlight {
                entry.state = State::Landed;
            }
        }
    }

    /// Make everything that has landed durable.
    pub(crate) fn sync(&mut self) {
        self.mark_landed(State::Synced);
        let synced = self
            .log
            .iter()
            .take_while(|entry| entry.state == State::Synced)
            .count();
        for entry in self.log.drain(..synced) {
            entry.change.apply(&mut self.durable);
        }
    }

    /// A sync that failed: what has landed counts as clean from now on, and may or may not be on the disk.
    pub(crate) fn sync_failed(&mut self) {
        self.mark_landed(State::Doubtful);
    }

    fn mark_landed(&mut self, state: State) {
        for entry in &mut self.log {
            if entry.state == State::Landed {
                entry.state = state;
            }
        }
    }

    /// What a power loss leaves.
    pub(crate) fn crashed(&self, rng: &mut Rng) -> Vec<u8> {
        let leaning = Leaning::draw(rng);
        let mut bytes = self.durable.clone();
        let mut unsynced = Vec::new();
        for entry in &self.log {
            if entry.state == State::Synced {
                // Changes before it may be lost, but none of them comes after it.
                replay(&mut unsynced, &mut bytes, leaning, rng);
                entry.change.apply(&mut bytes);
            } else {
                unsynced.push(&entry.change);
            }
        }
        replay(&mut unsynced, &mut bytes, leaning, rng);
        bytes
    }
}

/// Apply changes that were not synced, each as its fate has it, half of the time in another order.
fn replay(changes: &mut Vec<&Change>, bytes: &mut Vec<u8>, leaning: Leaning, rng: &mut Rng) {
    if rng.one_in(2) {
        rng.shuffle(changes);
    }
    for change in changes.drain(..) {
        match leaning {
            Leaning::AllLost => {}
            Leaning::AllKept => change.apply(bytes),
            Leaning::Mixed => change.apply_by_fate(bytes, rng),
        }
    }
}

impl Change {
    fn apply(&self, target: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => put(target, *offset, bytes),
            Self::SetLen(len) => target.resize(*len, 0),
            Self::Grow(len) => grow(target, *len),
        }
    }

    fn apply_by_fate(&self, target: &mut Vec<u8>, rng: &mut Rng) {
        let (offset, bytes) = match self {
            Self::SetLen(_) | Self::Grow(_) if rng.one_in(2) => return,
            Self::SetLen(_) | Self::Grow(_) => return self.apply(target),
            Self::Write { offset, bytes } => (*offset, bytes),
        };
        let sectors = sectors(offset, bytes.len());
        let prefix = rng.below(sectors.len() as u64 + 1) as usize;
        match rng.below(5) {
            0 => return,
            1 => return self.apply(target),
            // The size became durable before the bytes did.
            2 if !bytes.is_empty() => grow(target, offset + bytes.len()),
            _ => {}
        }
        let in_order = rng.one_in(2);
        for (index, sector) in sectors.iter().enumerate() {
            if (in_order && index < prefix) || (!in_order && rng.one_in(2)) {
                put(
                    target,
                    sector.start() as usize,
                    &bytes[sector.relative_to(offset as u64)],
                );
            }
        }
    }
}

fn grow(target: &mut Vec<u8>, len: usize) {
    if target.len() < len {
        target.resize(len, 0);
    }
}

fn put(target: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        grow(target, offset + bytes.len());
        target[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

fn sectors(offset: usize, len: usize) -> Vec<Span> {
    Span::at(offset as u64, len as u64)
        .map_or_else(|_| Vec::new(), |span| span.pieces(SECTOR_BYTES).collect())
}
