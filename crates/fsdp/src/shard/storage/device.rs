//! Leaves of a graph on a device, whose memory can be freed and refilled.
//!
//! To Burn's fusion a tensor is a number, and a table maps the number to memory. A graph holds the number. Its leaf
//! thus remains the same tensor while it has no memory, and when it gets the memory of another tensor.
//!
//! ```text
//! forward           leaf 17 ─> gathered buffer            (views of one buffer)
//! free              leaf 17 ─> nothing                    the buffer is freed with its last view
//! gathered again    leaf 93 ─> another buffer
//! refill            leaf 17 ─> another buffer             93 no longer exists
//! ```
//!
//! A view of a leaf that a call has made and that the graph keeps is a separate tensor. It keeps the first buffer
//! alive, which has the same values.

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
        /// Wraps a tensor; returns `None` if it is not on a device.
        pub fn of<const D: usize>(tensor: Tensor<D>) -> Option<Self> {
            tensor.try_into_primitive::<Cube>().ok().map(Self)
        }

        /// Frees the memory of leaves. Reading one afterwards panics.
        pub fn free(leaves: &[Self]) {
            run(leaves, vec![], Free(leaves.iter().map(|leaf| leaf.0.id).collect()));
        }

        /// Gives leaves the memory of other tensors with the same shapes.
        pub fn refill(leaves: &[Self], others: Vec<Self>) {
            let ids = leaves.iter().map(|leaf| leaf.0.id);
            let from: Vec<TensorIr> = others.into_iter().map(|other| other.0.into_ir()).collect();
            run(leaves, from.clone(), Refill(ids.zip(from).collect()));
        }
    }

    /// Launches everything that this thread has queued so far for the tensor's device, without waiting for the device.
    /// Fusion defers operations, and reads of results that already exist do not launch them.
    pub(crate) fn launch_all(tensor: Tensor<1>) {
        if let Some(Leaf(tensor)) = Leaf::of(tensor) {
            tensor.client.sync(|| ());
        }
    }

    /// Runs `operation` after everything that this thread has queued so far and before everything that it queues later,
    /// without waiting for the device.
    fn run(leaves: &[Leaf], inputs: Vec<TensorIr>, operation: impl Operation<FusionCubeRuntime> + 'static) {
        let Some(Leaf(leaf)) = leaves.first() else { return };
        assert_eq!(leaf.stream, StreamId::current(), "a graph's leaves are its thread's");
        // Fusion may reorder waiting operations, and it does not see what this one does.
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

/// A build without devices has no leaves on a device.
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
