//! Checkpoints: how large, how long, how often, and what remains of the time.
//!
//! `size.rs` says how much is written by whom, `saving.rs` how long that takes and how long training stands still for it,
//! `schedule.rs` how often to save and where the time goes, with the formulas of `interval.rs`; `clashes.rs` warns of inputs
//! that contradict each other.

mod clashes;
pub mod interval;
mod saving;
mod schedule;
mod size;

use forebay_core::Result;

use crate::field::{choice, request};
use crate::hardware::{H100_FLOPS, H100_MEMORY_BYTES, Pcie, Published};
use crate::quantity::{Bytes, BytesPerSecond, Count, Flops, PerSecond, Ratio, Seconds, Watts, lit};
use crate::report::Report;
use crate::sheet::{Num, Sheet};
use crate::source;

pub use size::{Architecture, Dtype, Preset};

choice! {
    /// What training does while a save runs.
    Mode {
        /// It waits for the storage.
        Sync = "sync",
        /// It waits for the copy out of GPU memory only.
        Async = "async",
    }
}

choice! {
    /// How bytes leave the GPU.
    Path {
        /// Straight to storage, with GPUDirect Storage.
        Gds = "gds",
        /// Through host memory and the page cache.
        Bounce = "bounce",
    }
}

choice! {
    /// What a given interval counts.
    IntervalMeans {
        /// Training time between the end of a save and the start of the next.
        Training = "training",
        /// From the start of a save to the start of the next.
        Period = "period",
    }
}

choice! {
    /// Which formula sets the interval when none is given.
    IntervalRule {
        /// Young 1974.
        Young = "young",
        /// Daly 2006.
        Daly = "daly",
        /// Best availability with restarts.
        Availability = "availability",
        /// Best goodput of the exponential model.
        Exact = "exact",
    }
}

request! {
    /// A place a checkpoint is drained to.
    Tier {
        /// What it is called.
        name: String = String::new(),
        /// Rate at which all writers together fill it.
        write: Option<BytesPerSecond> = None,
    }
}

request! {
    /// Measured rates that replace assumed ones.
    Calibration {
        /// Where they were measured; becomes the source of the figures.
        from: String = "calibration".to_owned(),
        /// Measured write rate of the storage.
        write: Option<BytesPerSecond> = None,
        /// Measured read rate of the storage.
        read: Option<BytesPerSecond> = None,
        /// Measured rate of the copy from one GPU to host memory.
        host_copy: Option<BytesPerSecond> = None,
        /// Measured stall of one save.
        stall: Option<Seconds> = None,
    }
}

