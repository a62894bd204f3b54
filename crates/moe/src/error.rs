//! The error of a configuration.

/// A setting of [`MoeConfig`](crate::MoeConfig) from which no layer can be built. The message puts the names of
/// fields in backticks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

impl ConfigError {
    /// Returns the message for a configuration file, in which the fields are keys of `section`: `moe.top_k` in place of
    /// `` `top_k` ``.
    pub fn in_section(&self, section: &str) -> String {
        let parts = self.0.split('`').enumerate();
        parts.map(|(i, part)| if i % 2 == 1 { format!("{section}.{part}") } else { part.to_owned() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::MoeConfig;

    #[test]
    fn fields_are_named_plainly_or_as_keys_of_a_section() {
        let error = MoeConfig::new(128).with_n_group(3).validate().unwrap_err();
        let message = "`n_group` 3 must divide `num_experts` 8, and `topk_group` 1 must lie between 1 and `n_group`";
        assert_eq!(error.to_string(), message);
        let of_file =
            "moe.n_group 3 must divide moe.num_experts 8, and moe.topk_group 1 must lie between 1 and moe.n_group";
        assert_eq!(error.in_section("moe"), of_file);
    }
}
