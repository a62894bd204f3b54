//! Locations of the rows of heads, and the kernel arguments that describe a problem.

use super::super::{AttentionRule, NO_KEY, ScoreDropout};
use crate::cube::launch::{Elements, vector_size};
use crate::dropout::cube::mix;
use crate::dropout::{DropoutKey, DropoutRule, GAMMA};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Rows of heads in a tensor. The elements of a row are contiguous.
#[derive(Clone)]
pub(super) struct HeadRows {
    pub tensor: CubeTensor,
    /// The first element of the first row.
    pub first: usize,
    /// Strides from a sequence, a head and a position to the next.
    pub strides: [usize; 3],
}

impl HeadRows {
    /// Rows of a `[b, heads, t, width]` tensor, in place.
    pub fn by_head(tensor: CubeTensor) -> Self {
        let strides = [0, 1, 2].map(|dim| tensor.meta.strides()[dim]);
        Self { tensor, first: 0, strides }
    }

    /// Rows of a contiguous `[b, t, heads, width]` tensor, from column `column` of each head.
    pub fn by_position(tensor: &CubeTensor, [t, heads, width]: [usize; 3], column: usize) -> Self {
        Self { tensor: tensor.clone(), first: column, strides: [t * heads * width, width, heads * width] }
    }

    pub fn arg(&self) -> BufferArg {
        self.tensor.clone().elements()
    }

    pub fn strides_of(&self) -> StridesLaunch {
        let [sequence, head, row] = self.strides;
        StridesLaunch::new(self.first, sequence, head, row)
    }

    /// The widest vector that divides rows of this width and all strides between them.
    pub fn vector_size(&self, width: usize) -> usize {
        let steps = self.strides.into_iter().chain([self.first, width]).filter(|step| *step > 0);
        steps.map(|step| vector_size(&self.tensor.client, step, self.tensor.dtype)).min().unwrap_or(1)
    }
}

/// [`HeadRows`] as a kernel argument.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Strides {
    pub first: usize,
    pub sequence: usize,
    pub head: usize,
    pub row: usize,
}

#[cube]
impl Strides {
    /// The first element of a head of this cube's sequence, which is the cube's `z`.
    pub fn of(&self, head: usize) -> usize {
        self.first + CUBE_POS_Z as usize * self.sequence + head * self.head
    }
}

/// Copies `l` and `delta` of a tile's queries into shared memory, one after the other.
#[cube]
pub(super) fn stage_statistics(
    l: &[f32],
    delta: &[f32],
    to: &mut [f32],
    head: usize,
    query: usize,
    rule: &Rule,
    #[comptime] tile: usize,
) {
    let first = rule.statistics_of(head);
    let mut i = UNIT_POS as usize;
    while i < tile {
        if query + i < rule.t {
            to[i] = l[first + query + i];
            to[tile + i] = delta[first + query + i];
        }
        i += CUBE_DIM as usize;
    }
}

/// The log-sum-exp of scores from the largest one and the total of their exponentials.
#[cube]
pub(super) fn log_sum(largest: f32, total: f32, rule: &Rule) -> f32 {
    select(total > 0.0f32, rule.scale * largest + total.ln(), comptime!(NO_KEY))
}

/// The inverse of a total of exponentials; 0 if there are none.
#[cube]
pub(super) fn inverse(total: f32) -> f32 {
    select(total > 0.0f32, 1.0f32 / total, 0.0f32)
}

/// Widths of a query or key before the rotated part, of the rotated part, and of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Widths {
    pub nope: usize,
    pub rope: usize,
    pub v: usize,
}

impl Widths {
    /// Width of a whole query or key.
    pub fn qk(self) -> usize {
        self.nope + self.rope
    }
}

/// The first key that query `i` sees.
#[cube]
pub(super) fn first_key(first_keys: &[i32], i: usize, rule: &Rule, #[comptime] documents: bool) -> usize {
    let mut first = 0usize.runtime();
    if comptime!(documents) {
        first = u32::cast_from(first_keys[CUBE_POS_Z as usize * rule.t + min(i, rule.t - 1)]) as usize;
    }
    first
}

/// [`AttentionRule`] as a kernel argument, with sizes.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Rule {
    /// Query heads.
    pub heads: usize,
    /// Query heads that share a head of keys and values.
    pub group: usize,
    pub t: usize,
    pub s: usize,
    pub offset: usize,
    pub scale: f32,
    pub key: u64,
    pub first_row: u64,
    pub first_index: u64,
    pub of_query: u64,
    pub of_head: u64,
    pub threshold: u32,
    pub kept: f32,
}

