//! A family's description of its parameters matches its modules.

use super::*;
use crate::{Gpt2, Llama, ParameterSpec, Sharding, Workload, visited};
use proptest::prelude::*;

/// A GPT-2, a DeepSeek, and Llamas with and without experts, of these sizes.
fn models(
    sizes: [u8; 8],
    [bias, selection_bias]: [bool; 2],
    [inner, rank]: [Option<u8>; 2],
    (dense, mtp_depth): (usize, usize),
) -> [(ModelConfig, Option<MoeConfig>); 4] {
    let at_least_1 = |size: u8| usize::from(size) + 1;
    let [a, b, c, d, e, f, g, h] = sizes.map(at_least_1);
    let gpt2 = Gpt2Config {
        vocab_size: a,
        n_positions: b,
        n_layer: 3,
        n_head: 1,
        n_embd: c,
        n_inner: inner.map(at_least_1),
        bias,
        ..Gpt2Config::default()
    };
    let deepseek = DeepSeekConfig {
        vocab_size: a,
        hidden_size: b,
        num_hidden_layers: 3,
        first_k_dense_replace: dense,
        intermediate_size: c,
        num_attention_heads: 3,
        q_lora_rank: rank.map(at_least_1),
        kv_lora_rank: d,
        qk_nope_head_dim: e,
        qk_rope_head_dim: 2 * f,
        v_head_dim: g,
        mtp_depth,
        ..DeepSeekConfig::default()
    };
    let moe = MoeConfig {
        num_experts: h,
        top_k: 1,
        moe_intermediate_size: e,
        n_shared_experts: f % 3,
        selection_bias,
        ..MoeConfig::default()
    };
    let llama = LlamaConfig {
        vocab_size: a,
        hidden_size: b,
        num_hidden_layers: 3,
        intermediate_size: c,
        num_attention_heads: 2 * d,
        num_key_value_heads: d,
        head_dim: Some(2 * e),
        qkv_bias: bias,
        qk_norm: selection_bias,
        tie_word_embeddings: inner.is_some(),
        ..LlamaConfig::default()
    };
    let qwen3_moe = LlamaConfig { mlp_only_layers: (0..dense.min(3)).collect(), ..llama.clone() };
    [
        (ModelConfig::from(gpt2), None),
        (ModelConfig::from(llama), None),
        (ModelConfig::from(qwen3_moe), Some(moe.clone())),
        (ModelConfig::from(deepseek), Some(moe)),
    ]
}

fn visited_of(model: &AnyModel) -> Vec<(String, Vec<usize>)> {
    let of =
        [model.get::<Gpt2>().map(visited), model.get::<Llama>().map(visited), model.get::<DeepSeek>().map(visited)];
    of.into_iter().flatten().next().expect("it is of one of these families")
}

/// Everything that is generated for each family, such as its part of the documentation, comes from the registry.
#[test]
fn every_type_of_model_is_in_the_registry_under_its_name_in_a_configuration() {
    let families = ModelConfig::families();
    for (model, _) in &families {
        let written = serde_json::to_value(model).unwrap();
        assert_eq!(written["type"], model.type_name());
        assert_eq!(&serde_json::from_value::<ModelConfig>(written).unwrap(), model);
    }
    let mut tested = models([1; 8], [true; 2], [None; 2], (1, 1)).map(|(model, _)| model.type_name()).to_vec();
    tested.dedup();
    assert_eq!(tested, ModelConfig::types(), "`models` of this file");
}

/// A configuration with the `model.type` of another family.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
struct SecondGpt2 {}

impl Architecture for SecondGpt2 {
    type Model = Gpt2;

    const TYPE: &'static str = "gpt2";
    const ABOUT: &'static str = "";

    fn family<'a>(&'a self, _: Option<&'a MoeConfig>) -> Box<dyn Family + 'a> {
        unreachable!("it is not added")
    }

    fn model(&self, _: Option<&MoeConfig>, _: &Device) -> Gpt2 {
        unreachable!("it is not added")
    }

    fn set_vocab_size(&mut self, _: usize) {}

    fn set_blocks(&mut self, _: usize) {}
}

