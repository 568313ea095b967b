//! Bytes and time on the network in one training step, for each way to split a training.
//!
//! The bytes are what one rank sends; the way to split decides which links carry them: tensor parallelism stays inside a
//! node where it fits, everything else leaves the node over its rails.

use forebay_core::Result;

use super::checkpoint::Dtype;
use crate::field::{choice, request};
use crate::hardware::{H100_NVLINK, INFINIBAND_EFFICIENCY, Nic};
use crate::quantity::{BytesPerSecond, Count, Ratio, Seconds, lit};
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
        /// Number of parameters.
        params: Option<Count> = None,
        /// Format of weights and gradients on the wire.
        dtype: Dtype = Dtype::Bf16,
        /// How the training is split; the figures of all ways are given, the time of this one is compared.
        strategy: Strategy = Strategy::Fsdp,
        /// Ranks that take part in the data-parallel collective.
        ranks: Count = lit(1024.0),
        /// Network adapters a rank's bytes are spread over: 1, or those of the node with a hierarchical collective.
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
        /// Layers.
        layers: Count = lit(32.0),
        /// Width of the model.
        hidden: Count = lit(4096.0),
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

/// Answers a request.
pub fn plan(request: &Request) -> Result<Report> {
    let mut sheet = Sheet::new("network");
    let Some(params) = sheet.maybe("params", request.params) else {
        return Err(wrong(
            "network does not know how large the model is",
            "give params (7B)",
        ));
    };
    let dtype = request.dtype.bytes();
    if dtype <= 0.0 {
        return Err(wrong("nothing is sent in the format none", "give bf16 or fp32"));
    }
    sheet.group("links");
    let (fabric, inside) = links(&mut sheet, request)?;
    sheet.group("payload");
    let formula = format!("params x {dtype} B of {}", request.dtype.name());
    let model = params.positive()?.v * dtype;
    let model = sheet.bytes("model_bytes", model, &formula, &[params])?;
    let formula = "model_bytes / rail_rate: the weights once, as a copy would be";
    let pass = model.v / fabric.v;
    sheet.seconds("one_pass_time", pass, formula, &[model, fabric])?;
    let weights = weights(&mut sheet, request, model, fabric)?;
    let activations = activations(&mut sheet, request, dtype, fabric, inside)?;
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

/// Rate of a rank to other nodes, and to GPUs of its node.
fn links(sheet: &mut Sheet, request: &Request) -> Result<(Num, Num)> {
    let line = match sheet.maybe("nic_rate", request.nic_rate) {
        Some(rate) => rate.positive()?,
        None => {
            let formula = format!("line rate of {}", request.nic.name());
            let rate = request.nic.rate();
            let from = "InfiniBand roadmap: EDR 100, HDR 200, NDR 400, XDR 800 Gb/s";
            sheet.from(from).rate("nic_rate", rate, &formula, &[])?
        }
    };
    let rails = sheet.given("rails", request.rails).whole()?;
    let efficiency = sheet.given("efficiency", request.efficiency).share()?;
    let inputs = [line, rails, efficiency];
    let formula = "nic_rate x rails x efficiency";
    let rate = line.v * rails.v * efficiency.v;
    let fabric = sheet.rate("rail_rate", rate, formula, &inputs)?;
    let inside = sheet.given("nvlink", request.nvlink).positive()?;
    Ok((fabric, inside))
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
    let ring = (ranks.v - 1.0) / ranks.v;
    let inputs = [model, ranks];
    sheet.group("data parallel");
    let formula = "2 (n - 1)/n x model_bytes: reduce-scatter and all-gather";
    let bytes = 2.0 * ring * model.v;
    let dp = traffic(
        sheet,
        ["dp_bytes", "dp_time"],
        bytes,
        formula,
        &inputs,
        link,
        source::RING,
    )?;
    sheet.group("fully sharded");
    let formula = "3 (n - 1)/n x model_bytes: two all-gathers and a reduce-scatter";
    let bytes = 3.0 * ring * model.v;
    let fsdp = traffic(
        sheet,
        ["fsdp_bytes", "fsdp_time"],
        bytes,
        formula,
        &inputs,
        link,
        source::ZERO,
    )?;
    Ok([dp, fsdp])
}

/// What the ways that move activations share.
#[derive(Debug, Clone, Copy)]
struct Activations {
    layers: Num,
    micro: Num,
    bytes: Num,
    node: Num,
    fabric: Num,
    inside: Num,
}

impl Activations {
    /// The link that carries the traffic of a group of ranks.
    fn link(&self, ranks: Num) -> Num {
        if ranks.v <= self.node.v {
            self.inside
        } else {
            self.fabric
        }
    }
}

/// Ways that move activations: tensor parallel, pipeline parallel, mixture of experts.
fn activations(
    sheet: &mut Sheet,
    request: &Request,
    dtype: f64,
    fabric: Num,
    inside: Num,
) -> Result<[Num; 3]> {
    sheet.group("activations");
    let tokens = sheet.given("tokens", request.tokens).positive()?;
    let hidden = sheet.given("hidden", request.hidden).whole()?;
    let formula = format!("tokens x hidden x {dtype} B: one micro-batch between two layers");
    let value = tokens.v * hidden.v * dtype;
    let shared = Activations {
        layers: sheet.given("layers", request.layers).whole()?,
        micro: sheet.given("microbatches", request.microbatches).whole()?,
        bytes: sheet.bytes("activation_bytes", value, &formula, &[tokens, hidden])?,
        node: sheet.given("gpus_per_node", request.gpus_per_node).whole()?,
        fabric,
        inside,
    };
    let tp = tensor(sheet, request, shared)?;
    sheet.group("pipeline parallel");
    let formula = "2 passes x microbatches x activation_bytes, at each border of stages";
    let bytes = PASSES * shared.micro.v * shared.bytes.v;
    let inputs = [shared.micro, shared.bytes];
    let names = ["pp_bytes", "pp_time"];
    let pp = traffic(sheet, names, bytes, formula, &inputs, fabric, source::MEGATRON)?;
    let moe = experts(sheet, request, shared)?;
    Ok([tp, pp, moe])
}

fn tensor(sheet: &mut Sheet, request: &Request, shared: Activations) -> Result<Num> {
    sheet.group("tensor parallel");
    let tensor = sheet.given("tensor_parallel", request.tensor_parallel).whole()?;
    let formula = "2 x activation_bytes: two all-reduces per layer and pass";
    let value = 2.0 * shared.bytes.v;
    sheet.from(source::MEGATRON);
    let per_layer = sheet.bytes("tp_layer_bytes", value, formula, &[shared.bytes])?;
    let ring = 2.0 * (tensor.v - 1.0) / tensor.v;
    let bytes = PASSES * shared.layers.v * shared.micro.v * per_layer.v * ring;
    let formula = "2 passes x layers x microbatches x tp_layer_bytes x 2 (t - 1)/t";
    let inputs = [shared.layers, shared.micro, per_layer, tensor];
    if tensor.v > shared.node.v {
        let (ranks, node) = (tensor.v, shared.node.v);
        let message = format!("a tensor is split over {ranks} ranks, beyond a node of {node}");
        sheet.warn("tp_bytes", message);
    }
    let names = ["tp_bytes", "tp_time"];
    let link = shared.link(tensor);
    traffic(sheet, names, bytes, formula, &inputs, link, source::MEGATRON)
}

fn experts(sheet: &mut Sheet, request: &Request, shared: Activations) -> Result<Num> {
    sheet.group("mixture of experts");
    let experts = sheet.given("expert_parallel", request.expert_parallel).whole()?;
    let chosen = sheet
        .given("experts_per_token", request.experts_per_token)
        .positive()?;
    let away = (experts.v - 1.0) / experts.v;
    let there_and_back = 2.0 * shared.layers.v * shared.micro.v * shared.bytes.v * chosen.v;
    let bytes = PASSES * there_and_back * away;
    let formula = "2 passes x 2 (there and back) x layers x microbatches x activation_bytes x \
                   experts_per_token x (e - 1)/e";
    let inputs = [shared.layers, shared.micro, shared.bytes, chosen, experts];
    let names = ["moe_bytes", "moe_time"];
    let link = shared.link(experts);
    traffic(sheet, names, bytes, formula, &inputs, link, source::MOE)
}

fn step(sheet: &mut Sheet, request: &Request, time: Num) -> Result<()> {
    let formula = format!("{} of the strategy {}", time.name, request.strategy.name());
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
    let formula = "compute_time + network_time - what overlaps, at most compute_time";
    let inputs = [compute, time, overlap];
    let total = sheet.seconds("step_time", total, formula, &inputs)?;
    let share = (total.v - compute.v) / total.v;
    let formula = "1 - compute_time / step_time";
    let inputs = [compute, total];
    sheet.ratio("network_share", share, formula, &inputs)?;
    Ok(())
}
