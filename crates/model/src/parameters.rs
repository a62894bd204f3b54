//! What is known about a model's parameters before any of them exists, and how a module's parameters are set.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use comm::TensorShard;

/// Standard deviation of the initial weights (GPT-2; DeepSeek's published `initializer_range`).
const STD: f32 = 0.02;

/// One parameter of a model: everything that a rank must know to create, shard, cast and count it.
///
/// A family lists its parameters in the order in which its modules are visited. Shape, values, sharding and precision
/// are read from here, never derived from a name.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterSpec {
    /// Path of fields in the model, `blocks.0.attn.c_attn.weight`.
    pub name: String,
    /// Shape of the whole parameter, whatever part of it a rank holds.
    pub shape: Vec<usize>,
    /// Its initial values.
    pub initializer: Initializer,
    /// How several ranks split it beyond data parallelism.
    pub sharding: Sharding,
    /// Whether gradients train it. The selection bias of a router follows the loads of its experts instead.
    pub trained: bool,
    /// Whether it stays in fp32 when the others are computed in 16 bits.
    pub keep_fp32: bool,
    /// The fraction of its elements that a token uses: `top_k / num_experts` for routed experts, 1 for all others.
    pub active: f64,
    /// How many matrix products a token takes part in with each of its active elements: 1 for a matrix, 0 for a vector
    /// and for a table that is only looked up.
    pub products: f64,
}

/// The distribution of a parameter's initial values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initializer {
    /// Zeros: biases.
    Zeros,
    /// Ones: gains of norms.
    Ones,
    /// The same number everywhere, such as the gain of a residual branch (LayerScale).
    Constant(f32),
    /// Normal numbers of mean 0 and this standard deviation.
    Normal(f32),
}

/// How tensor-parallel or expert-parallel ranks split a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharding {
    /// Every rank has the whole parameter.
    Replicated,
    /// Tensor-parallel ranks each have a part of the columns or rows.
    Tensor(TensorShard),
    /// Expert-parallel ranks each have some experts of a stack `[e, in, out]`.
    Experts,
}

impl ParameterSpec {
    /// A matrix `[in, out]` of a product, with normal initial values, on every rank.
    pub(crate) fn matrix(name: impl Into<String>, shape: [usize; 2]) -> Self {
        Self {
            name: name.into(),
            shape: shape.into(),
            initializer: Initializer::Normal(STD),
            sharding: Sharding::Replicated,
            trained: true,
            keep_fp32: false,
            active: 1.0,
            products: 1.0,
        }
    }

    /// A table whose rows are looked up.
    pub(crate) fn table(name: impl Into<String>, shape: [usize; 2]) -> Self {
        Self { products: 0.0, ..Self::matrix(name, shape) }
    }

    /// The gain of a norm.
    pub(crate) fn gain(name: impl Into<String>, width: usize) -> Self {
        Self { initializer: Initializer::Ones, ..Self::bias(name, width) }
    }

    /// A bias.
    pub(crate) fn bias(name: impl Into<String>, width: usize) -> Self {
        let shape = vec![width];
        Self { shape, initializer: Initializer::Zeros, products: 0.0, ..Self::matrix(name, [0, 0]) }
    }

    /// A stack of the matrices of `experts` experts, `top_k` of which each token uses.
    pub(crate) fn experts(name: impl Into<String>, experts: usize, top_k: usize, [from, to]: [usize; 2]) -> Self {
        let active = top_k as f64 / experts as f64;
        Self { shape: vec![experts, from, to], sharding: Sharding::Experts, active, ..Self::matrix(name, [0, 0]) }
    }

    /// Split among tensor-parallel ranks.
    pub(crate) fn sharded(self, shard: TensorShard) -> Self {
        Self { sharding: Sharding::Tensor(shard), ..self }
    }

    /// The last matrix of a residual branch, whose initial values are smaller by this factor.
    pub(crate) fn scaled(self, scale: f32) -> Self {
        Self { initializer: Initializer::Normal(STD * scale), ..self }
    }

    /// The number of its elements, in floating point so that it cannot overflow.
    pub fn len(&self) -> f64 {
        self.shape.iter().map(|size| *size as f64).product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// FLOPs of the products that one token takes part in with it, forward and backward.
    pub fn flops_per_token(&self) -> f64 {
        6.0 * self.len() * self.active * self.products
    }
}

/// Path and shape of every parameter of a module, in the order in which it is visited; none is initialized.
pub fn visited<M: Module>(module: &M) -> Vec<(String, Vec<usize>)> {
    #[derive(Default)]
    struct List {
        path: Vec<String>,
        found: Vec<(String, Vec<usize>)>,
    }
    impl ModuleVisitor for List {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.into());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.found.push((self.path.join("."), param.lazy_shape().to_vec()));
        }
    }
    let mut list = List::default();
    module.visit(&mut list);
    list.found
}

/// Lists the parameters of a module that uses neither tensor nor expert parallelism, for
/// [`Family::parameters`](crate::Family::parameters); take those of a [`MoeLayer`](moe::MoeLayer) from
/// [`moe_parameters`](crate::moe_parameters). Initial values are those of GPT-2: normal numbers with a standard
/// deviation of 0.02 for tensors of two dimensions or more, zeros for vectors called `bias` or `beta`, ones for other
/// vectors, the gains of norms. A table called `embed` is only looked up.
pub fn parameters_of<M: Module>(module: &M) -> Vec<ParameterSpec> {
    let spec = |(name, shape): (String, Vec<usize>)| {
        let vector = shape.len() < 2;
        let last = name.rsplit('.').next().unwrap_or(&name);
        let initializer = match vector {
            false => Initializer::Normal(STD),
            true if ["bias", "beta"].contains(&last) => Initializer::Zeros,
            true => Initializer::Ones,
        };
        let products = if vector || name.split('.').any(|field| field == "embed") { 0.0 } else { 1.0 };
        ParameterSpec { shape, initializer, products, ..ParameterSpec::matrix(name, [0, 0]) }
    };
    visited(module).into_iter().map(spec).collect()
}

/// Sets every parameter to the values that `values` returns, row by row, for its field path
/// (`blocks.0.attn.c_attn.weight`) and its shape.
///
/// # Errors
/// The first error of `values`, which is not called again after it.
pub fn fill<M: Module, E>(module: M, values: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, E>) -> Result<M, E> {
    let mut fill = Fill { values, path: vec![], error: None };
    let module = module.map(&mut fill);
    fill.error.map_or(Ok(module), Err)
}

struct Fill<F, E> {
    values: F,
    path: Vec<String>,
    error: Option<E>,
}

impl<E, F: FnMut(&str, &[usize]) -> Result<Vec<f32>, E>> ModuleMapper for Fill<F, E> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.error.is_some() {
            return param;
        }
        let shape = param.lazy_shape().to_vec();
        let path = self.path.join(".");
        match (self.values)(&path, &shape) {
            Ok(values) => {
                let value = Tensor::from_data(TensorData::new(values, shape), &param.lazy_device());
                let id = param.id;
                param.transform_for_load(value, id) // is trained as before
            }
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}
