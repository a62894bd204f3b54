//! Burn's `Dataset` and `Batcher` for sequences of tokens.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::{Sequence, Sequences};

impl Dataset<Sequence> for Sequences {
    fn get(&self, index: usize) -> Result<Sequence, DatasetError> {
        self.get(index).map_err(DatasetError::new)
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// Sequences as tensors on a device.
#[derive(Debug, Clone)]
pub struct TensorBatch {
    /// Input tokens, `[b, t]`, i32.
    pub inputs_bt: Tensor<2, Int>,
    /// The next token at each position of the inputs, `[b, t]`, i32.
    pub targets_bt: Tensor<2, Int>,
}

/// Makes a [`TensorBatch`] of sequences of one length.
///
/// # Panics
/// If lengths differ, or if there is no sequence.
#[derive(Debug, Clone, Copy, Default)]
pub struct TensorBatcher;

impl Batcher<Sequence, TensorBatch> for TensorBatcher {
    fn batch(&self, items: Vec<Sequence>, device: &Device) -> TensorBatch {
        let shape = [items.len(), items[0].inputs().len()];
        let tensor = |tokens: fn(&Sequence) -> &[i32]| {
            let tokens = items.iter().flat_map(tokens).copied().collect::<Vec<_>>();
            Tensor::from_data(TensorData::new(tokens, shape), (device, DType::I32))
        };
        TensorBatch { inputs_bt: tensor(Sequence::inputs), targets_bt: tensor(Sequence::targets) }
    }
}
