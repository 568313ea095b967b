//! Stores around stores: a prefix, a count, a throttle, retries, faults.
//!
//! A wrapper is a [`Store`](crate::Store) that holds another one and passes the same conformance suite. They nest in any order; what
//! each adds is in its own file. Every one forwards every method, also those with a default: a forgotten one would silently lose an
//! ability of the store inside.
//!
//! - [`Prefixed`]: the part of a store below a key, as a store;
//! - [`Counted`]: requests, errors and bytes by operation;
//! - [`Throttled`]: at most so many requests at once and so many bytes a second;
//! - [`Retried`]: passing faults are tried again, within a budget, and a store that asks for less gets less;
//! - [`Faulty`]: fails, delays, corrupts and loses on plan, for tests of what is above.

mod counted;
mod faulty;
mod prefixed;
mod retried;
mod throttled;

pub use counted::{Counted, Counts, OpCounts};
pub use faulty::{Fault, FaultPlan, Faulty, When};
pub use prefixed::Prefixed;
pub use retried::Retried;
pub use throttled::{Throttle, Throttled};

/// What is asked of a store or of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// [`Store::head`](crate::Store::head).
    Head,
    /// [`Store::read_into`](crate::Store::read_into).
    Read,
    /// [`Store::put`](crate::Store::put).
    Put,
    /// [`Store::upload`](crate::Store::upload) and [`Store::resume_upload`](crate::Store::resume_upload).
    Upload,
    /// [`Upload::put_part`](crate::Upload::put_part).
    Part,
    /// [`Upload::complete`](crate::Upload::complete).
    Complete,
    /// [`Upload::abort`](crate::Upload::abort).
    Abort,
    /// [`Store::list`](crate::Store::list).
    List,
    /// [`Store::delete`](crate::Store::delete).
    Delete,
    /// [`Store::capabilities`](crate::Store::capabilities).
    Capabilities,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Head,
        Self::Read,
        Self::Put,
        Self::Upload,
        Self::Part,
        Self::Complete,
        Self::Abort,
        Self::List,
        Self::Delete,
        Self::Capabilities,
    ];

    /// Name in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Read => "read",
            Self::Put => "put",
            Self::Upload => "upload",
            Self::Part => "part",
            Self::Complete => "complete",
            Self::Abort => "abort",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Capabilities => "capabilities",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}
