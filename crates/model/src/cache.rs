//! The cache for generation: what attention stores for the tokens that a model has already read.

use crate::batch::window_first_keys;
use burn::tensor::{Int, Tensor, TensorData};
use fused::causal_attention;

/// Minimum growth of a buffer, in columns.
const GRANULE: usize = 64;

/// What attention stores for the tokens that a model has read, so each further token only costs its own forward.
///
/// GPT-2 and Llama store keys and values. DeepSeek stores the normalized latent and the rotated key that all
/// heads share (arXiv 2405.04434, section 2.1).
///
/// Each sequence of the batch has its own length. A layer's buffers are `[b, heads, columns, width]`, and column `c`
/// holds position `c` of each sequence. The buffers grow by a quarter and are written in place.
#[derive(Debug, Clone)]
pub struct Cache {
    pub(crate) layers: Vec<LayerCache>,
    lengths: Vec<usize>,
}

/// The buffers of a layer: keys and values for GPT-2 and Llama; one buffer, latent and rotated key side by side, for
/// DeepSeek.
#[derive(Debug, Clone, Default)]
pub struct LayerCache([Option<Tensor<4>>; 2]);

/// The positions of the new tokens of a forward: sequence `i` has `counts[i]` of them, starting at position
/// `starts[i]`.
///
/// Tokens beyond a sequence's count are padding, which no query attends to.
pub struct Chunk {
    starts: Vec<usize>,
    counts: Vec<usize>,
    t: usize,
    /// Keys of the longest sequence, old and new.
    columns: usize,
}

impl Cache {
    pub(crate) fn new(layers: usize, sequences: usize) -> Self {
        Self { layers: vec![LayerCache::default(); layers], lengths: vec![0; sequences] }
    }

    /// The number of cached tokens of each sequence.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Removes all tokens of one sequence.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn clear(&mut self, sequence: usize) {
        self.truncate(sequence, 0);
    }

    /// Removes all but the first `length` tokens of one sequence.
    ///
    /// # Panics
    /// If there is no such sequence, or it has fewer than `length` tokens.
    pub fn truncate(&mut self, sequence: usize, length: usize) {
        let held = &mut self.lengths[sequence];
        assert!(length <= *held, "the first {length} of {held} tokens");
        *held = length;
    }

    /// Keeps only these sequences, in this order.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn keep(&mut self, sequences: &[usize]) {
        self.lengths = sequences.iter().map(|sequence| self.lengths[*sequence]).collect();
        let rows: Vec<i64> = sequences.iter().map(|sequence| *sequence as i64).collect();
        for buffer in self.layers.iter_mut().flat_map(|layer| &mut layer.0) {
            *buffer = buffer.take().filter(|_| !rows.is_empty()).map(|all| {
                let rows = Tensor::<1, Int>::from_data(TensorData::new(rows.clone(), [rows.len()]), &all.device());
                all.select(0, rows)
            });
        }
    }

    /// Bytes of the buffers, including columns that are not written yet.
    pub fn bytes(&self) -> usize {
        self.buffers().map(|buffer| buffer.shape().num_elements() * buffer.dtype().size()).sum()
    }

    /// Bytes per token: one column of the buffers for one sequence; 0 before the first token.
    pub fn bytes_per_token(&self) -> usize {
        let column = |buffer: &Tensor<4>| {
            let [b, _, columns, _] = buffer.dims();
            buffer.shape().num_elements() / (b * columns) * buffer.dtype().size()
        };
        self.buffers().map(column).sum()
    }

    fn buffers(&self) -> impl Iterator<Item = &Tensor<4>> {
        self.layers.iter().flat_map(|layer| layer.0.iter().flatten())
    }

    /// Appends `counts[i]` of `t` new tokens to sequence `i`.
    pub(crate) fn extend(&mut self, counts: &[usize], t: usize, context: usize) -> Chunk {
        assert_eq!(counts.len(), self.lengths.len(), "one count a sequence of the cache");
        assert!(counts.iter().all(|count| *count <= t), "counts {counts:?} of {t} tokens");
        let starts = self.lengths.clone();
        self.lengths.iter_mut().zip(counts).for_each(|(length, count)| *length += count);
        let columns = self.lengths.iter().copied().max().unwrap_or(0);
        assert!(columns <= context, "{columns} tokens are more than the context of {context}");
        Chunk { starts, counts: counts.to_vec(), t, columns }
    }
}

