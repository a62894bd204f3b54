use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor};

/// Which slot of which expert each (token, choice) takes, and back: the index tensors of permutation and combination.
///
/// Slots are numbered expert by expert: `expert * slots_per_expert + position`. Within an expert, assignments are numbered
/// in choice-major order, as in GShard: all first choices in token order, then all second choices. So where capacity runs
/// out, the weakest choices go first.
///
/// ```text
/// tokens 0 1 2, top-2: (A B) (A C) (C A)      order of A's assignments: 0 1 (first choices), 2 (second choice)
/// slots of A: 0 1 2 | of B: 0 - - | of C: 2 1 -        with capacity 2, token 2's choice of A is dropped
/// ```
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// For each slot `[e * s]` the token in it; empty slots hold token 0 and nobody reads their output.
    pub token_of_slot: Tensor<1, Int>,
    /// For each token and choice the slot; slot 0 if it was dropped.
    pub slot_nk: Tensor<2, Int>,
    /// 1 where an assignment has a slot, 0 where it was dropped.
    pub kept_nk: Tensor<2>,
    /// Slots of one expert, `s`.
    pub slots_per_expert: usize,
}

impl Dispatch {
    /// Every assignment gets a slot; `s` is the largest load of an expert (read back to the host).
    pub fn dropless(experts_nk: Tensor<2, Int>, num_experts: usize) -> Self {
        let [n, k] = experts_nk.dims();
        let numbered = Numbered::new(experts_nk.reshape([1, n, k]), num_experts);
        let largest = numbered.counts_be.clone().max().into_scalar::<i64>() as usize;
        numbered.into_dispatch(num_experts, largest)
    }

    /// At most `capacity` slots for each expert and sequence of `experts_btk`, the first assignments in order.
    pub fn limited(experts_btk: Tensor<3, Int>, num_experts: usize, capacity: usize) -> Self {
        Numbered::new(experts_btk, num_experts).into_dispatch(num_experts, capacity)
    }
}

/// Assignments numbered per group and expert. A group is one sequence, or everything.
struct Numbered {
    experts_btk: Tensor<3, Int>,
    /// Place of an assignment among those of its group to the same expert, from 0.
    position_btk: Tensor<3, Int>,
    counts_be: Tensor<2, Int>,
}

impl Numbered {
    fn new(experts_btk: Tensor<3, Int>, num_experts: usize) -> Self {
        let [b, t, k] = experts_btk.dims();
        let order_b_kt = experts_btk.clone().swap_dims(1, 2).reshape([b, k * t, 1]);
        let expert = Tensor::arange(0..num_experts as i64, &experts_btk.device()).reshape([1, 1, num_experts]);
        let one_hot = order_b_kt.clone().equal(expert).int();
        let running = one_hot.cumsum(1);
        let counts_be = running.clone().slice([0..b, k * t - 1..k * t]).reshape([b, num_experts]);
        let position = running.gather(2, order_b_kt) - 1;
        Self { experts_btk, position_btk: position.reshape([b, k, t]).swap_dims(1, 2), counts_be }
    }

    fn into_dispatch(self, num_experts: usize, capacity: usize) -> Dispatch {
        let [b, t, k] = self.experts_btk.dims();
        let (device, n, s): (Device, _, _) = (self.experts_btk.device(), b * t, b * capacity);
        let group_base = Tensor::<1, Int>::arange(0..b as i64, &device).reshape([b, 1, 1]) * capacity as i64;
        let dropped_nk = self.position_btk.clone().greater_equal_elem(capacity as i64).reshape([n, k]);
        let slot_nk = (self.experts_btk * s as i64 + group_base + self.position_btk).reshape([n, k]);

        // The inverse: each kept assignment writes its token into its slot; dropped ones write into one slot past the end.
        let target = slot_nk.clone().mask_fill(dropped_nk.clone(), (num_experts * s) as i64).reshape([n * k]);
        let tokens = Tensor::<1, Int>::arange(0..n as i64, &device).reshape([n, 1]).repeat_dim(1, k).reshape([n * k]);
        let token_of_slot = Tensor::<1, Int>::zeros([num_experts * s + 1], &device)
            .scatter(0, target, tokens.mask_fill(dropped_nk.clone().reshape([n * k]), 0), IndexingUpdateOp::Add)
            .slice(0..num_experts * s);
        Dispatch {
            token_of_slot,
            slot_nk: slot_nk.mask_fill(dropped_nk.clone(), 0),
            kept_nk: dropped_nk.bool_not().float(),
            slots_per_expert: s,
        }
    }
}
