//! Weights in Hugging Face's format: a folder with `config.json` and `model.safetensors`, or shards with an index.
//!
//! [`Folder`] and [`Pretrained`] read such a folder, [`export`] writes one.

mod export;
mod folder;
mod fp8;
mod load;

pub use export::{Dtype, ExportOptions, Summary, export};
pub use folder::Folder;
pub use load::{Pretrained, Source, SourceOf, bind, names};

/// Whether this name of an activation means SiLU in transformers.
pub(crate) fn is_silu(hidden_act: &str) -> bool {
    matches!(hidden_act, "silu" | "swish")
}
