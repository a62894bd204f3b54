//! DeepSeek's `config.json` and tensor names. Linear layers are stored `[out, in]`, ours are `[in, out]`.

mod export;
mod import;

pub(super) use export::{absent_shared_experts, to_json};
pub(super) use import::config;

use super::Source;

/// From our paths to DeepSeek's names.
pub(super) fn name(path: &str) -> Source {
    let path = path.replace(".gamma", ".weight").replace(".Dense", "").replace(".Moe", "");
    let path = match path.split_once('.') {
        Some(("blocks", rest)) => format!("model.layers.{rest}"),
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
