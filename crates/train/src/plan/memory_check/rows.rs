//! The rows of the memory table and their bytes.

use std::ops::{Index, IndexMut};

/// A row: what the memory is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    Parameters,
    Gradients,
    Optimizer,
    Gathered,
    Activations,
    /// Gradients in a running backward, and the optimizer's copies.
    Working,
    /// Parameters and moments as of the start of the checkpoint that is being written.
    Checkpoint,
    /// The program, and freed memory that the allocator holds in unusable pieces.
    Allocator,
}

/// Bytes of each row, as floats because integers would overflow for absurdly large models.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryRows([f64; Row::ALL.len()]);

impl Row {
    pub const ALL: [Self; 8] = [
        Self::Parameters,
        Self::Gradients,
        Self::Optimizer,
        Self::Gathered,
        Self::Activations,
        Self::Working,
        Self::Checkpoint,
        Self::Allocator,
    ];

    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl MemoryRows {
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Combines two sets row by row.
    pub fn with(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self(std::array::from_fn(|row| combine(self.0[row], other.0[row])))
    }

    /// The fp32 shard; the optimizer holds two moments of it.
    pub fn shard(&self) -> f64 {
        self[Row::Optimizer] / 2.0
    }

    /// What is resident where the shards are: only the shard's part of parameters and gradients.
    pub fn rest(self) -> Self {
        let mut rest = Self::default();
        rest[Row::Parameters] = self.shard();
        rest[Row::Gradients] = self.shard().min(self[Row::Gradients]);
        rest[Row::Optimizer] = self[Row::Optimizer];
        rest[Row::Checkpoint] = self[Row::Checkpoint];
        rest
    }
}

impl Index<Row> for MemoryRows {
    type Output = f64;

    fn index(&self, row: Row) -> &f64 {
        &self.0[row as usize]
    }
}

impl IndexMut<Row> for MemoryRows {
    fn index_mut(&mut self, row: Row) -> &mut f64 {
        &mut self.0[row as usize]
    }
}
