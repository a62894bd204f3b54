//! Kernel launches of a micro-batch, forward and backward, on the device under test, with Burn's fusion as in GPU
//! training; and that the host reads nothing back in between.
#![cfg(any(feature = "cpu-jit", feature = "cuda", feature = "vulkan"))]

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use fused::cube::{launches, testing, unreadable};
use model::{Batch, DeepSeek, DeepSeekConfig, Gpt2, Gpt2Config, LanguageModel, MicroBatch, StepContext, Targets};
use moe::MoeConfig;
use std::collections::BTreeMap;
use test_kit::tracked;

trait Trained: Module {
    fn loss(&self, tokens_bt: Tensor<2, Int>) -> Tensor<1>;

    /// The parameter the forward begins with and the backward ends with.
    fn table(&mut self) -> &mut Param<Tensor<2>>;
}

impl Trained for Gpt2 {
    fn loss(&self, tokens_bt: Tensor<2, Int>) -> Tensor<1> {
        LanguageModel::loss(self, tokens_bt.clone(), tokens_bt)
    }

    fn table(&mut self) -> &mut Param<Tensor<2>> {
        &mut self.ends.wte.weight
    }
}

impl Trained for DeepSeek {
    /// The loss as in training: the experts have a capacity and a load-balancing loss.
    fn loss(&self, tokens_bt: Tensor<2, Int>) -> Tensor<1> {
        let micro = MicroBatch::from(StepContext { seed: 1, step: 2, first_row: 0 });
        let losses = self.losses(&Batch { micro, ..Batch::new(tokens_bt.clone(), Targets::all(tokens_bt)) });
        losses.aux.into_iter().fold(losses.loss, |sum, loss| sum + loss)
    }

    fn table(&mut self) -> &mut Param<Tensor<2>> {
        &mut self.embed.weight
    }
}

fn gpt2(blocks: usize) -> Gpt2 {
    let config =
        Gpt2Config { vocab_size: 32, n_positions: 8, n_layer: blocks, n_head: 2, n_embd: 16, ..Gpt2Config::default() };
    tracked(Gpt2::init(&config, 1, &testing::device()))
}

fn deepseek(dense: usize, mixtures: usize) -> DeepSeek {
    let config = DeepSeekConfig {
        vocab_size: 32,
        hidden_size: 16,
        num_hidden_layers: dense + mixtures,
        first_k_dense_replace: dense,
        intermediate_size: 32,
        num_attention_heads: 2,
        q_lora_rank: Some(8),
        kv_lora_rank: 8,
        qk_nope_head_dim: 8,
        qk_rope_head_dim: 4,
        v_head_dim: 8,
        ..DeepSeekConfig::default()
    };
    let moe = MoeConfig {
        num_experts: 4,
        moe_intermediate_size: 16,
        n_shared_experts: 1,
        selection_bias: true,
        capacity_factor: Some(1.5),
        aux_loss_coef: 0.01,
        ..MoeConfig::default()
    };
    tracked(DeepSeek::init(&config, &moe, 1, &testing::device()))
}

/// Runs forward and backward, and returns whether the last result of the backward can be read.
fn micro_batch(model: &mut impl Trained) -> bool {
    let tokens_bt = [[1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]];
    let gradients = model.loss(Tensor::from_data(tokens_bt, &testing::device().autodiff())).backward();
    // Once this gradient is on the device, all gradients are.
    model.table().val().grad(&gradients).expect("a gradient of the table").try_into_data().is_ok()
}

#[derive(Debug)]
struct Launches {
    /// Kernels of `fused` and `moe`, without `_kernel` at the end.
    ours: BTreeMap<String, usize>,
    /// Matrix products. Autotuning decides which kernel computes one.
    products: usize,
    /// All other kernels of Burn: sums of a bias's gradient, additions, copies, constants.
    others: usize,
}

impl Launches {
    fn of(mut model: impl Trained) -> Self {
        // The first run autotunes the products.
        assert!(micro_batch(&mut model), "a gradient that can be read");
        let mut found = Self { ours: BTreeMap::new(), products: 0, others: 0 };
        for name in launches(|| assert!(micro_batch(&mut model), "a gradient that can be read")) {
            let path: Vec<&str> = name.split('<').next().expect("the first part").split("::").collect();
            match path[..] {
                ["moe" | "fused", .., kernel, _] => {
                    *found.ours.entry(kernel.trim_end_matches("_kernel").into()).or_default() += 1;
                }
                ["cubek_matmul", ..] => found.products += 1,
                _ => found.others += 1,
            }
        }
        found
    }

    /// The launches beyond those of `fewer`.
    fn beyond(&self, fewer: &Self) -> Self {
        let mut ours = self.ours.clone();
        for (kernel, count) in &fewer.ours {
            *ours.get_mut(kernel).expect("a model with more blocks launches it too") -= count;
        }
        ours.retain(|_, count| *count > 0);
        Self { ours, products: self.products - fewer.products, others: self.others.saturating_sub(fewer.others) }
    }

