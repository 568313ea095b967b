//! Bytes and time on the network in one training step, for each way to split a training.
//!
//! The bytes are what one rank sends; the way to split decides which links carry them: tensor parallelism stays inside a
//! node where it fits; collectives of weights leave it over all its rails, since a hierarchical one lets the GPUs of a node
//! send one copy together; activations leave it over the adapter of the rank, since each GPU has its own to send.

use forebay_core::Result;

use super::checkpoint::{Dtype, Preset};
use crate::field::{choice, request};
use crate::hardware::{H100_NVLINK, INFINIBAND_EFFICIENCY, Nic};
use crate::quantity::{BytesPerSecond, Count, Ratio, Seconds, Unit, lit};
use crate::report::Report;
use crate::sheet::{Num, Sheet, wrong};
use crate::source;

choice! {
    /// How a training is split.
    Strategy {
        /// Data parallel: a ring all-reduce of the gradients.
        Dp = "dp",
        /// Fully sharded, ZeRO stage 3: two all-gathers and a reduce-scatter.
        Fsdp = "fsdp",
        /// Tensor parallel: all-reduces of activations in every layer.
        Tp = "tp",
        /// Pipeline parallel: activations of every micro-batch to the next stage.
        Pp = "pp",
        /// Mixture of experts: all-to-all of tokens in every layer.
        Moe = "moe",
    }
}

request! {
    /// What to ask about the network.
    Request {
        /// Number of parameters; those of the preset when not given.
        params: Option<Count> = None,
        /// An architecture of the MLPerf Storage workloads, for layers, width and parameters.
        preset: Option<Preset> = None,
        /// Format of weights and gradients on the wire.
        dtype: Dtype = Dtype::Bf16,
        /// How the training is split; the figures of all ways are given, the time of this one is compared.
        strategy: Strategy = Strategy::Fsdp,
        /// Ranks that take part in the data-parallel collective.
        ranks: Count = lit(1024.0),
        /// Network adapters that a collective of weights is spread over: 1, or those of the node when it is hierarchical.
        rails: Count = lit(1.0),
        /// Generation of the adapters.
        nic: Nic = Nic::Ndr,
        /// Line rate of an adapter, instead of its generation's.
        nic_rate: Option<BytesPerSecond> = None,
        /// Share of the line rate that is reached; NDR delivers 48 of 50 GB/s.
        efficiency: Ratio = lit(INFINIBAND_EFFICIENCY),
        /// Rate between GPUs of a node in one direction; the default is an H100's.
        nvlink: BytesPerSecond = lit(H100_NVLINK),
        /// GPUs in a node.
        gpus_per_node: Count = lit(8.0),
        /// Layers; from the preset or estimated from the parameters when not given.
        layers: Option<Count> = None,
        /// Width of the model; from the preset or estimated from the parameters when not given.
        hidden: Option<Count> = None,
        /// Tokens of a micro-batch on one rank.
        tokens: Count = lit(8192.0),
        /// Micro-batches in a step.
        microbatches: Count = lit(8.0),
        /// Ranks a tensor is split over.
        tensor_parallel: Count = lit(8.0),
        /// Ranks the experts are spread over.
        expert_parallel: Count = lit(8.0),
        /// Experts a token is sent to.
        experts_per_token: Count = lit(2.0),
        /// Time of computing in a step; asks for the share of communication.
        compute_time: Option<Seconds> = None,
        /// Share of the communication that hides behind computing.
        overlap: Ratio = lit(0.0),
    }
}

/// Passes over the model: forward and backward.
const PASSES: f64 = 2.0;

/// Parameters per layer and square of the width: 4 of the attention, 8 of the feed-forward layer.
const PARAMS_PER_LAYER: f64 = 12.0;

/// Width per layer of dense models: 128 in Llama 3 with 8 billion parameters, 130 with 405 billion.
const WIDTH_PER_LAYER: f64 = 128.0;

/// A shape whose layers hold so many times more or fewer parameters belongs to another model.
const PARAMS_FACTOR_MAX: f64 = 2.0;

