//! The initial values of parameters.

mod normals;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};
use normals::Normals;
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Standard deviation of the initial weights (GPT-2, DeepSeek's published `initializer_range`).
const STD: f32 = 0.02;

/// The initial values of a model's parameters.
///
/// A value depends only on the seed, the parameter's name and the index within the parameter. It is therefore the same
/// in any layout, on any number of ranks and on any machine, and a rank generates only the values it holds.
///
/// Matrices and stacks of matrices are normal with standard deviation 0.02, scaled by `residual_scale` for the last
/// matrix of a residual branch (GPT-2: `1/sqrt(2 * layers)`). Gains of norms are 1, biases 0.
#[derive(Debug, Clone)]
pub struct Initial {
    /// Name of the model, which precedes the field path.
    pub(crate) prefix: &'static str,
    pub(crate) seed: u64,
    /// The fields that come last in a residual branch.
    pub(crate) residual: &'static [&'static str],
    pub(crate) residual_scale: f32,
}

impl Initial {
    /// Generates the values of these flat ranges of elements, concatenated, for the parameter with `dims` dimensions at
    /// a field path. Elements outside the ranges cost nothing.
    pub fn values(&self, path: &str, dims: usize, runs: &[Range<usize>]) -> Vec<f32> {
        let len = runs.iter().map(Range::len).sum();
        if dims == 1 {
            let of_norm = path.rsplit('.').next() == Some("gamma");
            return vec![if of_norm { 1.0 } else { 0.0 }; len];
        }
        let is_residual = path.split('.').any(|field| self.residual.contains(&field));
        let std = if is_residual { STD * self.residual_scale } else { STD };
        let (mut normals, mut values) = (Normals::new(self.key(path)), Vec::with_capacity(len));
        runs.iter().for_each(|run| normals.append(run.clone(), std, &mut values));
        values
    }

    /// The key of a parameter's random sequence; unique to the parameter and the seed.
    fn key(&self, path: &str) -> [u8; 32] {
        let name = format!("{}.{path}", self.prefix);
        Sha256::new().chain_update(self.seed.to_le_bytes()).chain_update(name).finalize().into()
    }

    /// Sets every parameter of a model to its initial values, generated when they are first read.
    pub(crate) fn give<M: Module>(&self, model: M) -> M {
        model.map(&mut Give { path: vec![], initial: self.clone() })
    }
}

struct Give {
    path: Vec<String>,
    initial: Initial,
}

impl ModuleMapper for Give {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device, id) = (param.lazy_shape(), param.lazy_device(), param.id);
        let (path, initial, of) = (self.path.join("."), self.initial.clone(), shape.clone());
        let value = move |device: &Device, _tracked: bool| {
            let values = initial.values(&path, D, std::slice::from_ref(&(0..of.num_elements())));
            Tensor::from_data(TensorData::new(values, of), device)
        };
        Param::uninitialized(id, value, device, false, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::slice;

    #[test]
    fn no_two_parameters_have_the_same_values() {
        let mut firsts = HashSet::new();
        for (prefix, seed) in [("gpt2", 1), ("gpt2", 2), ("deepseek", 1)] {
            let initial = Initial { prefix, seed, residual: &[], residual_scale: 1.0 };
            let names =
                (0..100).flat_map(|i| ["attn.c_attn", "attn.c_proj"].map(|of| format!("blocks.{i}.{of}.weight")));
            for name in names.chain(["ends.wte.weight".into()]) {
                let first = 0..4;
                let bits: Vec<u32> = initial.values(&name, 2, &[first]).into_iter().map(f32::to_bits).collect();
                assert!(firsts.insert(bits), "{prefix}.{name} of seed {seed} begins as another one");
            }
        }
        assert_eq!(firsts.len(), 3 * 201);
    }

    #[test]
    fn runs_are_parts_of_the_whole_and_residual_branches_end_smaller() {
        let initial = Initial { prefix: "gpt2", seed: 1, residual: &["c_proj"], residual_scale: 0.5 };
        let all = 0..1000;
        let whole = initial.values("attn.c_attn.weight", 2, slice::from_ref(&all));
        let runs = [3..10, 10..11, 500..700, 998..1000];
        let parts: Vec<f32> = runs.iter().flat_map(|run| whole[run.clone()].to_vec()).collect();
        assert_eq!(initial.values("attn.c_attn.weight", 2, &runs), parts);
        let deviation = |values: Vec<f32>| {
            (values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
        };
        assert!((deviation(whole) - 0.02).abs() < 0.002);
        assert!((deviation(initial.values("attn.c_proj.weight", 2, &[all])) - 0.01).abs() < 0.001);
        assert_eq!(initial.values("ln_1.gamma", 1, &[0..2, 7..8]), [1.0; 3]);
        assert_eq!(initial.values("attn.c_attn.bias", 1, &[0..2, 7..8]), [0.0; 3]);
    }
}
