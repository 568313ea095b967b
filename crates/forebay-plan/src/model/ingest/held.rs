//! What reading holds: the data set, its shards, the memory of prefetching and shuffling; and whether a job waits for it.

use forebay_core::Result;

use super::Request;
use crate::sheet::{Num, Sheet, ceil, wrong};

/// Above this share of waiting a job is bound by its input.
const STALL_SHARE_MAX: f64 = 0.1;

/// Bytes of the data set, from whatever describes it.
pub(super) fn dataset(sheet: &mut Sheet, request: &Request, token: Num) -> Result<Option<Num>> {
    let size = sheet.maybe("dataset_size", request.dataset_size);
    let samples = sheet.maybe("dataset_samples", request.dataset_samples);
    if let Some(size) = size {
        let size = size.positive()?;
        if let Some(samples) = samples {
            let mean = size.v / samples.positive()?.v;
            let inputs = [size, samples];
            let formula = "dataset_size / dataset_samples";
            let mean = sheet.bytes("sample_mean", mean, formula, &inputs)?;
            if let Some(rate) = sheet.maybe("samples_per_second", request.samples_per_second) {
                let formula = "samples_per_second x sample_mean";
                let inputs = [rate, mean];
                let value = rate.v * mean.v;
                sheet.rate("read_rate_mean", value, formula, &inputs)?;
            }
        }
        let formula = "dataset_size";
        return sheet.bytes("dataset_bytes", size.v, formula, &[size]).map(Some);
    }
    let sample = sheet.maybe("sample_size", request.sample_size);
    if let (Some(samples), Some(sample)) = (samples, sample) {
        let formula = "dataset_samples x sample_size";
        let value = samples.positive()?.v * sample.positive()?.v;
        let inputs = [samples, sample];
        let figure = sheet.bytes("dataset_bytes", value, formula, &inputs)?;
        return Ok(Some(figure));
    }
    if let Some(tokens) = sheet.maybe("tokens_total", request.tokens_total) {
        let formula = "tokens_total x bytes_per_token";
        let inputs = [tokens.positive()?, token];
        let value = tokens.v * token.v;
        let figure = sheet.bytes("dataset_bytes", value, formula, &inputs)?;
        return Ok(Some(figure));
    }
    Ok(None)
}

/// How many shards the data set has.
pub(super) fn shards(sheet: &mut Sheet, request: &Request, dataset: Num) -> Result<()> {
    let per_shard = sheet.maybe("samples_per_shard", request.samples_per_shard);
    let samples = sheet.maybe("dataset_samples", request.dataset_samples);
    if let (Some(per_shard), Some(samples)) = (per_shard, samples) {
        let count = ceil(samples.positive()?.v / per_shard.whole()?.v);
        let inputs = [samples, per_shard];
        let formula = "ceil(dataset_samples / samples_per_shard)";
        let shards = sheet.count("shards", count, formula, &inputs)?;
        let inputs = [dataset, shards];
        let formula = "dataset_bytes / shards";
        let size = dataset.v / shards.v;
        sheet.bytes("shard_bytes", size, formula, &inputs)?;
        return Ok(());
    }
    let size = sheet.given("shard_size", request.shard_size).positive()?;
    let count = |size: f64| ceil(dataset.v / size);
    let formula = "ceil(dataset_bytes / shard_size)";
    let inputs = [dataset, size];
    let shards = sheet.count("shards", count(size.v), formula, &inputs)?;
    let answers = [
        ("shards of 64 MB", count(64e6), false),
        ("shards of shard_size", shards.v, true),
        ("shards of 1 GB", count(1e9), false),
        ("shards of 10 GB", count(1e10), false),
    ];
    sheet.reading(
        shards,
        "advice on the size of shards ranges from 64 MB to 10 GB",
        &answers,
    );
    let gpus = sheet.given("gpus", request.gpus);
    if shards.v < gpus.v {
        let message = format!(
            "{} shards cannot keep {} GPUs busy: make shards smaller",
            shards.v, gpus.v
        );
        sheet.warn("shards", message);
    }
    Ok(())
}

/// Memory of prefetching and shuffling.
pub(super) fn memory(sheet: &mut Sheet, request: &Request, gpus: Num) -> Result<()> {
    let sample = sheet.maybe("sample_size", request.sample_size);
    let batch = match (request.batch_size, request.batch, sample) {
        (Some(size), _, _) => Some(sheet.given("batch_size", size).positive()?),
        (None, Some(batch), Some(sample)) => {
            let batch = sheet.given("batch", batch).positive()?;
            let formula = "batch x sample_size";
            let inputs = [batch, sample];
            Some(sheet.bytes("batch_bytes", batch.v * sample.v, formula, &inputs)?)
        }
        _ => None,
    };
    let node = sheet.given("gpus_per_node", request.gpus_per_node).whole()?;
    let ranks = node.v.min(gpus.v);
    if let Some(batch) = batch {
        let prefetch = sheet.given("prefetch", request.prefetch);
        let workers = sheet.given("workers", request.workers);
        let ahead = prefetch.v * workers.v;
        let formula = "prefetch x workers";
        let count = sheet.count("batches_ahead", ahead, formula, &[prefetch, workers])?;
        let formula = format!("batches_ahead x {}: each rank holds so much", batch.name);
        let rank = sheet.bytes("prefetch_rank", count.v * batch.v, &formula, &[count, batch])?;
        let formula = "prefetch_rank x min(gpus_per_node, gpus)";
        let inputs = [rank, node, gpus];
        sheet.bytes("prefetch_node", rank.v * ranks, formula, &inputs)?;
    }
    if let (Some(shuffle), Some(sample)) = (request.shuffle_samples, sample) {
        let shuffle = sheet.given("shuffle_samples", shuffle);
        let formula = "shuffle_samples x sample_size";
        let value = shuffle.v * sample.v;
        let inputs = [shuffle, sample];
        let rank = sheet.bytes("shuffle_rank", value, formula, &inputs)?;
        let formula = "shuffle_rank x min(gpus_per_node, gpus)";
        let inputs = [rank, node, gpus];
        sheet.bytes("shuffle_node", rank.v * ranks, formula, &inputs)?;
    }
    Ok(())
}

/// Whether the job waits for its data.
pub(super) fn stall(sheet: &mut Sheet, request: &Request) -> Result<()> {
    let (Some(load), Some(step)) = (request.load_time, request.step_time) else {
        return Ok(());
    };
    let load = sheet.given("load_time", load);
    let step = sheet.given("step_time", step).positive()?;
    if load.v > step.v {
        return Err(wrong(
            format!(
                "a step of {} cannot wait {} for its data",
                step.text(),
                load.text()
            ),
            "give step_time as the whole step, waiting included, and load_time as the part of it that waits",
        ));
    }
    let formula = "load_time / step_time; above 10 % the job is bound by its input";
    let share = load.v / step.v;
    let share = sheet.ratio("stall_share", share, formula, &[load, step])?;
    if share.v > STALL_SHARE_MAX {
        sheet.warn(
            "stall_share",
            format!("{} of each step waits for data", share.text()),
        );
    }
    Ok(())
}
