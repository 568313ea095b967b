//! Putting batches together: which samples, from the blocks that are there, in the order of the plan.
//!
//! One task takes windows as they come from the feeder, looks up the samples of each batch in them, and has the batch collated on a working thread. Batches
//! go out in order, some of them ahead of the consumer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_core::{Clock, Error, ErrorKind, Result};
use forebay_io::BufPool;
use tokio::sync::{Notify, mpsc};

use super::collate::{Collated, Job, Pick};
use super::cpu::Cpu;
use super::decode::Wanted;
use super::feed::{Fed, Room};
use super::quarantine::Quarantine;
use super::read::{Loaded, Times};
use super::stalls::Stations;
use super::task::Task;
use super::totals::Totals;
use crate::order::{EpochPlan, Order, Slot};

/// A batch that is being made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) plan: EpochPlan,
    pub(super) index: u64,
    pub(super) collating: Task<Result<(Collated, Stations)>>,
}

/// Batches on working threads.
#[derive(Debug, Default)]
struct Busy {
    count: AtomicUsize,
    idle: Notify,
}

impl Busy {
    fn start(self: &Arc<Self>) -> BusyMark {
        self.count.fetch_add(1, Ordering::SeqCst);
        BusyMark(Arc::clone(self))
    }

    async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }
}

#[derive(Debug)]
struct BusyMark(Arc<Busy>);

impl Drop for BusyMark {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// A window in use.
#[derive(Debug)]
struct Open {
    start: u64,
    order: Vec<(u32, u32)>,
    blocks: Vec<State>,
    /// Samples of each block that are still to come.
    left: Vec<u32>,
}

#[derive(Debug)]
enum State {
    Coming(Task<Result<Loaded>>),
    There(Arc<Loaded>),
    Done,
}

/// Assembles batches.
#[derive(Debug)]
pub(super) struct Assembler {
    pub(super) order: Order,
    pub(super) fields: Arc<[Wanted]>,
    pub(super) quarantine: Option<Arc<Quarantine>>,
    pub(super) pool: BufPool,
    pub(super) cpu: Cpu,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) room: Arc<Room>,
    pub(super) totals: Arc<Totals>,
    pub(super) fed: mpsc::Receiver<Result<Fed>>,
    pub(super) ready: mpsc::Sender<Result<Made>>,
    pub(super) epochs_end: u64,
    busy: Arc<Busy>,
    open: BTreeMap<(u64, u32), VecDeque<Open>>,
}