/// Rates a rank sends with.
#[derive(Debug, Clone, Copy)]
struct Links {
    /// To other nodes, with the GPUs of its node together.
    rails: Num,
    /// To other nodes, while the GPUs of its node send their own.
    rank: Num,
    /// To GPUs of its node.
    inside: Num,
}

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("network");
    let preset = request.preset.map(Preset::architecture);
    let params = match (sheet.maybe("params", request.params), preset) {
        (Some(params), _) => params.positive()?,
        (None, Some(shape)) => sheet.given("params", lit::<Count>(shape.params())),
        (None, None) => {
            return Err(wrong(
                "network does not know how large the model is",
                "give params (7B) or a preset (70b)",
            ));
        }
    };
    let dtype = request.dtype.bytes();
    if dtype <= 0.0 {
        return Err(wrong("nothing is sent in the format none", "give bf16 or fp32"));
    }
    sheet.group("links");
    let links = links(&mut sheet, request)?;
    sheet.group("payload");
    let formula = format!("params x {dtype}: bytes of {}", request.dtype.name());
    let model = params.v * dtype;
    let model = sheet.bytes("model_bytes", model, &formula, &[params])?;
    let formula = "model_bytes / rail_rate: the weights once, as a copy would be";
    let pass = model.v / links.rails.v;
    sheet.seconds("one_pass_time", pass, formula, &[model, links.rails])?;
    let weights = weights(&mut sheet, request, model, links.rails)?;
    let shape = shape(&mut sheet, request, params)?;
    let activations = activations(&mut sheet, request, dtype, shape, links)?;
    let time = match request.strategy {
        Strategy::Dp => weights[0],
        Strategy::Fsdp => weights[1],
        Strategy::Tp => activations[0],
        Strategy::Pp => activations[1],
        Strategy::Moe => activations[2],
    };
    sheet.group("step");
    step(&mut sheet, request, time)?;
    Ok(sheet.finish())
}

fn links(sheet: &mut Sheet, request: &Request) -> Result<Links> {
    let line = match sheet.maybe("nic_rate", request.nic_rate) {
        Some(rate) => rate.positive()?,
        None => {
            let rate = request.nic.rate();
            let formula = format!("{rate}: line rate of {}", request.nic.name());
            let from = "InfiniBand roadmap: EDR 100, HDR 200, NDR 400, XDR 800 Gb/s";
            sheet.from(from).rate("nic_rate", rate, &formula, &[])?
        }
    };
    let rails = sheet.given("rails", request.rails).whole()?;
    let efficiency = sheet.given("efficiency", request.efficiency).share()?;
    let node = sheet.given("gpus_per_node", request.gpus_per_node).whole()?;
    let inputs = [line, rails, efficiency, node];
    let formula = "nic_rate x rails x efficiency";
    let rate = line.v * rails.v * efficiency.v;
    let together = sheet.rate("rail_rate", rate, formula, &inputs[..3])?;
    let formula = "nic_rate x max(1, rails / gpus_per_node) x efficiency: each GPU has its own to send";
    let rate = line.v * (rails.v / node.v).max(1.0) * efficiency.v;
    let rank = sheet.rate("rank_rate", rate, formula, &inputs)?;
    if rails.v > node.v {
        let message = format!(
            "{} rails for nodes of {} GPUs: common nodes have one per GPU or fewer",
            rails.v, node.v
        );
        sheet.warn("rails", message);
    }
    let inside = sheet.given("nvlink", request.nvlink).positive()?;
    Ok(Links {
        rails: together,
        rank,
        inside,
    })
}

/// Layers and width: given, of the preset, or estimated from the parameters.
fn shape(sheet: &mut Sheet, request: &Request, params: Num) -> Result<[Num; 2]> {
    sheet.group("activations");
    let preset = request.preset.map(Preset::architecture);
    let layers = request.layers.or(preset.map(|shape| lit(shape.layers)));
    let hidden = request.hidden.or(preset.map(|shape| lit(shape.hidden)));
    let layers = sheet.maybe("layers", layers).map(Num::whole).transpose()?;
    let hidden = sheet.maybe("hidden", hidden).map(Num::whole).transpose()?;
    let mut estimate = |name, value: f64, formula: &str, inputs: &[Num]| {
        sheet
            .from(source::SHAPE)
            .count(name, value.round().max(1.0), formula, inputs)
    };
    match (layers, hidden) {
        (Some(layers), Some(hidden)) => {
            fitting(sheet, request, params, [layers, hidden]);
            Ok([layers, hidden])
        }
        (Some(layers), None) => {
            let value = (params.v / (PARAMS_PER_LAYER * layers.v)).sqrt();
            let formula = "max(1, round(sqrt(params / (12 x layers))))";
            Ok([layers, estimate("hidden", value, formula, &[params, layers])?])
        }
        (None, Some(hidden)) => {
            let value = params.v / (PARAMS_PER_LAYER * hidden.v * hidden.v);
            let formula = "max(1, round(params / (12 x hidden^2)))";
            Ok([estimate("layers", value, formula, &[params, hidden])?, hidden])
        }
        (None, None) => {
            let value = (params.v / (PARAMS_PER_LAYER * WIDTH_PER_LAYER * WIDTH_PER_LAYER)).cbrt();
            let formula = "max(1, round((params / (12 x 128^2))^(1 / 3)))";
            let layers = estimate("layers", value, formula, &[params])?;
            let formula = "max(1, round(128 x layers))";
            let value = WIDTH_PER_LAYER * layers.v;
            Ok([layers, estimate("hidden", value, formula, &[layers])?])
        }
    }
}

