//! The kernels of `grouped_gemm` in CubeCL, in three tiers.
//!
//! | tier | where | forward and `dx` | `dW` |
//! |---|---|---|---|
//! | [`Simt`](Tier::Simt) | everywhere | [`simt`] | [`weight`] |
//! | [`MultiLevel`](Tier::MultiLevel) | tensor cores, bf16 and f16 | [`multi_level`] | [`weight_cmma`] |
//! | [`Wgmma`](Tier::Wgmma) | H100, bf16; only if forced | [`wgmma`] | [`weight_cmma`] |
//!
//! Every tier takes any segments: [`tiles`] gives each tile of rows its expert and its end, and rows past the end are
//! not written. Segments are on the device, where the host does not check them. An end beyond the last row is clamped
//! to it, so nothing reads or writes out of bounds. Segments padded to [`tile_rows`](super::tile_rows) leave no tile
//! half empty.

mod multi_level;
#[cfg(feature = "offline")]
mod offline;
mod simt;
mod tier;
mod tiles;
mod weight;
mod weight_cmma;
mod wgmma;

use super::{GroupedGemmBackwardOps, GroupedGemmOps};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use fused::cube::launch::{empty, part_or_empty};

#[cfg(feature = "offline")]
pub(crate) use offline::cases;
pub use tier::{Tier, force_tier};

/// Rows per tile on a GPU, in every tier.
pub(super) const TILE: usize = 128;

impl GroupedGemmOps for CubeBackend {
    /// # Panics
    /// If the forced tier cannot run here.
    fn moe_grouped_gemm(x: CubeTensor, weight: CubeTensor, expert_offsets: CubeTensor, transposed: bool) -> CubeTensor {
        let (x, weight, expert_offsets) =
            (into_contiguous(x), into_contiguous(weight), into_contiguous(expert_offsets));
        let ([r, _], [_, rows, columns]) = (x.meta.shape().dims(), weight.meta.shape().dims());
        let q = if transposed { rows } else { columns };
        let y = empty(&x, [r, q], x.dtype);
        if r * q == 0 {
            return y;
        }
        let launch = |tier| match tier {
            Tier::Simt => {
                simt::launch(&x, &weight, &expert_offsets, &y, transposed);
                Ok(())
            }
            Tier::MultiLevel => multi_level::launch(&x, &weight, &expert_offsets, &y, transposed),
            Tier::Wgmma => wgmma::launch(&x, &weight, &expert_offsets, &y, transposed),
        };
        match tier::forced() {
            Some(tier) => launch(tier).unwrap_or_else(|why| panic!("grouped_gemm: tier {tier} cannot run here: {why}")),
            // Products that cubek cannot plan run without tensor cores.
            None if multi_level::is_fast(&x) => {
                launch(Tier::MultiLevel).or_else(|_| launch(Tier::Simt)).expect("runs everywhere");
            }
            None => launch(Tier::Simt).expect("runs everywhere"),
        }
        y
    }
}

impl GroupedGemmBackwardOps for CubeBackend {
    fn moe_grouped_gemm_weight(x: CubeTensor, d_y: CubeTensor, expert_offsets: CubeTensor) -> CubeTensor {
        grouped_gemm_weight(x, d_y, expert_offsets, None)
    }

    fn moe_grouped_gemm_weight_into(
        x: CubeTensor,
        d_y: CubeTensor,
        expert_offsets: CubeTensor,
        flat: CubeTensor,
        start: usize,
    ) -> CubeTensor {
        grouped_gemm_weight(x, d_y, expert_offsets, Some((flat, start)))
    }
}

/// `dW_epq`, in the memory of the tensor `into` from that element on if it is given. [`Tier::Simt`] forces the kernel
/// without tensor cores; the other tiers share theirs and fall back to it.
fn grouped_gemm_weight(
    x: CubeTensor,
    d_y: CubeTensor,
    expert_offsets: CubeTensor,
    into: Option<(CubeTensor, usize)>,
) -> CubeTensor {
    let (x, d_y, expert_offsets) = (into_contiguous(x), into_contiguous(d_y), into_contiguous(expert_offsets));
    let ([_, p], [_, q]) = (x.meta.shape().dims(), d_y.meta.shape().dims());
    let shape = [expert_offsets.meta.shape()[0] - 1, p, q];
    let d_weight = match into {
        Some((flat, start)) => part_or_empty(&flat, start, shape, x.dtype),
        None => empty(&x, shape, x.dtype),
    };
    if p * q == 0 {
        return d_weight;
    }
    if tier::forced() != Some(Tier::Simt) && weight_cmma::supports(&x, p, q) {
        weight_cmma::launch(&x, &d_y, &expert_offsets, &d_weight);
    } else {
        weight::launch(&x, &d_y, &expert_offsets, &d_weight);
    }
    d_weight
}