impl Assembler {
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a part of its own, named where it is made"
    )]
    pub(super) fn new(
        order: Order,
        fields: Arc<[Wanted]>,
        quarantine: Option<Arc<Quarantine>>,
        pool: BufPool,
        cpu: Cpu,
        clock: Arc<dyn Clock>,
        room: Arc<Room>,
        totals: Arc<Totals>,
        fed: mpsc::Receiver<Result<Fed>>,
        ready: mpsc::Sender<Result<Made>>,
        epochs_end: u64,
    ) -> Self {
        Self {
            order,
            fields,
            quarantine,
            pool,
            cpu,
            clock,
            room,
            totals,
            fed,
            ready,
            epochs_end,
            busy: Arc::default(),
            open: BTreeMap::new(),
        }
    }

    /// From batch `batch` of `plan` on, until the last epoch or until nobody takes batches.
    pub(super) async fn run(mut self, mut plan: EpochPlan, mut batch: u64) {
        while plan.epoch() < self.epochs_end {
            while batch < plan.batches() {
                // A place in the queue first: nothing is made that would have to wait for one.
                let Ok(place) = self.ready.clone().reserve_owned().await else {
                    return;
                };
                match self.make(&plan, batch).await {
                    Ok(made) => drop(place.send(Ok(made))),
                    Err(error) => {
                        place.send(Err(error));
                        return;
                    }
                }
                batch += 1;
            }
            self.open.retain(|(epoch, _), _| *epoch > plan.epoch());
            plan = self.order.epoch(plan.epoch() + 1);
            batch = 0;
        }
    }

    async fn make(&mut self, plan: &EpochPlan, index: u64) -> Result<Made> {
        let mut picks = Vec::with_capacity(plan.batch_len(index) as usize);
        let mut latest = Times::default();
        for slot in plan.batch(index) {
            let pick = self.pick(plan.epoch(), slot).await?;
            let times = pick.block.times;
            latest.asked = latest.asked.max(times.asked);
            if times.arrived > latest.arrived {
                (latest.arrived, latest.origin) = (times.arrived, times.origin);
            }
            latest.checked = latest.checked.max(times.checked);
            picks.push(pick);
        }
        let mut stations = Stations {
            blocks: latest,
            assembled: self.clock.now(),
            ..Stations::default()
        };
        let job = Job {
            epoch: plan.epoch(),
            index,
            picks,
            fields: Arc::clone(&self.fields),
            quarantine: self.quarantine.clone(),
            pool: self.pool.clone(),
            threads: self.cpu.threads(),
        };
        let (cpu, clock, mark) = (self.cpu.clone(), Arc::clone(&self.clock), self.busy.start());
        let collating = Task::spawn(async move {
            let (collated, begun) = job.collate(&cpu, &clock).await?;
            drop(mark);
            (stations.begun, stations.done) = (begun, clock.now());
            Ok((collated, stations))
        });
        Ok(Made {
            plan: plan.clone(),
            index,
            collating,
        })
    }

    /// The sample of a slot, as soon as its block is there.
    async fn pick(&mut self, epoch: u64, slot: Slot) -> Result<Pick> {
        loop {
            let windows = self.open.entry((epoch, slot.lane)).or_default();
            while windows.front().is_some_and(|open| open.end() <= slot.position) {
                windows.pop_front();
            }
            if let Some(open) = windows.front_mut() {
                return open.take(slot.position, &self.totals).await;
            }
            self.take_in().await?;
        }
    }

    /// The next window from the feeder.
    async fn take_in(&mut self) -> Result<()> {
        let fed = tokio::select! {
            biased;
            fed = self.fed.recv() => fed,
            () = self.busy.idle() => {
                // All that is in memory waits for what is still to come.
                self.room.starve(true);
                let fed = self.fed.recv().await;
                self.room.starve(false);
                fed
            }
        };
        let fed = fed.ok_or_else(|| internal("reading ahead ended early"))??;
        let open = Open::new(fed.start, fed.order, fed.blocks);
        self.open
            .entry((fed.epoch, fed.lane))
            .or_default()
            .push_back(open);
        Ok(())
    }
}

impl Open {
    fn new(start: u64, order: Vec<(u32, u32)>, blocks: Vec<Option<Task<Result<Loaded>>>>) -> Self {
        let mut left = vec![0; blocks.len()];
        for (block, _) in &order {
            if let Some(left) = left.get_mut(*block as usize) {
                *left += 1;
            }
        }
        let states = blocks
            .into_iter()
            .map(|block| block.map_or(State::Done, State::Coming));
        Self {
            start,
            order,
            blocks: states.collect(),
            left,
        }
    }

    fn end(&self) -> u64 {
        self.start + self.order.len() as u64
    }

    async fn take(&mut self, position: u64, totals: &Totals) -> Result<Pick> {
        let at = position.checked_sub(self.start);
        let pick = at.and_then(|at| self.order.get(at as usize)).copied();
        let (block, sample) = pick.ok_or_else(|| internal("a position that no window covers"))?;
        let state = self.blocks.get_mut(block as usize);
        let state = state.ok_or_else(|| internal("a block that no window has"))?;
        if let State::Coming(_) = state
            && let State::Coming(task) = std::mem::replace(state, State::Done)
        {
            let loaded = task.wait().await??;
            totals.read(&loaded);
            *state = State::There(Arc::new(loaded));
        }
        let State::There(loaded) = &*state else {
            return Err(internal("a block was given up too early"));
        };
        let pick = Pick {
            block: Arc::clone(loaded),
            sample,
        };
        if let Some(left) = self.left.get_mut(block as usize) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                *state = State::Done;
            }
        }
        Ok(pick)
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "stream", message)
}
