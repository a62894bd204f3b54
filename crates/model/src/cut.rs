//! The tensor-parallel cut of each parameter.

use comm::Cut;

/// Returns how tensor-parallel ranks cut a parameter, given its path in the model; `None` if every rank holds all of
/// it.
///
/// Heads, MLP columns and the vocabulary are cut:
///
/// ```text
/// GPT-2       by columns   c_attn (q, k and v each), c_fc
///             by rows      c_proj, wte
/// DeepSeek    by columns   q_proj, q_b_proj, kv_b_proj, gate, up, lm_head
///             by rows      o_proj, down, embed
/// ```
///
/// Everything added after a sum over ranks (biases of output projections), norms, routers, compressions and positions
/// stay whole. Experts are cut by `parallel.ep` alone.
pub fn cut(path: &str) -> Option<Cut> {
    let fields: Vec<&str> = path.split('.').collect();
    let is_bias = fields.last() == Some(&"bias");
    // A bias is cut like the columns it is added to.
    let columns = |blocks| if is_bias { Cut { dim: 0, blocks } } else { Cut::columns_of(blocks) };
    match fields.get(fields.len().checked_sub(2)?)? {
        &"wte" | &"embed" => Some(Cut::ROWS),
        &"c_attn" => Some(columns(3)),
        &"c_fc" | &"q_proj" | &"q_b_proj" | &"kv_b_proj" | &"gate_proj" | &"up_proj" | &"lm_head" => Some(columns(1)),
        &"c_proj" | &"o_proj" | &"down_proj" if !is_bias => Some(Cut::ROWS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeepSeek, DeepSeekConfig, Gpt2, Gpt2Config};
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::tensor::{Device, Tensor};
    use moe::MoeConfig;
    use std::collections::BTreeSet;

    /// Collects the paths, without numbers, of the parameters that are not cut.
    #[derive(Default)]
    struct Whole {
        path: Vec<String>,
        found: BTreeSet<String>,
    }

    impl ModuleVisitor for Whole {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.into());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
            if cut(&self.path.join(".")).is_none() {
                let names = self.path.iter().filter(|part| part.parse::<usize>().is_err());
                self.found.insert(names.cloned().collect::<Vec<_>>().join("."));
            }
        }
    }

    #[test]
    fn what_every_rank_has_all_of_is_this() {
        let whole = |model: &dyn Fn(&mut Whole)| {
            let mut whole = Whole::default();
            model(&mut whole);
            whole.found.into_iter().collect::<Vec<_>>()
        };
        let device = &Device::flex();
        let gpt2 = Gpt2::new(&Gpt2Config { n_layer: 1, ..Gpt2Config::default() }, device);
        let norms = |of: &'static str| ["beta", "gamma"].map(|part| format!("{of}.{part}"));
        let mut expected: Vec<String> =
            ["blocks.attn.c_proj.bias", "blocks.mlp.c_proj.bias", "ends.wpe.weight"].map(String::from).into();
        expected.extend(["blocks.ln_1", "blocks.ln_2", "ends.ln_f"].into_iter().flat_map(norms));
        expected.sort();
        assert_eq!(whole(&|whole| gpt2.visit(whole)), expected);

        let shape = DeepSeekConfig {
            num_hidden_layers: 2,
            first_k_dense_replace: 1,
            q_lora_rank: Some(4),
            mtp_depth: 1,
            ..DeepSeekConfig::default()
        };
        let moe = MoeConfig { selection_bias: true, n_shared_experts: 1, ..MoeConfig::default() };
        let deepseek = DeepSeek::new(&shape, &moe, device);
        let expected = [
            "blocks.input_layernorm.gamma",
            "blocks.mlp.Moe.experts.down_proj",
            "blocks.mlp.Moe.experts.gate_proj",
            "blocks.mlp.Moe.experts.up_proj",
            "blocks.mlp.Moe.router.bias",
            "blocks.mlp.Moe.router.proj.weight",
            "blocks.post_attention_layernorm.gamma",
            "blocks.self_attn.kv_a_layernorm.gamma",
            "blocks.self_attn.kv_a_proj_with_mqa.weight",
            "blocks.self_attn.q_a_layernorm.gamma",
            "blocks.self_attn.q_a_proj.weight",
            "head.norm.gamma",
        ];
        let of_module =
            ["eh_proj.weight", "enorm.gamma", "hnorm.gamma", "norm.gamma"].map(|path| format!("mtp.{path}"));
        let of_block = |path: &&str| path.strip_prefix("blocks").map(|path| format!("mtp.block{path}"));
        let mut expected: Vec<String> =
            expected.iter().filter_map(of_block).chain(of_module).chain(expected.map(String::from)).collect();
        expected.sort();
        assert_eq!(whole(&|whole| deepseek.visit(whole)), expected);
    }
}
