//! `dispatch`: maps each (token, choice) to a row of its expert, and back.
//!
//! Assignment `p = j * n + t` is choice `j` of token `t`. Inside a group (one sequence, or everything), the assignments
//! to one expert are numbered in order: the position `q` of assignment p is the number of earlier assignments of its
//! group to its expert. It is kept if `q < capacity`. Kept assignments take rows expert by expert, then group by group,
//! then by position.
//!
//! ```text
//! tokens 0 1 2, top-2: (A B) (A C) (C A)    capacity 2, choice-major:
//!                                           A takes 0 1, then 2 is dropped; B takes 0; C takes 2, then 1
//!
//! RowLayout::Capacity       A: 0 1 | B: 0 - | C: 2 1                    [e, groups * capacity] rows; offsets 0 2 4 6
//! RowLayout::Sorted tile 4  A: 0 1 - - | B: 0 - - - | C: 2 1 - - | ..   segments padded to whole tiles; offsets 0 4 8 12
//!
//! row_of[p]          row of assignment p, -1 if dropped
//! assignment_of[r]   assignment p in row r (token p % n, choice p / n), -1 if empty
//! expert_offsets[e]  first row of expert e
//! ```
//!
//! The number of rows is the worst case, so no count has to be read back: all kept assignments, plus one tile minus one
//! row for each expert. Rows from the last entry of `expert_offsets` on are empty.

#[cfg(feature = "cubecl")]
pub(crate) mod cube;

use super::route::{check_assignments, check_indices};
use super::slices::{dims, int};
use burn::backend::autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn::backend::tensor::IntTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
#[cfg(feature = "cubecl")]
use burn::tensor::DType;
use burn::tensor::{Device, Int, Tensor};
use fused::check::Call;
#[cfg(feature = "cubecl")]
use fused::cube::specs::spec;
use fused::has_kernels;
use fused::slices::{contiguous, slice};

/// Which assignments of a group come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// All first choices in the order of tokens, then all second choices (GShard, arXiv 2006.16668): if capacity runs
    /// out, the weakest choices are dropped first.
    #[default]
    Choice,
    /// Token by token.
    Token,
}

impl Order {
    /// The (choice, token) pairs of a group of `tokens` tokens, in order.
    pub(crate) fn assignments(self, tokens: usize, k: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..tokens * k).map(move |i| match self {
            Self::Choice => (i / tokens, i % tokens),
            Self::Token => (i % k, i / k),
        })
    }
}

/// How rows are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowLayout {
    /// `[e, groups * capacity]`: an expert's segment has room for all that it may take.
    Capacity,
    /// Segments of the rows that each expert takes, padded to a multiple of `tile` rows.
    Sorted {
        /// Rows per tile.
        tile: usize,
    },
}

/// How [`dispatch`] places assignments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DispatchRule {
    /// Number of experts.
    pub experts: usize,
    /// Groups within which capacity is counted: sequences, one after another, all of one length.
    pub groups: usize,
    /// The most assignments of one group that an expert takes; `None` for no limit.
    pub capacity: Option<usize>,
    /// Which assignments come first.
    pub order: Order,
    /// The layout of rows; [`RowLayout::Capacity`] needs a capacity.
    pub layout: RowLayout,
}

impl DispatchRule {
    /// Number of rows of the layout for `n` tokens with `k` choices.
    pub fn rows(&self, n: usize, k: usize) -> usize {
        let limit = self.capacity.map_or(usize::MAX, |capacity| (self.experts * self.groups).saturating_mul(capacity));
        match self.layout {
            RowLayout::Capacity => limit,
            RowLayout::Sorted { tile } => {
                let kept = limit.min(n * k);
                (kept + self.experts.min(kept) * (tile - 1)) / tile * tile
            }
        }
    }
}

/// The place of every assignment; all tensors are i32.
#[derive(Debug, Clone)]
pub struct Dispatched {
    /// Row of each assignment, `[k, n]`; -1 if dropped.
    pub row_of_kn: Tensor<2, Int>,
    /// The assignment `j * n + t` in each row, `[r]`; -1 if empty.
    pub assignment_of_r: Tensor<1, Int>,
    /// First row of each expert, followed by the end of the last one, `[e + 1]`.
    pub expert_offsets: Tensor<1, Int>,
    /// Number of assignments that each expert took, `[e]`.
    pub kept_e: Tensor<1, Int>,
}

/// Places the assignments of `experts_kn`; -1 means no assignment.
///
/// # Panics
/// If the experts are not i32, if the tokens cannot be divided into `rule.groups`, if `RowLayout::Capacity` has no
/// capacity, if a tile has no rows, or if the layout has more rows than fit an i32; on the CPU, if an expert is out of
/// range.
pub fn dispatch(experts_kn: Tensor<2, Int>, rule: DispatchRule) -> Dispatched {
    let (call, [k, n]) = (Call("dispatch"), experts_kn.dims());
    check_assignments(call, "experts", &experts_kn, rule.groups);
    call.that(rule.groups > 0, "0 groups");
    let capacity = rule.layout != RowLayout::Capacity || rule.capacity.is_some();
    call.that(capacity, "RowLayout::Capacity without a capacity");
    call.that(rule.layout != RowLayout::Sorted { tile: 0 }, "tiles of 0 rows");
    let rows = rule.rows(n, k);
    call.that(rows <= i32::MAX as usize, format_args!("a layout of {rows} rows, which an i32 does not count"));
    let device = experts_kn.device();
    if !has_kernels(&device) {
        return dispatch(experts_kn.to_device(&Device::flex()), rule).moved_to(&device);
    }
    let experts = experts_kn.into_dispatch();
    let (row_of, assignment_of, expert_offsets, kept) = Dispatch::moe_dispatch(experts, rule);
    Dispatched {
        row_of_kn: Tensor::from_dispatch(row_of),
        assignment_of_r: Tensor::from_dispatch(assignment_of),
        expert_offsets: Tensor::from_dispatch(expert_offsets),
        kept_e: Tensor::from_dispatch(kept),
    }
}

