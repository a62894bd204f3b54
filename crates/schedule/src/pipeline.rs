//! Pipeline schedules by name, their programs, and closed forms of the bubble and of the live cells.

use crate::{Action, Cell, ScheduleError, gpipe, interleaved, one_f_one_b, program, zb_v, zero_bubble};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The order in which stages work on micro-batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// All forwards, then all backwards; the activations of every micro-batch are kept at once.
    Gpipe,
    /// One forward, one backward, starting as soon as a backward is ready.
    #[default]
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// 1F1B with several chunks of the model per stage: shorter bubbles, more messages.
    #[serde(rename = "interleaved_1f1b")]
    Interleaved1F1B,
    /// 1F1B with deferred weight gradients: each backward computes input gradients, and weight gradients fill the gaps.
    ZeroBubble,
    /// Zero bubble with two chunks per stage; the second chunks follow the stages in reverse order.
    ZbV,
}

/// A valid combination of schedule, stages, chunks and micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pipeline {
    schedule: Schedule,
    stages: usize,
    virtual_stages: usize,
    micro_batches: usize,
}

/// The times that one chunk takes for one micro-batch, in any unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    /// The forward.
    pub forward: u64,
    /// The gradient of the input.
    pub input: u64,
    /// The gradient of the weights.
    pub weights: u64,
}

impl Schedule {
    /// All schedules.
    pub const ALL: [Self; 5] = [Self::Gpipe, Self::OneFOneB, Self::Interleaved1F1B, Self::ZeroBubble, Self::ZbV];

    /// Returns the name that configurations use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved1F1B => "interleaved_1f1b",
            Self::ZeroBubble => "zero_bubble",
            Self::ZbV => "zb_v",
        }
    }

    /// Returns the number of chunks per stage if none is given.
    pub fn default_virtual_stages(self) -> usize {
        match self {
            Self::Gpipe | Self::OneFOneB | Self::ZeroBubble => 1,
            Self::Interleaved1F1B | Self::ZbV => 2,
        }
    }

    /// Returns whether weight gradients are computed separately from input gradients.
    pub fn splits_backward(self) -> bool {
        matches!(self, Self::ZeroBubble | Self::ZbV)
    }
}

impl Ticks {
    /// Returns the time of the forward and the whole backward.
    pub fn all(self) -> u64 {
        self.forward + self.input + self.weights
    }

    /// Returns the time of an action; messages take none.
    pub fn of(self, action: Action) -> u64 {
        match action {
            Action::Forward(_) => self.forward,
            Action::Backward(_) => self.input + self.weights,
            Action::BackwardInput(_) => self.input,
            Action::BackwardWeights(_) => self.weights,
            Action::Send(..) | Action::Recv(..) => 0,
        }
    }
}

impl Pipeline {
    /// Creates a pipeline of `stages` stages with `virtual_stages` chunks each, for a step of `micro_batches`
    /// micro-batches.
    ///
    /// # Errors
    /// Returns an error if the schedule does not support these numbers.
    pub fn new(
        schedule: Schedule,
        stages: usize,
        virtual_stages: usize,
        micro_batches: usize,
    ) -> Result<Self, ScheduleError> {
        if stages == 0 || micro_batches == 0 {
            return Err(ScheduleError::Nothing { stages, micro_batches });
        }
        match schedule {
            Schedule::Gpipe | Schedule::OneFOneB | Schedule::ZeroBubble if virtual_stages != 1 => {
                Err(ScheduleError::OneChunk { schedule, virtual_stages })
            }
            Schedule::ZbV if virtual_stages != 2 => Err(ScheduleError::TwoChunks { virtual_stages }),
            Schedule::Interleaved1F1B if virtual_stages < 2 => Err(ScheduleError::FewChunks { virtual_stages }),
            _ => Ok(Self { schedule, stages, virtual_stages, micro_batches }),
        }
    }

