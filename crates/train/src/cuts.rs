//! Which parameters tensor-parallel ranks have parts of, by their paths in the model.

use fsdp::Cut;

/// How a parameter is cut: heads, columns of MLPs and the vocabulary; none: every rank has all of it.
///
/// ```text
/// GPT-2       c_attn (q, k and v each), c_fc     by columns       DeepSeek    q_proj, q_b_proj, kv_b_proj, gate, up, lm_head   by columns
///             c_proj, wte                        by rows                      o_proj, down, embed                              by rows
/// ```
///
/// What stands behind a sum over ranks (biases of projections), norms, routers, compressions and positions are not cut; experts are cut by
/// `parallel.ep` alone.
pub(crate) fn cut(path: &str) -> Option<Cut> {
    let fields: Vec<&str> = path.split('.').collect();
    let is_bias = fields.last() == Some(&"bias");
    // A bias is cut as the columns that it is added to.
    let columns = |blocks| if is_bias { Cut { dim: 0, blocks } } else { Cut::columns_of(blocks) };
    match fields.get(fields.len().checked_sub(2)?)? {
        &"wte" | &"embed" => Some(Cut::ROWS),
        &"c_attn" => Some(columns(3)),
        &"c_fc" | &"q_proj" | &"q_b_proj" | &"kv_b_proj" | &"gate_proj" | &"up_proj" | &"lm_head" => Some(columns(1)),
        &"c_proj" | &"o_proj" | &"down_proj" if !is_bias => Some(Cut::ROWS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Source};
    use crate::run::set_vocabulary;
    use crate::units::parameters;

    #[test]
    fn what_is_not_cut_is_known_by_name() {
        for preset in ["gpt2", "deepseek", "deepseek-v3"] {
            let mut config = Config::load(Source::Preset(preset), &[]).unwrap();
            set_vocabulary(&mut config, Some(1 << 17)).unwrap();
            let whole = parameters(&config).into_iter().filter(|parameter| cut(&parameter.name).is_none());
            let mut names: Vec<String> = whole
                .map(|parameter| {
                    parameter
                        .name
                        .split('.')
                        .filter(|part| part.parse::<usize>().is_err())
                        .collect::<Vec<_>>()
                        .join(".")
                })
                .collect();
            names.sort();
            names.dedup();
            let of_a_kind = |name: &str| {
                ["gamma", "beta", "c_proj.bias", "wpe.weight", "router", "q_a_proj", "kv_a_proj", "experts"]
                    .iter()
                    .any(|kind| name.contains(kind))
            };
            assert!(names.iter().all(|name| of_a_kind(name)), "{preset}: {names:?}");
        }
    }
}
