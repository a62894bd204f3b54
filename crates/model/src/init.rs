//! The initial values of parameters.

mod normals;

use crate::parameters::{Initializer, ParameterSpec};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};
use normals::Normals;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The initial values of a model's parameters.
///
/// A value depends only on the seed, the parameter's name and the index within the parameter. It is therefore the same
/// in any layout, on any number of ranks and on any machine, and a rank generates only the values it holds.
#[derive(Debug, Clone)]
pub struct Initial {
    /// Name of the family, which precedes the field path.
    family: &'static str,
    seed: u64,
    /// The distribution of each parameter's values, and whether gradients train it.
    parameters: Arc<HashMap<String, (Initializer, bool)>>,
}

impl Initial {
    /// The values of a model with these parameters.
    pub fn new(family: &'static str, seed: u64, parameters: Vec<ParameterSpec>) -> Self {
        let parameters = parameters.into_iter().map(|of| (of.name, (of.initializer, of.trained)));
        Self { family, seed, parameters: Arc::new(parameters.collect()) }
    }

    /// Generates the values of these flat ranges of elements, concatenated, for the parameter at a field path. Elements
    /// outside the ranges cost nothing.
    ///
    /// # Panics
    /// If the model has no such parameter.
    pub fn values(&self, path: &str, runs: &[Range<usize>]) -> Vec<f32> {
        let all = |value| vec![value; runs.iter().map(Range::len).sum()];
        let std = match self.parameter(path).0 {
            Initializer::Zeros => return all(0.0),
            Initializer::Ones => return all(1.0),
            Initializer::Constant(value) => return all(value),
            Initializer::Normal(std) => std,
        };
        let mut values = Vec::with_capacity(runs.iter().map(Range::len).sum());
        let mut normals = Normals::new(self.key(path));
        runs.iter().for_each(|run| normals.append(run.clone(), std, &mut values));
        values
    }

    fn parameter(&self, path: &str) -> &(Initializer, bool) {
        self.parameters.get(path).unwrap_or_else(|| panic!("the model has no parameter {path}"))
    }

    /// The key of a parameter's random sequence; unique to the parameter and the seed.
    fn key(&self, path: &str) -> [u8; 32] {
        let name = format!("{}.{path}", self.family);
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
        let is_trained = self.initial.parameter(&path).1;
        let value = move |device: &Device, tracked: bool| {
            let values = initial.values(&path, std::slice::from_ref(&(0..of.num_elements())));
            Tensor::from_data(TensorData::new(values, of), device).set_require_grad(tracked)
        };
        Param::uninitialized(id, value, device, is_trained, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::slice;

    /// Two blocks of matrices and the vectors beside them.
    fn parameters() -> Vec<ParameterSpec> {
        let block = |i: usize| {
            let name = |field: &str| format!("blocks.{i}.{field}");
            [
                ParameterSpec::gain(name("ln_1.gamma"), 8),
                ParameterSpec::matrix(name("attn.c_attn.weight"), [100, 10]),
                ParameterSpec::bias(name("attn.c_attn.bias"), 8),
                ParameterSpec::matrix(name("attn.c_proj.weight"), [100, 10]).scaled(0.5),
            ]
        };
        (0..100).flat_map(block).collect()
    }

    #[test]
    fn no_two_matrices_have_the_same_values() {
        let mut firsts = HashSet::new();
        for (family, seed) in [("gpt2", 1), ("gpt2", 2), ("deepseek", 1)] {
            let initial = Initial::new(family, seed, parameters());
            for ParameterSpec { name, .. } in parameters().iter().filter(|parameter| parameter.shape.len() > 1) {
                let first = 0..4;
                let bits: Vec<u32> = initial.values(name, &[first]).into_iter().map(f32::to_bits).collect();
                assert!(firsts.insert(bits), "{family}.{name} with seed {seed} begins like another matrix");
            }
        }
        assert_eq!(firsts.len(), 3 * 200);
    }

    #[test]
    fn runs_are_parts_of_the_whole_and_residual_branches_end_smaller() {
        let initial = Initial::new("gpt2", 1, parameters());
        let all = 0..1000;
        let whole = initial.values("blocks.0.attn.c_attn.weight", slice::from_ref(&all));
        let runs = [3..10, 10..11, 500..700, 998..1000];
        let parts: Vec<f32> = runs.iter().flat_map(|run| whole[run.clone()].to_vec()).collect();
        assert_eq!(initial.values("blocks.0.attn.c_attn.weight", &runs), parts);
        let deviation = |values: Vec<f32>| {
            (values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
        };
        assert!((deviation(whole) - 0.02).abs() < 0.002);
        assert!((deviation(initial.values("blocks.0.attn.c_proj.weight", &[all])) - 0.01).abs() < 0.001);
        assert_eq!(initial.values("blocks.0.ln_1.gamma", &[0..2, 7..8]), [1.0; 3]);
        assert_eq!(initial.values("blocks.0.attn.c_attn.bias", &[0..2, 7..8]), [0.0; 3]);
    }
}
