//! What a run tells at its end: a table for people, one object with `--json`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use forebay_core::{ByteSize, Ledger, Rate};
use forebay_data::Dataset;
use forebay_data::loader::{BadSample, StallReport, StreamSpec};
use forebay_data::order::Position;
use forebay_io::memory_peak_bytes;
use serde::Serialize;

use super::{End, Run};
use crate::app::App;
use crate::args::StreamArgs;
use crate::bench::meter::Sample;
use crate::printer::{Printed, visible};
use crate::table::Table;

/// Bad samples that the table names; `--json` has all that were kept.
const BAD_SHOWN_MAX: usize = 10;

/// Data sets or shards that are named.
const URLS_SHOWN_MAX: usize = 8;

/// Shares of waiting below this are not worth a word.
const BLAME_SHARE_MIN: f64 = 0.01;

/// `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The data set, or all that are mixed.
    url: String,
    format: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<SourceRow>,
    shards: u64,
    dataset_samples: u64,
    /// Of these, the ones that the filter keeps.
    kept_samples: u64,
    /// The index was there, and had not to be made.
    is_indexed: bool,
    rank: u32,
    world: u32,
    batch_size: u64,
    shuffle: bool,
    seed: u64,
    epochs: u64,
    /// `over`, `enough` (as many batches as were asked for) or `interrupted`.
    end: &'static str,
    batches: u64,
    samples: u64,
    bytes: u64,
    seconds: f64,
    bytes_per_s: f64,
    samples_per_s: f64,
    cpu_s_per_gb: f64,
    open_s: f64,
    first_batch_s: Option<f64>,
    memory_peak_bytes: u64,
    /// Memory beyond `--memory` that one batch needed at once.
    memory_grown_bytes: u64,
    bad_samples: u64,
    bad: Vec<BadSample>,
    /// Values that samples did not have, by field; they are empty in their batches.
    missing_values: BTreeMap<String, u64>,
    stalls: StallReport,
    /// Which way the bytes of the samples came.
    ledger: Ledger,
    /// Why bytes that were compared with checksums do not count as verified, where that is so.
    unverified: Option<String>,
    /// Which way the bytes came that were read beside them: to make the index or of it, and to filter.
    opening: Ledger,
    /// What `--resume` takes.
    position: Position,
}

/// One of several data sets.
#[derive(Debug, Serialize)]
struct SourceRow {
    url: String,
    format: String,
    dataset_samples: u64,
    kept_samples: u64,
    /// Its share.
    weight: f64,
}

impl Report {
    pub(super) fn new(
        args: &StreamArgs,
        spec: &StreamSpec,
        run: &Run,
        end: End,
        open_time: Duration,
        measured: &Sample,
    ) -> Self {
        let (sources, report) = (run.loader.sources(), run.loader.report());
        let seconds = measured.time.as_secs_f64();
        let datasets = || sources.datasets().iter();
        Self {
            url: named(args),
            format: joined(datasets().map(|dataset| dataset.manifest().spec().name.clone())),
            sources: source_rows(args, run),
            shards: datasets().map(|dataset| dataset.shards().len() as u64).sum(),
            dataset_samples: datasets().map(Dataset::samples).sum(),
            kept_samples: sources.samples_kept(),
            is_indexed: datasets().all(Dataset::is_indexed),
            rank: spec.order.rank,
            world: spec.order.world,
            batch_size: spec.order.batch_size,
            shuffle: spec.order.shuffle,
            seed: spec.order.seed.0,
            epochs: args.epochs,
            end: end.name(),
            batches: run.batches,
            samples: report.samples,
            bytes: report.bytes,
            seconds,
            bytes_per_s: measured.rate().0,
            samples_per_s: if seconds > 0.0 {
                report.samples as f64 / seconds
            } else {
                0.0
            },
            cpu_s_per_gb: measured.cpu_s_per_gb(),
            open_s: open_time.as_secs_f64(),
            first_batch_s: run.first_batch.map(|time| time.as_secs_f64()),
            memory_peak_bytes: memory_peak_bytes(),
            memory_grown_bytes: report.memory_grown_bytes,
            bad_samples: report.bad_samples,
            bad: report.bad,
            missing_values: report.missing_values,
            stalls: report.stalls,
            ledger: report.ledger,
            unverified: report.unverified,
            opening: report.opening,
            position: run.loader.position(),
        }
    }

    /// Beside keys, which are data, the table is talk.
    pub(super) fn print(&self, args: &StreamArgs, app: &App) -> Printed {
        let printer = app.printer();
        if printer.is_json() {
            return printer.json(self);
        }
        for line in self.table().lines() {
            if args.keys {
                printer.say(line);
            } else {
                printer.data(line)?;
            }
        }
        printer.detail(&self.ledger);
        Ok(())
    }

