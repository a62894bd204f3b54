//! Rotary positions in `config.json`: `rope_theta` and `rope_scaling` of the hub, or `rope_parameters` of
//! transformers 5.

use crate::ModelError;
use crate::hf::Folder;
use crate::{RopeScaling, RopeType};
use serde::Deserialize;
use serde_json::{Value, json};

/// The keys outside a section.
#[derive(Deserialize)]
struct OuterJson {
    rope_theta: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    partial_rotary_factor: Option<f64>,
}

#[derive(Deserialize, Default)]
struct RopeJson {
    rope_type: Option<String>,
    #[serde(rename = "type")]
    old_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    partial_rotary_factor: Option<f64>,
}

/// Reads base and scaling of the frequencies; the base defaults to `theta`, the original context to `context`.
///
/// As in transformers, `rope_scaling` takes precedence over `rope_parameters`, a base inside them over one outside, and
/// an original context outside over one inside.
pub(super) fn read(folder: &Folder, theta: f64, context: usize) -> Result<(f64, Option<RopeScaling>), ModelError> {
    let config = folder.config();
    let is_given = |key: &&str| !config[*key].is_null() && config[*key].as_object().is_none_or(|keys| !keys.is_empty());
    let section = ["rope_scaling", "rope_parameters"].into_iter().find(is_given);
    let outer: OuterJson = folder.keys(config, "")?;
    let json = section.map_or(Ok(RopeJson::default()), |section| folder.keys(&config[section], section))?;
    let theta = json.rope_theta.or(outer.rope_theta).unwrap_or(theta);
    let original = outer.original_max_position_embeddings.or(json.original_max_position_embeddings);
    let rope_type = json.rope_type.as_deref().or(json.old_type.as_deref()).unwrap_or("default");
    let missing = |key: &str| folder.config_error(format!("rope type \"{rope_type}\" needs {key}, which is missing"));
    let refuse = |what: &str| Err(folder.config_error(format!("{what} is not supported")));
    if json.partial_rotary_factor.or(outer.partial_rotary_factor).is_some_and(|factor| factor != 1.0) {
        return refuse("partial_rotary_factor other than 1");
    }
    let factor = || json.factor.ok_or_else(|| missing("factor"));
    let unscaled = RopeScaling { original_max_position_embeddings: original.unwrap_or(context), ..Default::default() };
    let scaling = match rope_type {
        "default" => return Ok((theta, None)),
        "linear" => RopeScaling { rope_type: RopeType::Linear, factor: factor()?, ..unscaled },
        "llama3" => RopeScaling {
            rope_type: RopeType::Llama3,
            factor: factor()?,
            low_freq_factor: json.low_freq_factor.ok_or_else(|| missing("low_freq_factor"))?,
            high_freq_factor: json.high_freq_factor.ok_or_else(|| missing("high_freq_factor"))?,
            ..unscaled
        },
        "yarn" => {
            let between = context as f64 / unscaled.original_max_position_embeddings.max(1) as f64;
            let factor = json.factor.unwrap_or(between);
            if json.attention_factor.is_some_and(|given| (given - (0.1 * factor.ln() + 1.0)).abs() > 1e-6) {
                return refuse("rope_scaling.attention_factor other than 0.1 ln(factor) + 1");
            }
            if [json.mscale, json.mscale_all_dim].iter().flatten().any(|mscale| *mscale != 0.0) {
                return refuse("rope_scaling.mscale");
            }
            if json.truncate == Some(false) {
                return refuse("rope_scaling.truncate false");
            }
            let (beta_fast, beta_slow) = (json.beta_fast.unwrap_or(32.0), json.beta_slow.unwrap_or(1.0));
            RopeScaling { rope_type: RopeType::Yarn, factor, beta_fast, beta_slow, ..unscaled }
        }
        other => {
            let known = "default, linear, llama3 and yarn";
            return Err(folder.config_error(format!("rope type \"{other}\" is not supported; {known} are")));
        }
    };
    Ok((theta, Some(scaling)))
}

/// `rope_scaling`.
pub(super) fn to_json(scaling: &RopeScaling) -> Value {
    let (factor, original) = (scaling.factor, scaling.original_max_position_embeddings);
    match scaling.rope_type {
        RopeType::Linear => json!({"rope_type": "linear", "factor": factor}),
        RopeType::Llama3 => json!({
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": original,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
        }),
        RopeType::Yarn => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
        }),
    }
}
