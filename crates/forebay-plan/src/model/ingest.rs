//! Reading training data: how much per second, how many shards, and how much memory the reading takes.
//!
//! The demand comes from tokens (bytes per token follow from the vocabulary), from samples, or from a workload of MLPerf Storage;
//! `held.rs` says what the data set, its shards and the memory of readers take.

mod held;

use forebay_core::Result;

use crate::field::{choice, request};
use crate::hardware::H100_FLOPS;
use crate::quantity::{Bytes, Count, Flops, PerSecond, Ratio, Seconds, lit};
use crate::report::Report;
use crate::sheet::{Num, Sheet, wrong};
use crate::source;

choice! {
    /// A workload of MLPerf Storage on one accelerator.
    Workload {
        /// 3D U-Net on H100: 7 samples of 146.6 MB in 0.323 s.
        Unet3dH100 = "unet3d-h100",
        /// 3D U-Net on A100: the same in 0.636 s.
        Unet3dA100 = "unet3d-a100",
        /// ResNet-50 on H100: 400 samples of 114.66 kB in 0.224 s.
        Resnet50H100 = "resnet50-h100",
        /// CosmoFlow on H100: 1 sample of 2.83 MB in 3.5 ms.
        CosmoflowH100 = "cosmoflow-h100",
    }
}

impl Workload {
    /// Samples per step, bytes per sample, seconds per step.
    pub const fn step(self) -> [f64; 3] {
        match self {
            Self::Unet3dH100 => [7.0, 146.6e6, 0.323],
            Self::Unet3dA100 => [7.0, 146.6e6, 0.636],
            Self::Resnet50H100 => [400.0, 114.66e3, 0.224],
            Self::CosmoflowH100 => [1.0, 2.83e6, 0.0035],
        }
    }
}

request! {
    /// What to ask about reading training data.
    Request {
        /// GPUs of the job.
        gpus: Count = lit(8.0),
        /// GPUs in a node.
        gpus_per_node: Count = lit(8.0),
        /// Tokens per second and GPU.
        tokens_per_gpu: Option<PerSecond> = None,
        /// Tokens of the whole training.
        tokens_total: Option<Count> = None,
        /// Time they are read in; from parameters and compute rate when not given.
        duration: Option<Seconds> = None,
        /// Tokens in the vocabulary; the default is that of Llama 3.
        vocab: Count = lit(128_256.0),
        /// Bytes of a token, instead of 2 or 4 by vocabulary.
        bytes_per_token: Option<Bytes> = None,
        /// Samples (images) per second of the whole job.
        samples_per_second: Option<PerSecond> = None,
        /// Bytes of a sample.
        sample_size: Option<Bytes> = None,
        /// Samples per step and GPU.
        batch: Option<Count> = None,
        /// Time of a whole step, waiting included.
        step_time: Option<Seconds> = None,
        /// Time a step waits for data.
        load_time: Option<Seconds> = None,
        /// A workload of MLPerf Storage.
        workload: Option<Workload> = None,
        /// Samples of the data set.
        dataset_samples: Option<Count> = None,
        /// Bytes of the data set.
        dataset_size: Option<Bytes> = None,
        /// Bytes of a shard.
        shard_size: Bytes = lit(256e6),
        /// Samples of a shard, instead of a size.
        samples_per_shard: Option<Count> = None,
        /// Batches each worker holds ready.
        prefetch: Count = lit(4.0),
        /// Workers per rank.
        workers: Count = lit(16.0),
        /// Bytes of a batch; from batch and sample size when not given.
        batch_size: Option<Bytes> = None,
        /// Samples in the shuffle buffer of a rank.
        shuffle_samples: Option<Count> = None,
        /// Number of parameters, for the time of the training and to check the tokens per second.
        params: Option<Count> = None,
        /// Dense compute rate of a GPU; the default is an H100's in BF16.
        flops: Flops = lit(H100_FLOPS),
        /// Share of that rate a training reaches.
        mfu: Ratio = lit(0.4),
    }
}

/// 16 bits name this many tokens.
const TOKENS_16_BIT: f64 = 65_536.0;

/// An upper envelope that is often quoted: 1 GB/s of reads per 100 TFLOP/s.
const ENVELOPE_BYTES_PER_FLOP: f64 = 1e9 / 100e12;

