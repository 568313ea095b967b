//! `forebay cat`: an object, or a range of it, to stdout, in bounded memory.
//!
//! Ranges of one version are read ahead side by side and written in order; how far ahead is bounded by the requests in flight and by the
//! pool they lease from. A whole object is compared with the checksum its store keeps. Bytes are out by then, so a mismatch is
//! told by the exit status: whoever uses them must look at it.

use std::sync::Arc;

use forebay_core::{ByteSize, Crc32c, Crc64Nvme, Error, ErrorKind, Key, Result, Span};
use forebay_store::cache::Mode;
use forebay_store::{Checksum, Context, ObjectMeta, ReadOptions, Store};
use futures::{StreamExt, TryStreamExt};

use crate::Exit;
use crate::app::App;
use crate::args::CatArgs;
use crate::outlet::Outlet;
use crate::printer::{Printed, Stop};
use crate::progress::Bar;
use crate::target::{Found, Target};

/// Ranges read ahead of the reader of stdout.
const RANGES_AHEAD_MAX: usize = 8;

/// Stream.
pub(super) async fn run(args: &CatArgs, app: &App) -> Printed<Exit> {
    let range = args.range.as_deref().map(Range::parse).transpose()?;
    let target = Target::parse(&args.url)?;
    let context = app.context()?;
    let (store, key, meta) = match target.look(&context).await? {
        Found::Object { store, key, meta } => (store, key, meta),
        Found::Prefix { .. } => {
            let message = "this is a directory or prefix, not an object";
            return Err(Error::new(ErrorKind::InvalidInput, "cat", message)
                .at(&target.location)
                .with_hint("forebay ls lists it")
                .into());
        }
    };
    let span = match range {
        Some(range) => range.of(meta.size).map_err(|error| error.at(&target.location))?,
        None => Span::first(meta.size),
    };
    let mut sums = Sums::new(&meta, span);
    // A part of a large file is no reason to fetch all of it.
    let mode = if range.is_some() {
        Mode::Blocks
    } else {
        Mode::Whole
    };
    let source = app.source(store, mode, &context).await?;
    let mut outlet = Outlet::open(app)?;
    let bar = Bar::of_data(app.printer(), "reading", span.len());
    let ranges = read_ahead(source.store(), key, &meta, span, &context);
    let written = write(ranges, &mut outlet, &mut sums, &bar).await;
    let written = outlet.close(written).await;
    bar.finish();
    written?;
    source.finish(app.printer()).await;
    sums.compare()
        .map_err(|error| Stop::Error(error.at(&target.location)))?;
    Ok(Exit::Success)
}

async fn write(
    ranges: impl futures::Stream<Item = Result<forebay_io::Buf>>,
    outlet: &mut Outlet,
    sums: &mut Sums,
    bar: &Bar,
) -> Printed {
    let mut ranges = std::pin::pin!(ranges);
    while let Some(bytes) = ranges.try_next().await? {
        sums.update(&bytes);
        let len = bytes.len() as u64;
        outlet.bytes(bytes).await?;
        bar.add(len);
    }
    Ok(())
}

fn read_ahead(
    store: Arc<dyn Store>,
    key: Key,
    meta: &ObjectMeta,
    span: Span,
    context: &Context,
) -> impl futures::Stream<Item = Result<forebay_io::Buf>> {
    let limits = context.limits();
    let step = limits.part_bytes.min(context.pool().lease_bytes_max() as u64);
    let ahead = RANGES_AHEAD_MAX.min(limits.store_requests_max.max(1) as usize);
    let (pool, version) = (context.pool().clone(), meta.version.clone());
    futures::stream::iter(span.pieces(step))
        // Leased in order: were a later range to hold the last memory, the one that must be written first would wait for ever.
        .then(move |piece| {
            let lease = pool.lease(piece.len() as usize);
            async move { Ok::<_, Error>((piece, lease.await??)) }
        })
        .map(move |leased| {
            let (store, key, version) = (Arc::clone(&store), key.clone(), version.clone());
            // As a task, so that reading goes on while stdout blocks; aborted with the stream.
            let task = AbortOnDrop(tokio::spawn(async move {
                let (piece, buf) = leased?;
                let options = ReadOptions {
                    version,
                    ..ReadOptions::default()
                };
                let done = store.read_into(&key, piece, buf, &options).await?;
                Ok(done.buf.freeze().slice(..piece.len() as usize))
            }));
            async move { task.wait().await }
        })
        .buffered(ahead)
}

