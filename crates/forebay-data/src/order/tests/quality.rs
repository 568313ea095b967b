//! How good the shuffle is, in the figures that docs/concepts/order.md states, beside a plain buffer of 1,000 samples.
//!
//! The data set is one whose shards were written in the order of their labels: 256 shards of 1,000 samples of 110 kB, 1,000 labels.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const SHARDS: u64 = 256;
const SHARD_SAMPLES: u64 = 1000;
const SAMPLE_BYTES: u64 = 110_000;
const LABELS: u64 = 1000;
const BATCH: usize = 256;

/// What is measured of an order.
#[derive(Debug)]
struct Quality {
    /// Mean number of different shards in a batch.
    shards: f64,
    /// Mean number of different labels in a batch.
    labels: f64,
    /// Variance of the mean place of a batch's samples in the data set, relative to that of random batches.
    variance: f64,
    /// Most samples of one batch that lie within 38 neighbours of the data set (one block), as a share.
    share: f64,
    /// Correlation of the mean places of consecutive batches.
    lag: f64,
    /// Share of pairs of neighbours in the data set that are in one batch.
    together: f64,
}

fn place((shard, sample): Sample) -> u64 {
    u64::from(shard) * SHARD_SAMPLES + sample
}

fn measure(batches: &[Vec<Sample>]) -> Quality {
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let distinct = |part: fn(Sample) -> u64| {
        let count =
            |batch: &Vec<Sample>| batch.iter().map(|s| part(*s)).collect::<BTreeSet<_>>().len() as f64;
        mean(batches.iter().map(count).collect())
    };
    let total = (SHARDS * SHARD_SAMPLES) as f64;
    let centre = |batch: &Vec<Sample>| mean(batch.iter().map(|s| place(*s) as f64 / total).collect()) - 0.5;
    let centres: Vec<f64> = batches.iter().map(centre).collect();
    let power: f64 = centres.iter().map(|centre| centre.powi(2)).sum();
    let lag = centres.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / power;
    // A uniform place has variance 1/12.
    let variance = power / batches.len() as f64 * 12.0 * BATCH as f64;
    let largest = |batch: &Vec<Sample>| {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for sample in batch {
            *counts.entry(place(*sample) / 38).or_default() += 1;
        }
        counts.into_values().max().unwrap_or(0)
    };
    let together = |batch: &Vec<Sample>| {
        let places: BTreeSet<u64> = batch.iter().map(|s| place(*s)).collect();
        places
            .iter()
            .filter(|place| places.contains(&(**place + 1)))
            .count() as f64
    };
    Quality {
        shards: distinct(|sample| u64::from(sample.0)),
        labels: distinct(|sample| place(sample) * LABELS / (SHARDS * SHARD_SAMPLES)),
        variance,
        lag,
        share: batches.iter().map(largest).max().unwrap_or(0) as f64 / BATCH as f64,
        together: batches.iter().map(together).sum::<f64>() / total,
    }
}

fn forebay(block_bytes: u64, window_bytes: u64) -> Quality {
    let spec = OrderSpec {
        seed: Seed(11),
        shuffle: true,
        batch_size: BATCH as u64,
        block_bytes,
        window_bytes,
        ..OrderSpec::default()
    };
    let shards = plain(SHARDS as usize, SHARD_SAMPLES, SAMPLE_BYTES);
    measure(&global_batches(&shards, &spec, 1, 0))
}

/// Shards in random order, and a buffer from which a random sample is taken whenever one comes in.
fn buffer(samples: usize) -> Quality {
    let mut rng = Seed(11).rng();
    let mut shards: Vec<u32> = (0..SHARDS as u32).collect();
    rng.shuffle(&mut shards);
    let row = shards
        .iter()
        .flat_map(|shard| (0..SHARD_SAMPLES).map(move |sample| (*shard, sample)));
    let mut held: Vec<Sample> = Vec::new();
    let mut order = Vec::new();
    for sample in row {
        held.push(sample);
        if held.len() > samples {
            order.push(held.swap_remove(rng.below(held.len() as u64) as usize));
        }
    }
    rng.shuffle(&mut held);
    order.extend(held);
    measure(&chunks(&order))
}

