//! The calls after a DeepSeek's blocks: its head, or with multi-token prediction the parts it is split into.
//!
//! ```text
//! depth 0     head
//! depth D     head.norm | embed                | mtp.0                 ..  mtp.D-1             | head.lm_head
//! width       d         | [h^0, e^1, .., e^D]  | [h^0, h^1, e^2, ..]       [h^0, h^1, .., h^D] | all losses
//! ```
//!
//! A call has one unit and passes on one tensor. So `embed`, in its second call, appends the embeddings `e^k` of the
//! tokens `k` further ahead to the output of the blocks, and each module replaces `e^k` by its `h^k`. In evaluation all
//! of them just pass on `h^0`.

use super::{DeepSeek, DeepSeekConfig, Head, Mtp, OutputMatrix};
use crate::family::{Training, gather_all, gather_into, main_loss};
use crate::{Batch, MtpBatch, RmsNorm};
use burn::nn::{Embedding, Linear};
use burn::tensor::Tensor;
use fsdp::{Fsdp, FsdpError, Loss, UnitId, Units};

/// The units after the blocks.
pub(super) enum OutputUnits {
    Head(UnitId<Head>),
    Mtp { norm: UnitId<RmsNorm>, modules: Vec<UnitId<Mtp>>, lm_head: UnitId<Linear> },
}

/// Coefficients of the losses that are added to the main one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coefs {
    pub z_loss: f64,
    /// Coefficient of the mean over the modules.
    pub mtp: f64,
}

impl OutputUnits {
    /// Adds the units and their calls after those of the blocks.
    pub fn add(
        units: &mut Units<Batch>,
        embed: UnitId<Embedding>,
        (head, mtp): (Head, Vec<Mtp>),
        shape: &DeepSeekConfig,
        training: &Training,
    ) -> Self {
        let Training { loads, parallel, .. } = training;
        let coefs = Coefs { z_loss: training.z_loss_coef, mtp: training.mtp_loss_coef };
        let (layers, vocab_size, tp) = (shape.num_hidden_layers, shape.vocab_size, || parallel.sequences.tp.clone());
        if mtp.is_empty() {
            let head = units.add("head", head);
            let of = tp();
            units.last(head, move |head, x_bsd, batch| {
                main_loss(batch, coefs.z_loss, |targets, coef| head.losses(x_bsd, targets, coef, &of))
            });
            return Self::Head(head);
        }
        let norm = units.add("head.norm", head.norm);
        units.then(norm, |norm: &RmsNorm, x_bsd, _: &Batch| norm.forward(x_bsd));
        let of = tp();
        units.then(embed, move |table: &Embedding, h_bsd: Tensor<3>, batch: &Batch| {
            let ahead = |tokens: &MtpBatch| super::embed(table, tokens.tokens_bt.clone(), vocab_size, &of);
            Tensor::cat(std::iter::once(h_bsd).chain(batch.mtp.iter().map(ahead)).collect(), 2)
        });
        let modules = mtp.into_iter().enumerate().map(|(k, module)| {
            let (loads, parallel) = (loads.clone(), parallel.clone());
            let unit = units.add(format!("mtp.{k}"), module);
            units.then(unit, move |module: &Mtp, x_bsw: Tensor<3>, batch: &Batch| {
                if batch.mtp.is_empty() {
                    return (x_bsw, None);
                }
                let mut parts = x_bsw.chunk(batch.mtp.len() + 1, 2);
                let (h_bsd, embeddings_bsd) = (parts[k].clone(), parts[k + 1].clone());
                let output = module.forward_over(h_bsd, embeddings_bsd, &batch.micro, &parallel);
                output.record(&loads, layers + k, &batch.micro);
                parts[k + 1] = output.x_btd;
                (Tensor::cat(parts, 2), output.aux_loss)
            });
            unit
        });
        let modules = modules.collect();
        let lm_head = units.add("head.lm_head", head.lm_head);
        let of = tp();
        units.last(lm_head, move |lm_head, x_bsw, batch| {
            all_losses(&OutputMatrix { lm_head, vocab_size, tp: &of }, x_bsw, batch, coefs)
        });
        Self::Mtp { norm, modules, lm_head }
    }

    /// The unit of module `k`.
    pub fn module(&self, k: usize) -> UnitId<Mtp> {
        match self {
            Self::Head(_) => unreachable!("there are no modules"),
            Self::Mtp { modules, .. } => modules[k],
        }
    }

    /// Gathers the parameters into a model if `keep` is set. A collective.
    pub fn gather_into(&self, model: &mut DeepSeek, fsdp: &Fsdp<Batch>, keep: bool) -> Result<(), FsdpError> {
        match self {
            Self::Head(head) => gather_into(&mut model.head, fsdp, *head, keep),
            Self::Mtp { norm, modules, lm_head } => {
                gather_into(&mut model.head.norm, fsdp, *norm, keep)?;
                gather_all(&mut model.mtp, fsdp, modules, keep)?;
                gather_into(&mut model.head.lm_head, fsdp, *lm_head, keep)
            }
        }
    }
}

/// The main loss of `h^0`, plus its z-loss and `coef / depth` times the losses of the modules.
fn all_losses(output: &OutputMatrix, x_bsw: Tensor<3>, batch: &Batch, coefs: Coefs) -> Loss {
    let depth = batch.mtp.len();
    let mut parts = x_bsw.chunk(depth + 1, 2).into_iter();
    let h_bsd = parts.next().expect("one part at least");
    let main = main_loss(batch, coefs.z_loss, |targets, coef| output.losses(h_bsd, targets, coef));
    if coefs.mtp == 0.0 {
        return main;
    }
    let further = parts.zip(&batch.mtp).filter_map(|(h_bsd, of)| super::mtp::loss(of, output, h_bsd));
    let further = further.map(|loss| loss * (coefs.mtp / depth as f64));
    Loss { aux: main.aux.into_iter().chain(further).reduce(|sum, loss| sum + loss), ..main }
}
