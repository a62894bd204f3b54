//! `reroute`: replaces a full expert with the token's next-best expert that has room.
//!
//! Assignments of a sequence are placed one after another, in the order of [`dispatch`](super::dispatch). Choice `j` of
//! a token goes to its candidate `j`. If that expert is full, it goes to the first of the token's reserves (candidates
//! from `k` on) that has room and that the token does not already hold. So an assignment is dropped only if each of
//! these candidates is full or held by the token.
//!
//! ```text
//! top-1 of candidates, capacity 1     token 0: A B C   token 1: A B C   token 2: A C B
//! experts                                      A               B                 C
//! ```
//!
//! Every placement depends on those before it; sequences are independent.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use super::dispatch::Order;
use super::elsewhere::on_cpu;
use super::route::check_assignments;
use super::slices::{dims, int};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::IntTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
#[cfg(feature = "cubecl")]
use burn::tensor::DType;
use burn::tensor::{Int, Tensor};
use fused::check::Call;
#[cfg(feature = "cubecl")]
use fused::cube::specs::spec;
use fused::has_kernels;
use fused::slices::{contiguous, slice};

/// How [`reroute`] places assignments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RerouteRule {
    /// Choices per token, k; the other candidates are its reserves.
    pub top_k: usize,
    /// Number of experts.
    pub experts: usize,
    /// Sequences, one after another, all of one length.
    pub groups: usize,
    /// The most assignments of one sequence that an expert takes.
    pub capacity: usize,
    /// Which assignments come first.
    pub order: Order,
}

/// Maps `candidates_cn`, best first, to `experts_kn`, with -1 if no candidate had room.
///
/// # Panics
/// If the candidates are not i32, if a token has fewer candidates than choices, or if the tokens cannot be divided into
/// `rule.groups`; on the CPU, if a candidate is out of range.
pub fn reroute(candidates_cn: Tensor<2, Int>, rule: RerouteRule) -> Tensor<2, Int> {
    let (call, shape) = (Call("reroute"), candidates_cn.dims());
    check_assignments(call, "candidates", &candidates_cn, rule.groups);
    let enough = (1..=shape[0]).contains(&rule.top_k);
    call.that(enough, format_args!("candidates has shape {shape:?}, expected {} choices of each token", rule.top_k));
    if !has_kernels(&candidates_cn.device()) {
        return on_cpu(candidates_cn, |candidates_cn| reroute(candidates_cn, rule));
    }
    Tensor::from_dispatch(Dispatch::moe_reroute(candidates_cn.into_dispatch(), rule))
}

/// The operation. It has no gradient: under autodiff, the backend below runs it.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
pub(crate) trait RerouteOps: Backend {
    /// Maps `candidates_cn` to `experts_kn`, with -1 if no candidate had room.
    #[fusion(meta = |candidates, rule| spec([rule.top_k, candidates.shape[1]], DType::I32))]
    fn moe_reroute(candidates: IntTensor<Self>, rule: RerouteRule) -> IntTensor<Self>;
}

impl RerouteOps for Flex {
    fn moe_reroute(candidates: IntTensor<Self>, rule: RerouteRule) -> IntTensor<Self> {
        let [_, n] = dims(&candidates);
        int(reroute_cpu(slice(&contiguous(&candidates)), n, &rule), [rule.top_k, n])
    }
}

impl<B: RerouteOps, C: CheckpointStrategy> RerouteOps for Autodiff<B, C> {
    fn moe_reroute(candidates: IntTensor<Self>, rule: RerouteRule) -> IntTensor<Self> {
        B::moe_reroute(candidates, rule)
    }
}

fn reroute_cpu(candidates: &[i32], n: usize, rule: &RerouteRule) -> Vec<i32> {
    let (k, c, tokens) = (rule.top_k, candidates.len() / n.max(1), n / rule.groups.max(1));
    let wrong = candidates.iter().find(|expert| !(0..rule.experts as i32).contains(*expert));
    assert!(wrong.is_none(), "reroute: candidates has a {wrong:?}, expected experts below {}", rule.experts);
    let mut experts = vec![-1; k * n];
    for group in 0..rule.groups {
        let mut load = vec![0; rule.experts];
        for (choice, token) in rule.order.assignments(tokens, k) {
            let token = group * tokens + token;
            let held = |expert| (0..k).any(|j| experts[j * n + token] == expert);
            let free = std::iter::once(choice)
                .chain(k..c)
                .map(|i| candidates[i * n + token])
                .find(|expert| load[*expert as usize] < rule.capacity && !held(*expert));
            if let Some(expert) = free {
                load[expert as usize] += 1;
                experts[choice * n + token] = expert;
            }
        }
    }
    experts
}
