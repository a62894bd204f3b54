//! GPT-2 as sharding units: the ends in one unit, because embedding and output share their matrix, and each block.

use super::{EmbeddingAndHead, Gpt2, Gpt2Block};
use crate::family::{ModelUnits, Training, add_blocks, gather_all, gather_into, main_loss};
use crate::{AnyModel, Batch, Gpt2Config};
use burn::tensor::Device;
use fsdp::{Fsdp, FsdpError, UnitId, Units};

/// The units of a GPT-2.
pub(super) struct Gpt2Units {
    shape: Gpt2Config,
    ends: UnitId<EmbeddingAndHead>,
    blocks: Vec<UnitId<Gpt2Block>>,
}

impl Gpt2Units {
    /// Adds the units and the calls of a training forward.
    pub fn add(units: &mut Units<Batch>, shape: &Gpt2Config, training: &Training, device: &Device) -> Self {
        let (model, all) = (Gpt2::new(shape, device), || training.parallel.clone());
        let ends = units.add("ends", model.ends);
        let of = all();
        units.first(ends, move |ends, batch: &Batch| ends.embed(batch.inputs_bt.clone(), &batch.micro, &of));
        let blocks = add_blocks(units, model.blocks, |_| {
            let of = all();
            move |block: &Gpt2Block, x_bsd, batch: &Batch| block.forward(x_bsd, &batch.micro, &of)
        });
        let (of, z_loss_coef) = (all(), training.z_loss_coef);
        units.last(ends, move |ends, x_bsd, batch| {
            main_loss(batch, z_loss_coef, |targets, coef| ends.losses(x_bsd, targets, coef, &of))
        });
        Self { shape: shape.clone(), ends, blocks }
    }
}

impl ModelUnits for Gpt2Units {
    fn gather(&self, fsdp: &Fsdp<Batch>, keep: bool, device: &Device) -> Result<Option<AnyModel>, FsdpError> {
        let mut model = Gpt2::new(&self.shape, device);
        gather_into(&mut model.ends, fsdp, self.ends, keep)?;
        gather_all(&mut model.blocks, fsdp, &self.blocks, keep)?;
        Ok(keep.then_some(AnyModel::Gpt2(model)))
    }
}
