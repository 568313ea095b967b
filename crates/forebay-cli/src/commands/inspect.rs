//! `forebay inspect`: what is in a shard or a data set, and single samples as files.
//!
//! Named shards are looked at themselves, whatever a manifest says of them, unless it was named, too. A data set is shown by its manifest; where there is
//! none, only its first shard is read, and of a folder of plain files, which has none, the samples that are shown (`folder.rs`).

mod extract;
mod folder;

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{ByteSize, Error, ErrorKind, Key, Location, Result};
use forebay_data::dataset::{Check, OpenOptions, Place, Progress, UseManifest, discover};
use forebay_data::manifest::{FormatSpec, Shard};
use forebay_data::{Dataset, Field, Group, Groups, Layout, Samples, Table};
use forebay_store::Context;
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::InspectArgs;
use crate::data::{count, find, hex, manifest_at};
use crate::printer::{Printed, Printer, visible};
use crate::progress::DataBar;
use crate::table::Table as Grid;
use folder::Looked;

/// One line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Row<'a> {
    Dataset {
        url: String,
        format: &'a FormatSpec,
        shards: usize,
        samples: u64,
        stored_bytes: u64,
        /// Of what was read whole.
        #[serde(skip_serializing_if = "Option::is_none")]
        fingerprint: Option<String>,
        fields: &'a [Field],
        /// Of a folder that was only listed.
        #[serde(flatten, skip_serializing_if = "Option::is_none")]
        listed: Option<folder::Counts>,
    },
    Shard {
        key: &'a Key,
        stored_bytes: u64,
        raw_bytes: u64,
        codec: forebay_data::codec::Codec,
        #[serde(skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
        samples: u64,
    },
    Sample {
        shard: &'a str,
        number: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<&'a str>,
        offset: u64,
        bytes: u64,
        crc32c: String,
        fields: Vec<Part<'a>>,
    },
    Group {
        shard: &'a str,
        number: u64,
        offset: u64,
        bytes: u64,
        samples: u64,
        chunks: Vec<Chunk<'a>>,
    },
}

/// A column of a group.
#[derive(Debug, Serialize)]
struct Chunk<'a> {
    name: &'a str,
    crc32c: String,
}

/// Where one field of a sample is.
#[derive(Debug, Serialize)]
struct Part<'a> {
    name: &'a str,
    offset: u64,
    bytes: u64,
}

/// What there is to be shown.
enum Opened {
    /// A data set, and how many shards there are, of which it may be the first.
    Dataset(Dataset, usize),
    /// A folder of plain files that was only listed.
    Folder(Looked),
}

/// Show.
pub(super) async fn run(args: &InspectArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let bar = DataBar::new(app.printer(), "reading");
    let opened = open(args, &context, Arc::clone(&bar) as Arc<dyn Progress>).await;
    bar.bar().finish();
    match opened? {
        Opened::Dataset(dataset, shards_all) => show(args, &dataset, shards_all, app, &context).await,
        Opened::Folder(looked) => looked.show(args, app, &context).await,
    }
}

async fn show(
    args: &InspectArgs,
    dataset: &Dataset,
    shards_all: usize,
    app: &App,
    context: &Context,
) -> Printed<Exit> {
    if let Some(wanted) = &args.sample {
        let (shard, number) = find_sample(dataset, wanted).await?;
        let table = dataset.table(shard).await?;
        // A row is shown by its group: it has no place of its own.
        let shown = match &table.layout {
            Layout::Samples(_) => number,
            Layout::Groups(groups) => find_row(&groups.list, number).map_or(0, |(group, _)| group as u64),
        };
        show_rows(
            key_of(dataset, shard),
            &table,
            0,
            shown..shown.saturating_add(1),
            app.printer(),
        )?;
        if let Some(dir) = &args.extract {
            let (block, row) = extract::read(dataset, shard, number).await?;
            extract::run(&block, row, number, dir, args.force, app, context).await?;
        }
        return Ok(Exit::Success);
    }
    show_dataset(dataset, args.samples, app.printer())?;
    if shards_all > dataset.shards().len() {
        app.printer().say(format_args!(
            "the first of {} only: there is no manifest; forebay index makes one",
            count(shards_all as u64, "shard")
        ));
    }
    let mut left = args.samples;
    for number in 0..dataset.shards().len() {
        if left == 0 {
            break;
        }
        let table = dataset.table(number).await?;
        left -= show_rows(key_of(dataset, number), &table, 0, 0..left, app.printer())?;
    }
    Ok(Exit::Success)
}

fn key_of(dataset: &Dataset, shard: usize) -> &str {
    dataset.shards().get(shard).map_or("", |shard| shard.key.as_str())
}

