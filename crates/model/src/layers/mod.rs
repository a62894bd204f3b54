//! Layers that several families share.

pub(crate) mod dropout;
pub(crate) mod mixture;
pub(crate) mod mlp;
pub(crate) mod norm;
pub(crate) mod ring;
mod rope;
mod rope_scaling;
pub(crate) mod vocabulary;
mod yarn;

pub use mixture::moe_parameters;
pub use mlp::{BlockOutput, Mlp};
pub use norm::{LayerNorm, RmsNorm};
pub use rope::Rope;
pub use rope_scaling::{RopeScaling, RopeType};
pub use vocabulary::VocabularyHead;
pub use yarn::YarnConfig;
