use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use sha2::{Digest, Sha256};

/// Standard deviation of the initial weights (GPT-2, DeepSeek's published `initializer_range`).
const STD: f32 = 0.02;

/// Gives every parameter of `module` its initial value, made when it is first read.
///
/// A value is a function of `(seed, name)` alone, `name` being `prefix` and the path of fields, so it is the same in any layout, on
/// any number of ranks. Matrices (and stacks of them) are normal with standard deviation 0.02; those named in `residual`, the last ones of a
/// residual branch, with 0.02 times `residual_scale` (GPT-2: `1/sqrt(2 * layers)`); gains of norms are 1, biases 0.
pub fn initialise<M: Module>(module: M, prefix: &str, seed: u64, residual: &[&str], residual_scale: f32) -> M {
    let path = vec![prefix.to_string()];
    module.map(&mut Initialise { path, seed, residual, residual_scale })
}

struct Initialise<'a> {
    path: Vec<String>,
    seed: u64,
    residual: &'a [&'a str],
    residual_scale: f32,
}

impl ModuleMapper for Initialise<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device, id) = (param.lazy_shape(), param.lazy_device(), param.id);
        let (name, seed) = (self.path.join("."), self.seed);
        let is_residual = self.path.iter().any(|part| self.residual.contains(&part.as_str()));
        let std = if is_residual { STD * self.residual_scale } else { STD };
        let of_norm = self.path.last().is_some_and(|last| last == "gamma");
        let value = {
            let shape = shape.clone();
            move |device: &Device, _tracked: bool| match (D, of_norm) {
                (1, true) => Tensor::ones(shape, device),
                (1, false) => Tensor::zeros(shape, device),
                _ => normal(&name, seed, std, shape, device),
            }
        };
        Param::uninitialized(id, value, device, false, shape)
    }
}

fn normal<const D: usize>(name: &str, seed: u64, std: f32, shape: Shape, device: &Device) -> Tensor<D> {
    let digest = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(name).finalize();
    let rng = ChaCha8Rng::from_seed(digest.into());
    let values: Vec<f32> =
        Normal::new(0.0, std).expect("the deviation is finite").sample_iter(rng).take(shape.num_elements()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}
