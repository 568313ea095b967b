//! A folder of plain files without an index: what its listing says, and the samples that are shown.
//!
//! A folder may be a bucket of 150 GB, and reading all of it to show a few samples costs what an index does. So the files of those samples are read, for their
//! checksums, and no others: there is no SHA-256 of a shard then, and no fingerprint.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{ByteSize, Key, Location, Result, Span};
use forebay_data::codec::Codec;
use forebay_data::dataset::{Discovered, Progress};
use forebay_data::format::files::FileSet;
use forebay_data::{Block, Layout, Table};
use forebay_store::Context;
use serde::Serialize;

use super::{Row, extract, no_sample, print, show_fields, show_rows};
use crate::Exit;
use crate::app::App;
use crate::args::InspectArgs;
use crate::printer::{Printed, Printer, visible};
use crate::table::Table as Grid;

/// What a listing counts.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Counts {
    /// Files that are part of samples.
    files: u64,
    /// Files that are part of none.
    files_left_out: u64,
    /// Directories that are classes; none where the folder is a tree of samples.
    classes: usize,
}

/// A folder, and the samples that are shown.
pub(super) struct Looked {
    found: Discovered,
    location: Location,
    tables: Vec<Part>,
}

/// Some samples in a row of a virtual shard.
struct Part {
    shard: usize,
    first: usize,
    table: Arc<Table>,
}

impl Looked {
    /// Read the samples that are asked for.
    pub(super) async fn at(
        found: Discovered,
        location: Location,
        args: &InspectArgs,
        context: &Context,
        progress: &Arc<dyn Progress>,
    ) -> Result<Self> {
        found.notes.iter().for_each(|note| progress.noted(note));
        let parts = match (found.files(), &args.sample) {
            (Some(set), Some(wanted)) => vec![find(set, wanted).ok_or_else(|| no_sample(wanted, &location))?],
            (Some(set), None) => first(set, args.samples),
            (None, _) => Vec::new(),
        };
        progress.planned(0, parts.iter().map(|(_, _, bytes)| bytes).sum());
        let mut tables = Vec::with_capacity(parts.len());
        for (shard, samples, _) in parts {
            let first = samples.start;
            let table = Arc::new(found.peek(shard, samples, context, progress).await?);
            tables.push(Part { shard, first, table });
        }
        Ok(Self {
            found,
            location,
            tables,
        })
    }

    /// Show them.
    pub(super) async fn show(&self, args: &InspectArgs, app: &App, context: &Context) -> Printed<Exit> {
        let printer = app.printer();
        if let (None, Some(set)) = (&args.sample, self.found.files()) {
            self.show_listing(set, args.samples, printer)?;
            printer.say(
                "no index here: this is what the listing says, and only the samples shown were read; forebay index reads all",
            );
        }
        for part in &self.tables {
            let key = self.key(part.shard);
            show_rows(key, &part.table, part.first as u64, 0..u64::MAX, printer)?;
        }
        if let (Some(dir), [part]) = (&args.extract, &self.tables[..]) {
            let (block, number) = self.read(part, context).await?;
            extract::run(&block, 0, number, dir, args.force, app, context).await?;
        }
        Ok(Exit::Success)
    }

    fn key(&self, shard: usize) -> &str {
        self.found.shards.get(shard).map_or("", |meta| meta.key.as_str())
    }

    /// The first sample of a part, compared with its checksum, and its number.
    async fn read(&self, part: &Part, context: &Context) -> Result<(Block, u64)> {
        let number = part.first as u64;
        let extent = match &part.table.layout {
            Layout::Samples(samples) => samples.extent(0),
            Layout::Groups(_) => None,
        };
        let extent = extent.ok_or_else(extract::missing)?;
        let (bytes, _) = self.found.source(part.shard, context)?.read(extent).await?;
        let block = Block::from_bytes(Arc::clone(&part.table), 0..1, bytes, extent.start())?;
        extract::check(&block, number, &self.location)?;
        Ok((block, number))
    }

    fn show_listing(&self, set: &FileSet, shards_max: u64, printer: &Printer) -> Printed {
        let shards = &self.found.shards;
        let stored_bytes = shards.iter().map(|meta| meta.size).sum();
        let counts = Counts {
            files: set.files(),
            files_left_out: set.left_out().files(),
            classes: set.classes().len(),
        };
        let shown = usize::try_from(shards_max.max(1)).unwrap_or(usize::MAX);
        let shown = shards.iter().enumerate().take(shown).map(|(number, meta)| {
            let samples = set.shard(number).map_or(0, |shard| shard.samples.len() as u64);
            (&meta.key, meta.size, samples)
        });
        if printer.is_json() {
            printer.json(&Row::Dataset {
                url: self.location.to_string(),
                format: &self.found.spec,
                shards: shards.len(),
                samples: set.samples(),
                stored_bytes,
                fingerprint: None,
                fields: &set.fields(),
                listed: Some(counts),
            })?;
            let mut rows = shown.map(shard_row);
            return rows.try_for_each(|row| printer.json(&row));
        }
        let mut grid = Grid::bare();
        grid.row(["url", &self.location.to_string()]);
        grid.row(["format", &self.found.spec.name]);
        grid.row(["files", &format!("{} ({})", counts.files, ByteSize(stored_bytes))]);
        grid.row(["samples", &set.samples().to_string()]);
        if counts.classes > 0 {
            grid.row(["classes", &counts.classes.to_string()]);
        }
        grid.row(["shards", &format!("{}, each of many files", shards.len())]);
        show_fields(&mut grid, &set.fields());
        print(&grid, printer)?;
        let mut grid = Grid::new(&["shard", ">bytes", ">samples"]);
        for (key, bytes, samples) in shown {
            grid.row([visible(key.as_str()), bytes.to_string(), samples.to_string()]);
        }
        printer.data("")?;
        print(&grid, printer)?;
        printer.data("")
    }
}

fn shard_row((key, bytes, samples): (&Key, u64, u64)) -> Row<'_> {
    Row::Shard {
        key,
        stored_bytes: bytes,
        raw_bytes: bytes,
        codec: Codec::None,
        sha256: None,
        samples,
    }
}

/// Samples in a row of a virtual shard, and their bytes.
type Wanted = (usize, Range<usize>, u64);

/// The first samples of all.
fn first(set: &FileSet, samples: u64) -> Vec<Wanted> {
    let mut left = usize::try_from(samples).unwrap_or(usize::MAX);
    let mut wanted = Vec::new();
    for number in 0..set.shards() {
        let Some(shard) = set.shard(number).filter(|_| left > 0) else {
            break;
        };
        let take = left.min(shard.samples.len());
        let last = take.checked_sub(1).and_then(|last| shard.extent(last));
        wanted.push((number, 0..take, last.map_or(0, Span::end)));
        left -= take;
    }
    wanted
}

/// The sample of that key, or of that number over all shards.
fn find(set: &FileSet, wanted: &str) -> Option<Wanted> {
    let number: Option<usize> = wanted.parse().ok();
    let (mut before, mut by_number) = (0, None);
    for index in 0..set.shards() {
        let shard = set.shard(index)?;
        let at = |sample: usize| {
            let bytes = shard.extent(sample).map_or(0, Span::len);
            (index, sample..sample + 1, bytes)
        };
        if let Some(sample) = shard.samples.iter().position(|sample| sample.key == wanted) {
            return Some(at(sample));
        }
        let here = number.and_then(|number| number.checked_sub(before));
        if let Some(here) = here.filter(|here| *here < shard.samples.len()) {
            by_number = by_number.or(Some(at(here)));
        }
        before += shard.samples.len();
    }
    by_number
}