/// The kernel argument for this many query heads, query heads per head of keys, queries and keys.
pub(super) fn rule_launch([heads, group, t, s]: [usize; 4], rule: AttentionRule) -> RuleLaunch {
    let key = DropoutKey { key: 0, first_row: 0, first_index: 0 };
    let none = DropoutRule { key, row_len: 1, threshold: 0, scale: 1.0 };
    let none = ScoreDropout { rule: none, of_query: 0, of_head: 0 };
    let ScoreDropout { rule: dropped, of_query, of_head } = rule.dropout.unwrap_or(none);
    let DropoutKey { key, first_row, first_index } = dropped.key;
    let (of_query, of_head) = (of_query as u64, of_head as u64);
    let (offset, threshold) = (rule.offset, dropped.threshold);
    let (scale, kept) = (rule.scale, dropped.scale);
    RuleLaunch::new(heads, group, t, s, offset, scale, key, first_row, first_index, of_query, of_head, threshold, kept)
}

#[cube]
impl Rule {
    /// The keys from `key` on that query `i` sees, as a start and an exclusive end relative to `key`; `first` is the
    /// first key that the query sees. The end is not above the start if there is no such query.
    pub fn seen(&self, i: usize, first: usize, key: usize) -> (usize, usize) {
        let all = min(i + self.offset + 1, self.s);
        (max(first, key) - key, select(i < self.t, max(all, key) - key, 0))
    }

    /// The queries from `query` on that see key `j`, as a start and an exclusive end relative to `query`. Both are
    /// equal if there is no such key.
    pub fn seeing(&self, j: usize, query: usize) -> (usize, usize) {
        let first = max(self.first_query(j), query) - query;
        (first, select(j < self.s, max(self.t, query) - query, first))
    }

    /// The first query of this cube's tile. Tiles run in reverse, because the last one sees the most keys.
    pub fn first_query_here(&self, #[comptime] tile: usize) -> usize {
        ((self.t - 1) / tile - CUBE_POS_X as usize) * tile
    }

    /// The exclusive end of the keys that the queries before `end` see.
    pub fn keys(&self, end: usize) -> usize {
        min(min(end, self.t) + self.offset, self.s)
    }

    /// The first query that sees a key at or after `j`.
    pub fn first_query(&self, j: usize) -> usize {
        max(j, self.offset) - self.offset
    }

    /// The index in `l` and `delta`, `[b, heads, t]`, of the first query of a head of this cube's sequence.
    pub fn statistics_of(&self, head: usize) -> usize {
        (CUBE_POS_Z as usize * self.heads + head) * self.t
    }

    /// The start of the random numbers of a head of this cube's sequence; see [`dropout`](crate::dropout).
    pub fn start(&self, head: usize) -> u64 {
        let row = mix(self.key ^ mix(self.first_row + CUBE_POS_Z as u64 + comptime!(GAMMA)));
        let index = self.first_index + head as u64 * self.of_head;
        row + (index + 1u64) * comptime!(GAMMA)
    }

    /// The factor of dropout on the probability of query `i` and key `j`.
    pub fn factor(&self, start: u64, i: usize, j: usize) -> f32 {
        let index = i as u64 * self.of_query + j as u64;
        let number = mix(start + index * comptime!(GAMMA));
        let dropped = ((number >> 32u64) as u32) < self.threshold;
        select(dropped, 0.0f32, self.kept)
    }
}

/// Turns a score and the gradient of its probability into what multiplies `dy` or `v`, and what multiplies `k` or `q`.
/// Both are 0 if the query does not see the key.
#[cube]
pub(super) fn probability(
    score: f32,
    gradient: f32,
    seen: bool,
    query: usize,
    key: usize,
    l: f32,
    delta: f32,
    rule: &Rule,
    start: u64,
    #[comptime] dropout: bool,
) -> (f32, f32) {
    let mut p = 0.0f32;
    let mut d_s = 0.0f32;
    if seen {
        let whole = (rule.scale * score - l).exp();
        let mut factor = 1.0f32;
        if comptime!(dropout) {
            factor = rule.factor(start, query, key);
        }
        d_s = rule.scale * whole * (factor * gradient - delta);
        p = whole * factor;
    }
    (p, d_s)
}