#[test]
#[should_panic(expected = "model.type gpt2 is another family's")]
fn a_family_with_the_name_of_another_is_refused() {
    ModelConfig::add::<Gpt2Config>(); // it has already been added
    ModelConfig::add::<SecondGpt2>();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_listed_parameters_are_those_that_the_modules_have(
        sizes: [u8; 8], biases: [bool; 2], widths: [Option<u8>; 2], dense in 0..5usize, mtp_depth in 0..3usize,
    ) {
        for (config, moe) in models(sizes, biases, widths, (dense, mtp_depth)) {
            let family = config.family(moe.as_ref());
            let listed = family.parameters();
            prop_assert_eq!(listed.iter().map(ParameterSpec::len).sum::<f64>(), family.parameter_count());
            let listed: Vec<_> = listed.into_iter().map(|parameter| (parameter.name, parameter.shape)).collect();
            prop_assert_eq!(listed, visited_of(&config.model(moe.as_ref(), &Device::flex())));
        }
    }

    #[test]
    fn each_call_has_its_costs(
        sizes: [u8; 8], biases: [bool; 2], widths: [Option<u8>; 2], dense in 0..5usize, mtp_depth in 0..3usize,
    ) {
        let workload = Workload {
            sequences: 2, positions: 16, length: 15, element: 4, on_cpu: true, ep: 1, tp: 1, cp: 1, cp_rank: 0,
        };
        for (config, moe) in models(sizes, biases, widths, (dense, mtp_depth)) {
            let family = config.family(moe.as_ref());
            let calls = 1 + family.blocks() + family.calls_after_blocks();
            let lists = [family.flops().len(), family.memory(&workload).len(), family.traffic(&workload).len()];
            prop_assert_eq!(lists, [calls; 3]);
            // A plan's products are those of the FLOPs, a third of which belong to the forward.
            let work = family.work(&workload);
            prop_assert_eq!(work.len(), calls);
            for (work, flops) in work.iter().zip(family.flops()) {
                let (forward, expected) = (work.flops() - work.attention, flops.products / 3.0 * (2 * 16) as f64);
                prop_assert!((forward - expected).abs() <= 1e-6 * expected, "{forward} and {expected}");
            }
        }
    }
}

/// The parameters with this property, without the numbers of blocks.
fn names(config: &ModelConfig, moe: Option<&MoeConfig>, holds: impl Fn(&ParameterSpec) -> bool) -> Vec<String> {
    let parameters = config.family(moe).parameters().into_iter().filter(holds);
    let without_numbers = |parameter: ParameterSpec| {
        let fields = parameter.name.split('.').filter(|field| field.parse::<usize>().is_err());
        fields.collect::<Vec<_>>().join(".")
    };
    let mut names: Vec<String> = parameters.map(without_numbers).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn these_parameters_are_whole_on_every_tensor_parallel_rank() {
    let is_whole = |parameter: &ParameterSpec| !matches!(parameter.sharding, Sharding::Tensor(_));
    let gpt2 = ModelConfig::from(Gpt2Config { n_layer: 1, ..Gpt2Config::default() });
    let norms = |of: &'static str| ["beta", "gamma"].map(|part| format!("{of}.{part}"));
    let mut expected: Vec<String> =
        ["blocks.attn.c_proj.bias", "blocks.mlp.c_proj.bias", "ends.wpe.weight"].map(String::from).into();
    expected.extend(["blocks.ln_1", "blocks.ln_2", "ends.ln_f"].into_iter().flat_map(norms));
    expected.sort();
    assert_eq!(names(&gpt2, None, is_whole), expected);

    let deepseek = ModelConfig::from(DeepSeekConfig {
        num_hidden_layers: 2,
        first_k_dense_replace: 1,
        q_lora_rank: Some(4),
        mtp_depth: 1,
        ..DeepSeekConfig::default()
    });
    let moe = MoeConfig { selection_bias: true, n_shared_experts: 1, ..MoeConfig::default() };
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
    let of_module = ["eh_proj.weight", "enorm.gamma", "hnorm.gamma", "norm.gamma"].map(|path| format!("mtp.{path}"));
    let of_block = |path: &&str| path.strip_prefix("blocks").map(|path| format!("mtp.block{path}"));
    let mut expected: Vec<String> =
        expected.iter().filter_map(of_block).chain(of_module).chain(expected.map(String::from)).collect();
    expected.sort();
    assert_eq!(names(&deepseek, Some(&moe), is_whole), expected);
    assert_eq!(
        names(&deepseek, Some(&moe), |parameter| parameter.keep_fp32),
        ["blocks.mlp.Moe.router.bias", "mtp.block.mlp.Moe.router.bias"]
    );
}
