//! GPT-2 as a [`Family`]: shape, limits and parameters.

use super::units::Gpt2Units;
use super::{Gpt2, cost, hf};
use crate::cost::{Flops, Workload};
use crate::family::{Family, HuggingFace, ModelUnits, Size, Training};
use crate::{AnyModel, Batch, Gpt2Config, Initial, ParameterSpec};
use burn::tensor::Device;
use comm::Cut;
use fsdp::{CallBytes, CallTraffic, Units};
use moe::MoeConfig;

/// A GPT-2, known by its shape.
pub struct Gpt2Family<'a> {
    shape: &'a Gpt2Config,
    has_experts: bool,
}

impl<'a> Gpt2Family<'a> {
    /// A GPT-2 of this shape, which cannot have experts.
    pub fn new(shape: &'a Gpt2Config, moe: Option<&MoeConfig>) -> Self {
        Self { shape, has_experts: moe.is_some() }
    }
}

/// The hidden width of the MLP.
fn inner(shape: &Gpt2Config) -> usize {
    shape.n_inner.unwrap_or(shape.n_embd.saturating_mul(4))
}

impl Family for Gpt2Family<'_> {
    fn blocks(&self) -> usize {
        self.shape.n_layer
    }

    fn width(&self) -> usize {
        self.shape.n_embd
    }

    fn vocab_size(&self) -> usize {
        self.shape.vocab_size
    }

    fn context(&self) -> Size {
        ("model.n_positions", self.shape.n_positions)
    }

    fn expert_layers(&self) -> Result<(Vec<usize>, usize), &'static str> {
        Err("model.type gpt2 has no experts")
    }

    fn validate(&self) -> Result<(), String> {
        Gpt2Config { vocab_size: self.shape.vocab_size.max(1), ..self.shape.clone() }.validate()?;
        match self.has_experts {
            true => Err(
                "there is a `moe` section, but model.type gpt2 has no experts: remove it, or take llama or deepseek"
                    .into(),
            ),
            false => Ok(()),
        }
    }

    fn parameter_count(&self) -> f64 {
        self.shape.parameters()
    }

    fn sizes(&self) -> Vec<Size> {
        vec![
            ("model.vocab_size", self.shape.vocab_size),
            ("model.n_positions", self.shape.n_positions),
            ("model.n_embd", self.shape.n_embd),
            ("model.n_inner", self.shape.n_inner.unwrap_or(0)),
        ]
    }

    fn activations(&self, context: Size) -> Vec<Vec<Size>> {
        vec![
            vec![("model.n_head", self.shape.n_head), context],
            vec![("3 x model.n_embd", self.shape.n_embd.saturating_mul(3))],
            vec![("model.n_inner", inner(self.shape))],
        ]
    }

    fn tensor_parallel_sizes(&self) -> Vec<Size> {
        vec![("model.n_head", self.shape.n_head), ("model.n_inner", inner(self.shape))]
    }

    /// Heads of `c_attn` (queries, keys and values each) and columns of `c_fc` are split among tensor-parallel ranks,
    /// as are the rows of `c_proj` and the vocabulary; norms, positions and the biases added after a sum are not.
    fn parameters(&self) -> Vec<ParameterSpec> {
        let Gpt2Config { vocab_size, n_positions, n_layer, n_embd: d, bias, .. } = *self.shape;
        let norm = |name: String| {
            let beta = bias.then(|| ParameterSpec::bias(format!("{name}.beta"), d));
            [ParameterSpec::gain(format!("{name}.gamma"), d)].into_iter().chain(beta)
        };
        let columns = |name: String, [from, to]: [usize; 2], blocks| {
            let weight = ParameterSpec::matrix(format!("{name}.weight"), [from, to]).cut(Cut::columns_of(blocks));
            let bias = bias.then(|| ParameterSpec::bias(format!("{name}.bias"), to).cut(Cut { dim: 0, blocks }));
            [weight].into_iter().chain(bias)
        };
        let residual = (2.0 * n_layer as f32).powf(-0.5);
        let projection = |name: String, from| {
            let weight = ParameterSpec::matrix(format!("{name}.weight"), [from, d]).cut(Cut::ROWS).scaled(residual);
            [weight].into_iter().chain(bias.then(|| ParameterSpec::bias(format!("{name}.bias"), d)))
        };
        let block = |i: usize| {
            let name = |field: &str| format!("blocks.{i}.{field}");
            norm(name("ln_1"))
                .chain(columns(name("attn.c_attn"), [d, d.saturating_mul(3)], 3))
                .chain(projection(name("attn.c_proj"), d))
                .chain(norm(name("ln_2")))
                .chain(columns(name("mlp.c_fc"), [d, inner(self.shape)], 1))
                .chain(projection(name("mlp.c_proj"), inner(self.shape)))
        };
        // The token embedding is the output matrix too, so a token passes it once.
        let mut all = vec![
            ParameterSpec::matrix("ends.wte.weight", [vocab_size, d]).cut(Cut::ROWS),
            ParameterSpec::table("ends.wpe.weight", [n_positions, d]),
        ];
        all.extend(norm("ends.ln_f".into()));
        all.extend((0..n_layer).flat_map(block));
        all
    }

    fn initial(&self, seed: u64) -> Initial {
        Initial::new("gpt2", seed, self.parameters())
    }

    fn flops(&self) -> Vec<Flops> {
        cost::flops(self.shape, &self.parameters())
    }

    fn memory(&self, workload: &Workload) -> Vec<CallBytes> {
        cost::memory(self.shape, workload)
    }

    fn traffic(&self, workload: &Workload) -> Vec<CallTraffic> {
        cost::traffic(self.shape, workload)
    }

    fn model(&self, device: &Device) -> AnyModel {
        AnyModel::Gpt2(Gpt2::new(self.shape, device))
    }

    fn add_units(&self, units: &mut Units<Batch>, training: &Training, device: &Device) -> Box<dyn ModelUnits> {
        Box::new(Gpt2Units::add(units, self.shape, training, device))
    }

    fn hugging_face(&self) -> Box<dyn HuggingFace + '_> {
        Box::new(hf::Gpt2Folder(self.shape))
    }
}
