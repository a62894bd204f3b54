//! Leaves of a graph on a device, whose memory is taken away and given back.
//!
//! To Burn's fusion a tensor is a number, and a table says which memory it has. A graph holds the number. So its leaf
//! stays the same tensor while there is nothing behind it, and while it has the memory of another one.
//!
//! ```text
//! forward           leaf 17 ─> gathered buffer            (views of one buffer)
//! free              leaf 17 ─> nothing                    the buffer goes with its last view
//! gathered again    leaf 93 ─> another buffer
//! refill            leaf 17 ─> another buffer             93 is gone
//! ```
//!
//! A view of a leaf that a call has made and that the graph keeps is a tensor of its own. It holds on to the first
//! buffer, which has the same values.

#[cfg(feature = "cubecl")]
pub(crate) use on_cube::{Leaf, launch_all};

#[cfg(not(feature = "cubecl"))]
pub(crate) use nowhere::{Leaf, launch_all};

#[cfg(feature = "cubecl")]
mod on_cube {
    use burn::tensor::Tensor;
    use burn_cubecl::Cube;
    use burn_cubecl::fusion::{CubeFusionHandle, FusionCubeRuntime};
    use burn_fusion::custom::{CustomOpIr, HandleContainer, Operation, OperationIr, StreamId, TensorId, TensorIr};
    use burn_fusion::{ExecutionError, FusionTensor};

    /// A tensor that a graph of this thread holds.
    pub(crate) struct Leaf(FusionTensor<FusionCubeRuntime>);

    impl Leaf {
        /// None where the tensor is not on a device.
        pub fn of<const D: usize>(tensor: Tensor<D>) -> Option<Self> {
            tensor.try_into_primitive::<Cube>().ok().map(Self)
        }

        /// Takes their memory away. Whoever reads one now panics.
        pub fn free(leaves: &[Self]) {
            run(leaves, vec![], Free(leaves.iter().map(|leaf| leaf.0.id).collect()));
        }

        /// Gives them the memory of other tensors of the same shapes.
        pub fn refill(leaves: &[Self], others: Vec<Self>) {
            let ids = leaves.iter().map(|leaf| leaf.0.id);
            let from: Vec<TensorIr> = others.into_iter().map(|other| other.0.into_ir()).collect();
            run(leaves, from.clone(), Refill(ids.zip(from).collect()));
        }
    }

    /// Launches all that this thread has asked for so far of the tensor's device, which is not waited for: fusion keeps
    /// operations back, and reads past them what there is already.
    pub(crate) fn launch_all(tensor: Tensor<1>) {
        if let Some(Leaf(tensor)) = Leaf::of(tensor) {
            tensor.client.sync(|| ());
        }
    }

    /// Runs `operation` after all that this thread has asked for so far, and before all that it will ask for. The device
    /// is not waited for.
    fn run(leaves: &[Leaf], inputs: Vec<TensorIr>, operation: impl Operation<FusionCubeRuntime> + 'static) {
        let Some(Leaf(leaf)) = leaves.first() else { return };
        assert_eq!(leaf.stream, StreamId::current(), "a graph's leaves are its thread's");
        // Of operations that are waiting, fusion may change the order, and it does not see what this one does.
        leaf.client.sync(|| ());
        let repr = OperationIr::Custom(CustomOpIr::new("memory of leaves", &inputs, &[]));
        leaf.client.register(leaf.stream, repr, operation);
        leaf.client.sync(|| ());
    }

    #[derive(Debug)]
    struct Free(Vec<TensorId>);

    impl Operation<FusionCubeRuntime> for Free {
        fn execute(&self, handles: &mut HandleContainer<CubeFusionHandle>) -> Result<(), ExecutionError> {
            self.0.iter().for_each(|leaf| drop(handles.remove_handle(*leaf)));
            Ok(())
        }
    }

    #[derive(Debug)]
    struct Refill(Vec<(TensorId, TensorIr)>);

    impl Operation<FusionCubeRuntime> for Refill {
        fn execute(&self, handles: &mut HandleContainer<CubeFusionHandle>) -> Result<(), ExecutionError> {
            for (leaf, from) in &self.0 {
                let memory = handles.get_handle(&from.id, &from.status);
                handles.register_handle(*leaf, memory);
            }
            Ok(())
        }
    }
}

/// In a build without devices there are none.
#[cfg(not(feature = "cubecl"))]
mod nowhere {
    use burn::tensor::Tensor;

    pub(crate) enum Leaf {}

    pub(crate) fn launch_all(_: Tensor<1>) {}

    impl Leaf {
        pub fn of<const D: usize>(_: Tensor<D>) -> Option<Self> {
            None
        }

        pub fn free(_: &[Self]) {}

        pub fn refill(_: &[Self], _: Vec<Self>) {}
    }
}
