//! The forwards and backwards of a step, and its gradients before the optimizer.

use super::{Fsdp, StepReport};
use crate::exec::executor::{Losses, StageTimes};
use crate::shard::sharded_unit::ShardedUnit;
use crate::{FsdpError, Part};
use burn::tensor::Tensor;
use schedule::Op;
use std::fmt;
use std::rc::Rc;

/// The gradients of a step before its optimizer: the result of [`Fsdp::backward`]. Without a [`step`](Self::step) they
/// are discarded.
pub struct Backward<'a, B: 'static> {
    pub(super) fsdp: &'a mut Fsdp<B>,
    pub(super) micro_batches: &'a [B],
    pub(super) losses: Vec<Losses>,
    /// The weights of the micro-batches, relative to the largest one.
    pub(super) shares: Vec<f64>,
    pub(super) times: StageTimes,
    /// The operations of the step.
    pub(super) ops: Rc<[Op]>,
}

impl<B: 'static> Fsdp<B> {
    /// Runs the forwards and backwards of a step on this rank's micro-batches, with weights as in
    /// [`train_step_with`](Self::train_step_with), and stops before the optimizer:
    ///
    /// ```no_run
    /// # fn step(fsdp: &mut fsdp::Fsdp<()>, micro_batches: &[()]) -> Result<(), fsdp::FsdpError> {
    /// let mut backward = fsdp.backward(micro_batches, &[1.0])?;
    /// let clip = (1.0 / backward.grad_norm()?).min(1.0); // what `clip_grad_norm` does by itself
    /// backward.map_gradients(&mut |_part, gradient| gradient * clip)?;
    /// let report = backward.step(3e-4)?;
    /// # drop(report);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`train_step_with`](Self::train_step_with).
    pub fn backward<'a>(&'a mut self, micro_batches: &'a [B], weights: &[f64]) -> Result<Backward<'a, B>, FsdpError> {
        // Weights are relative to the largest one, so full micro-batches are not scaled: their gradients are bitwise
        // those without weights.
        let most = self.agree_on(micro_batches.len(), weights)?;
        // A context-parallel rank has the mean over its part of the rows. Its gradients would be `cp` times larger than
        // those of the mean over all rows, which fp16 might not hold.
        let parts = self.config.cp as f64;
        let shares: Vec<f64> = weights.iter().map(|weight| weight / most / parts).collect();
        let ops = self.operations(micro_batches.len())?;
        let times = StageTimes::default();
        let mut backward = Backward { fsdp: self, micro_batches, losses: vec![], shares, times, ops };
        backward.run()?;
        Ok(backward)
    }
}

impl<B: 'static> Drop for Backward<'_, B> {
    /// Nothing of a step that has failed carries over to the next one.
    fn drop(&mut self) {
        self.fsdp.units.iter_mut().for_each(ShardedUnit::skip);
    }
}

impl<B: 'static> Backward<'_, B> {
    fn run(&mut self) -> Result<(), FsdpError> {
        let Self { fsdp, micro_batches, shares, ops, .. } = self;
        let scales: Vec<f64> = shares.iter().map(|share| share * fsdp.loss_scale.factor()).collect();
        (self.losses, self.times) = fsdp.run(ops, micro_batches, &scales, &mut |_, _| ())?;
        Ok(())
    }

    /// Replaces the gradients that this rank holds by those that `change` returns. It is called with each part of a
    /// trained parameter and its gradient: the mean over the global batch, flat, in fp32, before clipping. Copies of a
    /// part on several ranks must be changed alike. Gradients that are not finite are not passed; the step is then
    /// skipped. The division by the number of micro-batches and ranks rounds, so even an unchanged gradient may differ
    /// in its last bit. This is a collective: every rank calls it.
    ///
    /// # Errors
    /// Returns an error if a rank fails.
    ///
    /// # Panics
    /// If a gradient of another length is returned.
    pub fn map_gradients(&mut self, change: &mut dyn FnMut(&Part, Tensor<1>) -> Tensor<1>) -> Result<(), FsdpError> {
        let shares = self.fsdp.all_reduce(&[self.shares.iter().sum()])?[0];
        let count = self.fsdp.weight(shares) * self.fsdp.loss_scale.factor();
        self.fsdp.units.iter_mut().for_each(|unit| unit.map_gradients(count, change));
        Ok(())
    }

    /// Returns the norm of the gradient of the global batch over all parameters, before clipping. This is a collective:
    /// every rank calls it.
    ///
    /// # Errors
    /// Returns an error if a rank fails.
    pub fn grad_norm(&self) -> Result<f64, FsdpError> {
        let totals = self.fsdp.totals(&self.losses, &self.shares, vec![])?;
        Ok(totals.norm / (totals.weight * self.fsdp.loss_scale.factor()))
    }

    /// Clips the gradients, and makes the optimizer's step.
    ///
    /// # Errors
    /// Returns an error if a rank fails.
    pub fn step(self, lr: f64) -> Result<StepReport, FsdpError> {
        self.step_with(lr, vec![], None)
    }
}

impl<B: 'static> fmt::Debug for Backward<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Backward").field("fsdp", &self.fsdp).finish_non_exhaustive()
    }
}
