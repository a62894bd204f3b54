//! What a run validates on.

use crate::config::{ConfigError, DataConfig};
use crate::error::TrainError;
use crate::words::count;
use data::{Dataset, OpenOptions, Prepared};

/// Tokens to validate on: the validation split of a dataset.
#[derive(Debug, Clone)]
pub(crate) struct ValidationSet {
    /// What `data.validation` calls them; None where there is one set only.
    pub name: Option<String>,
    pub dataset: Dataset,
}

/// Opens what `data.validation` names, with the tokenizer of `prepared`, which has these tokens to validate on from then
/// on; where nothing is named, the set is its own validation split.
///
/// # Errors
/// As of [`data::open`], and for a set without a window of `seq_len` tokens.
pub(crate) fn open(
    config: &DataConfig,
    prepared: &mut Prepared,
    options: &OpenOptions,
    seq_len: usize,
) -> Result<Vec<ValidationSet>, TrainError> {
    let Some(validation) = &config.validation else {
        return Ok(vec![ValidationSet { name: None, dataset: prepared.dataset.clone() }]);
    };
    let mut sets = vec![];
    for (name, source) in validation.sources() {
        let dataset = prepared.open_validation(source, options)?;
        if dataset.val_windows(seq_len) == 0 {
            let tokens = count(dataset.val_tokens() as usize, "token");
            return Err(ConfigError::Invalid(format!(
                "data.validation: {source} has {tokens} to validate on and needs at least seq_len + 1 = {}: give a longer text, or \
                 lower train.seq_len",
                seq_len + 1
            ))
            .into());
        }
        sets.push(ValidationSet { name: name.map(str::to_string), dataset });
    }
    prepared.validate_on(&sets.iter().map(|set| set.dataset.clone()).collect::<Vec<_>>());
    Ok(sets)
}