    /// Returns the schedule.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Returns the number of stages, p.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// Returns the number of chunks per stage, v.
    pub fn virtual_stages(&self) -> usize {
        self.virtual_stages
    }

    /// Returns the number of micro-batches in a step, m.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Returns the number of chunks in the model.
    pub fn chunks(&self) -> usize {
        self.stages * self.virtual_stages
    }

    /// Returns the stage that holds a chunk. Chunks are assigned to the stages in turn; under `zb_v`, to the last stage
    /// and back.
    pub fn stage_of(&self, chunk: usize) -> usize {
        match self.schedule {
            Schedule::ZbV => chunk.min(self.chunks() - 1 - chunk),
            _ => chunk % self.stages,
        }
    }

    /// Returns the chunks that a stage holds, in model order.
    pub fn chunks_of(&self, stage: usize) -> impl Iterator<Item = usize> {
        (0..self.chunks()).filter(move |chunk| self.stage_of(*chunk) == stage)
    }

    /// Returns the actions of all stages in a step.
    pub fn program(&self) -> Vec<Vec<Action>> {
        (0..self.stages).map(|stage| self.program_of(stage)).collect()
    }

    /// Returns the actions of one stage in a step.
    pub fn program_of(&self, stage: usize) -> Vec<Action> {
        let early = |way, cell| match self.schedule {
            Schedule::Interleaved1F1B => interleaved::early(self, stage, way, cell),
            _ => 0,
        };
        program::with_messages(self, stage, self.order(stage), &early)
    }

    /// Returns the actions of a stage for a forward pass of `micro_batches` micro-batches that no backward follows. A
    /// round has as many micro-batches as there are stages and passes through each of the stage's chunks in turn.
    pub fn forward_of(&self, stage: usize, micro_batches: usize) -> Vec<Action> {
        let round = |first: usize| {
            let round = first..(first + self.stages).min(micro_batches);
            let chunk = move |chunk| round.clone().map(move |micro_batch| Action::Forward(Cell { chunk, micro_batch }));
            self.chunks_of(stage).flat_map(chunk)
        };
        let order = (0..micro_batches).step_by(self.stages).flat_map(round).collect();
        program::with_messages(self, stage, order, &|_, _| 0)
    }

    /// Returns the bubble in closed form, or `None` if there is no such form. It assumes stages of equal cost, messages
    /// that take no time, and enough micro-batches.
    pub fn bubble(&self, ticks: Ticks) -> Option<u64> {
        match self.schedule {
            Schedule::Gpipe => gpipe::bubble(self, ticks),
            Schedule::OneFOneB => one_f_one_b::bubble(self, ticks),
            Schedule::Interleaved1F1B => interleaved::bubble(self, ticks),
            Schedule::ZeroBubble => zero_bubble::bubble(self, ticks),
            Schedule::ZbV => zb_v::bubble(self, ticks),
        }
    }

    /// Returns the maximum number of cells that a stage keeps data of at once, however long actions take.
    pub fn live(&self, stage: usize) -> usize {
        let most = match self.schedule {
            Schedule::Gpipe => gpipe::live(self),
            Schedule::OneFOneB => one_f_one_b::live(self, stage),
            Schedule::Interleaved1F1B => interleaved::live(self, stage),
            Schedule::ZeroBubble => zero_bubble::live(self),
            Schedule::ZbV => zb_v::live(self),
        };
        most.min(self.micro_batches * self.virtual_stages)
    }

    /// Returns the computations of a stage in order.
    fn order(&self, stage: usize) -> Vec<Action> {
        match self.schedule {
            Schedule::Gpipe => gpipe::order(self, stage),
            Schedule::OneFOneB => one_f_one_b::order(self, stage),
            Schedule::Interleaved1F1B => interleaved::order(self, stage),
            Schedule::ZeroBubble => zero_bubble::order(self, stage),
            Schedule::ZbV => zb_v::order(self, stage),
        }
    }
}
