//! A training step: forwards and backwards, totals, the optimizer.

use super::sums::Totals;
use super::sums_on_device::DeviceTotals;
use super::{Backward, BeforeStep, Fsdp, NonFinite, StepReport};
use crate::FsdpError;
use crate::api::call::Output;
use crate::exec::executor::TimedOp;
use crate::groups::comm_thread::Pending;
use crate::shard::optimizer::GradientScale;
use crate::shard::sharded_unit::ShardedUnit;
use comm::Reduce;
use schedule::Op;
use std::time::Instant;

impl<B: 'static> Backward<'_, B> {
    /// Makes the step; `numbers` and `before_step` are those of [`Fsdp::train_step_with`].
    pub(super) fn step_with(
        mut self,
        lr: f64,
        numbers: Vec<f64>,
        before_step: Option<BeforeStep<B>>,
    ) -> Result<StepReport, FsdpError> {
        let through = Instant::now();
        let Self { fsdp, micro_batches, losses, shares, times, ops } = &mut self;
        let limit = fsdp.config.clip_grad_norm;
        let on_device = match fsdp.rests_on_device() {
            true => Some(fsdp.totals_on_device(losses, shares, &numbers)?),
            false => None,
        };
        // Gradients are sums over ranks and micro-batches; the loss is a mean over both.
        let count_of = |weight: f64| weight * fsdp.loss_scale.factor();
        let ahead = on_device.as_ref().map(|totals| {
            let count = count_of(totals.weight);
            GradientScale { known: 1.0 / count, factor: Some(totals.factor(count, limit)) }
        });
        let is_ahead = before_step.is_none() && ahead.is_some() && fsdp.config.optimizers.step_on_device();
        fsdp.is_stepping = is_ahead;
        if let Some(scale) = ahead.as_ref().filter(|_| is_ahead) {
            fsdp.step_units(ops, lr, scale)?;
        }
        let Totals { losses: [loss, aux_loss], weight, norm, sums } = match &on_device {
            Some(totals) => totals.read(),
            None => fsdp.totals(losses, shares, numbers)?,
        };
        times.waiting += through.elapsed(); // for the stages that finish last
        let count = weight * fsdp.loss_scale.factor();
        let grad_norm = norm / count;
        let finite = loss.is_finite() && aux_loss.is_finite();
        let overflow = finite && fsdp.loss_scale.update(grad_norm);
        let non_finite = match finite && (grad_norm.is_finite() || overflow) {
            true => None,
            false => Some(fsdp.locate_non_finite(micro_batches, on_device.as_ref())?),
        };
        let skipped = overflow || non_finite.is_some();
        fsdp.is_stepping |= !skipped;
        fsdp.optimizer_steps += u64::from(!skipped);
        match (skipped, is_ahead) {
            (true, true) => fsdp.units.iter_mut().for_each(ShardedUnit::take_step_back),
            (true, false) => fsdp.units.iter_mut().for_each(ShardedUnit::skip),
            (false, true) => {}
            (false, false) => {
                let clip = match limit {
                    Some(limit) if grad_norm > limit => limit / (grad_norm + 1e-6),
                    _ => 1.0,
                };
                let scale = ahead.unwrap_or(GradientScale { known: clip / count, factor: None });
                if let Some(before_step) = before_step {
                    before_step(fsdp, &sums)?;
                }
                fsdp.step_units(ops, lr, &scale)?;
            }
        }
        fsdp.is_stepping = false;
        Ok(StepReport { loss, aux_loss, grad_norm, skipped, non_finite, sums, times: *times })
    }
}

impl<B: 'static> Fsdp<B> {
    /// Runs the forward again and checks each call's output; the ranks agree on the first non-finite one.
    fn locate_non_finite(
        &mut self,
        micro_batches: &[B],
        on_device: Option<&DeviceTotals>,
    ) -> Result<NonFinite, FsdpError> {
        let (rank, ranks, none) = (self.plan.rank, self.world.world_size(), f64::INFINITY);
        let mut first = none;
        let mut look = |call: usize, output: &Output| {
            if !output.is_finite() {
                first = first.min((call * ranks + rank) as f64);
            }
        };
        self.forward(micro_batches, &mut look)?;
        let in_gradient = |unit: &ShardedUnit| unit.gradient_squares().any(|(_, square)| !square.is_finite());
        let last = match on_device {
            Some(totals) => totals.last_non_finite(),
            None => self.units.iter().rposition(in_gradient),
        };
        let last = last.map_or(none, |unit| -(unit as f64));
        let highest = self.over_world(vec![-first, -last], Reduce::Max)?;
        Ok(match (-highest[0], highest[1]) {
            (first, _) if first.is_finite() => {
                let (call, rank) = (first as usize / ranks, first as usize % ranks);
                NonFinite { unit: self.units[self.calls[call].unit].name(), rank: Some(rank) }
            }
            (_, last) => NonFinite { unit: self.units[last.max(0.0) as usize].name(), rank: None },
        })
    }

    /// Runs the last operations of a step: the optimizer's step on each unit.
    fn step_units(&mut self, ops: &[Op], lr: f64, scale: &GradientScale) -> Result<(), FsdpError> {
        // The replica of a unit is in flight while the next unit steps. More replicas in flight would take more memory,
        // because the old replicas still exist.
        let mut under_way: Option<(usize, Pending<_>)> = None;
        for op in ops {
            let Op::Step { unit } = *op else { continue };
            let start = Instant::now();
            self.units[unit].step(lr, scale);
            if let Some((before, replicas)) = under_way.take() {
                self.units[before].set_replicas(replicas.wait()?);
            }
            under_way = Some((unit, self.units[unit].replicate(&self.streams)));
            if let Some(timed) = &mut self.timed {
                timed.push(TimedOp { op: *op, start, end: Instant::now() });
            }
        }
        if let Some((unit, replicas)) = under_way {
            self.units[unit].set_replicas(replicas.wait()?);
        }
        Ok(())
    }
}
