//! How large a checkpoint is, and which rank writes how much of it.
//!
//! The number of parameters is given, or follows from an architecture, or is implied by a given size. Bytes per parameter
//! are the sum of what is saved: weights, perhaps gradients, a master copy and two moments of the optimizer.

use forebay_core::Result;

use super::Request;
use crate::field::choice;
use crate::quantity::{Count, Measure as _, Unit, lit};
use crate::sheet::{Num, Sheet, wrong};
use crate::source;

choice! {
    /// Number format of a part of the state.
    Dtype {
        /// Not saved.
        None = "none",
        /// 8 bits, floating point.
        Fp8 = "fp8",
        /// 8 bits, whole numbers.
        Int8 = "int8",
        /// 16 bits, BF16.
        Bf16 = "bf16",
        /// 16 bits, FP16.
        Fp16 = "fp16",
        /// 32 bits.
        Fp32 = "fp32",
        /// 64 bits.
        Fp64 = "fp64",
    }
}

impl Dtype {
    /// Bytes of one number.
    pub const fn bytes(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Fp8 | Self::Int8 => 1.0,
            Self::Bf16 | Self::Fp16 => 2.0,
            Self::Fp32 => 4.0,
            Self::Fp64 => 8.0,
        }
    }
}

choice! {
    /// Architectures of the MLPerf Storage checkpoint workloads.
    Preset {
        /// 8 billion parameters.
        Llama8b = "8b",
        /// 70 billion parameters.
        Llama70b = "70b",
        /// 405 billion parameters.
        Llama405b = "405b",
        /// 1,183 billion parameters, called 1T.
        Llama1t = "1t",
    }
}

/// Shape of a decoder-only transformer with a gated feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Architecture {
    /// Layers.
    pub layers: f64,
    /// Width.
    pub hidden: f64,
    /// Attention heads.
    pub heads: f64,
    /// Heads of keys and values.
    pub kv_heads: f64,
    /// Width of the feed-forward layer.
    pub ffn: f64,
    /// Tokens in the vocabulary.
    pub vocab: f64,
}

/// Tokens in the vocabulary of Llama 3.
pub(super) const VOCAB_LLAMA3: f64 = 128_256.0;

impl Preset {
    /// Its shape as the benchmark has it: 70b with 128 heads, where the published model has 64; 1t with 192, as in
    /// `configs/dlio/workload/llama3_1t.yaml` of mlcommons/storage for version 2.0, where the older `llama_1t.yaml` (and DLIO's own) has 32.
    pub const fn architecture(self) -> Architecture {
        let [layers, hidden, heads, kv_heads, ffn] = match self {
            Self::Llama8b => [32.0, 4096.0, 32.0, 8.0, 14_336.0],
            Self::Llama70b => [80.0, 8192.0, 128.0, 8.0, 28_672.0],
            Self::Llama405b => [126.0, 16_384.0, 128.0, 8.0, 53_248.0],
            Self::Llama1t => [128.0, 25_872.0, 192.0, 32.0, 98_304.0],
        };
        Architecture {
            layers,
            hidden,
            heads,
            kv_heads,
            ffn,
            vocab: VOCAB_LLAMA3,
        }
    }
}

impl Architecture {
    /// Number of parameters; the width of a head is rounded down as the benchmark does.
    pub fn params(self) -> f64 {
        let hidden = self.hidden;
        let d_kv = (hidden / self.heads.max(1.0)).floor() * self.kv_heads;
        let layer = 2.0 * hidden + hidden * (hidden + 2.0 * d_kv) + hidden * hidden + 3.0 * hidden * self.ffn;
        self.layers * layer + 2.0 * hidden * self.vocab + hidden
    }
}

/// Sizes the other parts of the model build on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) params: Num,
    pub(super) size: Num,
    pub(super) rank_bytes: Num,
    pub(super) node_bytes: Num,
}

const ARCHITECTURE_FORMULA: &str = "layers x (2 x hidden + hidden x (hidden + 2 x floor(hidden / heads) x kv_heads) \
     + hidden^2 + 3 x hidden x ffn) + 2 x hidden x vocab + hidden";

/// The shape that is given, from a preset or by its numbers.
fn architecture(sheet: &mut Sheet, request: &Request) -> Result<Option<(Architecture, [Num; 6])>> {
    let shape = if let Some(preset) = request.preset {
        preset.architecture()
    } else if let Some(layers) = request.layers {
        let need = |value: Option<Count>, name: &str| {
            value.map(Count::get).ok_or_else(|| {
                wrong(
                    format!("layers are given but {name} is missing"),
                    "give layers, hidden, heads and ffn (and kv_heads, vocab), or params alone",
                )
            })
        };
        let hidden = need(request.hidden, "hidden")?;
        let heads = need(request.heads, "heads")?;
        Architecture {
            layers: layers.get(),
            hidden,
            heads,
            kv_heads: request.kv_heads.map_or(heads, Count::get),
            ffn: need(request.ffn, "ffn")?,
            vocab: request.vocab.get(),
        }
    } else {
        return Ok(None);
    };
    let mut whole = |name, value: f64| sheet.given(name, lit::<Count>(value)).whole();
    let nums = [
        whole("layers", shape.layers)?,
        whole("hidden", shape.hidden)?,
        whole("heads", shape.heads)?,
        whole("kv_heads", shape.kv_heads)?,
        whole("ffn", shape.ffn)?,
        whole("vocab", shape.vocab)?,
    ];
    if shape.heads > shape.hidden {
        return Err(wrong(
            format!(
                "{} heads share a width of {}: a head would have none",
                shape.heads, shape.hidden
            ),
            "give fewer heads; a head is 64 to 128 wide in most models",
        ));
    }
    Ok(Some((shape, nums)))
}

