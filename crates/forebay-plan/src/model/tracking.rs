//! What experiment tracking writes: metrics, GPU statistics, histograms, checkpoints of a sweep.

use forebay_core::Result;

use crate::field::request;
use crate::quantity::{Bytes, BytesPerSecond, Count, Seconds, lit};
use crate::report::Report;
use crate::sheet::Sheet;

request! {
    /// What to ask about tracking.
    Request {
        /// Runs that write at the same time.
        runs: Count = lit(1000.0),
        /// Metrics of a run; 10 GB a day for 1000 runs.
        metrics_rate: BytesPerSecond = lit(10e9 / 86_400.0 / 1000.0),
        /// Statistics of all GPUs together; 50 GB a day.
        gpu_stats_rate: BytesPerSecond = lit(50e9 / 86_400.0),
        /// Runs of a sweep.
        sweep_runs: Count = lit(100.0),
        /// Histograms of weights and gradients of a run.
        histograms: Bytes = lit(1e12),
        /// Size of a checkpoint.
        checkpoint: Bytes = lit(1e12),
        /// Checkpoints kept per run of a sweep.
        checkpoints_kept: Count = lit(0.0),
        /// Time between two values of a metric.
        period: Seconds = lit(1.0),
    }
}

const SECONDS_PER_DAY: f64 = 86_400.0;

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("tracking");
    let runs = sheet.given("runs", request.runs);
    let metrics = sheet.given("metrics_rate", request.metrics_rate);
    sheet.group("per day");
    let value = runs.v * metrics.v * SECONDS_PER_DAY;
    let formula = "runs x metrics_rate x 86400";
    let inputs = [runs, metrics];
    sheet.bytes("metrics_day", value, formula, &inputs)?;
    let period = sheet.given("period", request.period).positive()?;
    let value = metrics.v * period.v;
    let formula = "metrics_rate x period: all metrics of a run at one time";
    let inputs = [metrics, period];
    sheet.bytes("metrics_value_bytes", value, formula, &inputs)?;
    let stats = sheet.given("gpu_stats_rate", request.gpu_stats_rate);
    let formula = "gpu_stats_rate x 86400";
    let value = stats.v * SECONDS_PER_DAY;
    sheet.bytes("gpu_stats_day", value, formula, &[stats])?;
    sheet.group("sweep");
    let sweep = sheet.given("sweep_runs", request.sweep_runs);
    let histograms = sheet.given("histograms", request.histograms);
    let value = sweep.v * histograms.v;
    let formula = "sweep_runs x histograms";
    let inputs = [sweep, histograms];
    let first = sheet.bytes("sweep_histograms", value, formula, &inputs)?;
    let checkpoint = sheet.given("checkpoint", request.checkpoint);
    let kept = sheet.given("checkpoints_kept", request.checkpoints_kept);
    let value = sweep.v * checkpoint.v * kept.v;
    let formula = "sweep_runs x checkpoint x checkpoints_kept";
    let inputs = [sweep, checkpoint, kept];
    let second = sheet.bytes("sweep_checkpoints", value, formula, &inputs)?;
    let formula = "sweep_histograms + sweep_checkpoints";
    let value = first.v + second.v;
    sheet.bytes("sweep_bytes", value, formula, &[first, second])?;
    Ok(sheet.finish())
}
