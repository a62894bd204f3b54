//! A replacement for `cards` in builds without CUDA.

use crate::Payload;
use std::ops::Range;

/// A tensor on a GPU; there is none.
pub enum Source {}

impl Source {
    /// Creates no source: none of these tensors is on a GPU.
    pub fn all<'a>(payloads: impl Iterator<Item = Option<&'a Payload>>) -> Vec<Option<Self>> {
        payloads.map(|_| None).collect()
    }
}

/// A range of a source's bytes.
pub struct Piece<'a> {
    /// The source.
    pub source: &'a Source,
    /// The range.
    pub bytes: Range<usize>,
}

/// Fills nothing.
pub fn fill<'a>(tensors: impl Iterator<Item = &'a (Payload, Vec<Piece<'a>>)>) -> bool {
    let _: Option<(&Source, &Range<usize>)> =
        tensors.flat_map(|(_, pieces)| pieces).map(|piece| (piece.source, &piece.bytes)).next();
    false
}
