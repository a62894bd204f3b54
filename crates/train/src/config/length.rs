//! The length of a run: in steps or in epochs.

use yaml_serde::{Mapping, Value};

use crate::error::TrainError;

const STEPS: &str = "steps";
const EPOCHS: &str = "epochs";

/// If `layer` sets one of `train.steps` and `train.epochs`, resets the other one in `base`.
///
/// # Errors
/// If the layer sets both.
pub(super) fn choose(base: &mut Mapping, layer: &Mapping, origin: &str) -> Result<(), TrainError> {
    let given = |key| {
        let value = layer.get("train").and_then(|train| train.get(key));
        // 0 steps means that the epochs determine the steps.
        value.filter(|value| !value.is_null() && (key != STEPS || value.as_u64() != Some(0)))
    };
    let (key, value) = match (given(STEPS), given(EPOCHS)) {
        (Some(steps), Some(epochs)) => {
            let [steps, epochs] = [steps, epochs].map(super::check::shown);
            return Err(TrainError::Config(format!(
                "{origin} gives train.steps {steps} and train.epochs {epochs}: give one of them (--steps or --epochs)"
            )));
        }
        (Some(_), None) => (EPOCHS, Value::Null),
        (None, Some(_)) => (STEPS, Value::from(0)),
        (None, None) => return Ok(()),
    };
    if let Value::Mapping(train) = base.entry("train".into()).or_insert_with(|| Value::Mapping(Mapping::new())) {
        train.insert(key.into(), value);
    }
    Ok(())
}
