//! DeepSeek as sharding units: the embedding, each block, and the calls after them (see
//! [`output_units`](super::output_units)).

use super::output_units::OutputUnits;
use super::{Block, DeepSeek, embed};
use crate::family::{ModelUnits, Training, add_blocks, gather_all, gather_into};
use crate::{AnyModel, Batch, DeepSeekConfig};
use burn::nn::Embedding;
use burn::tensor::Device;
use fsdp::{Fsdp, FsdpError, UnitId, Units};
use moe::MoeConfig;

/// The units of a DeepSeek.
pub(super) struct DeepSeekUnits {
    shape: DeepSeekConfig,
    moe: MoeConfig,
    embed: UnitId<Embedding>,
    blocks: Vec<UnitId<Block>>,
    output_units: OutputUnits,
}

impl DeepSeekUnits {
    /// Adds the units and the calls of a training forward. Blocks with experts record their token assignments.
    pub fn add(
        units: &mut Units<Batch>,
        (shape, moe): (&DeepSeekConfig, &MoeConfig),
        training: &Training,
        device: &Device,
    ) -> Self {
        let model = DeepSeek::new(shape, moe, device);
        let embedding = units.add("embed", model.embed);
        let (of, vocab_size) = (training.parallel.sequences.tp.clone(), shape.vocab_size);
        units.first(embedding, move |table: &Embedding, batch: &Batch| {
            embed(table, batch.inputs_bt.clone(), vocab_size, &of)
        });
        let blocks = add_blocks(units, model.blocks, |layer| {
            let (loads, parallel) = (training.loads.clone(), training.parallel.clone());
            move |block: &Block, x_bsd, batch: &Batch| {
                let output = block.forward_over(x_bsd, &batch.micro, &parallel);
                output.record(&loads, layer, &batch.micro);
                (output.x_btd, output.aux_loss)
            }
        });
        let output_units = OutputUnits::add(units, embedding, (model.head, model.mtp), shape, training);
        Self { shape: shape.clone(), moe: moe.clone(), embed: embedding, blocks, output_units }
    }
}

impl ModelUnits for DeepSeekUnits {
    fn gather(&self, fsdp: &Fsdp<Batch>, keep: bool, device: &Device) -> Result<Option<AnyModel>, FsdpError> {
        let mut model = DeepSeek::new(&self.shape, &self.moe, device);
        gather_into(&mut model.embed, fsdp, self.embed, keep)?;
        gather_all(&mut model.blocks, fsdp, &self.blocks, keep)?;
        self.output_units.gather_into(&mut model, fsdp, keep)?;
        Ok(keep.then_some(AnyModel::DeepSeek(model)))
    }

    fn add_to_selection_bias(&self, fsdp: &mut Fsdp<Batch>, layer: usize, delta: &[f32]) {
        match self.blocks.get(layer) {
            Some(block) => fsdp.add_to_parameter(*block, "mlp.Moe.router.bias", delta),
            None => {
                let module = self.output_units.module(layer - self.blocks.len());
                fsdp.add_to_parameter(module, "block.mlp.Moe.router.bias", delta);
            }
        }
    }
}