async fn open(args: &InspectArgs, context: &Context, progress: Arc<dyn Progress>) -> Result<Opened> {
    let place = find(&args.url, context).await?;
    let format = args.format.spec()?;
    let options = OpenOptions {
        format: format.clone(),
        check: Check::WhenRead,
        progress,
        ..OpenOptions::default()
    };
    let Place { store, shards } = place;
    if args.manifest.is_some() {
        let named = OpenOptions { shards, ..options }
            .with_manifest_at(manifest_at(args.manifest.as_deref(), context).await?);
        let dataset = Dataset::open(store, context, &named).await?;
        let shards_all = dataset.shards().len();
        return Ok(Opened::Dataset(dataset, shards_all));
    }
    if let Some(shards) = shards {
        let shards_all = shards.len();
        let options = OpenOptions {
            shards: Some(shards),
            manifest: UseManifest::Never,
            ..options
        };
        let dataset = Dataset::open(store, context, &options).await?;
        return Ok(Opened::Dataset(dataset, shards_all));
    }
    let indexed = OpenOptions {
        manifest: UseManifest::Always,
        ..options.clone()
    };
    match Dataset::open(Arc::clone(&store), context, &indexed).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        opened => {
            let dataset = opened?;
            let shards_all = dataset.shards().len();
            return Ok(Opened::Dataset(dataset, shards_all));
        }
    }
    let found = discover(&store, context, format.as_ref(), None).await?;
    if found.files().is_some() {
        let location = store.location().clone();
        return Ok(Opened::Folder(
            Looked::at(found, location, args, context, &options.progress).await?,
        ));
    }
    // A sample is looked for everywhere.
    let first = found.shards.first().filter(|_| args.sample.is_none());
    let shards = first.map(|meta| vec![meta.key.clone()]);
    if shards.is_some() {
        // Of a shard that is named, nothing but itself is told.
        found.notes.iter().for_each(|note| options.progress.noted(note));
    }
    let shards_all = found.shards.len();
    let options = OpenOptions {
        format: Some(found.spec),
        shards,
        manifest: UseManifest::Never,
        ..options
    };
    let dataset = Dataset::open(store, context, &options).await?;
    Ok(Opened::Dataset(dataset, shards_all))
}

/// Shard and number of a sample, by its key, or by its number over all shards where samples have no keys.
async fn find_sample(dataset: &Dataset, wanted: &str) -> Result<(usize, u64)> {
    let mut before = 0;
    let number: Option<u64> = wanted.parse().ok();
    let mut by_number = None;
    for shard in 0..dataset.shards().len() {
        let table = dataset.table(shard).await?;
        if let Layout::Samples(samples) = &table.layout {
            let found = (0..samples.len()).find(|index| samples.keys.get(*index) == Some(wanted));
            if let Some(found) = found {
                return Ok((shard, found as u64));
            }
        }
        let here = number.and_then(|number| number.checked_sub(before));
        if let Some(here) = here.filter(|here| *here < table.samples()) {
            by_number = by_number.or(Some((shard, here)));
        }
        before += table.samples();
    }
    by_number.ok_or_else(|| no_sample(wanted, dataset.store().location()))
}

fn no_sample(wanted: &str, location: &Location) -> Error {
    let message = format!("there is no sample '{}'", wanted.escape_debug());
    Error::new(ErrorKind::NotFound, "inspect", message)
        .at(location)
        .with_hint("forebay inspect without --sample lists them; --samples COUNT lists more")
}

/// The group that holds a row of a shard, and the row's number there.
fn find_row(groups: &[Group], row: u64) -> Option<(usize, usize)> {
    let mut first = 0;
    for (number, group) in groups.iter().enumerate() {
        if let Some(within) = row.checked_sub(first).filter(|within| *within < group.samples) {
            return Some((number, usize::try_from(within).ok()?));
        }
        first += group.samples;
    }
    None
}

fn show_dataset(dataset: &Dataset, shards_max: u64, printer: &Printer) -> Printed {
    let (manifest, shards) = (dataset.manifest(), dataset.shards());
    let stored_bytes = shards.iter().map(|shard| shard.stored_bytes).sum();
    let shown = shards
        .iter()
        .take(usize::try_from(shards_max.max(1)).unwrap_or(usize::MAX));
    if printer.is_json() {
        printer.json(&Row::Dataset {
            url: dataset.store().location().to_string(),
            format: manifest.spec(),
            shards: shards.len(),
            samples: dataset.samples(),
            stored_bytes,
            fingerprint: Some(hex(&manifest.fingerprint())),
            fields: dataset.schema().fields(),
            listed: None,
        })?;
        return shown.map(shard_row).try_for_each(|row| printer.json(&row));
    }
    let mut grid = Grid::bare();
    grid.row(["url", &dataset.store().location().to_string()]);
    grid.row(["format", &manifest.spec().name]);
    grid.row([
        "shards",
        &format!("{} ({})", shards.len(), ByteSize(stored_bytes)),
    ]);
    grid.row(["samples", &dataset.samples().to_string()]);
    grid.row(["fingerprint", &hex(&manifest.fingerprint())]);
    show_fields(&mut grid, dataset.schema().fields());
    print(&grid, printer)?;
    let mut grid = Grid::new(&["shard", ">stored", ">raw", "codec", ">samples", "sha256"]);
    for shard in shown {
        grid.row([
            visible(shard.key.as_str()),
            shard.stored_bytes.to_string(),
            shard.raw_bytes.to_string(),
            format!("{:?}", shard.codec).to_lowercase(),
            shard.samples.to_string(),
            hex(&shard.sha256),
        ]);
    }
    printer.data("")?;
    print(&grid, printer)?;
    printer.data("")
}

