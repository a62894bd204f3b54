//! What the family of the configured model knows about it.

use super::Config;
use checkpoint::Parameter;
use model::{Family, Flops, Initial, ParameterSpec};

impl Config {
    /// The family of the model, with its experts.
    pub(crate) fn family(&self) -> Box<dyn Family + '_> {
        self.model.family(self.moe.as_ref())
    }

    /// Describes the model in a few words.
    pub fn describe_model(&self) -> String {
        let (family, name) = (self.family(), self.preset.as_deref().unwrap_or(self.model.type_name()));
        let experts = self.expert_layers().map_or(String::new(), |(_, experts)| format!(", {experts} experts"));
        let mtp = match family.mtp_depth() {
            0 => String::new(),
            1 => ", 1 multi-token prediction module".into(),
            depth => format!(", {depth} multi-token prediction modules"),
        };
        format!("{name} ({} layers of width {}{experts}{mtp})", family.blocks(), family.width())
    }

    /// The blocks with experts, including those of multi-token prediction modules (numbered after the model's own),
    /// and the number of experts; `None` for a model without experts.
    pub fn expert_layers(&self) -> Option<(Vec<usize>, usize)> {
        self.family().expert_layers().ok()
    }

    /// The initial values of the parameters.
    pub(crate) fn initial(&self) -> Initial {
        self.model.initial(self.moe.as_ref(), self.train.seed)
    }

    /// The name and shape of each parameter.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let parameter = |ParameterSpec { name, shape, .. }| Parameter { name, shape };
        self.family().parameters().into_iter().map(parameter).collect()
    }

    /// Number of parameters.
    pub(crate) fn parameter_count(&self) -> usize {
        self.family().parameter_count() as usize
    }

    /// Number of parameters that a token uses: all but those of the routed experts that are not chosen for it.
    pub(crate) fn active_parameters(&self) -> usize {
        let active = |parameter: &ParameterSpec| parameter.len() * parameter.active;
        self.family().parameters().iter().map(active).sum::<f64>().round() as usize
    }

    /// FLOPs of training on a token, in all calls of the model.
    pub(crate) fn flops(&self) -> Flops {
        self.family().flops().into_iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn of(preset: &str, overrides: &[&str]) -> f64 {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let mut config = Config::load(Source::Preset(preset), &overrides).unwrap();
        if config.model.mtp_depth() > 0 || preset == "deepseek" {
            config.model.set_vocab_size(256);
        }
        config.flops().per_token(config.train.seq_len as f64)
    }

    #[test]
    fn gpt2_small_costs_what_nanogpt_says_but_for_norms_and_biases() {
        // nanoGPT: 6 * (124,439,808 - 1024 * 768) + 12 * 12 * 12 * 64 * 1024; its N includes the 121,344 parameters of
        // norms and biases.
        let (given, nanogpt) = (of("gpt2-124m", &[]), 6.0 * 123_653_376.0 + 12.0 * 12.0 * 768.0 * 1024.0);
        assert!((given / nanogpt - 1.0).abs() < 2e-3, "{given} and {nanogpt}");
    }

    #[test]
    fn deepseek_v3_has_the_active_parameters_of_its_paper() {
        // 37 of 671 billion (arXiv 2412.19437); in GPT-2 all are active.
        let active = |preset| Config::load(Source::Preset(preset), &[]).unwrap().active_parameters();
        let billions = active("deepseek-v3") as f64 / 1e9;
        assert!((36.5..38.0).contains(&billions), "{billions}");
        assert_eq!(active("gpt2-124m"), 124_439_808);
        // 3.3 of 30.5 billion (arXiv 2505.09388).
        let billions = active("qwen3-30b-a3b") as f64 / 1e9;
        assert!((3.3..3.4).contains(&billions), "{billions}");
    }

    /// The numbers of parameters that the published models have on the hub.
    #[test]
    fn presets_of_published_models_have_their_number_of_parameters() {
        for (preset, parameters) in [
            ("gpt2-124m", 124_439_808),
            ("smollm2-135m", 134_515_008),
            ("qwen3-0.6b", 596_049_920),
            ("llama3-8b", 8_030_261_248),
            ("qwen3-30b-a3b", 30_532_122_624),
        ] {
            assert_eq!(Config::load(Source::Preset(preset), &[]).unwrap().parameter_count(), parameters, "{preset}");
        }
    }

    #[test]
    fn of_the_experts_those_that_a_token_goes_to_count() {
        let [two, eight] = ["moe.top_k=2", "moe.top_k=8"].map(|top_k| of("deepseek", &[top_k]));
        // 4 layers with 6 more experts of three 128 x 128 matrices.
        assert_eq!(eight - two, 6.0 * (4 * 6 * 3 * 128 * 128) as f64);
    }

    #[test]
    fn a_module_of_multi_token_prediction_costs_a_block_and_its_projection_and_the_head_once_more() {
        let [four, five] = ["model.num_hidden_layers=4", "model.num_hidden_layers=5"].map(|set| of("deepseek", &[set]));
        let [one, two] = ["model.mtp_depth=1", "model.mtp_depth=2"].map(|set| of("deepseek", &[set]));
        let module = five - four + 6.0 * (2 * 128 * 128 + 128 * 256) as f64;
        assert_eq!((one - four, two - four), (module, 2.0 * module));
    }
}
