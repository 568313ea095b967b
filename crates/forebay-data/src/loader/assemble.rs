//! Putting batches together: which samples, from the blocks that are there, in the order of the plan.
//!
//! One task takes windows as they come from the feeder, looks up the samples of each batch in them, and has the batch collated on a working thread. Batches
//! go out in order, some of them ahead of the consumer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_core::{Clock, Error, ErrorKind, Result};
use forebay_io::BufPool;
use tokio::sync::{Notify, mpsc, oneshot};

use super::collate::{Collated, Job, Pick};
use super::course::{Course, Draws, Leg, Spot};
use super::cpu::Cpu;
use super::decode::Wanted;
use super::feed::{Fed, Room};
use super::read::{Loaded, Reader, Times};
use super::record::Record;
use super::spare::{self, Before};
use super::stalls::Stations;
use super::task::Task;

/// A batch that is being made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) leg: Leg,
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
    epoch: u64,
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

/// What batches are assembled by.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) course: Course,
    pub(super) readers: Arc<[Reader]>,
    pub(super) fields: Arc<[Wanted]>,
    pub(super) record: Record,
    /// True when a batch without a whole sample borrows one.
    pub(super) borrows: bool,
    pub(super) pool: BufPool,
    pub(super) cpu: Cpu,
    /// Batches that are made side by side.
    pub(super) at_once: usize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) room: Arc<Room>,
}

/// Assembles batches.
#[derive(Debug)]
pub(super) struct Assembler {
    means: Means,
    fed: mpsc::Receiver<Result<Fed>>,
    ready: mpsc::Sender<Result<Made>>,
    busy: Arc<Busy>,
    before: Option<oneshot::Receiver<Pick>>,
    /// Windows by data set and lane, in the order in which they are needed.
    open: BTreeMap<(u32, u32), VecDeque<Open>>,
}

impl Assembler {
    /// Of the windows that come by `fed`, whose batches go out by `ready`.
    pub(super) fn new(
        means: Means,
        fed: mpsc::Receiver<Result<Fed>>,
        ready: mpsc::Sender<Result<Made>>,
    ) -> Self {
        Self {
            means,
            fed,
            ready,
            busy: Arc::default(),
            before: None,
            open: BTreeMap::new(),
        }
    }

    /// From batch `batch` of `leg` on, until the last epoch or until nobody takes batches.
    pub(super) async fn run(mut self, leg: Leg, batch: u64) {
        let (mut now, mut batch) = (Some(leg), batch);
        while let Some(leg) = now {
            let mut draws = Draws::default();
            while batch < self.means.course.batches(&leg) {
                // A place in the queue first: nothing is made that would have to wait for one.
                let Ok(place) = self.ready.clone().reserve_owned().await else {
                    return;
                };
                match self.make(&leg, batch, &mut draws).await {
                    Ok(made) => drop(place.send(Ok(made))),
                    Err(error) => {
                        place.send(Err(error));
                        return;
                    }
                }
                batch += 1;
            }
            now = self.means.course.after(&leg);
            if let Some(Leg::Epoch(plan)) = &now {
                for windows in self.open.values_mut() {
                    windows.retain(|open| open.epoch >= plan.epoch());
                }
            }
            batch = 0;
        }
    }

    async fn make(&mut self, leg: &Leg, index: u64, draws: &mut Draws) -> Result<Made> {
        let spots = leg.spots(index, draws)?;
        let mut picks = Vec::with_capacity(spots.len());
        let mut latest = Times::default();
        for spot in spots {
            let pick = self.pick(spot).await?;
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
            assembled: self.means.clock.now(),
            ..Stations::default()
        };
        let (epoch, number) = leg.number(index);
        let job = Job {
            epoch,
            index: number,
            picks,
            fields: Arc::clone(&self.means.fields),
            record: self.means.record.clone(),
            pool: self.means.pool.clone(),
            threads: self.means.cpu.threads(),
            copy_threads: self.means.cpu.threads() / self.means.at_once.max(1),
            is_lent: false,
        };
        let (cpu, clock, mark) = (
            self.means.cpu.clone(),
            Arc::clone(&self.means.clock),
            self.busy.start(),
        );
        let (next, before) = self.spare(leg, index);
        let collating = Task::spawn(async move {
            let (collated, begun) = job.collate(before, &cpu, &clock).await?;
            drop(mark);
            if let (Some(next), Some(last)) = (next, &collated.last) {
                // Nobody needs it where there is no next batch.
                let _: Result<(), Pick> = next.send(last.clone());
            }
            (stations.begun, stations.done) = (begun, clock.now());
            Ok((collated, stations))
        });
        Ok(Made {
            leg: leg.clone(),
            index,
            collating,
        })
    }

    /// Where the last sample of the batch that is being made goes, and where that of the batch before comes from.
    fn spare(&mut self, leg: &Leg, index: u64) -> (Option<oneshot::Sender<Pick>>, Option<Before>) {
        if !self.means.borrows {
            return (None, None);
        }
        let (next, coming) = oneshot::channel();
        let before = match self.before.replace(coming) {
            Some(before) => spare::coming(before),
            None => spare::look_back(
                Arc::clone(&self.means.readers),
                Arc::clone(&self.means.fields),
                leg.clone(),
                index,
            ),
        };
        (Some(next), Some(before))
    }

    /// The sample of a spot, as soon as its block is there.
    async fn pick(&mut self, spot: Spot) -> Result<Pick> {
        loop {
            let windows = self.open.entry((spot.source, spot.lane)).or_default();
            while windows.front().is_some_and(|open| open.is_before(spot)) {
                windows.pop_front();
            }
            if let Some(open) = windows.front_mut() {
                return open.take(spot.position, self.means.record.totals()).await;
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
                self.means.room.starve(true);
                let fed = self.fed.recv().await;
                self.means.room.starve(false);
                fed
            }
        };
        let fed = fed.ok_or_else(|| internal("reading ahead ended early"))??;
        let key = (fed.source, fed.lane);
        let open = Open::new(fed);
        self.open.entry(key).or_default().push_back(open);
        Ok(())
    }
}

impl Open {
    fn new(fed: Fed) -> Self {
        let mut left = vec![0; fed.blocks.len()];
        for (block, _) in &fed.order {
            if let Some(left) = left.get_mut(*block as usize) {
                *left += 1;
            }
        }
        let states = fed
            .blocks
            .into_iter()
            .map(|block| block.map_or(State::Done, State::Coming));
        Self {
            epoch: fed.epoch,
            start: fed.start,
            order: fed.order,
            blocks: states.collect(),
            left,
        }
    }

    /// True when a spot, and all that come later, are behind its end.
    fn is_before(&self, spot: Spot) -> bool {
        (self.epoch, self.end()) <= (spot.epoch, spot.position)
    }

    fn end(&self) -> u64 {
        self.start + self.order.len() as u64
    }

    async fn take(&mut self, position: u64, totals: &super::totals::Totals) -> Result<Pick> {
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
