//! DeepSeek's `config.json` and tensor names. The files store linear layers as `[out, in]`, Kiln as `[in, out]`.

mod export;
mod import;

pub(super) use export::{absent_shared_experts, to_json};
pub(super) use import::{check_copies, config};

use super::Source;

/// Tensors that a multi-token prediction module has in addition to its parameters, with the originals they copy.
pub(super) const COPIES: [(&str, &str); 2] =
    [("embed_tokens.weight", "model.embed_tokens.weight"), ("shared_head.head.weight", "lm_head.weight")];

/// The layer name of multi-token prediction module `k` in a model with `layers` layers.
pub(super) fn mtp_layer(layers: usize, k: usize) -> String {
    format!("model.layers.{}", layers + k)
}

/// Maps Kiln's parameter paths to DeepSeek's names, for a model with `layers` layers.
pub(super) fn name(layers: usize, path: &str) -> Source {
    let path = path.replace(".gamma", ".weight").replace(".Dense", "").replace(".Moe", "");
    let path = match path.split_once('.') {
        Some(("blocks", rest)) => format!("model.layers.{rest}"),
        Some(("mtp", rest)) => {
            let (k, rest) = rest.split_once('.').expect("a module's number is followed by its field");
            let rest = match rest.split_once('.') {
                Some(("block", rest)) => rest.into(),
                Some(("norm", rest)) => format!("shared_head.norm.{rest}"),
                _ => rest.to_string(),
            };
            format!("{}.{rest}", mtp_layer(layers, k.parse().expect("a module's number")))
        }
        Some(("embed", rest)) => format!("model.embed_tokens.{rest}"),
        Some(("head", "norm.weight")) => "model.norm.weight".into(),
        Some(("head", rest)) => rest.into(),
        _ => path,
    };
    if let Some((prefix, weight)) = path.split_once(".experts.") {
        return Source::TransposedExperts(format!("{prefix}.experts"), format!("{weight}.weight"));
    }
    if path.ends_with(".router.bias") {
        return Source::Same(path.replace(".router.bias", ".gate.e_score_correction_bias"));
    }
    match path.contains("norm") || path.contains("embed_tokens") {
        true => Source::Same(path),
        false => Source::Transposed(path.replace(".router.proj.", ".gate.")),
    }
}
