//! Counting and setting a module's parameters.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

/// Counts the elements of all parameters without initializing them.
pub fn parameter_count<M: Module>(module: &M) -> usize {
    struct Count(usize);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 += param.lazy_shape().num_elements();
        }
    }
    let mut count = Count(0);
    module.visit(&mut count);
    count.0
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
        match (self.values)(&self.path.join("."), &shape) {
            Ok(values) => {
                let value = Tensor::from_data(TensorData::new(values, shape), &param.lazy_device());
                Param::initialized(param.id, value)
            }
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}
