//! What follows a DeepSeek's blocks: its head, and with multi-token prediction what that is cut into.
//!
//! ```text
//! depth 0     head
//! depth D     head.norm | embed                | mtp.0                 ..  mtp.D-1             | head.lm_head
//! width       d         | [h^0, e^1, .., e^D]  | [h^0, h^1, e^2, ..]       [h^0, h^1, .., h^D] | all losses
//! ```
//!
//! A call has one unit, and what it hands on is one tensor: so `embed`, which is called a second time, puts the embeddings `e^k` of the tokens `k`
//! further beside what the blocks have made, and each module puts its `h^k` in the place of `e^k`. In evaluation all of them hand on `h^0`.

use super::{Batch, gather_all, gather_into, main_loss};
use crate::expert_loads::ExpertLoads;
use burn::nn::{Embedding, Linear};
use burn::tensor::Tensor;
use fsdp::{Fsdp, FsdpError, Loss, UnitId, Units};
use model::deepseek::{Head, Mtp, losses};
use model::{DeepSeek, Parallel, RmsNorm};

/// The units.
pub(crate) enum Tail {
    Head(UnitId<Head>),
    Mtp { norm: UnitId<RmsNorm>, modules: Vec<UnitId<Mtp>>, lm_head: UnitId<Linear> },
}

/// How much of the other losses is added to the main one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coefs {
    pub z_loss: f64,
    /// Of the mean over the modules.
    pub mtp: f64,
}

impl Tail {
    /// The blocks before it have the numbers up to `layers`.
    pub fn add(
        units: &mut Units<Batch>,
        embed: UnitId<Embedding>,
        (head, mtp): (Head, Vec<Mtp>),
        coefs: Coefs,
        (layers, loads, parallel): (usize, &ExpertLoads, &Parallel),
    ) -> Self {
        if mtp.is_empty() {
            let head = units.add("head", head);
            units.last(head, move |head, x_btd, batch| {
                main_loss(batch, coefs.z_loss, |targets, coef| head.losses(x_btd, targets, coef))
            });
            return Self::Head(head);
        }
        let norm = units.add("head.norm", head.norm);
        units.then(norm, |norm: &RmsNorm, x_btd, _: &Batch| norm.forward(x_btd));
        units.then(embed, |table: &Embedding, h_btd: Tensor<3>, batch: &Batch| {
            let embeddings = batch.mtp.iter().map(|of| fused::embedding(table.weight.val(), of.tokens_bt.clone()));
            Tensor::cat(std::iter::once(h_btd).chain(embeddings).collect(), 2)
        });
        let modules = mtp.into_iter().enumerate().map(|(k, module)| {
            let (loads, parallel) = (loads.clone(), parallel.clone());
            let unit = units.add(format!("mtp.{k}"), module);
            units.then(unit, move |module: &Mtp, x_btw: Tensor<3>, batch: &Batch| {
                if batch.mtp.is_empty() {
                    return (x_btw, None);
                }
                let mut parts = x_btw.chunk(batch.mtp.len() + 1, 2);
                let (h_btd, embeddings_btd) = (parts[k].clone(), parts[k + 1].clone());
                let output = module.forward_over(h_btd, embeddings_btd, batch.place, &parallel);
                if let (Some(stats), Some(place)) = (&output.stats, batch.place) {
                    loads.record(layers + k, place.first_row, stats);
                }
                parts[k + 1] = output.x_btd;
                (Tensor::cat(parts, 2), output.aux_loss)
            });
            unit
        });
        let modules = modules.collect();
        let lm_head = units.add("head.lm_head", head.lm_head);
        units.last(lm_head, move |lm_head, x_btw, batch| all_losses(lm_head, x_btw, batch, coefs));
        Self::Mtp { norm, modules, lm_head }
    }

    /// The unit of module `k`.
    pub fn module(&self, k: usize) -> UnitId<Mtp> {
        match self {
            Self::Head(_) => unreachable!("there are no modules"),
            Self::Mtp { modules, .. } => modules[k],
        }
    }

    /// Puts the parameters into a model, where it is to be kept. A collective.
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

/// The main loss of `h^0`, and what is added to it: its z-loss, and `coef / depth` times the losses of the modules.
fn all_losses(lm_head: &Linear, x_btw: Tensor<3>, batch: &Batch, coefs: Coefs) -> Loss {
    let depth = batch.mtp.len();
    let mut parts = x_btw.chunk(depth + 1, 2).into_iter();
    let h_btd = parts.next().expect("one part at least");
    let main = main_loss(batch, coefs.z_loss, |targets, coef| losses(lm_head, h_btd, targets, coef));
    if coefs.mtp == 0.0 {
        return main;
    }
    let further = parts.zip(&batch.mtp).filter_map(|(h_btd, of)| of.loss(lm_head, h_btd));
    let further = further.map(|loss| loss * (coefs.mtp / depth as f64));
    Loss { aux: main.aux.into_iter().chain(further).reduce(|sum, loss| sum + loss), ..main }
}