    /// Asserts that the kernels of `fused` and `moe` and the products are exactly these. Burn's other kernels are at
    /// most `others`, because Burn decides what it fuses.
    fn hold(&self, what: &str, ours: &[(&str, usize)], products: usize, others: usize) {
        let expected: BTreeMap<String, usize> = ours.iter().map(|(kernel, count)| ((*kernel).into(), *count)).collect();
        let all = self.ours.values().sum::<usize>();
        println!("{what}: {all} kernels of ours, {} products, {} others", self.products, self.others);
        assert_eq!((&self.ours, self.products), (&expected, products), "{what}");
        assert!(self.others <= others, "{what}: {self:#?}");
    }
}

/// See [`unreadable`], which only works on CubeCL's CPU runtime.
fn reads_nothing_back(mut model: impl Trained) {
    if !testing::is_cpu_runtime() {
        return;
    }
    let table = model.table();
    *table = Param::initialized(table.id, unreadable(table.val().inner()).autodiff().require_grad());
    assert!(!micro_batch(&mut model), "all depends on what cannot be read");
}

/// The embedding and its gradient (a sort, then sums), the final norm, and the loss.
const ENDS: [(&str, usize); 12] = [
    ("cross_entropy_loss", 1),
    ("cross_entropy_mean", 1),
    ("embedding_count", 1),
    ("embedding", 1),
    ("embedding_parts", 1),
    ("embedding_place", 1),
    ("embedding_scan", 1),
    ("embedding_scan_blocks", 1),
    ("embedding_sum", 1),
    ("norm_add_pieces", 1),
    ("norm", 1),
    ("norm_backward", 1),
];

/// Latent attention with the norms of the block, one of them fused with the residual addition, and those of both
/// compressions.
const LATENT_ATTENTION: [(&str, usize); 9] = [
    ("attention_forward", 1),
    ("attention_dkv", 1),
    ("attention_delta", 1),
    ("attention_sum_heads", 1),
    ("attention_dq", 1),
    ("add_norm", 1),
    ("norm_add_pieces", 4),
    ("norm", 3),
    ("norm_backward", 4),
];

/// One test, because launches are counted for the whole process.
#[test]
fn a_micro_batch_launches_few_kernels_and_reads_nothing_back() {
    // One more block shows what a block launches; the rest of a model with one block belongs to the ends.
    let (one, two) = (Launches::of(gpt2(1)), Launches::of(gpt2(2)));
    let block = two.beyond(&one);
    one.beyond(&block).hold("GPT-2's ends", &ENDS, 3, 12);
    let kernels = [
        ("attention_forward", 1),
        ("attention_dkv", 1),
        ("attention_delta", 1),
        ("attention_dq", 1),
        ("gelu", 1),
        ("gelu_backward", 1),
        ("add_norm", 1),
        ("norm_add_pieces", 2),
        ("norm", 1),
        ("norm_backward", 2),
    ];
    block.hold("a block of GPT-2", &kernels, 3 * 4, 14);
    reads_nothing_back(gpt2(1));

    let (one, two) = (Launches::of(deepseek(1, 0)), Launches::of(deepseek(2, 0)));
    let block = two.beyond(&one);
    one.beyond(&block).hold("DeepSeek's ends", &ENDS, 3, 8);
    let swiglu = [("silu_mul", 1), ("silu_mul_backward", 1)];
    // Two for the query, two for the compression, one from it, one to the output, and three in the SwiGLU.
    block.hold("a dense block of DeepSeek", &[&LATENT_ATTENTION[..], &swiglu].concat(), 3 * 9, 16);
    reads_nothing_back(deepseek(1, 0));

    let block = Launches::of(deepseek(1, 1)).beyond(&one);
    let mixture = [
        ("dispatch_assign", 1),
        ("dispatch_histogram", 1),
        ("dispatch_place", 1),
        ("dispatch_scan", 1),
        // Three matrices per expert, forward and for the gradient of the rows. The third product of each is the
        // matrix's gradient.
        ("grouped_gemm_prepare", 6),
        ("grouped_gemm_product", 6),
        ("grouped_gemm_weight_sum", 3),
        ("permute", 1),
        ("unpermute", 2),
        ("unpermute_backward", 1),
        ("route_count", 1),
        ("route_gates", 1),
        ("route_gates_backward", 1),
        ("route_scores", 1),
        ("route_scores_backward", 1),
        ("route_select", 1),
        // Of the routed experts and of the shared one.
        ("silu_mul", 2),
        ("silu_mul_backward", 2),
    ];
    // Those of the dense block, plus the router's.
    block.hold("a block of DeepSeek with experts", &[&LATENT_ATTENTION[..], &mixture].concat(), 3 * 10, 46);
    reads_nothing_back(deepseek(1, 1));
}
