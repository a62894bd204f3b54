//! A table's rows and their bytes.

use std::ops::{Index, IndexMut};

/// What takes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    Parameters,
    Gradients,
    Optimizer,
    Gathered,
    Activations,
    /// Gradients of a backward under way, and the optimizer's copies.
    Working,
    /// Parameters and moments as they were when the checkpoint was begun that is being written.
    Checkpoint,
    /// The program, and what the allocator holds of freed memory that nothing else fits in.
    Allocator,
}

/// Bytes of each row. Not integers: these would overflow for a model that nobody could train.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rows([f64; Row::ALL.len()]);

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

impl Rows {
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Row by row.
    pub fn with(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self(std::array::from_fn(|row| combine(self.0[row], other.0[row])))
    }

    /// The shard in fp32, of which the optimizer has two moments.
    pub fn shard(&self) -> f64 {
        self[Row::Optimizer] / 2.0
    }

    /// What rests where shards do: of the parameters and gradients the shard's.
    pub fn rest(self) -> Self {
        let mut rest = Self::default();
        rest[Row::Parameters] = self.shard();
        rest[Row::Gradients] = self.shard().min(self[Row::Gradients]);
        rest[Row::Optimizer] = self[Row::Optimizer];
        rest[Row::Checkpoint] = self[Row::Checkpoint];
        rest
    }
}

impl Index<Row> for Rows {
    type Output = f64;

    fn index(&self, row: Row) -> &f64 {
        &self.0[row as usize]
    }
}

impl IndexMut<Row> for Rows {
    fn index_mut(&mut self, row: Row) -> &mut f64 {
        &mut self.0[row as usize]
    }
}
