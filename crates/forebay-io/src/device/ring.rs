//! Pinned memory that reads fill and devices empty, made once per process.
//!
//! Pinning costs more than a small load (a tenth of a second for what holds a few reads), so the memory is pinned in steps by a thread of its own:
//! the first step is enough to begin, and later loads find everything ready. What it took is in [`RingStats`], never hidden.
//!
//! ```text
//! Ring::lease() -> AlignedBuf -> (a read fills it) -> Flight -> Uploads::send -> reaper: waits for the device, drops the buffer -> pool
//!                                                            `-> Uploads::pace: the thread waits itself for the one it sent before -> pool
//! ```
//!
//! A thread that paces itself keeps its last flight until it has another, and nobody knows when that is: so whoever must wait for a slot hands all
//! kept flights to the reaper first, and while somebody waits none is kept. Otherwise threads could hold every slot and wait for one.
//!
//! [`Uploads`] is the account of one load: it counts its flights, keeps the first failure, and is done when all have landed.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use forebay_core::{ByteSize, Clock, Error, ErrorKind, Result, SystemClock};
use serde::Serialize;
use tokio::sync::oneshot;

use super::{Device, Flight, HostPin};
use crate::buf::AlignedBuf;
use crate::completion::Completion;
use crate::map::Pages;
use crate::per_process::PerProcess;
use crate::pool::{BufPool, PoolConfig};

/// Pinned memory by default: sixty-four slots of 4 MiB keep disk and bus busy, and a node's memory is others' too.
pub const RING_BYTES_DEFAULT: u64 = 256 << 20;
/// The most that is pinned: more gains nothing, and pinned memory is taken from everybody.
pub const RING_BYTES_MAX: u64 = 512 << 20;
/// Pinned at a time. The first step holds up the first read of a process: small enough for that, large enough for eight reads.
const STEP_BYTES: u64 = 32 << 20;

/// How much to pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// Pinned memory, at most [`RING_BYTES_MAX`].
    pub bytes_max: u64,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            bytes_max: RING_BYTES_DEFAULT,
        }
    }
}

/// What pinning took, and what the ring holds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RingStats {
    /// Memory of the ring once all of it is pinned.
    pub bytes_max: u64,
    /// Pinned so far.
    pub pinned_bytes: u64,
    /// Time that pinning took so far, beside the loads.
    pub pin_seconds: f64,
    /// Leases that had to wait for a slot.
    pub waits: u64,
    /// Most memory leased at once.
    pub leased_bytes_peak: u64,
}

/// Pinned slots and the thread that recycles them; clones share both.
#[derive(Clone)]
pub struct Ring(Arc<Inner>);

struct Inner {
    pool: BufPool,
    pin: Arc<HostPin>,
    landing: Mutex<Sender<Landing>>,
    /// The accounts of loads, which may keep flights.
    accounts: Mutex<Vec<Weak<Account>>>,
}

/// A flight whose landing is waited for.
struct Landing {
    flight: Flight,
    account: Arc<Account>,
    clock: Arc<dyn Clock>,
}

impl Ring {
    /// The ring of this process: made at the first call, and kept. Another size later is not a new ring.
    pub fn shared(device: &Device, config: RingConfig) -> Result<Self> {
        static SHARED: PerProcess<Option<Ring>> = PerProcess::new();
        let mut shared = SHARED.lock();
        if let Some(ring) = &*shared
            && Arc::ptr_eq(ring.0.pin.device().driver(), device.driver())
        {
            return Ok(ring.clone());
        }
        let ring = Self::new(device, config, Arc::new(SystemClock))?;
        *shared = Some(ring.clone());
        Ok(ring)
    }

