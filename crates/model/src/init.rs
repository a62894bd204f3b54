use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor, TensorData};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Standard deviation of the initial weights (GPT-2, DeepSeek's published `initializer_range`).
const STD: f32 = 0.02;

/// The initial values of a model's parameters.
///
/// A value is a function of the seed, the parameter's name and its place in the parameter alone, so it is the same in any layout, on
/// any number of ranks, and a rank makes those that it holds. Matrices (and stacks of them) are normal with standard deviation 0.02, the
/// last ones of a residual branch with `residual_scale` times as much (GPT-2: `1/sqrt(2 * layers)`); gains of norms are 1, biases 0.
#[derive(Debug, Clone)]
pub struct Initial {
    /// Of the model, before the paths of fields.
    pub(crate) prefix: &'static str,
    pub(crate) seed: u64,
    /// The fields that are last in a residual branch.
    pub(crate) residual: &'static [&'static str],
    pub(crate) residual_scale: f32,
}

impl Initial {
    /// The values of these elements, flat, of a parameter of so many dimensions, given by the path of its fields in the model. Those of
    /// a matrix that are before them are drawn as well, and forgotten.
    pub fn values(&self, path: &str, dims: usize, range: Range<usize>) -> Vec<f32> {
        if dims == 1 {
            let of_norm = path.rsplit('.').next() == Some("gamma");
            return vec![if of_norm { 1.0 } else { 0.0 }; range.len()];
        }
        let is_residual = path.split('.').any(|field| self.residual.contains(&field));
        let std = if is_residual { STD * self.residual_scale } else { STD };
        let digest = Sha256::new()
            .chain_update(self.seed.to_le_bytes())
            .chain_update(format!("{}.{path}", self.prefix))
            .finalize();
        let draws = Normal::new(0.0, std).expect("the deviation is finite");
        draws.sample_iter(ChaCha8Rng::from_seed(digest.into())).skip(range.start).take(range.len()).collect()
    }

    /// Gives every parameter of a model its values, which are made when they are first read.
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
            let values = initial.values(&path, D, 0..of.num_elements());
            Tensor::from_data(TensorData::new(values, of), device)
        };
        Param::uninitialized(id, value, device, false, shape)
    }
}