/// Tokens per second imply a number of parameters; a factor of three between the two is no rounding.
const PARAMS_FACTOR_MAX: f64 = 3.0;

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("ingest");
    let gpus = sheet.given("gpus", request.gpus).whole()?;
    sheet.group("demand");
    let token = bytes_per_token(&mut sheet, request)?;
    let duration = duration(&mut sheet, request, gpus)?;
    if let Some(sample) = sheet.maybe("sample_size", request.sample_size) {
        sample.positive()?;
    }
    let rate = demand(&mut sheet, request, gpus, token, duration)?;
    sources(&mut sheet, request, duration);
    rates(&mut sheet, request, gpus, rate)?;
    sheet.group("data set");
    let dataset = held::dataset(&mut sheet, request, token)?;
    if let Some(dataset) = dataset {
        held::shards(&mut sheet, request, dataset)?;
        let time = dataset.v / rate.positive()?.v;
        let inputs = [dataset, rate];
        let formula = "dataset_bytes / read_rate";
        sheet.seconds("epoch_time", time, formula, &inputs)?;
    }
    sheet.group("memory");
    held::memory(&mut sheet, request, gpus)?;
    held::stall(&mut sheet, request)?;
    Ok(sheet.finish())
}

fn bytes_per_token(sheet: &mut Sheet, request: &Request) -> Result<Num> {
    if let Some(bytes) = sheet.maybe("bytes_per_token", request.bytes_per_token) {
        return bytes.positive();
    }
    let vocab = sheet.given("vocab", request.vocab).whole()?;
    let bytes = if vocab.v <= TOKENS_16_BIT { 2.0 } else { 4.0 };
    let formula = format!("{bytes}: 2 for a vocab up to 65,536, else 4");
    sheet
        .from(source::TOKENS)
        .bytes("bytes_per_token", bytes, &formula, &[vocab])
}

/// Time of the whole training: given, or 6 N D over what the GPUs compute.
fn duration(sheet: &mut Sheet, request: &Request, gpus: Num) -> Result<Option<Num>> {
    let given = sheet.maybe("duration", request.duration);
    let given = given.map(Num::positive).transpose()?;
    let params = sheet.maybe("params", request.params);
    let tokens = sheet.maybe("tokens_total", request.tokens_total);
    let (Some(params), Some(tokens)) = (params, tokens) else {
        return Ok(given);
    };
    let flops = sheet.given("flops", request.flops).positive()?;
    let mfu = sheet.given("mfu", request.mfu).share()?;
    let inputs = [params.positive()?, tokens.positive()?, gpus, flops, mfu];
    let time = 6.0 * params.v * tokens.v / (gpus.v * flops.v * mfu.v);
    let formula = "6 x params x tokens_total / (gpus x flops x mfu)";
    let computed = sheet
        .from(source::SCALING)
        .seconds("train_time", time, formula, &inputs)?;
    if let Some(given) = given {
        let factor = given.v / computed.v;
        if !(0.5..=2.0).contains(&factor) {
            let message = format!("{} are given, the GPUs need {}", given.text(), computed.text());
            sheet.warn("train_time", message);
        }
        return Ok(Some(given));
    }
    Ok(Some(computed))
}

/// Bytes per second of the whole job.
fn demand(sheet: &mut Sheet, request: &Request, gpus: Num, token: Num, duration: Option<Num>) -> Result<Num> {
    if let Some(tokens) = sheet.maybe("tokens_per_gpu", request.tokens_per_gpu) {
        pace(sheet, request, tokens.positive()?)?;
        let inputs = [gpus, tokens, token];
        let formula = "gpus x tokens_per_gpu x bytes_per_token";
        let rate = gpus.v * tokens.v * token.v;
        return sheet.rate("read_rate", rate, formula, &inputs);
    }
    if let (Some(tokens), Some(duration)) = (request.tokens_total, duration) {
        let tokens = sheet.given("tokens_total", tokens).positive()?;
        let inputs = [tokens, token, duration];
        let formula = format!(
            "tokens_total x bytes_per_token / {}: the whole job, not each GPU",
            duration.name
        );
        let rate = tokens.v * token.v / duration.v;
        return sheet.rate("read_rate", rate, &formula, &inputs);
    }
    if let Some(workload) = request.workload {
        let [batch, sample, time] = workload.step();
        let formula = format!(
            "gpus x {batch} x {sample} / {time}: samples of so many bytes per so many seconds of {}",
            workload.name()
        );
        let rate = gpus.v * batch * sample / time;
        return sheet
            .from(source::MLPERF)
            .rate("read_rate", rate, &formula, &[gpus]);
    }
    let sample = sheet.maybe("sample_size", request.sample_size);
    if let (Some(rate), Some(sample)) = (request.samples_per_second, sample) {
        let samples = sheet.given("samples_per_second", rate).positive()?;
        let inputs = [samples, sample];
        let formula = "samples_per_second x sample_size";
        return sheet.rate("read_rate", samples.v * sample.v, formula, &inputs);
    }
    if let (Some(sample), Some(batch), Some(time)) = (sample, request.batch, request.step_time) {
        let batch = sheet.given("batch", batch).positive()?;
        let time = sheet.given("step_time", time).positive()?;
        let inputs = [gpus, batch, sample, time];
        let formula = "gpus x batch x sample_size / step_time";
        let rate = gpus.v * batch.v * sample.v / time.v;
        return sheet
            .from(source::MLPERF)
            .rate("read_rate", rate, formula, &inputs);
    }
    Err(wrong(
        "ingest does not know what is read",
        "give tokens_per_gpu (100k), or tokens_total and duration, or samples_per_second and sample_size, or batch, \
         sample_size and step_time, or a workload (unet3d-h100)",
    ))
}