    /// A ring of its own: the first step is pinned now, the rest by a thread.
    pub fn new(device: &Device, config: RingConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        if config.bytes_max == 0 || config.bytes_max > RING_BYTES_MAX {
            let message = format!(
                "{} of pinned memory: more than nothing and at most {} are possible",
                ByteSize(config.bytes_max),
                ByteSize(RING_BYTES_MAX)
            );
            return Err(Error::new(ErrorKind::InvalidInput, "pin memory", message));
        }
        let pin = Arc::new(HostPin::new(device, clock));
        let pool = BufPool::new(&PoolConfig {
            bytes_max: config.bytes_max,
            pages: Pages::Transparent,
            pin: Some(Arc::clone(&pin) as _),
            pin_step_bytes: STEP_BYTES,
            ..PoolConfig::default()
        })?;
        let (landing, landings) = mpsc::channel();
        start("forebay-landing", move || reap(&landings))?;
        let rest = pool.clone();
        start("forebay-pin", move || pin_rest(&rest))?;
        Ok(Self(Arc::new(Inner {
            pool,
            pin,
            landing: Mutex::new(landing),
            accounts: Mutex::default(),
        })))
    }

    /// Lease `len` bytes of the pinned memory; waits its turn when all of it is used, which it is no longer than until flights have landed.
    pub fn lease(&self, len: usize) -> Completion<Result<AlignedBuf>> {
        if let Some(buf) = self.0.pool.try_lease(len) {
            return Completion::ready(Ok(buf));
        }
        // In this order: who paces himself after these lines sees that somebody waits.
        let lease = self.0.pool.lease(len);
        for account in self.accounts() {
            self.reap_paced(&account);
        }
        lease
    }

    /// The pinned memory, for those who look at it; to wait for some, [`lease`](Self::lease).
    pub fn pool(&self) -> &BufPool {
        &self.0.pool
    }

    /// The clock by which landings are told.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.0.pin.clock()
    }

    /// Pin what is left of the memory now, on this thread: for programs that want to know it done.
    pub fn pin_all(&self) -> Result<()> {
        while self.0.pool.pin_more()? {}
        Ok(())
    }

    /// What pinning took, and what is held.
    pub fn stats(&self) -> RingStats {
        let pool = self.0.pool.stats();
        RingStats {
            bytes_max: pool.bytes_max,
            pinned_bytes: self.0.pin.pinned_bytes(),
            pin_seconds: self.0.pin.took().as_secs_f64(),
            waits: pool.waits,
            leased_bytes_peak: pool.leased_bytes_peak,
        }
    }

    /// An account for the uploads of one load.
    pub fn uploads(&self) -> Uploads {
        let account = Arc::new(Account::default());
        let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.retain(|account| account.strong_count() > 0);
        accounts.push(Arc::downgrade(&account));
        drop(accounts);
        Uploads {
            ring: self.clone(),
            account,
        }
    }

    fn accounts(&self) -> Vec<Arc<Account>> {
        let accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.iter().filter_map(Weak::upgrade).collect()
    }

    /// Let the reaper wait for the flights that threads keep.
    fn reap_paced(&self, account: &Arc<Account>) {
        let paced = std::mem::take(&mut account.lock().paced);
        for flight in paced.into_values() {
            self.reap(flight, account);
        }
    }

    /// Let the reaper wait for a flight that was launched.
    fn reap(&self, flight: Flight, account: &Arc<Account>) {
        let landing = self.landing(flight, account);
        let sender = self.0.landing.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread is gone in a forked child only, where the device is gone too.
        if let Err(mpsc::SendError(landing)) = sender.send(landing) {
            drop(sender);
            landing.land();
        }
    }

    fn landing(&self, flight: Flight, account: &Arc<Account>) -> Landing {
        Landing {
            flight,
            account: Arc::clone(account),
            clock: Arc::clone(self.0.pin.clock()),
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ring").field(&self.stats()).finish()
    }
}

/// The flights of one load.
#[derive(Debug, Clone)]
pub struct Uploads {
    ring: Ring,
    account: Arc<Account>,
}

#[derive(Debug, Default)]
struct Account(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    in_flight: u64,
    landed: u64,
    first_landed: Option<Duration>,
    error: Option<Error>,
    waiting: Vec<oneshot::Sender<Result<()>>>,
    /// Of each thread that paces itself, the flight that it sent last.
    paced: HashMap<ThreadId, Flight>,
}

impl Uploads {
    /// Launch `flight`; its buffer goes back to its pool when it has landed. After a failure nothing more is sent: the failure comes from
    /// [`finish`](Self::finish).
    pub fn send(&self, mut flight: Flight) -> Result<()> {
        self.check()?;
        flight.launch()?;
        self.account.lock().in_flight += 1;
        self.ring.reap(flight, &self.account);
        Ok(())
    }

