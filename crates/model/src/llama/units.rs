//! Llama as sharding units: the embedding, each block, and the head.
//!
//! With an output matrix of its own the head is one call. If the output matrix is the embedding, the head's unit holds
//! the final norm only, and a second call of the embedding's unit computes the loss.

use super::{Llama, LlamaBlock, LlamaHead, embed, tied_losses};
use crate::family::{ModelUnits, Training, add_blocks, gather_all, gather_into, main_loss};
use crate::{AnyModel, Batch, LlamaConfig};
use burn::nn::Embedding;
use burn::tensor::{Device, Tensor};
use fsdp::{Fsdp, FsdpError, UnitId, Units};
use moe::MoeConfig;

/// The units of a Llama.
pub(super) struct LlamaUnits {
    shape: LlamaConfig,
    moe: Option<MoeConfig>,
    embed: UnitId<Embedding>,
    blocks: Vec<UnitId<LlamaBlock>>,
    head: UnitId<LlamaHead>,
}

impl LlamaUnits {
    /// Adds the units and the calls of a training forward. Blocks with experts record their token assignments.
    pub fn add(
        units: &mut Units<Batch>,
        (shape, moe): (&LlamaConfig, Option<&MoeConfig>),
        training: &Training,
        device: &Device,
    ) -> Self {
        let model = Llama::new(shape, moe, device);
        let (vocab, coef, tp) = (shape.vocab_size, training.z_loss_coef, || training.parallel.sequences.tp.clone());
        let embedding = units.add("embed", model.embed);
        let of = tp();
        units.first(embedding, move |table: &Embedding, batch: &Batch| {
            embed(table, batch.inputs_bt.clone(), vocab, &of)
        });
        let blocks = add_blocks(units, model.blocks, |layer| {
            let (loads, parallel) = (training.loads.clone(), training.parallel.clone());
            move |block: &LlamaBlock, x_bsd, batch: &Batch| {
                let output = block.forward_over(x_bsd, &batch.micro, &parallel);
                output.record(&loads, layer, &batch.micro);
                (output.x_btd, output.aux_loss)
            }
        });
        let head = units.add("head", model.head);
        let of = tp();
        if shape.tie_word_embeddings {
            units.then(head, |head: &LlamaHead, x_bsd: Tensor<3>, _: &Batch| head.norm.forward(x_bsd));
            units.last(embedding, move |table, normed_bsd, batch| {
                main_loss(batch, coef, |targets, coef| tied_losses(table, normed_bsd, targets, coef, vocab, &of))
            });
        } else {
            units.last(head, move |head, x_bsd, batch| {
                main_loss(batch, coef, |targets, coef| head.losses(x_bsd, targets, coef, vocab, &of))
            });
        }
        Self { shape: shape.clone(), moe: moe.cloned(), embed: embedding, blocks, head }
    }
}

impl ModelUnits for LlamaUnits {
    fn gather(&self, fsdp: &Fsdp<Batch>, keep: bool, device: &Device) -> Result<Option<AnyModel>, FsdpError> {
        let mut model = Llama::new(&self.shape, self.moe.as_ref(), device);
        gather_into(&mut model.embed, fsdp, self.embed, keep)?;
        gather_all(&mut model.blocks, fsdp, &self.blocks, keep)?;
        gather_into(&mut model.head, fsdp, self.head, keep)?;
        Ok(keep.then_some(AnyModel::Llama(model)))
    }

    fn add_to_selection_bias(&self, fsdp: &mut Fsdp<Batch>, layer: usize, delta: &[f32]) {
        fsdp.add_to_parameter(self.blocks[layer], "mlp.Moe.router.bias", delta);
    }
}
