//! Bytes in flight with a slow consumer: the pool's ceiling must hold, and the process must not grow beyond it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_core::{Key, Span};
use forebay_io::memory_peak_bytes;
use forebay_store::{Context, ReadOptions, Store, StoreExt as _};
use futures::StreamExt as _;

use crate::job::{Job, Meter};
use crate::{Contender, Done, remote};

/// Reads everything in ranges, all at once as far as memory allows, while the consumer sleeps over each of them.
pub(crate) struct Slow {
    store: Arc<dyn Store>,
    context: Context,
    ranges: Vec<(Key, Span)>,
    in_flight: usize,
    pause: Duration,
    /// Before the first byte was asked for.
    rss_before: u64,
}

impl Slow {
    pub(crate) async fn new(job: Job) -> Result<Self> {
        let (store, context) = remote::open(&job).await?;
        let mut ranges = Vec::new();
        for key in job.keys()? {
            let key = Key::parse(&key)?;
            let spans = Span::first(job.number("object_bytes")?).pieces(job.number("range_bytes")?);
            ranges.extend(spans.map(|span| (key.clone(), span)));
        }
        let in_flight = job.number("in_flight")? as usize;
        let pause = Duration::from_millis(job.number("pause_ms")?);
        Ok(Self {
            store,
            context,
            ranges,
            in_flight,
            pause,
            rss_before: memory_peak_bytes(),
        })
    }
}

impl Contender for Slow {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            let meter = Meter::start();
            let reads = self.ranges.iter().map(|(key, span)| {
                let (store, context, key, span) =
                    (Arc::clone(&self.store), self.context.clone(), key.clone(), *span);
                // Each read is a task of its own: it goes on while the consumer sleeps.
                tokio::spawn(async move { store.read(&key, span, &ReadOptions::default(), &context).await })
            });
            // In the order in which they finish: an ordered consumer could wait for a read that waits for memory the others hold.
            let mut reads = futures::stream::iter(reads).buffer_unordered(self.in_flight);
            let mut moved = 0;
            while let Some(done) = reads.next().await {
                let (buf, _) = done??;
                tokio::time::sleep(self.pause).await;
                moved += buf.len() as u64;
            }
            let mut done = meter.done(moved);
            let stats = self.context.pool().stats();
            ensure!(
                stats.leased_bytes_peak <= stats.bytes_max,
                "more was leased than allowed"
            );
            done.extra
                .insert("pool_bytes_max".to_owned(), stats.bytes_max.into());
            done.extra
                .insert("pool_bytes_peak".to_owned(), stats.leased_bytes_peak.into());
            done.extra.insert("pool_waits".to_owned(), stats.waits.into());
            done.extra
                .insert("rss_bytes_before".to_owned(), self.rss_before.into());
            Ok(done)
        })
    }
}
