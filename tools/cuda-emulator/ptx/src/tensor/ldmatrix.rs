//! `ldmatrix`, `stmatrix` and `movmatrix`: 8 x 8 matrices of 16-bit elements between shared memory and a warp's registers.
//!
//! Lane `l` holds elements `2 (l % 4)` and `2 (l % 4) + 1` of row `l / 4` of each matrix, or of column `l / 4` with `.trans`.

use super::modifiers::{Modifiers, Refused};
use super::{Space, Words};

/// `ldmatrix.sync.aligned.m8n8{.x1, .x2, .x4}{.trans}.shared.b16`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ldmatrix {
    /// Matrices, and registers a lane: 1, 2 or 4.
    pub count: usize,
    /// Whether a lane gets elements of a column.
    pub transpose: bool,
}

/// `stmatrix.sync.aligned.m8n8{.x1, .x2, .x4}{.trans}.shared.b16`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stmatrix {
    /// Matrices, and registers a lane: 1, 2 or 4.
    pub count: usize,
    /// Whether a lane gives elements of a column.
    pub transpose: bool,
}

fn parse(opcode: &str, words: &[&str]) -> Result<(usize, bool), Refused> {
    let known = ["sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"];
    let modifiers = Modifiers::sort(opcode, words, &known)?;
    modifiers.require(&["sync", "aligned", "m8n8", "b16"])?;
    let counts: Vec<usize> =
        [("x1", 1), ("x2", 2), ("x4", 4)].into_iter().filter(|(word, _)| modifiers.has(word)).map(|(_, n)| n).collect();
    match counts.as_slice() {
        &[count] => Ok((count, modifiers.has("trans"))),
        _ => Err(modifiers.refuse("one of \".x1\", \".x2\" and \".x4\" is expected")),
    }
}

impl Ldmatrix {
    /// Parses the words behind `ldmatrix`, from `sync` on.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        parse("ldmatrix", words).map(|(count, transpose)| Self { count, transpose })
    }

    /// Loads matrix `j` from the rows at `addresses[8 j..8 j + 8]` into entry `j`; the other addresses are not looked at.
    pub fn execute<M: Space>(&self, addresses: &[u64; 32], memory: &mut M, into: &mut [Words]) -> Result<(), M::Error> {
        for (addresses, into) in addresses.as_chunks::<8>().0.iter().zip(&mut into[..self.count]) {
            let mut rows = [[0u8; 16]; 8];
            for (&address, row) in addresses.iter().zip(&mut rows) {
                memory.read(address, row)?;
            }
            for (lane, word) in into.iter_mut().enumerate() {
                let (row, pair) = (lane / 4, lane % 4);
                let at = |r: usize, c: usize| u32::from(u16::from_le_bytes([rows[r][2 * c], rows[r][2 * c + 1]]));
                let (low, high) = if self.transpose {
                    (at(2 * pair, row), at(2 * pair + 1, row))
                } else {
                    (at(row, 2 * pair), at(row, 2 * pair + 1))
                };
                *word = low | high << 16;
            }
        }
        Ok(())
    }
}

impl Stmatrix {
    /// Parses the words behind `stmatrix`, from `sync` on.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        parse("stmatrix", words).map(|(count, transpose)| Self { count, transpose })
    }

    /// Stores entry `j` to the rows at `addresses[8 j..8 j + 8]`; the other addresses are not looked at.
    pub fn execute<M: Space>(&self, addresses: &[u64; 32], from: &[Words], memory: &mut M) -> Result<(), M::Error> {
        for (addresses, from) in addresses.as_chunks::<8>().0.iter().zip(&from[..self.count]) {
            let words = if self.transpose { movmatrix(from) } else { *from };
            for (&address, words) in addresses.iter().zip(words.as_chunks::<4>().0) {
                let mut row = [0u8; 16];
                for (bytes, word) in row.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                    *bytes = word.to_le_bytes();
                }
                memory.write(address, &row)?;
            }
        }
        Ok(())
    }
}

/// `movmatrix.sync.aligned.m8n8.trans.b16`: the transpose of a matrix in registers.
pub fn movmatrix(a: &Words) -> Words {
    let at = |row: usize, column: usize| a[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
    std::array::from_fn(|lane| {
        let (row, pair) = (lane / 4, lane % 4);
        at(2 * pair, row) | at(2 * pair + 1, row) << 16
    })
}
