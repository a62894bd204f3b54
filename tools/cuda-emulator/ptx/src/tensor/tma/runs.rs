//! The bytes that an instruction moves, as runs that are contiguous on both sides.
//!
//! Shared memory holds the box densely, dimension 0 innermost; swizzling permutes its chunks of 16 bytes by their addresses.

use super::super::{Refused, Swizzle};
use super::RANK;
use super::map::{Mode, TensorMap};

/// Bytes that lie side by side in shared memory, and in global memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// Offset of the first one in shared memory.
    pub shared: u64,
    /// Where they come from, or go to.
    pub source: Source,
    /// Their number, of whole elements.
    pub bytes: usize,
}

/// The other side of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// This address.
    Global(u64),
    /// Nothing: they are outside of the tensor. A load [fills](TensorMap::fill) them, a store and a reduction leave them out.
    Outside,
}

/// The runs of an instruction, row after row.
#[derive(Debug, Clone)]
pub struct Load {
    map: TensorMap,
    /// Where the instruction starts, and the row that is next.
    first: [i64; RANK],
    at: [i64; RANK],
    /// Counted in the box, from dimension 1 on.
    index: [u32; RANK],
    counts: [u32; RANK],
    offsets: [i64; RANK],
    rows: u64,
    /// Offset of the row's first byte, before swizzling.
    shared: u64,
    /// Bytes of the row that are done, and all.
    done: u64,
    row: u64,
}

impl TensorMap {
    /// What `cp.async.bulk.tensor` moves between the box at `coordinates` and shared memory at `shared`, in any direction. `offsets` are
    /// those of `.im2col`, empty in tile mode and for `.im2col_no_offs`.
    pub fn runs(&self, coordinates: &[i32], offsets: &[u16], shared: u64) -> Result<Load, Refused> {
        let refuse = |message: String| Err(Refused(message));
        let rank = self.rank;
        if coordinates.len() != rank {
            return refuse(format!("{} coordinates for a tensor of {rank} dimensions", coordinates.len()));
        }
        if self.interleave != 0 {
            return refuse("interleaved tensors are not known here".to_owned());
        }
        let counts = self.counts();
        let row = u64::from(counts[0]) * self.element.size() as u64;
        let width = self.swizzle.width() as u64;
        if self.swizzle != Swizzle::None && row != width {
            return refuse(format!(
                "how rows of {row} bytes lie in a swizzle of {width} bytes is not known here: make the box's rows {width} bytes"
            ));
        }
        if !shared.is_multiple_of(128) {
            return refuse(format!("the offset {shared:#x} in shared memory is not a multiple of 128"));
        }
        let spatial = match self.mode {
            Mode::Tiled { .. } => 0,
            Mode::Im2col { .. } => rank - 2,
        };
        if !offsets.is_empty() && offsets.len() != spatial {
            return refuse(format!("{} im2col offsets where there can be {spatial}", offsets.len()));
        }
        let first = std::array::from_fn(|i| coordinates.get(i).map_or(0, |at| i64::from(*at)));
        let mut all = [0; RANK];
        all[1..=offsets.len()].iter_mut().zip(offsets).for_each(|(to, from)| *to = i64::from(*from));
        let rows = counts[1..].iter().map(|count| u64::from(*count)).product();
        let index = [0; RANK];
        Ok(Load { map: *self, first, at: first, index, counts, offsets: all, rows, shared, done: 0, row })
    }
}

impl Load {
    /// The row's address if it were in the tensor, and the range of its bytes that are.
    fn inside(&self) -> (u64, std::ops::Range<i64>) {
        let (map, size) = (&self.map, self.map.element.size() as i64);
        let mut address = map.address.wrapping_add_signed(self.at[0] * size);
        for i in 1..map.rank {
            let at = self.at[i] + self.offsets[i];
            if !(0..map.sizes[i] as i64).contains(&at) {
                return (0, 0..0);
            }
            address = address.wrapping_add(at as u64 * map.strides[i]);
        }
        let clip = |at: i64| (at * size).clamp(0, self.row as i64);
        (address, clip(-self.at[0])..clip(map.sizes[0] as i64 - self.at[0]))
    }

    fn next_row(&mut self) {
        self.rows -= 1;
        self.done = 0;
        self.shared += self.row;
        let map = &self.map;
        match map.mode {
            Mode::Tiled { .. } => {
                for i in 1..map.rank {
                    self.index[i] += 1;
                    if self.index[i] < self.counts[i] {
                        self.at[i] += i64::from(map.steps[i]);
                        return;
                    }
                    (self.index[i], self.at[i]) = (0, self.first[i]);
                }
            }
            Mode::Im2col { lower, upper, .. } => {
                for i in 1..map.rank - 1 {
                    self.at[i] += i64::from(map.steps[i]);
                    if self.at[i] < map.sizes[i] as i64 + i64::from(upper[i - 1]) {
                        return;
                    }
                    self.at[i] = i64::from(lower[i - 1]);
                }
                self.at[map.rank - 1] += 1;
            }
        }
    }
}

impl Iterator for Load {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.rows == 0 {
            return None;
        }
        let (address, inside) = self.inside();
        let at = self.done as i64;
        let (source, mut end) = if inside.is_empty() || at >= inside.end {
            (Source::Outside, self.row as i64)
        } else if at < inside.start {
            (Source::Outside, inside.start)
        } else {
            (Source::Global(address.wrapping_add(self.done)), inside.end)
        };
        if self.map.swizzle != Swizzle::None {
            end = end.min((at / 16 + 1) * 16);
        }
        let shared = self.map.swizzle.apply(self.shared + self.done);
        let run = Run { shared, source, bytes: (end - at) as usize };
        self.done = end as u64;
        if self.done == self.row {
            self.next_row();
        }
        Some(run)
    }
}
