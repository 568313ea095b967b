//! JPEGs in memory decoded into batches, on as many threads as the job says: the work `bench/clients/images.py` gives the peers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, anyhow};
use forebay_core::Seed;
use forebay_data::image::{Decoder, ImagePlan};

use crate::job::{Job, Meter};
use crate::{Contender, Done};

/// Images of a batch: each thread fills its own, again and again.
const BATCH_IMAGES: usize = 64;

/// Decodes every image of a folder `passes` times.
pub(crate) struct Images {
    files: Vec<Vec<u8>>,
    threads: Vec<(Decoder, Vec<u8>)>,
    passes: usize,
    epoch: u64,
}

impl Images {
    pub(crate) fn new(job: &Job) -> Result<Self> {
        let plan = Arc::new(ImagePlan::parse(job.text("plan")?)?);
        let mut paths: Vec<_> = std::fs::read_dir(job.text("folder")?)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        paths.sort();
        let files = paths.iter().map(std::fs::read).collect::<Result<_, _>>()?;
        let threads = (0..job.number("threads")?)
            .map(|_| {
                let batch = vec![0; BATCH_IMAGES * plan.output_bytes()];
                (Decoder::new(Arc::clone(&plan), Seed(1), 0), batch)
            })
            .collect();
        Ok(Self {
            files,
            threads,
            passes: job.number("passes")? as usize,
            epoch: 0,
        })
    }

    fn decode(&mut self) -> Result<u64> {
        self.epoch += 1;
        let (files, epoch) = (&self.files, self.epoch);
        let total = files.len() * self.passes;
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let workers: Vec<_> = self
                .threads
                .iter_mut()
                .map(|(decoder, batch)| {
                    let next = &next;
                    scope.spawn(move || work(decoder, batch, files, epoch, total, next))
                })
                .collect();
            let mut done = 0;
            for worker in workers {
                done += worker.join().map_err(|_| anyhow!("a thread panicked"))??;
            }
            Ok(done)
        })
    }
}

fn work(
    decoder: &mut Decoder,
    batch: &mut [u8],
    files: &[Vec<u8>],
    epoch: u64,
    total: usize,
    next: &AtomicUsize,
) -> Result<u64> {
    let bytes = decoder.plan().output_bytes();
    decoder.set_epoch(epoch);
    let mut slots = 0;
    let mut done = 0;
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= total {
            return Ok(done);
        }
        let slot = slots % BATCH_IMAGES * bytes;
        let out = batch
            .get_mut(slot..slot + bytes)
            .context("the batch is too small")?;
        decoder.decode_into(&files[index % files.len()], index as u64, out)?;
        slots += 1;
        done += 1;
    }
}

impl Contender for Images {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            let meter = Meter::start();
            // The harness counts images where it otherwise counts bytes.
            let images = self.decode()?;
            Ok(meter.done(images))
        })
    }
}