request! {
    /// What to ask about checkpoints.
    Request {
        /// Number of parameters.
        params: Option<Count> = None,
        /// An architecture of the MLPerf Storage workloads.
        preset: Option<Preset> = None,
        /// Layers, to count parameters from the architecture.
        layers: Option<Count> = None,
        /// Width of the model.
        hidden: Option<Count> = None,
        /// Attention heads.
        heads: Option<Count> = None,
        /// Heads of keys and values; as many as heads when not given.
        kv_heads: Option<Count> = None,
        /// Width of the feed-forward layer.
        ffn: Option<Count> = None,
        /// Tokens in the vocabulary; the default is that of Llama 3.
        vocab: Count = lit(size::VOCAB_LLAMA3),
        /// Size of a checkpoint, instead of what follows from the parameters.
        size: Option<Bytes> = None,
        /// Format of the weights.
        weights: Dtype = Dtype::Bf16,
        /// Format of saved gradients; usually not saved.
        gradients: Dtype = Dtype::None,
        /// Format of the optimizer's master copy of the weights.
        master: Dtype = Dtype::Fp32,
        /// Format of each of the optimizer's two moments.
        moments: Dtype = Dtype::Fp32,
        /// GPUs of the job.
        gpus: Count = lit(8.0),
        /// GPUs in a node.
        gpus_per_node: Count = lit(8.0),
        /// Memory of a GPU; the default is an H100's.
        gpu_memory: Bytes = lit(H100_MEMORY_BYTES),
        /// Ranks a tensor is split over.
        tensor_parallel: Count = lit(1.0),
        /// Stages of the pipeline.
        pipeline_parallel: Count = lit(1.0),
        /// ZeRO stage, 0 to 3; 3 is FSDP.
        zero: Count = lit(3.0),
        /// Write rate of the storage for all writers together.
        storage: Option<BytesPerSecond> = None,
        /// Most that one node can write; not limiting when absent.
        node_write: Option<BytesPerSecond> = None,
        /// Fixed time of a save beside the bytes: barriers, metadata, fsync.
        sync_overhead: Seconds = lit(0.0),
        /// What training does while a save runs.
        mode: Mode = Mode::Sync,
        /// How bytes leave the GPU.
        path: Path = Path::Bounce,
        /// Rate of one GPU over GPUDirect Storage; assumed, from no publication.
        gds_rate: BytesPerSecond = lit(11.8e9),
        /// Rate of one GPU through host memory; assumed, from no publication.
        bounce_rate: BytesPerSecond = lit(4.2e9),
        /// Rate of the copy from one GPU to pinned host memory; 80 % of 16 lanes of pcie when not given.
        host_copy: Option<BytesPerSecond> = None,
        /// Generation of PCI Express a GPU is connected with.
        pcie: Pcie = Pcie::Gen5,
        /// Places an asynchronous save is drained to behind the storage, one after the other; in its place where no storage is given.
        tiers: Vec<Tier> = Vec::new(),
        /// The place a restart loads from, storage or the name of a tier: a save counts once it is there. The storage when not given, else the last tier.
        restart_from: String = String::new(),
        /// Stall of one save, when it is known.
        stall: Option<Seconds> = None,
        /// Time between saves, instead of what the rule gives.
        interval: Option<Seconds> = None,
        /// What a given interval counts.
        interval_means: IntervalMeans = IntervalMeans::Training,
        /// Which formula sets the interval when none is given.
        interval_rule: IntervalRule = IntervalRule::Daly,
        /// Time a save may take; asks for the storage that does it.
        save_time_target: Option<Seconds> = None,
        /// Share of the time that saves may take; asks for the interval that keeps it.
        loss_budget: Option<Ratio> = None,
        /// Published cluster whose rate of failures is assumed.
        failures: Published = Published::Llama3,
        /// GPU-hours per failure, instead of a published cluster's.
        gpu_hours_per_failure: Option<Count> = None,
        /// Mean time between failures of the whole job, instead of the above.
        mtbf: Option<Seconds> = None,
        /// Detecting a failure, rescheduling, starting; with loading, unless storage_read is given.
        restart: Seconds = lit(600.0),
        /// Read rate of the storage; when given, the time to load is added to the restart.
        storage_read: Option<BytesPerSecond> = None,
        /// How often the checkpoint is read at a restart: 1 with a broadcast, else once per replica.
        load_replicas: Count = lit(1.0),
        /// Power of the whole job, to say how much of it is wasted.
        power: Option<Watts> = None,
        /// Tokens per second and GPU, to check them against the number of parameters.
        tokens_per_gpu: Option<PerSecond> = None,
        /// Dense compute rate of a GPU; the default is an H100's in BF16.
        flops: Flops = lit(H100_FLOPS),
        /// Share of that rate a training reaches.
        mfu: Ratio = lit(0.4),
        /// Measured rates that replace assumed ones.
        calibration: Option<Calibration> = None,
    }
}

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("checkpoint");
    let sizes = size::sizes(&mut sheet, request)?;
    clashes::clashes(&mut sheet, request);
    contradictions(&mut sheet, request, sizes.params)?;
    let saving = saving::saving(&mut sheet, request, &sizes)?;
    let restart = restart(&mut sheet, request, &sizes)?;
    schedule::schedule(&mut sheet, request, &sizes, saving, restart)?;
    if let Some(measured) = &request.calibration {
        let inputs = [
            ("storage", measured.write.is_some()),
            ("storage_read", measured.read.is_some()),
            ("host_copy", measured.host_copy.is_some()),
            ("stall", measured.stall.is_some()),
        ];
        for (name, _) in inputs.iter().filter(|(_, is_measured)| *is_measured) {
            sheet.measured(name);
        }
    }
    Ok(sheet.finish())
}

/// Tokens per second imply a number of parameters; a factor of three between the two is no rounding.
const PARAMS_FACTOR_MAX: f64 = 3.0;

fn contradictions(sheet: &mut Sheet, request: &Request, params: Num) -> Result<()> {
    let Some(tokens) = sheet.maybe("tokens_per_gpu", request.tokens_per_gpu) else {
        return Ok(());
    };
    let flops = sheet.given("flops", request.flops).positive()?;
    let mfu = sheet.given("mfu", request.mfu).share()?;
    let implied = flops.v * mfu.v / (6.0 * tokens.positive()?.v);
    let formula = "flops x mfu / (6 x tokens_per_gpu)";
    let inputs = [flops, mfu, tokens];
    let fitting = sheet
        .from(source::SCALING)
        .count("params_of_tokens", implied, formula, &inputs)?;
    let factor = params.v / fitting.v;
    if !(1.0 / PARAMS_FACTOR_MAX..=PARAMS_FACTOR_MAX).contains(&factor) {
        let message = format!(
            "{} per GPU is the pace of a model with {} parameters, the checkpoint is one of {}",
            tokens.text(),
            fitting.text(),
            params.text()
        );
        sheet.warn("params_of_tokens", message);
    }
    Ok(())
}

fn restart(sheet: &mut Sheet, request: &Request, sizes: &size::Sizes) -> Result<Num> {
    sheet.group("restart");
    let base = sheet.given("restart", request.restart);
    let (read, from) = saving::calibrated(request, |measured| measured.read, request.storage_read);
    let Some(read) = sheet.maybe("storage_read", read) else {
        let formula = "restart: loading included";
        return sheet.seconds("restart_time", base.v, formula, &[base]);
    };
    let replicas = sheet.given("load_replicas", request.load_replicas).positive()?;
    let time = sizes.size.v * replicas.v / read.positive()?.v;
    let formula = "size x load_replicas / storage_read";
    let inputs = [sizes.size, replicas, read];
    let load = sheet.from(from).seconds("load_time", time, formula, &inputs)?;
    let formula = "restart + load_time";
    sheet.seconds("restart_time", base.v + load.v, formula, &[base, load])
}