/// Warns of what describes the demand as well and is left aside; the order is that of [`demand`].
fn sources(sheet: &mut Sheet, request: &Request, duration: Option<Num>) {
    let tokens = request.tokens_per_gpu.is_some();
    let total = request.tokens_total.is_some() && duration.is_some();
    let pace_given = request.tokens_total.is_some() && request.duration.is_some();
    let steps = request.batch.is_some() && request.sample_size.is_some() && request.step_time.is_some();
    let ways = [
        ("tokens_per_gpu", tokens),
        // Beside tokens per second, a total without a time is the data set alone.
        (
            "tokens_total over duration",
            if tokens { pace_given } else { total },
        ),
        ("workload", request.workload.is_some()),
        ("samples_per_second", request.samples_per_second.is_some()),
        ("batch, sample_size and step_time", steps),
    ];
    sheet.warn_left_aside("read_rate", &ways);
    if request.workload.is_some() && (request.sample_size.is_some() || request.batch.is_some()) {
        let message = "the workload has its own batch and sample_size; those given are used for memory and data set only";
        sheet.warn("workload", message);
    }
}

/// The model that tokens per second belong to.
fn pace(sheet: &mut Sheet, request: &Request, tokens: Num) -> Result<()> {
    let flops = sheet.given("flops", request.flops).positive()?;
    let mfu = sheet.given("mfu", request.mfu).share()?;
    let implied = flops.v * mfu.v / (6.0 * tokens.v);
    let formula = "flops x mfu / (6 x tokens_per_gpu)";
    let inputs = [flops, mfu, tokens];
    let fitting = sheet
        .from(source::SCALING)
        .count("params_of_tokens", implied, formula, &inputs)?;
    let Some(params) = sheet.maybe("params", request.params) else {
        return Ok(());
    };
    let factor = params.positive()?.v / fitting.v;
    if !(1.0 / PARAMS_FACTOR_MAX..=PARAMS_FACTOR_MAX).contains(&factor) {
        let message = format!(
            "{} per GPU is the pace of a model with {} parameters, not {}",
            tokens.text(),
            fitting.text(),
            params.text()
        );
        sheet.warn("params_of_tokens", message);
    }
    Ok(())
}

fn rates(sheet: &mut Sheet, request: &Request, gpus: Num, rate: Num) -> Result<()> {
    let each = rate.v / gpus.v;
    let formula = "read_rate / gpus";
    let each = sheet.rate("read_rate_gpu", each, formula, &[rate, gpus])?;
    let node = sheet.given("gpus_per_node", request.gpus_per_node).whole()?;
    let value = each.v * node.v.min(gpus.v);
    let formula = "read_rate_gpu x min(gpus_per_node, gpus)";
    sheet.rate("read_rate_node", value, formula, &[each, node, gpus])?;
    let flops = sheet.given("flops", request.flops);
    let envelope = gpus.v * flops.v * ENVELOPE_BYTES_PER_FLOP;
    let formula = "gpus x flops x 1e9 / 100e12: 1 GB/s per 100 TFLOP/s";
    let from = "rule of thumb, an upper envelope; language models read about a thousandth of it";
    let inputs = [gpus, flops];
    let envelope = sheet
        .from(from)
        .rate("read_envelope", envelope, formula, &inputs)?;
    if rate.v > envelope.v {
        let message = format!(
            "{} is more than the upper envelope of {}",
            rate.text(),
            envelope.text()
        );
        sheet.warn("read_rate", message);
    }
    Ok(())
}
