//! The configured micro-batch, on which the costs of a model's calls depend.

use crate::config::Config;
use crate::host::device;
use comm::Axis;
use model::Workload;

/// A full micro-batch of a rank.
pub(crate) fn workload(config: &Config, rank: usize) -> Workload {
    let parallel = &config.parallel;
    let mesh = config.fsdp_without_chunks().mesh(parallel.gpus).expect("the configuration is validated");
    Workload {
        sequences: config.micro_batch_size(),
        positions: config.padded_length(),
        length: config.train.seq_len,
        element: parallel.precision.param().dtype().size(),
        on_cpu: device::meant(&config.train.device) == "cpu",
        ep: parallel.ep,
        tp: parallel.tp,
        cp: parallel.cp,
        cp_rank: mesh.coordinate(rank, Axis::Cp),
    }
}