/// Bytes per parameter: everything, and what ZeRO splits late.
#[derive(Debug, Clone, Copy)]
struct PerParam {
    all: Num,
    weights: f64,
    gradients: f64,
}

fn bytes_per_param(sheet: &mut Sheet, request: &Request) -> Result<PerParam> {
    let weights = request.weights.bytes();
    let gradients = request.gradients.bytes();
    let (master, moment) = (request.master.bytes(), request.moments.bytes());
    let bytes = weights + gradients + master + 2.0 * moment;
    let formula = format!(
        "{weights} + {gradients} + {master} + 2 x {moment}: weights {}, gradients {}, master {}, two moments {}",
        request.weights.name(),
        request.gradients.name(),
        request.master.name(),
        request.moments.name()
    );
    let all = sheet
        .from(source::DLIO)
        .bytes("bytes_per_param", bytes, &formula, &[])?;
    if all.v > 0.0 {
        return Ok(PerParam {
            all,
            weights,
            gradients,
        });
    }
    let hint = "save at least weights = bf16";
    Err(wrong(
        "no part of the state is saved: every number format is none",
        hint,
    ))
}

/// Fills in parameters, size and layout.
pub(super) fn sizes(sheet: &mut Sheet, request: &Request) -> Result<Sizes> {
    sheet.group("size");
    let per_param = bytes_per_param(sheet, request)?;
    let architecture = architecture(sheet, request)?;
    let given = sheet.maybe("size", request.size);
    let count = match (sheet.maybe("params", request.params), architecture) {
        (Some(params), _) => Some(params.positive()?),
        (None, Some((shape, nums))) => {
            let formula = ARCHITECTURE_FORMULA;
            let params = shape.params();
            Some(sheet.from(source::DLIO).count("params", params, formula, &nums)?)
        }
        (None, None) => None,
    };
    let (params, size) = match (count, given) {
        (None, None) => {
            return Err(wrong(
                "checkpoint does not know how much is saved",
                "give params (405B), a preset (405b), an architecture (layers, hidden, heads, ffn) or a size (1.5TB)",
            ));
        }
        (None, Some(size)) => {
            let size = size.positive()?;
            let implied = size.v / per_param.all.v;
            let formula = "size / bytes_per_param";
            let inputs = [size, per_param.all];
            let params = sheet
                .from(source::DLIO)
                .count("params_implied", implied, formula, &inputs)?;
            (params, size)
        }
        (Some(params), Some(size)) => {
            disagree(sheet, params, per_param.all, size.positive()?);
            (params, size)
        }
        (Some(params), None) => {
            let bytes = params.v * per_param.all.v;
            let inputs = [params, per_param.all];
            let formula = "params x bytes_per_param";
            (
                params,
                sheet.from(source::DLIO).bytes("size", bytes, formula, &inputs)?,
            )
        }
    };
    let formula = format!("size x {} / bytes_per_param", per_param.weights);
    let inputs = [size, per_param.all];
    let weights = size.v * per_param.weights / per_param.all.v;
    sheet
        .from(source::DLIO)
        .bytes("size_weights", weights, &formula, &inputs)?;
    let [rank_bytes, node_bytes] = layout(sheet, request, size, per_param)?;
    Ok(Sizes {
        params,
        size,
        rank_bytes,
        node_bytes,
    })
}

/// A size that is given beside a number of parameters should follow from it; within a factor of two it does.
fn disagree(sheet: &mut Sheet, params: Num, per_param: Num, size: Num) {
    let expected = params.v * per_param.v;
    if (0.5..=2.0).contains(&(size.v / expected)) {
        return;
    }
    let message = format!(
        "a checkpoint of {} fits {} parameters, but {} are given, which make {}",
        size.text(),
        Unit::Count.show(size.v / per_param.v).text,
        params.text(),
        Unit::Bytes.show(expected).text
    );
    sheet.warn("size", message);
}

/// How the ranks are arranged.
#[derive(Debug, Clone, Copy)]
struct Ranks {
    gpus: Num,
    node: Num,
    tensor: Num,
    pipeline: Num,
    zero: Num,
}