impl Dispatched {
    fn moved_to(self, device: &Device) -> Self {
        Self {
            row_of_kn: self.row_of_kn.to_device(device),
            assignment_of_r: self.assignment_of_r.to_device(device),
            expert_offsets: self.expert_offsets.to_device(device),
            kept_e: self.kept_e.to_device(device),
        }
    }
}

/// The operation. It has no gradient: under autodiff, the backend below runs it.
#[backend_extension(Cube: cfg(feature = "cubecl"), Flex, Autodiff, Fusion: cfg(feature = "cubecl"))]
#[allow(clippy::type_complexity)]
pub(crate) trait DispatchOps: Backend {
    /// Maps `experts_kn` to `row_of_kn`, `assignment_of_r`, `expert_offsets` (`[e + 1]`) and `kept_e`, all i32.
    #[fusion(meta = |experts, rule| {
        let (k, n) = (experts.shape[0], experts.shape[1]);
        let ints = |len| spec([len], DType::I32);
        (spec([k, n], DType::I32), ints(rule.rows(n, k)), ints(rule.experts + 1), ints(rule.experts))
    })]
    fn moe_dispatch(
        experts: IntTensor<Self>,
        rule: DispatchRule,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);
}

impl DispatchOps for Flex {
    fn moe_dispatch(
        experts: IntTensor<Self>,
        rule: DispatchRule,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        let [k, n] = dims(&experts);
        let Placed { row_of, assignment_of, expert_offsets, kept } =
            dispatch_cpu(slice(&contiguous(&experts)), n, &rule);
        let list = |values: Vec<i32>| {
            let len = values.len();
            int(values, [len])
        };
        (int(row_of, [k, n]), list(assignment_of), list(expert_offsets), list(kept))
    }
}

impl<B: DispatchOps, C: CheckpointStrategy> DispatchOps for Autodiff<B, C> {
    fn moe_dispatch(
        experts: IntTensor<Self>,
        rule: DispatchRule,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        B::moe_dispatch(experts, rule)
    }
}

/// Rows of assignments, assignments of rows, offsets of experts, and kept counts.
struct Placed {
    row_of: Vec<i32>,
    assignment_of: Vec<i32>,
    expert_offsets: Vec<i32>,
    kept: Vec<i32>,
}

fn dispatch_cpu(experts: &[i32], n: usize, rule: &DispatchRule) -> Placed {
    let (e, groups) = (rule.experts, rule.groups);
    check_indices("dispatch", "experts", experts, e);
    let (k, tokens) = (experts.len() / n.max(1), n / groups.max(1));
    let capacity = rule.capacity.unwrap_or(usize::MAX);
    // The next row of each (expert, group); initially the number of assignments that it keeps.
    let mut next = vec![0; e * groups];
    for (p, expert) in experts.iter().enumerate().filter(|(_, expert)| **expert >= 0) {
        let count = &mut next[*expert as usize * groups + p % n / tokens];
        *count = (*count + 1).min(capacity);
    }
    let kept: Vec<usize> = next.chunks_exact(groups).map(|counts| counts.iter().sum()).collect();
    let mut expert_offsets = vec![0];
    for (expert, kept) in kept.iter().enumerate() {
        let start = expert_offsets[expert];
        let mut row = start;
        for (group, next) in next[expert * groups..][..groups].iter_mut().enumerate() {
            let count = std::mem::replace(
                next,
                if rule.layout == RowLayout::Capacity { start + group * capacity } else { row },
            );
            row += count;
        }
        expert_offsets.push(start + rule.segment_rows(*kept));
    }

    let ends: Vec<usize> = next.iter().map(|start| start.saturating_add(capacity)).collect();
    let (mut row_of, mut assignment_of) = (vec![-1; experts.len()], vec![-1; rule.rows(n, k)]);
    for group in 0..groups {
        for (choice, token) in rule.order.assignments(tokens, k) {
            let p = choice * n + group * tokens + token;
            if experts[p] < 0 {
                continue;
            }
            let place = experts[p] as usize * groups + group;
            if next[place] < ends[place] {
                (row_of[p], assignment_of[next[place]]) = (next[place] as i32, p as i32);
                next[place] += 1;
            }
        }
    }
    let ints = |values: Vec<usize>| values.into_iter().map(|value| value as i32).collect();
    Placed { row_of, assignment_of, expert_offsets: ints(expert_offsets), kept: ints(kept) }
}

impl DispatchRule {
    /// Rows of the segment of an expert that takes `kept` assignments.
    fn segment_rows(&self, kept: usize) -> usize {
        match self.layout {
            RowLayout::Capacity => self.groups * self.capacity.unwrap_or(0),
            RowLayout::Sorted { tile } => kept.next_multiple_of(tile),
        }
    }
}
