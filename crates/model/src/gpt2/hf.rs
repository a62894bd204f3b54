//! GPT-2's `config.json` and tensor names. Its linear layers are `Conv1D`, stored as `[in, out]` like Kiln's.

use super::parameters;
use crate::ModelError;
use crate::family::HuggingFace;
use crate::hf::{Folder, Source};
use crate::{Gpt2Config, ParameterSpec};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Gpt2Json {
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: Option<usize>,
    layer_norm_epsilon: Option<f64>,
    activation_function: Option<String>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
    scale_attn_weights: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

pub(crate) fn config(folder: &Folder) -> Result<Gpt2Config, ModelError> {
    let json: Gpt2Json = folder.keys(folder.config(), "")?;
    if let Some(other) = json.activation_function.filter(|name| name != "gelu_new") {
        return Err(folder.config_error(format!("activation_function \"{other}\" is not supported; gelu_new is")));
    }
    for (key, value, supported) in [
        ("scale_attn_by_inverse_layer_idx", json.scale_attn_by_inverse_layer_idx, false),
        ("scale_attn_weights", json.scale_attn_weights, true),
        ("tie_word_embeddings", json.tie_word_embeddings, true),
    ] {
        if value.is_some_and(|value| value != supported) {
            return Err(folder.config_error(format!("{key} {} is not supported; {supported} is", !supported)));
        }
    }
    let config = Gpt2Config {
        vocab_size: json.vocab_size,
        n_positions: json.n_positions,
        n_layer: json.n_layer,
        n_head: json.n_head,
        n_embd: json.n_embd,
        n_inner: json.n_inner,
        bias: true,
        dropout: 0.0, // a training setting, which the run decides
        layer_norm_epsilon: json.layer_norm_epsilon.unwrap_or(1e-5),
    };
    folder.check_sizes(&config)?;
    config.validate().map_err(|reason| folder.config_error(reason.to_string()))?;
    Ok(config)
}

/// Returns `config.json` without the keys every model has. It states the dropout of training, because transformers'
/// default is not 0.
fn to_json(config: &Gpt2Config) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.n_positions,
        "n_ctx": config.n_positions,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": config.n_inner,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "initializer_range": 0.02,
        "scale_attn_weights": true,
        "tie_word_embeddings": true,
        "use_cache": true,
    })
}

/// Prefix of every name in transformers; some files omit it.
const PREFIX: &str = "transformer.";

/// Maps Kiln's parameter paths to the names in this folder.
pub(crate) fn names(folder: &Folder) -> impl Fn(&str) -> Source + use<> {
    let prefix = if folder.has("transformer.wte.weight") { PREFIX } else { "" };
    move |path| name(prefix, path)
}

fn name(prefix: &str, path: &str) -> Source {
    let name = path.replace("ends.", "").replace("blocks.", "h.");
    Source::Same(prefix.to_string() + &name.replace(".gamma", ".weight").replace(".beta", ".bias"))
}

/// A GPT-2 in Hugging Face's format.
pub(super) struct Gpt2Folder<'a>(pub &'a Gpt2Config);

impl HuggingFace for Gpt2Folder<'_> {
    fn config(&self) -> Result<Value, ModelError> {
        Ok(to_json(self.0))
    }

    fn source(&self, path: &str) -> Source {
        name(PREFIX, path)
    }

    /// Causal masks, and the output matrix, which is the token embedding.
    fn is_buffer(&self, name: &str) -> bool {
        name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name == "lm_head.weight"
    }

    /// transformers' model always has biases.
    fn parameters(&self) -> Vec<ParameterSpec> {
        parameters::parameters(&Gpt2Config { bias: true, ..self.0.clone() })
    }
}
