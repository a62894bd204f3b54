//! The parameters of a module and their gradients.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor, TensorData};
use std::collections::BTreeMap;

/// Collects the values of the parameters of the modules that it visits.
#[derive(Debug, Default)]
pub struct Values {
    path: Vec<String>,
    found: Vec<(String, Vec<f32>)>,
}

impl Values {
    /// Collects the values of one module.
    pub fn of<M: Module>(module: &M) -> Self {
        let mut values = Self::default();
        module.visit(&mut values);
        values
    }

    /// Returns the values by the path of the parameter.
    pub fn by_path(self) -> BTreeMap<String, Vec<f32>> {
        self.found.into_iter().collect()
    }

    /// Returns the values in the order in which they were visited.
    pub fn in_order(self) -> Vec<Vec<f32>> {
        self.found.into_iter().map(|(_, values)| values).collect()
    }
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((self.path.join("."), crate::floats(param.val())));
    }
}

struct GradientsOf<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: BTreeMap<String, TensorData>,
}

impl ModuleVisitor for GradientsOf<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.gradients) {
            self.found.insert(self.path.join("."), gradient.into_data());
        }
    }
}

/// Returns the gradients of a module's parameters by path, without the parameters that have none.
pub fn gradients<M: Module>(module: &M, gradients: &Gradients) -> BTreeMap<String, TensorData> {
    let mut of = GradientsOf { gradients, path: vec![], found: BTreeMap::new() };
    module.visit(&mut of);
    of.found
}

struct Track;

impl ModuleMapper for Track {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::initialized(param.id, param.val().inner().autodiff().require_grad())
    }
}

/// Makes every parameter of a module a leaf that requires a gradient.
pub fn tracked<M: Module>(module: M) -> M {
    module.map(&mut Track)
}
