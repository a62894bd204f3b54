//! The validation sets of a run.

use crate::config::DataConfig;
use crate::error::TrainError;
use crate::format::count;
use data::{Dataset, OpenOptions, Prepared};

/// A validation set: the validation split of a dataset.
#[derive(Debug, Clone)]
pub(crate) struct ValidationSet {
    /// Its name in `data.validation`; `None` if it has none.
    pub name: Option<String>,
    pub dataset: Dataset,
}

/// Opens the sources of `data.validation` with the tokenizer of `prepared`, which then validates on these tokens.
/// Without `data.validation`, the set is the validation split of `prepared`.
///
/// # Errors
/// See [`data::open`]; also if a set has no window of `seq_len` tokens.
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
            return Err(TrainError::Config(format!(
                "data.validation: {source} has {tokens} to validate on and needs at least seq_len + 1 = {}: give a longer text, or \
                 lower train.seq_len",
                seq_len + 1
            )));
        }
        sets.push(ValidationSet { name: name.map(str::to_string), dataset });
    }
    prepared.validate_on(&sets.iter().map(|set| set.dataset.clone()).collect::<Vec<_>>());
    Ok(sets)
}