    fn table(&self) -> Table {
        let mut table = Table::bare();
        table.row(["data set", &visible(&self.url)]);
        table.row([
            "",
            &format!(
                "{}, {} shards, {} samples{}{}",
                self.format,
                self.shards,
                self.dataset_samples,
                if self.kept_samples == self.dataset_samples {
                    String::new()
                } else {
                    format!(", {} kept", self.kept_samples)
                },
                if self.is_indexed {
                    ""
                } else {
                    ", indexed in memory"
                }
            ),
        ]);
        for source in &self.sources {
            let line = format!("{:.2}% from {}", 100.0 * source.weight, visible(&source.url));
            table.row(["mixed", &line]);
        }
        table.row([
            "streamed",
            &format!(
                "{} samples in {} batches, {} in {}{}",
                self.samples,
                self.batches,
                ByteSize(self.bytes),
                time(self.seconds),
                if self.end == "interrupted" {
                    ", interrupted"
                } else {
                    ""
                }
            ),
        ]);
        table.row([
            "rate",
            &format!("{}, {:.0} samples/s", Rate(self.bytes_per_s), self.samples_per_s),
        ]);
        table.row(["cpu", &format!("{:.3} s per GB", self.cpu_s_per_gb)]);
        table.row([
            "first batch",
            &format!(
                "{} after {} of opening",
                self.first_batch_s.map_or_else(|| "none".to_owned(), time),
                time(self.open_s)
            ),
        ]);
        table.row(["waiting", &self.waiting()]);
        table.row([
            "waits",
            &format!(
                "p50 below {}, p99 below {}",
                time(self.stalls.wait_p50_s),
                time(self.stalls.wait_p99_s)
            ),
        ]);
        table.row(["memory", &self.memory()]);
        self.byte_rows(&mut table);
        self.bad_rows(&mut table);
        table
    }

    /// Which way the bytes came, and what was not there.
    fn byte_rows(&self, table: &mut Table) {
        for (name, ledger) in [("ledger", &self.ledger), ("before", &self.opening)] {
            for (index, line) in ledger.to_string().lines().enumerate() {
                table.row([if index == 0 { name } else { "" }, line]);
            }
        }
        if let Some(why) = &self.unverified {
            table.row(["unverified", why]);
        }
        for (field, values) in &self.missing_values {
            let line = format!("{values} samples without '{}'", visible(field));
            table.row(["missing", &line]);
        }
    }

    /// The share of waiting and the stages to blame, the worst first.
    fn waiting(&self) -> String {
        let blame = self.stalls.blame;
        let mut stages = [
            ("the store", blame.store_s),
            ("the cache", blame.cache_s),
            ("the disk", blame.disk_s),
            ("parsing", blame.parse_s),
            ("queueing", blame.queue_s),
            ("collating", blame.collate_s),
            ("handing over", blame.hand_over_s),
        ];
        stages.sort_by(|one, other| other.1.total_cmp(&one.1));
        let total: f64 = stages.iter().map(|stage| stage.1).sum();
        let mut text = format!(
            "{:.1}% of the time ({})",
            100.0 * self.stalls.waited_share,
            time(self.stalls.waited_s)
        );
        let blamed = stages.iter().filter(|stage| stage.1 > BLAME_SHARE_MIN * total);
        for (index, (name, seconds)) in blamed.enumerate() {
            let before = if index == 0 { ": for" } else { "," };
            // Writing to a string cannot fail.
            let _: std::fmt::Result = write!(text, "{before} {name} {:.0}%", 100.0 * seconds / total);
        }
        text
    }

    fn memory(&self) -> String {
        let peak = format!("{} at most", ByteSize(self.memory_peak_bytes));
        match self.memory_grown_bytes {
            0 => peak,
            grown => format!(
                "{peak}; one batch needed {} more than --memory allows",
                ByteSize(grown)
            ),
        }
    }

    fn bad_rows(&self, table: &mut Table) {
        if self.bad_samples == 0 {
            table.row(["bad samples", "none"]);
            return;
        }
        table.row(["bad samples", &format!("{}, replaced", self.bad_samples)]);
        for bad in self.bad.iter().take(BAD_SHOWN_MAX) {
            let key = bad
                .key
                .as_deref()
                .map_or(String::new(), |key| format!(" '{}'", visible(key)));
            let place = bad
                .offset
                .map_or(String::new(), |offset| format!(" at byte {offset}"));
            let line = format!(
                "{}: sample {}{key}{place}: {}",
                visible(&bad.shard),
                bad.index,
                bad.reason
            );
            table.row(["", &line]);
        }
    }
}

/// What differs, each once.
fn joined(names: impl Iterator<Item = String>) -> String {
    let mut joined: Vec<String> = names.collect();
    joined.dedup();
    joined.join(", ")
}

/// What is streamed, as it was written; of many shards, the first few.
fn named(args: &StreamArgs) -> String {
    let names = args.urls.iter().take(URLS_SHOWN_MAX);
    let mut named = joined(names.map(|url| url.to_string_lossy().into_owned()));
    if args.urls.len() > URLS_SHOWN_MAX {
        // Writing to a string cannot fail.
        let _: std::fmt::Result = write!(named, " and {} more", args.urls.len() - URLS_SHOWN_MAX);
    }
    named
}

/// The data sets, where several are mixed.
fn source_rows(args: &StreamArgs, run: &Run) -> Vec<SourceRow> {
    let sources = run.loader.sources();
    let rows = sources.datasets().iter().zip(&args.urls).zip(sources.shares());
    let rows = rows.map(|((dataset, url), weight)| SourceRow {
        url: url.to_string_lossy().into_owned(),
        format: dataset.manifest().spec().name.clone(),
        dataset_samples: dataset.samples(),
        kept_samples: dataset.samples_kept(),
        weight,
    });
    rows.collect()
}

/// A time of any size.
fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}
