//! Where formulas and constants come from; every figure names one of these or its own.

/// Follows from the inputs by counting.
pub(crate) const ARITHMETIC: &str = "arithmetic";
/// The size of a checkpoint from the architecture.
pub(crate) const DLIO: &str = "DLIO benchmark, tag mlperf_storage_v2.0, checkpointing/base_checkpointing.py, with the shapes of mlcommons/storage v2.0, \
     configs/dlio/workload/llama3_*.yaml: 2 B weights and 12 B optimizer per parameter";
/// Weights, gradients and optimizer states per parameter and who holds them.
pub(crate) const ZERO: &str = "Rajbhandari et al., ZeRO, arXiv:1910.02054";
/// First-order interval.
pub(crate) const YOUNG: &str = "Young 1974, doi:10.1145/361147.361115";
/// Higher-order interval, and the exponential model behind the goodput.
pub(crate) const DALY: &str = "Daly 2006, doi:10.1016/j.future.2004.11.016";
/// The interval with the best availability when restarts count.
pub(crate) const AVAILABILITY: &str = "arXiv:2410.18124";
/// Copy through host memory against GPUDirect Storage.
pub(crate) const GDS: &str =
    "assumption of this project, from no publication: 11.8 against 4.2 GB/s; measure and override";
/// Copy from a GPU to host memory.
pub(crate) const HOST_COPY: &str = "PCI Express base specification, line rate of 16 lanes; that a copy reaches 80 % of it is an \
     assumption of this project";
/// Latency of parallel file systems.
pub(crate) const FS_LATENCY: &str = "assumption of this project, from no publication; measure it";
/// Shape of a model that is known by its size only.
pub(crate) const SHAPE: &str = "12 parameters per layer and square of the width, and a width of 128 per layer, as Llama 3 has with 8 and \
     405 billion; give layers and hidden";
/// Time of work for a number of tokens.
pub(crate) const SCALING: &str = "Kaplan et al., arXiv:2001.08361: 6 FLOP per parameter and token";
/// Sample sizes and step times of the storage benchmark.
pub(crate) const MLPERF: &str =
    "MLPerf Storage workload configurations, mlcommons/storage, configs/dlio/workload/*.yaml";
/// Ring collectives.
pub(crate) const RING: &str = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002";
/// Tensor and pipeline parallelism.
pub(crate) const MEGATRON: &str = "Narayanan et al., Megatron-LM, arXiv:2104.04473";
/// Mixture of experts.
pub(crate) const MOE: &str = "Lepikhin et al., GShard, arXiv:2006.16668";
/// Fat trees.
pub(crate) const FAT_TREE: &str = "Al-Fares et al. 2008, doi:10.1145/1402958.1402967";
/// Rail-optimised and rail-only networks.
pub(crate) const RAIL: &str = "Wang et al., arXiv:2307.12169";
/// Dragonfly networks.
pub(crate) const DRAGONFLY: &str = "Kim et al. 2008, doi:10.1109/ISCA.2008.19";
/// Requests in flight.
pub(crate) const LITTLE: &str = "Little's law: in flight = rate x latency";
/// Request limits per prefix.
pub(crate) const S3: &str = "Amazon S3 performance guidelines: 3,500 PUT and 5,500 GET per second and prefix";
/// Processor time of NVMe/TCP.
pub(crate) const NVME_TCP: &str = "rule of thumb, pessimistic: one core per 10 Gb/s; measure and override";
/// Width of token identifiers.
pub(crate) const TOKENS: &str = "16-bit identifiers hold 65,536 tokens; larger vocabularies need 32 bits";
