//! `cargo xtask bench`: runs `bench/run.py` from the Python environment, with every argument passed on.
//!
//! The wheel is built with the release profile first: a benchmark of a development build would be worth nothing.

use anyhow::{Result, bail};

use crate::args::BenchOptions;
use crate::run::Runner;
use crate::venv::{self, WheelProfile};

/// Runs the benchmarks.
pub(crate) fn run(runner: &Runner, options: &BenchOptions) -> Result<bool> {
    let workspace = runner.workspace();
    let script = workspace.root().join("bench/run.py");
    if !script.exists() {
        bail!("{} is not there", script.display());
    }
    venv::ensure(runner, false)?;
    venv::install_wheel(runner, WheelProfile::Release)?;
    let status = runner.status(
        venv::python_tool(runner, "python")
            .arg(script)
            .args(&options.args),
    )?;
    Ok(status.success())
}