fn show_fields(grid: &mut Grid, fields: &[Field]) {
    for field in fields {
        grid.row(["field", &format!("{}  {}", visible(&field.name), kind_of(field))]);
    }
}

fn shard_row(shard: &Shard) -> Row<'_> {
    Row::Shard {
        key: &shard.key,
        stored_bytes: shard.stored_bytes,
        raw_bytes: shard.raw_bytes,
        codec: shard.codec,
        sha256: Some(hex(&shard.sha256)),
        samples: shard.samples,
    }
}

/// What a field is, in one word or two.
fn kind_of(field: &Field) -> String {
    serde_json::to_value(&field.kind).map_or_else(
        |_| String::new(),
        |value| {
            let members = value.as_object().into_iter().flatten();
            let mut words: Vec<String> = members
                .map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                .collect();
            words.extend(field.unit.map(|unit| unit.to_string()));
            visible(&words.join(" "))
        },
    )
}

/// Show samples or groups of a table, which begins with number `before` of its shard; says how many there are.
fn show_rows(shard: &str, table: &Table, before: u64, rows: Range<u64>, printer: &Printer) -> Printed<u64> {
    let all = match &table.layout {
        Layout::Samples(samples) => samples.len() as u64,
        Layout::Groups(groups) => groups.list.len() as u64,
    };
    let numbers = rows.start..rows.end.min(all);
    let rows = numbers.clone().filter_map(|number| match &table.layout {
        Layout::Samples(samples) => sample_row(shard, table, samples, before, number),
        Layout::Groups(groups) => group_row(shard, table, groups, number),
    });
    if printer.is_json() {
        for row in rows {
            printer.json(&row)?;
        }
    } else {
        show_grid(rows, printer)?;
    }
    Ok(numbers.end.saturating_sub(numbers.start))
}

fn sample_row<'a>(
    shard: &'a str,
    table: &'a Table,
    samples: &'a Samples,
    before: u64,
    row: u64,
) -> Option<Row<'a>> {
    let index = usize::try_from(row).ok()?;
    let extent = samples.extent(index)?;
    let columns = table.fields.iter().zip(&samples.columns);
    let fields = columns.filter_map(|(field, column)| {
        let span = column.get(index)?;
        Some(Part {
            name: &field.name,
            offset: extent.start() + span.start as u64,
            bytes: span.len() as u64,
        })
    });
    Some(Row::Sample {
        shard,
        number: before + row,
        key: samples.keys.get(index),
        offset: extent.start(),
        bytes: extent.len(),
        crc32c: format!("{:08x}", samples.crcs.get(index)?),
        fields: fields.collect(),
    })
}

fn group_row<'a>(shard: &'a str, table: &'a Table, groups: &Groups, number: u64) -> Option<Row<'a>> {
    let index = usize::try_from(number).ok()?;
    let group = groups.list.get(index)?;
    let fields = table.fields.iter().enumerate();
    let chunks = fields.filter_map(|(column, field)| {
        Some(Chunk {
            name: &field.name,
            crc32c: format!("{:08x}", groups.chunk_crc(index, column)?),
        })
    });
    Some(Row::Group {
        shard,
        number,
        offset: group.extent.start(),
        bytes: group.extent.len(),
        samples: group.samples,
        chunks: chunks.collect(),
    })
}

fn show_grid<'a>(rows: impl Iterator<Item = Row<'a>>, printer: &Printer) -> Printed {
    let mut grid = Grid::new(&[
        "shard",
        ">number",
        "key",
        ">offset",
        ">bytes",
        "crc32c",
        "fields (bytes at offset)",
    ]);
    for row in rows {
        match row {
            Row::Sample {
                shard,
                number,
                key,
                offset,
                bytes,
                crc32c,
                fields,
            } => {
                let parts = fields
                    .iter()
                    .map(|part| format!("{} {} @{}", visible(part.name), part.bytes, part.offset));
                grid.row([
                    visible(shard),
                    number.to_string(),
                    key.map_or("-".to_owned(), visible),
                    offset.to_string(),
                    bytes.to_string(),
                    crc32c,
                    parts.collect::<Vec<_>>().join(", "),
                ]);
            }
            Row::Group {
                shard,
                number,
                offset,
                bytes,
                samples,
                chunks,
            } => {
                let sums = chunks
                    .iter()
                    .map(|chunk| format!("{} {}", visible(chunk.name), chunk.crc32c));
                let sums = sums.collect::<Vec<_>>().join(", ");
                grid.row([
                    visible(shard),
                    number.to_string(),
                    "-".to_owned(),
                    offset.to_string(),
                    bytes.to_string(),
                    "-".to_owned(),
                    format!("{} (crc32c of {sums})", count(samples, "row")),
                ]);
            }
            Row::Dataset { .. } | Row::Shard { .. } => {}
        }
    }
    print(&grid, printer)
}

fn print(grid: &Grid, printer: &Printer) -> Printed {
    grid.lines().try_for_each(|line| printer.data(line))
}
