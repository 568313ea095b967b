//! What a client can make the server hold, each bound with its reason.

use std::time::Duration;

/// Every bound of a server.
#[expect(
    clippy::struct_field_names,
    reason = "a bound says that it is one where it is used"
)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Connections at a time: a browser opens six, so this is a room full of people.
    pub(crate) connections_max: usize,
    /// Life of a connection, after which it is closed behind the answer under way: a reader that takes nothing cannot stay for ever.
    pub(crate) connection_time_max: Duration,
    /// Time for answers under way once a connection is to end.
    pub(crate) grace_time_max: Duration,
    /// Request line and headers together; browsers send under 4 KiB.
    pub(crate) head_bytes_max: usize,
    /// Header lines of a request; browsers send about 20.
    pub(crate) headers_max: usize,
    /// Time for the head of a request, and for the pause before the next one on the same connection.
    pub(crate) head_time_max: Duration,
    /// Body of a request; the largest scenario anybody writes by hand is a tenth of it.
    pub(crate) body_bytes_max: usize,
    /// What is read of a larger one and thrown away, since a client that still sends does not listen to the refusal.
    pub(crate) body_discarded_bytes_max: usize,
    /// Time for a body to arrive.
    pub(crate) body_time_max: Duration,
    /// Plans computed at a time: each takes one core, most of them for a millisecond.
    pub(crate) calls_max: usize,
    /// Time a plan waits for its turn; whoever waits longer is told to come again.
    pub(crate) call_wait_max: Duration,
    /// Time for a plan: a sweep of a simulation is the longest anybody waits for in front of a page.
    pub(crate) call_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 128,
            connection_time_max: Duration::from_secs(120),
            grace_time_max: Duration::from_secs(2),
            head_bytes_max: 16 << 10,
            headers_max: 64,
            head_time_max: Duration::from_secs(15),
            body_bytes_max: 64 << 10,
            body_discarded_bytes_max: 1 << 20,
            body_time_max: Duration::from_secs(10),
            calls_max: 4,
            call_wait_max: Duration::from_secs(2),
            call_time_max: Duration::from_secs(20),
        }
    }
}