impl LayerCache {
    /// Appends `[b, heads, t, width]` to each buffer and returns all columns in use, `[b, heads, columns, width]`.
    /// There are at most two buffers, the same ones in each call.
    ///
    /// # Panics
    /// If there are more, or the shapes differ from those of the call before.
    pub fn append<const N: usize>(&mut self, new: [Tensor<4>; N], chunk: &Chunk) -> [Tensor<4>; N] {
        let mut buffers = self.0.iter_mut();
        new.map(|new| append(buffers.next().expect("at most two buffers a layer"), new, chunk))
    }
}

/// Writes in place, which needs the buffer to have no other owner. The new values are detached: in a model that is
/// training, the graph would otherwise grow with every token.
fn append(buffer: &mut Option<Tensor<4>>, new_bhtd: Tensor<4>, chunk: &Chunk) -> Tensor<4> {
    let new_bhtd = new_bhtd.detach();
    let [b, heads, _, width] = new_bhtd.dims();
    let mut all = with_columns(buffer.take(), chunk.columns, &new_bhtd);
    let aligned = chunk.starts.iter().all(|start| *start == chunk.starts[0]);
    if aligned && chunk.counts.iter().all(|count| *count == chunk.t) {
        let start = chunk.starts[0];
        all = all.slice_assign([0..b, 0..heads, start..start + chunk.t, 0..width], new_bhtd);
    } else {
        for (i, (start, count)) in chunk.starts.iter().zip(&chunk.counts).enumerate().filter(|(_, (_, n))| **n > 0) {
            let new = new_bhtd.clone().slice([i..i + 1, 0..heads, 0..*count, 0..width]);
            all = all.slice_assign([i..i + 1, 0..heads, *start..start + count, 0..width], new);
        }
    }
    let written = all.clone().slice([0..b, 0..heads, 0..chunk.columns, 0..width]);
    *buffer = Some(all);
    written
}

fn with_columns(held: Option<Tensor<4>>, columns: usize, like: &Tensor<4>) -> Tensor<4> {
    let capacity = held.as_ref().map_or(0, |held| held.dims()[2]);
    match held {
        Some(held) if capacity >= columns => held,
        held => {
            let [b, heads, _, width] = like.dims();
            let larger = columns.max(capacity + capacity / 4).next_multiple_of(GRANULE);
            let all = Tensor::zeros([b, heads, larger, width], (&like.device(), like.dtype()));
            match held {
                Some(held) => all.slice_assign([0..b, 0..heads, 0..capacity, 0..width], held),
                None => all,
            }
        }
    }
}

impl Chunk {
    /// The position of each new token, sequence by sequence; padding gets an arbitrary position below `limit`.
    pub fn positions(&self, limit: usize) -> Vec<usize> {
        self.starts.iter().flat_map(|start| (*start..start + self.t).map(|at| at.min(limit - 1))).collect()
    }

    /// The number of sequences, and that of tokens in each with the padding.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.starts.len(), self.t]
    }

    /// Attention of the queries of the new tokens, `[b, heads, t, d]`, to all keys, `[b, heads, columns, d]`, and
    /// values, `[b, heads, columns, dv]`. Returns `[b, t, heads, dv]`.
    ///
    /// Several query heads may share a head of keys and values; see [`causal_attention`]. A single new token may have
    /// several queries, unless attention is limited to the `window` tokens up to each.
    pub fn attention(
        &self,
        q_bhtd: Tensor<4>,
        [k_bhcd, v_bhcv]: [Tensor<4>; 2],
        scale: f64,
        window: Option<usize>,
    ) -> Tensor<4> {
        let ([b, heads, queries, _], first) = (q_bhtd.dims(), self.starts.first().copied().unwrap_or(0));
        if self.columns == 0 {
            let dv = v_bhcv.dims()[3];
            return Tensor::zeros([b, queries, heads, dv], (&q_bhtd.device(), q_bhtd.dtype()));
        }
        // With a window, the first column that each new token sees, in sequences with `start` tokens before it.
        let starts_of = |sequences: usize, start: usize| {
            let window = window.filter(|window| start + queries > *window)?;
            Some(window_first_keys(window, start..start + queries, sequences, &q_bhtd.device()))
        };
        if self.starts.iter().all(|start| *start == first) {
            let starts = starts_of(b, first);
            return causal_attention(q_bhtd, k_bhcd, v_bhcv, scale, first, starts.as_ref());
        }
        let of_sequence = |(i, start): (usize, &usize)| {
            let keys = (start + self.t).min(self.columns);
            let of = |x: &Tensor<4>, rows| x.clone().slice_dim(0, i..i + 1).slice_dim(2, 0..rows);
            let starts = starts_of(1, *start);
            causal_attention(of(&q_bhtd, queries), of(&k_bhcd, keys), of(&v_bhcv, keys), scale, *start, starts.as_ref())
        };
        Tensor::cat(self.starts.iter().enumerate().map(of_sequence).collect(), 0)
    }
}
