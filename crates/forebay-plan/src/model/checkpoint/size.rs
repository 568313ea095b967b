//! How large a checkpoint is, and which rank writes how much of it.
//!
//! The number of parameters is given, or follows from an architecture, or is implied by a given size. Bytes per parameter
//! are the sum of what is saved: weights, perhaps gradients, a master copy and two moments of the optimizer.

use forebay_core::Result;

use super::Request;
use crate::field::choice;
use crate::quantity::{Count, Unit};
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

impl Preset {
    /// Its shape as the benchmark has it: 70b with 128 heads, where the published model has 64.
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
            vocab: 128_256.0,
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
}

const ARCHITECTURE_FORMULA: &str =
    "layers x (2h + h(h + 2 d_kv) + h^2 + 3 h ffn) + 2 h vocab + h, d_kv = floor(h / heads) x kv_heads";

fn architecture(sheet: &mut Sheet, request: &Request) -> Result<Option<(Architecture, Vec<Num>)>> {
    if let Some(preset) = request.preset {
        return Ok(Some((preset.architecture(), Vec::new())));
    }
    let Some(layers) = request.layers else {
        return Ok(None);
    };
    let need = |value: Option<Count>, name: &str| {
        value.ok_or_else(|| {
            wrong(
                format!("layers are given but {name} is missing"),
                "give layers, hidden, heads and ffn (and kv_heads, vocab), or params alone",
            )
        })
    };
    let hidden = need(request.hidden, "hidden")?;
    let heads = need(request.heads, "heads")?;
    let kv_heads = request.kv_heads.unwrap_or(heads);
    let ffn = need(request.ffn, "ffn")?;
    let nums = [
        sheet.given("layers", layers).whole()?,
        sheet.given("hidden", hidden).whole()?,
        sheet.given("heads", heads).whole()?,
        sheet.given("kv_heads", kv_heads).whole()?,
        sheet.given("ffn", ffn).whole()?,
        sheet.given("vocab", request.vocab).whole()?,
    ];
    let [layers, hidden, heads, kv_heads, ffn, vocab] = nums.map(|num| num.v);
    let architecture = Architecture {
        layers,
        hidden,
        heads,
        kv_heads,
        ffn,
        vocab,
    };
    Ok(Some((architecture, nums.to_vec())))
}

/// Bytes per parameter: everything, and the weights alone.
fn bytes_per_param(sheet: &mut Sheet, request: &Request) -> Result<(Num, f64)> {
    let weights = request.weights.bytes();
    let bytes = weights + request.gradients.bytes() + request.master.bytes() + 2.0 * request.moments.bytes();
    let formula = format!(
        "weights {} + gradients {} + master {} + 2 moments {}",
        request.weights.name(),
        request.gradients.name(),
        request.master.name(),
        request.moments.name()
    );
    let num = sheet
        .from(source::DLIO)
        .bytes("bytes_per_param", bytes, &formula, &[])?;
    if num.v > 0.0 {
        return Ok((num, weights));
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
    let (per_param, weights) = bytes_per_param(sheet, request)?;
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
            let implied = size.v / per_param.v;
            let formula = "size / bytes_per_param";
            let inputs = [size, per_param];
            let params = sheet
                .from(source::DLIO)
                .count("params_implied", implied, formula, &inputs)?;
            (params, size)
        }
        (Some(params), Some(size)) => {
            disagree(sheet, params, per_param, size.positive()?);
            (params, size)
        }
        (Some(params), None) => {
            let bytes = params.v * per_param.v;
            let inputs = [params, per_param];
            let formula = "params x bytes_per_param";
            (
                params,
                sheet.from(source::DLIO).bytes("size", bytes, formula, &inputs)?,
            )
        }
    };
    let share = weights / per_param.v;
    let formula = "size x weights / bytes_per_param";
    let inputs = [size, per_param];
    sheet
        .from(source::DLIO)
        .bytes("size_weights", size.v * share, formula, &inputs)?;
    let rank_bytes = layout(sheet, request, size, share)?;
    Ok(Sizes {
        params,
        size,
        rank_bytes,
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

/// Who writes how much: bytes of the busiest rank, ranks that write, bytes per GPU and node.
fn layout(sheet: &mut Sheet, request: &Request, size: Num, weights_share: f64) -> Result<Num> {
    let gpus = sheet.given("gpus", request.gpus).whole()?;
    let node = sheet.given("gpus_per_node", request.gpus_per_node).whole()?;
    let tensor = sheet.given("tensor_parallel", request.tensor_parallel).whole()?;
    let pipeline = sheet
        .given("pipeline_parallel", request.pipeline_parallel)
        .whole()?;
    let zero = sheet.given("zero", request.zero);
    if zero.v > 3.0 || zero.v.fract() != 0.0 {
        return Err(wrong(
            format!("there is no ZeRO stage {}", zero.v),
            "give 0, 1, 2 or 3",
        ));
    }
    let parallel = tensor.v * pipeline.v;
    if parallel > gpus.v || gpus.v % parallel != 0.0 {
        return Err(wrong(
            format!("{} GPUs cannot be split into groups of {parallel}", gpus.v),
            "choose tensor_parallel x pipeline_parallel as a divisor of gpus",
        ));
    }
    let weights = size.v * weights_share;
    let optimizer = size.v - weights;
    let (bytes, writers, formula) = match zero.v as u8 {
        0 => (
            size.v / parallel,
            parallel,
            "size / (tp x pp): one replica writes",
        ),
        1 | 2 => (
            weights / parallel + optimizer / gpus.v,
            gpus.v,
            "weights / (tp x pp) + optimizer / gpus",
        ),
        _ => (size.v / gpus.v, gpus.v, "size / gpus"),
    };
    let inputs = [size, gpus, tensor, pipeline, zero];
    let rank_bytes = sheet
        .from(source::ZERO)
        .bytes("rank_bytes", bytes, formula, &inputs)?;
    sheet
        .from(source::ZERO)
        .count("writers", writers, "ranks that write", &inputs)?;
    let in_node = node.v.min(gpus.v);
    let formula = "rank_bytes x gpus_per_node: host memory of a snapshot";
    let inputs = [rank_bytes, node];
    sheet.bytes("node_bytes", bytes * in_node, formula, &inputs)?;
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
    Ok(rank_bytes)
}