/// Warns of a shape that belongs to another model. Experts are beside the layers of a dense model, so they may be more.
fn fitting(sheet: &mut Sheet, request: &Request, params: Num, [layers, hidden]: [Num; 2]) {
    let dense = PARAMS_PER_LAYER * layers.v * hidden.v * hidden.v;
    let factor = params.v / dense;
    let is_sparse = request.strategy == Strategy::Moe && factor > 1.0;
    if is_sparse || (1.0 / PARAMS_FACTOR_MAX..=PARAMS_FACTOR_MAX).contains(&factor) {
        return;
    }
    let message = format!(
        "{} layers of a width of {} hold about {} parameters, but {} are given",
        layers.v,
        hidden.v,
        Unit::Count.show(dense).text,
        params.text()
    );
    sheet.warn("activation_bytes", message);
}

/// Time and bytes of a way to split, as two figures.
fn traffic(
    sheet: &mut Sheet,
    names: [&'static str; 2],
    bytes: f64,
    formula: &str,
    inputs: &[Num],
    link: Num,
    from: &str,
) -> Result<Num> {
    let bytes = sheet.from(from).bytes(names[0], bytes, formula, inputs)?;
    let time = bytes.v / link.v;
    let formula = format!("{} / {}", bytes.name, link.name);
    sheet.from(from).seconds(names[1], time, &formula, &[bytes, link])
}

/// Ways that move weights and gradients: data parallel and fully sharded.
fn weights(sheet: &mut Sheet, request: &Request, model: Num, link: Num) -> Result<[Num; 2]> {
    let ranks = sheet.given("ranks", request.ranks).whole()?;
    let micro = sheet.given("microbatches", request.microbatches).whole()?;
    let ring = (ranks.v - 1.0) / ranks.v;
    let inputs = [ranks, model, micro];
    sheet.group("data parallel");
    let formula = "2 x (ranks - 1) / ranks x model_bytes: reduce-scatter and all-gather, once in a step";
    let bytes = 2.0 * ring * model.v;
    let names = ["dp_bytes", "dp_time"];
    let dp = traffic(sheet, names, bytes, formula, &inputs[..2], link, source::RING)?;
    sheet.group("fully sharded");
    let formula =
        "3 x (ranks - 1) / ranks x model_bytes x microbatches: two all-gathers and a reduce-scatter each";
    let once = 3.0 * ring * model.v;
    let names = ["fsdp_bytes", "fsdp_time"];
    let fsdp = traffic(sheet, names, once * micro.v, formula, &inputs, link, source::ZERO)?;
    if micro.v > 1.0 {
        let answers = [
            ("in each micro-batch", once * micro.v / link.v, true),
            ("once in a step, weights kept in between", once / link.v, false),
        ];
        sheet.reading(fsdp, "when the weights are gathered", &answers);
    }
    Ok([dp, fsdp])
}

/// What the ways that move activations share.
#[derive(Debug, Clone, Copy)]
struct Activations {
    layers: Num,
    micro: Num,
    bytes: Num,
    node: Num,
    links: Links,
}

/// Ways that move activations: tensor parallel, pipeline parallel, mixture of experts.
fn activations(
    sheet: &mut Sheet,
    request: &Request,
    dtype: f64,
    [layers, hidden]: [Num; 2],
    links: Links,
) -> Result<[Num; 3]> {
    let tokens = sheet.given("tokens", request.tokens).positive()?;
    let formula = format!("tokens x hidden x {dtype}: one micro-batch between two layers");
    let value = tokens.v * hidden.v * dtype;
    let shared = Activations {
        layers,
        micro: sheet.given("microbatches", request.microbatches).whole()?,
        bytes: sheet.bytes("activation_bytes", value, &formula, &[tokens, hidden])?,
        node: sheet.given("gpus_per_node", request.gpus_per_node).whole()?,
        links,
    };
    let tp = tensor(sheet, request, &shared)?;
    sheet.group("pipeline parallel");
    let formula = "2 x microbatches x activation_bytes: forward and backward, at each border of stages";
    let bytes = PASSES * shared.micro.v * shared.bytes.v;
    let inputs = [shared.micro, shared.bytes];
    let names = ["pp_bytes", "pp_time"];
    let pp = traffic(
        sheet,
        names,
        bytes,
        formula,
        &inputs,
        links.rank,
        source::MEGATRON,
    )?;
    let moe = experts(sheet, request, &shared)?;
    Ok([tp, pp, moe])
}

fn tensor(sheet: &mut Sheet, request: &Request, shared: &Activations) -> Result<Num> {
    sheet.group("tensor parallel");
    let tensor = sheet.given("tensor_parallel", request.tensor_parallel).whole()?;
    let formula = "2 x activation_bytes: of two all-reduces per layer and pass";
    let value = 2.0 * shared.bytes.v;
    sheet.from(source::MEGATRON);
    let per_layer = sheet.bytes("tp_layer_bytes", value, formula, &[shared.bytes])?;
    let ring = 2.0 * (tensor.v - 1.0) / tensor.v;
    let bytes = PASSES * shared.layers.v * shared.micro.v * per_layer.v * ring;
    let formula = "2 x layers x microbatches x tp_layer_bytes x 2 x (tensor_parallel - 1) / tensor_parallel: \
                   forward and backward";
    let inputs = [shared.layers, shared.micro, per_layer, tensor];
    if tensor.v > shared.node.v {
        let (ranks, node) = (tensor.v, shared.node.v);
        let message = format!("a tensor is split over {ranks} ranks, beyond a node of {node}");
        sheet.warn("tp_bytes", message);
    }
    let names = ["tp_bytes", "tp_time"];
    let link = if tensor.v <= shared.node.v {
        shared.links.inside
    } else {
        shared.links.rails
    };
    traffic(sheet, names, bytes, formula, &inputs, link, source::MEGATRON)
}

fn experts(sheet: &mut Sheet, request: &Request, shared: &Activations) -> Result<Num> {
    sheet.group("mixture of experts");
    let experts = sheet.given("expert_parallel", request.expert_parallel).whole()?;
    let chosen = sheet
        .given("experts_per_token", request.experts_per_token)
        .positive()?;
    let away = (experts.v - 1.0) / experts.v;
    let there_and_back = 2.0 * shared.layers.v * shared.micro.v * shared.bytes.v * chosen.v;
    let bytes = PASSES * there_and_back * away;
    let formula = "2 x 2 x layers x microbatches x activation_bytes x experts_per_token \
                   x (expert_parallel - 1) / expert_parallel: there and back, forward and backward";
    let inputs = [shared.layers, shared.micro, shared.bytes, chosen, experts];
    let names = ["moe_bytes", "moe_time"];
    // Every GPU sends its own tokens, so the rails of the others are taken.
    let link = if experts.v <= shared.node.v {
        shared.links.inside
    } else {
        shared.links.rank
    };
    traffic(sheet, names, bytes, formula, &inputs, link, source::MOE)
}

fn step(sheet: &mut Sheet, request: &Request, time: Num) -> Result<()> {
    let formula = format!("{}: of the strategy {}", time.name, request.strategy.name());
    let time = sheet.seconds("network_time", time.v, &formula, &[time])?;
    let Some(compute) = sheet.maybe("compute_time", request.compute_time) else {
        return Ok(());
    };
    let overlap = sheet.given("overlap", request.overlap);
    if overlap.v > 1.0 {
        return Err(wrong(
            "more than all communication cannot overlap",
            "give overlap from 0 to 1",
        ));
    }
    let hidden = (time.v * overlap.v).min(compute.positive()?.v);
    let total = compute.v + time.v - hidden;
    let formula = "compute_time + network_time - min(network_time x overlap, compute_time)";
    let inputs = [compute, time, overlap];
    let total = sheet.seconds("step_time", total, formula, &inputs)?;
    let share = (total.v - compute.v) / total.v;
    let formula = "1 - compute_time / step_time";
    let inputs = [compute, total];
    sheet.ratio("network_share", share, formula, &inputs)?;
    Ok(())
}