impl Ranks {
    fn of(sheet: &mut Sheet, request: &Request) -> Result<Self> {
        let ranks = Self {
            gpus: sheet.given("gpus", request.gpus).whole()?,
            node: sheet.given("gpus_per_node", request.gpus_per_node).whole()?,
            tensor: sheet.given("tensor_parallel", request.tensor_parallel).whole()?,
            pipeline: sheet
                .given("pipeline_parallel", request.pipeline_parallel)
                .whole()?,
            zero: sheet.given("zero", request.zero),
        };
        if ranks.zero.v > 3.0 || ranks.zero.v.fract() != 0.0 {
            return Err(wrong(
                format!("there is no ZeRO stage {}", ranks.zero.v),
                "give 0, 1, 2 or 3",
            ));
        }
        let (gpus, parallel) = (ranks.gpus.v, ranks.parallel());
        if parallel > gpus || gpus % parallel != 0.0 {
            return Err(wrong(
                format!("{gpus} GPUs cannot be split into groups of {parallel}"),
                "choose tensor_parallel x pipeline_parallel as a divisor of gpus",
            ));
        }
        Ok(ranks)
    }

    /// Ranks of one replica.
    fn parallel(&self) -> f64 {
        self.tensor.v * self.pipeline.v
    }
}

/// Bytes that each replica holds whole, so that one of them writes them; the others are split over all ranks.
fn replicated(sheet: &mut Sheet, zero: Num, size: Num, per_param: PerParam) -> Result<Num> {
    let part = |bytes: f64, words: &str| {
        let value = size.v * bytes / per_param.all.v;
        (value, format!("size x {bytes} / bytes_per_param: {words}"))
    };
    let (value, formula) = match zero.v as u8 {
        0 => (size.v, "size: each replica holds everything".to_owned()),
        // Stage 1 splits the optimizer only; gradients are split from stage 2 on.
        1 => part(
            per_param.weights + per_param.gradients,
            "each replica holds weights and gradients",
        ),
        2 => part(per_param.weights, "each replica holds the weights"),
        _ => (0.0, "0: everything is split over all ranks".to_owned()),
    };
    let inputs = [size, per_param.all];
    let used = match zero.v as u8 {
        0 => &inputs[..1],
        1 | 2 => &inputs[..],
        _ => &[],
    };
    sheet
        .from(source::ZERO)
        .bytes("size_replicated", value, &formula, used)
}

/// Who writes how much: bytes of the busiest rank and of the busiest node, ranks that write, bytes per GPU.
fn layout(sheet: &mut Sheet, request: &Request, size: Num, per_param: PerParam) -> Result<[Num; 2]> {
    let ranks = Ranks::of(sheet, request)?;
    let Ranks {
        gpus,
        node,
        tensor,
        pipeline,
        ..
    } = ranks;
    let parallel = ranks.parallel();
    let whole = replicated(sheet, ranks.zero, size, per_param)?;
    let split = size.v - whole.v;
    let bytes = whole.v / parallel + split / gpus.v;
    let formula = "size_replicated / (tensor_parallel x pipeline_parallel) + (size - size_replicated) / gpus: the busiest rank";
    let inputs = [whole, tensor, pipeline, size, gpus];
    let rank_bytes = sheet
        .from(source::ZERO)
        .bytes("rank_bytes", bytes, formula, &inputs)?;
    let inputs = [tensor, pipeline, gpus];
    let (writers, formula, used) = if ranks.zero.v == 0.0 {
        let formula = "tensor_parallel x pipeline_parallel: one replica writes";
        (parallel, formula, &inputs[..2])
    } else {
        (gpus.v, "gpus: every rank writes its part", &inputs[2..])
    };
    sheet
        .from(source::ZERO)
        .count("writers", writers, formula, used)?;
    let bytes = node.v.min(parallel) * whole.v / parallel + node.v.min(gpus.v) * split / gpus.v;
    let formula = "min(gpus_per_node, tensor_parallel x pipeline_parallel) x size_replicated \
                   / (tensor_parallel x pipeline_parallel) \
                   + min(gpus_per_node, gpus) x (size - size_replicated) / gpus: the busiest node";
    let inputs = [node, tensor, pipeline, whole, gpus, size];
    let node_bytes = sheet
        .from(source::ZERO)
        .bytes("node_bytes", bytes, formula, &inputs)?;
    let per_gpu = size.v / gpus.v;
    let inputs = [size, gpus];
    sheet.bytes("bytes_per_gpu", per_gpu, "size / gpus", &inputs)?;
    let memory = sheet.given("gpu_memory", request.gpu_memory).positive()?;
    let share = rank_bytes.v / memory.v;
    let inputs = [rank_bytes, memory];
    sheet.ratio("memory_share", share, "rank_bytes / gpu_memory", &inputs)?;
    if share > 1.0 {
        let message = format!(
            "the busiest rank saves {} but a GPU has {}: more GPUs, a higher ZeRO stage or more parallelism",
            rank_bytes.text(),
            memory.text()
        );
        sheet.warn("rank_bytes", message);
    }
    Ok([rank_bytes, node_bytes])
}
