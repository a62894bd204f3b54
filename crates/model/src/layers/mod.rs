//! Layers that several families share.

pub(crate) mod dropout;
pub(crate) mod mixture;
pub(crate) mod norm;
pub(crate) mod ring;
mod rope;
pub(crate) mod vocabulary;
mod yarn;

pub use norm::{LayerNorm, RmsNorm};
pub use rope::Rope;
pub use yarn::YarnConfig;
