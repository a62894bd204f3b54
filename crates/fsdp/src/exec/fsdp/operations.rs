//! The operations of a step on this rank, and what they run with.

use super::Fsdp;
use crate::FsdpError;
use crate::api::call::Output;
use crate::exec::executor::{Executor, Losses, Rank, StageTimes};
use crate::exec::point_to_point::Messages;
use crate::exec::work::Work;
use schedule::{Op, Place, lower, lower_forward};
use std::rc::Rc;

impl<B: 'static> Fsdp<B> {
    fn place(&self) -> Place {
        Place { stage: self.stages.stage, rank: self.plan.rank }
    }

    /// Returns what this rank runs in a step with this number of micro-batches, in order.
    ///
    /// # Errors
    /// Returns an error if the pipeline cannot have so many.
    pub fn operations(&mut self, micro_batches: usize) -> Result<Rc<[Op]>, FsdpError> {
        match &self.lowered {
            Some((of, ops)) if *of == micro_batches => Ok(ops.clone()),
            _ => {
                let ops: Rc<[Op]> = lower(&self.outline, &self.config.pipeline.of(micro_batches)?, self.place()).into();
                self.lowered = Some((micro_batches, ops.clone()));
                Ok(ops)
            }
        }
    }

    /// Runs batches forward and passes the output of each call of this rank to `look`; returns the losses of each
    /// batch.
    pub(super) fn forward(
        &mut self,
        batches: &[B],
        look: &mut dyn FnMut(usize, &Output),
    ) -> Result<Vec<Losses>, FsdpError> {
        let pipeline = self.config.pipeline.of_a_round()?;
        let ops = lower_forward(&self.outline, &pipeline, self.place(), batches.len());
        Ok(self.run(&ops, batches, &[], look)?.0)
    }

    /// Runs operations up to the optimizer's step, and adds the gradients of the losses times `scales` to the units'
    /// gradients. Returns the losses of each micro-batch that this rank has computed, and the times.
    pub(super) fn run(
        &mut self,
        ops: &[Op],
        batches: &[B],
        scales: &[f64],
        look: &mut dyn FnMut(usize, &Output),
    ) -> Result<(Vec<Losses>, StageTimes), FsdpError> {
        let messages = Messages { world: &self.world, stages: &self.point_to_point, shape: self.shape.as_deref() };
        let rank = Rank {
            units: &mut self.units,
            calls: &self.calls,
            streams: &self.streams,
            messages,
            plan: &self.plan,
            allocated: self.config.allocated,
            first_error: &self.first_error,
            batches,
            scales,
            timed: self.timed.as_mut(),
        };
        Executor::new(rank, Work::new(self.watch.as_deref(), ops), look).run(ops)
    }
}
