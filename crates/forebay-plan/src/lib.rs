//! A planner for training clusters: how much storage, how often to save, what it costs.
//!
//! Numbers in, numbers out: nothing here does I/O, asks a clock or panics. A request is a table of fields (JSON or TOML)
//! for a model by name; the answer is a [`Report`] of finite numbers, each with its formula, inputs and source, or an error
//! with a hint:
//!
//! ```
//! let request = forebay_plan::parse_toml("params = '405B'\ngpus = 16384\nstorage = '1TB/s'")?;
//! let report = forebay_plan::run("checkpoint", &request)?;
//! assert!(report.value("goodput").unwrap() > 0.9);
//! assert!(report.explain("goodput")?.contains("formula"));
//! # Ok::<(), forebay_core::Error>(())
//! ```
//!
//! - [`quantity`] has the units and reads and writes them;
//! - [`mod@model`] has the models, [`models`] their list, [`run`] is the one door to them;
//! - [`Report`] is what all of them answer, [`Table`] how it is printed;
//! - [`expand`] makes several requests of a file, [`side_by_side`] compares their reports, [`sweep()`] varies one field.

mod field;
pub mod hardware;
pub mod model;
mod near;
mod path;
pub mod quantity;
mod registry;
mod report;
mod scenario;
mod sheet;
mod source;
mod sweep;
mod table;

pub use field::{Field, Kind, LIST_ITEMS_MAX};
pub use path::put;
pub use registry::{Model, model, models, parse_json, parse_toml, run};
pub use report::{Alternative, Figure, Input, Operand, Origin, Reading, Report, Row, Series, Warning};
pub use scenario::{SCENARIOS_MAX, Scenario, expand, side_by_side};
pub use sweep::{
    Refusal, SWEEP_EVENTS_MAX, SWEEP_POINTS_MAX, Sweep, SweepFigure, SweepReading, SweepRequest, SweepValue,
    SweepWarning, sweep,
};
pub use table::Table;