fn perfect() -> Quality {
    let samples = |shard| (0..SHARD_SAMPLES).map(move |sample| (shard, sample));
    let mut order: Vec<Sample> = (0..SHARDS as u32).flat_map(samples).collect();
    Seed(11).rng().shuffle(&mut order);
    measure(&chunks(&order))
}

fn chunks(order: &[Sample]) -> Vec<Vec<Sample>> {
    order.chunks_exact(BATCH).map(<[Sample]>::to_vec).collect()
}

/// The figures of the document, each with room for another seed.
#[test]
fn batches_are_mixed_as_stated() {
    let coarse = forebay(4 << 20, 256 << 20);
    let default = forebay(
        OrderSpec::default().block_bytes,
        OrderSpec::default().window_bytes,
    );
    let fine = forebay(1 << 20, 256 << 20);
    let large = forebay(2 << 20, 1 << 30);
    let (buffer, perfect) = (buffer(1000), perfect());
    println!("{coarse:.3?}\n{default:.3?}\n{fine:.3?}\n{large:.3?}\n{buffer:.3?}\n{perfect:.3?}");
    assert!(coarse.shards > 65.0 && coarse.labels > 70.0, "{coarse:?}");
    assert!(default.shards > 100.0 && default.labels > 115.0, "{default:?}");
    assert!(default.variance < 2.2 && default.share < 0.03, "{default:?}");
    assert!(default.together < 0.09 && default.lag < 0.8, "{default:?}");
    for better in [&fine, &large] {
        assert!(better.shards > 130.0 && better.labels > 160.0, "{better:?}");
        assert!(better.variance < 1.8 && better.share < 0.025, "{better:?}");
        assert!(better.lag < 0.65, "{better:?}");
    }
    assert!(large.together < 0.025, "{large:?}");
    // What it is compared with.
    assert!(buffer.shards < 8.0 && buffer.labels < 25.0, "{buffer:?}");
    assert!(buffer.variance > 60.0 && buffer.share > 0.05, "{buffer:?}");
    assert!(buffer.together > 0.1 && buffer.lag > 0.9, "{buffer:?}");
    assert!((0.85..1.15).contains(&perfect.variance), "{perfect:?}");
    assert!(perfect.labels > 220.0 && perfect.lag.abs() < 0.1, "{perfect:?}");
}

/// Every sample is as likely in one part of the epoch as in another.
#[test]
fn samples_come_anywhere_in_the_epoch() {
    const EPOCHS: u64 = 1000;
    const PARTS: usize = 10;
    // 99.9 per cent of the values of a chi-square with 9 degrees of freedom are below this.
    const BOUND: f64 = 27.88;
    let shards = plain(32, 25, 100);
    let spec = OrderSpec {
        shuffle: true,
        lanes: 8,
        batch_size: 8,
        block_bytes: 500,
        window_bytes: 16_000,
        spread: 2,
        last: Last::Short,
        ..OrderSpec::default()
    };
    let watched: Vec<Sample> = (0..32).map(|index| (index, u64::from(index * 7 % 25))).collect();
    let mut counts = vec![[0_u64; PARTS]; watched.len()];
    let order = Order::new(shards, spec).unwrap();
    for epoch in 0..EPOCHS {
        let samples = rank_batches(&order.epoch(epoch), 0).concat();
        for (index, sample) in samples.iter().enumerate() {
            if watched[sample.0 as usize] == *sample {
                counts[sample.0 as usize][index * PARTS / samples.len()] += 1;
            }
        }
    }
    let expected = EPOCHS as f64 / PARTS as f64;
    let chi_square = |counts: &[u64; PARTS]| -> f64 {
        let terms = counts
            .iter()
            .map(|count| (*count as f64 - expected).powi(2) / expected);
        terms.sum()
    };
    let values: Vec<f64> = counts.iter().map(chi_square).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    println!("mean {mean:.2}, all {values:.1?}");
    assert!(values.iter().all(|value| *value < BOUND), "{values:.1?}");
    // The mean of 32 such values is 9, give or take 0.75.
    assert!((6.0..12.0).contains(&mean), "{mean}");
}
