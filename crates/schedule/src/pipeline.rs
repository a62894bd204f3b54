//! The pipeline schedules by name, their programs, and closed forms of the bubble and of what a stage keeps.

use crate::{Action, Cell, gpipe, interleaved, one_f_one_b, program, zb_v, zero_bubble};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The order in which stages work on micro-batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// All forwards, then all backwards: every micro-batch's activations are kept at once.
    Gpipe,
    /// One forward, one backward, as soon as there is something to run backward.
    #[default]
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// The same with several chunks of the model per stage: shorter bubbles, more messages.
    #[serde(rename = "interleaved_1f1b")]
    Interleaved1F1B,
    /// One forward, one backward to the input; those to the weights fill the gaps.
    ZeroBubble,
    /// The same with two chunks per stage, the second ones in reverse.
    ZbV,
}

/// Stages, chunks and micro-batches that go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pipeline {
    schedule: Schedule,
    stages: usize,
    virtual_stages: usize,
    micro_batches: usize,
}

/// What a chunk's computation takes for a micro-batch, in any unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    /// Its forward.
    pub forward: u64,
    /// The gradient of its input.
    pub input: u64,
    /// The gradient of its weights.
    pub weights: u64,
}

/// Why there is no such pipeline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum PipelineError {
    #[error("a pipeline of {stages} stages and {micro_batches} micro-batches: give at least one of each")]
    Nothing { stages: usize, micro_batches: usize },

    #[error("{} has one chunk per stage, not {virtual_stages}: take interleaved_1f1b for more", .schedule.name())]
    OneChunk { schedule: Schedule, virtual_stages: usize },

    #[error("zb_v has two chunks per stage, not {virtual_stages}")]
    TwoChunks { virtual_stages: usize },

    #[error("interleaved_1f1b has at least two chunks per stage, not {virtual_stages}: 1f1b has one")]
    FewChunks { virtual_stages: usize },
}

impl Schedule {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Gpipe, Self::OneFOneB, Self::Interleaved1F1B, Self::ZeroBubble, Self::ZbV];

    /// As it is written in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved1F1B => "interleaved_1f1b",
            Self::ZeroBubble => "zero_bubble",
            Self::ZbV => "zb_v",
        }
    }

    /// The chunks of a stage, where nobody says how many.
    pub fn default_virtual_stages(self) -> usize {
        match self {
            Self::Gpipe | Self::OneFOneB | Self::ZeroBubble => 1,
            Self::Interleaved1F1B | Self::ZbV => 2,
        }
    }

    /// Whether gradients of weights are computed apart from those of inputs.
    pub fn splits_backward(self) -> bool {
        matches!(self, Self::ZeroBubble | Self::ZbV)
    }
}

impl Ticks {
    /// Forward and backward.
    pub fn all(self) -> u64 {
        self.forward + self.input + self.weights
    }

    /// What an action takes; messages nothing.
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
    /// A pipeline of so many stages, of so many chunks each, and the micro-batches of a step.
    ///
    /// # Errors
    /// If they do not go together.
    pub fn new(
        schedule: Schedule,
        stages: usize,
        virtual_stages: usize,
        micro_batches: usize,
    ) -> Result<Self, PipelineError> {
        if stages == 0 || micro_batches == 0 {
            return Err(PipelineError::Nothing { stages, micro_batches });
        }
        match schedule {
            Schedule::Gpipe | Schedule::OneFOneB | Schedule::ZeroBubble if virtual_stages != 1 => {
                Err(PipelineError::OneChunk { schedule, virtual_stages })
            }
            Schedule::ZbV if virtual_stages != 2 => Err(PipelineError::TwoChunks { virtual_stages }),
            Schedule::Interleaved1F1B if virtual_stages < 2 => Err(PipelineError::FewChunks { virtual_stages }),
            _ => Ok(Self { schedule, stages, virtual_stages, micro_batches }),
        }
    }

    /// Its schedule.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Stages, p.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// Chunks of a stage, v.
    pub fn virtual_stages(&self) -> usize {
        self.virtual_stages
    }

    /// Micro-batches of a step, m.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Chunks of the model.
    pub fn chunks(&self) -> usize {
        self.stages * self.virtual_stages
    }

    /// The stage that holds a chunk: they go round the stages, under `zb_v` there and back.
    pub fn stage_of(&self, chunk: usize) -> usize {
        match self.schedule {
            Schedule::ZbV => chunk.min(self.chunks() - 1 - chunk),
            _ => chunk % self.stages,
        }
    }

    /// The chunks that a stage holds, in the order of the model.
    pub fn chunks_of(&self, stage: usize) -> impl Iterator<Item = usize> {
        (0..self.chunks()).filter(move |chunk| self.stage_of(*chunk) == stage)
    }

    /// What each stage does in a step.
    pub fn program(&self) -> Vec<Vec<Action>> {
        (0..self.stages).map(|stage| self.program_of(stage)).collect()
    }

    /// What a stage does in a step.
    pub fn program_of(&self, stage: usize) -> Vec<Action> {
        let early = |way, cell| match self.schedule {
            Schedule::Interleaved1F1B => interleaved::early(self, stage, way, cell),
            _ => 0,
        };
        program::with_messages(self, stage, self.order(stage), &early)
    }

    /// What a stage does of so many micro-batches' forward, without a backward to come: in rounds of as many as there
    /// are stages, those of a round through each of its chunks in turn.
    pub fn forward_of(&self, stage: usize, micro_batches: usize) -> Vec<Action> {
        let round = |first: usize| {
            let round = first..(first + self.stages).min(micro_batches);
            let chunk = move |chunk| round.clone().map(move |micro_batch| Action::Forward(Cell { chunk, micro_batch }));
            self.chunks_of(stage).flat_map(chunk)
        };
        let order = (0..micro_batches).step_by(self.stages).flat_map(round).collect();
        program::with_messages(self, stage, order, &|_, _| 0)
    }

    /// The bubble in closed form, where there is one: stages that cost the same, messages that take no time, and enough
    /// micro-batches.
    pub fn bubble(&self, ticks: Ticks) -> Option<u64> {
        match self.schedule {
            Schedule::Gpipe => gpipe::bubble(self, ticks),
            Schedule::OneFOneB => one_f_one_b::bubble(self, ticks),
            Schedule::Interleaved1F1B => interleaved::bubble(self, ticks),
            Schedule::ZeroBubble => zero_bubble::bubble(self, ticks),
            Schedule::ZbV => zb_v::bubble(self, ticks),
        }
    }

    /// How many cells a stage keeps something of at most, whatever its actions take.
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

    /// What a stage computes, in which order.
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