/// A task that ends when nobody waits for it any more.
struct AbortOnDrop<T>(tokio::task::JoinHandle<Result<T>>);

impl<T> AbortOnDrop<T> {
    async fn wait(mut self) -> Result<T> {
        (&mut self.0).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, "cat", "a reading task ended").with_source(error))
        })
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A running checksum of the kind the store keeps; nothing for a part of an object.
enum Sums {
    Nothing,
    Crc32c(Crc32c, u32),
    Crc64Nvme(Crc64Nvme, u64),
}

impl Sums {
    fn new(meta: &ObjectMeta, span: Span) -> Self {
        match meta.checksum {
            _ if span != Span::first(meta.size) => Self::Nothing,
            None => Self::Nothing,
            Some(Checksum::Crc32c(kept)) => Self::Crc32c(Crc32c::default(), kept),
            Some(Checksum::Crc64Nvme(kept)) => Self::Crc64Nvme(Crc64Nvme::default(), kept),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Crc32c(running, _) => running.update(bytes),
            Self::Crc64Nvme(running, _) => running.update(bytes),
        }
    }

    fn compare(&self) -> Result<()> {
        let matches = match self {
            Self::Nothing => true,
            Self::Crc32c(running, kept) => running.value() == *kept,
            Self::Crc64Nvme(running, kept) => running.value() == *kept,
        };
        if matches {
            return Ok(());
        }
        let message = "the bytes written do not have the checksum that the store keeps";
        Err(Error::new(ErrorKind::Corrupt, "cat", message)
            .with_hint("do not use them; read the object again"))
    }
}

/// `A-B`, `A-` or `-N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    From(u64, Option<u64>),
    Last(u64),
}

impl Range {
    fn parse(text: &str) -> Result<Self> {
        let refuse = || {
            let message = format!("'{}' is not a range", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, "cat", message)
                .with_hint("write 0-4096 for the first 4096 bytes, 4KiB- for the rest, -100 for the last 100")
        };
        let (start, end) = text.split_once('-').ok_or_else(refuse)?;
        let size = |text: &str| text.parse::<ByteSize>().map(|size| size.0).map_err(|_| refuse());
        match (start, end) {
            ("", "") => Err(refuse()),
            ("", last) => Ok(Self::Last(size(last)?)),
            (start, "") => Ok(Self::From(size(start)?, None)),
            (start, end) => {
                let (start, end) = (size(start)?, size(end)?);
                if end < start {
                    Err(refuse())
                } else {
                    Ok(Self::From(start, Some(end)))
                }
            }
        }
    }

    /// The bytes it names in an object of that size; a range that begins beyond the end is an error, one that ends there is cut.
    fn of(self, size: u64) -> Result<Span> {
        match self {
            Self::Last(count) => Span::new(size.saturating_sub(count), size),
            Self::From(start, _) if start > size => {
                let message = format!("the range begins at {start}, but the object has {size} bytes");
                Err(Error::new(ErrorKind::InvalidInput, "cat", message))
            }
            Self::From(start, end) => Span::new(start, end.unwrap_or(size).min(size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_mean_what_they_say() {
        for (text, start, end) in [
            ("0-10", 0, 10),
            ("5-", 5, 100),
            ("-10", 90, 100),
            ("-1000", 0, 100),
            ("0-1KiB", 0, 100),
            ("100-", 100, 100),
            ("7-7", 7, 7),
        ] {
            let span = Range::parse(text).unwrap().of(100).unwrap();
            assert_eq!((span.start(), span.end()), (start, end), "{text}");
        }
        for text in ["", "-", "a-b", "10-5", "10"] {
            assert!(Range::parse(text).is_err(), "{text}");
        }
        assert!(Range::parse("101-").unwrap().of(100).is_err());
    }
}