    /// Launch `flight` like [`send`](Self::send), from a thread that has many to send, and wait for the one that it sent before: so it keeps two buffers busy and no
    /// more, which stay in the caches, and nobody has to be woken for it. While somebody waits for a slot, or for the end of this
    /// load, it is the same as `send`.
    pub fn pace(&self, mut flight: Flight) -> Result<()> {
        self.check()?;
        flight.launch()?;
        let (before, is_awaited) = {
            let mut state = self.account.lock();
            state.in_flight += 1;
            let before = state.paced.insert(thread::current().id(), flight);
            (before, !state.waiting.is_empty())
        };
        if let Some(before) = before {
            self.ring.landing(before, &self.account).land();
        }
        if is_awaited || self.ring.pool().has_waiters() {
            self.ring.reap_paced(&self.account);
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        match self.account.lock().error {
            Some(_) => Err(Error::new(
                ErrorKind::Cancelled,
                "copy to device",
                "an earlier copy of this load failed",
            )),
            None => Ok(()),
        }
    }

    /// Memory of the ring; see [`Ring::lease`].
    pub fn lease(&self, len: usize) -> Completion<Result<AlignedBuf>> {
        self.ring.lease(len)
    }

    /// Flights that have landed.
    pub fn landed(&self) -> u64 {
        self.account.lock().landed
    }

    /// When the first one landed, by the clock of the ring.
    pub fn first_landed(&self) -> Option<Duration> {
        self.account.lock().first_landed
    }

    /// Comes when everything sent so far has landed, with the first failure if there was one.
    pub fn finish(&self) -> Completion<Result<()>> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.account.lock();
            if state.in_flight == 0 {
                return Completion::ready(state.outcome());
            }
            // First, so that flights that come from now on are not kept.
            state.waiting.push(sender);
        }
        self.ring.reap_paced(&self.account);
        Completion::pending(receiver)
    }
}

impl Account {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Numbers and an error: a panic cannot leave them half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn landed(&self, outcome: Result<()>, now: Duration) {
        let mut state = self.lock();
        state.first_landed.get_or_insert(now);
        state.in_flight = state.in_flight.saturating_sub(1);
        state.landed += 1;
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        if state.in_flight > 0 {
            return;
        }
        for sender in std::mem::take(&mut state.waiting) {
            let outcome = state.outcome();
            drop(sender.send(outcome));
        }
    }
}

impl State {
    /// The failure, told once in full; afterwards that there was one.
    fn outcome(&mut self) -> Result<()> {
        let Some(error) = self.error.take() else {
            return Ok(());
        };
        self.error = Some(Error::new(error.kind(), error.op(), error.message().to_owned()));
        Err(error)
    }
}

impl Landing {
    /// Sleep until the device is done; the buffer goes back before the account says so.
    fn land(self) {
        let (buf, outcome) = self.flight.wait();
        drop(buf);
        self.account.landed(outcome, self.clock.now());
    }
}

/// Wait for flights, those that have landed first: devices are not equally fast.
fn reap(landings: &Receiver<Landing>) {
    let mut pending: VecDeque<Landing> = VecDeque::new();
    loop {
        while let Ok(landing) = landings.try_recv() {
            pending.push_back(landing);
        }
        // A failed question is answered by waiting.
        if let Some(index) = pending
            .iter()
            .position(|landing| landing.flight.is_done().unwrap_or(true))
        {
            if let Some(landing) = pending.remove(index) {
                landing.land();
            }
        } else if let Some(landing) = pending.pop_front() {
            landing.land();
        } else {
            match landings.recv() {
                Ok(landing) => pending.push_back(landing),
                Err(_) => return,
            }
        }
    }
}

fn pin_rest(pool: &BufPool) {
    loop {
        match pool.pin_more() {
            Ok(true) => thread::yield_now(),
            Ok(false) => return,
            Err(error) => {
                tracing::warn!("the ring stays smaller than wished: {error}");
                return;
            }
        }
    }
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
        .map_err(|error| Error::from_io("start thread", error))
}
