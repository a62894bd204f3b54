//! A layout that follows the length of sequences. Activations grow with a micro-batch's tokens: the longer its
//! sequences, the fewer of them are computed at once, the more ranks share each, and the more is computed again instead
//! of kept.
//!
//! The table is as a layer of the configuration under the one that asks for it: what that one and those over it give
//! counts more, what was inherited less.
//!
//! ```text
//! base: preset:deepseek                      train.global_batch_size 32, micro_batch_size 8: dropped
//!        the table's row for train.seq_len   train.global_batch_size 16, micro_batch_size for 4 micro-batches, parallel.tp 2, ..
//! parallel: {adaptive: true, tp: 1}          parallel.tp 1 stays
//! --batch-size 64                            and so does this
//! ```

use super::validate::require;
use super::{Config, ConfigError};
use crate::words::count;
use fsdp::ActivationCheckpointing;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use yaml_serde::{Mapping, Value};

/// Whether a layout follows `train.seq_len`, and by which table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Adaptive {
    /// By none, or by the program's own, [`Adaptive::GUIDE`].
    Guide(bool),
    /// By these rows, from short sequences to long ones.
    Rows(Vec<AdaptiveRow>),
}

/// What sequences of up to so many tokens take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveRow {
    /// The longest sequence it is for, in tokens.
    pub up_to: usize,
    /// Micro-batches of a step on each rank, or as many as its share of the batch has sequences: decides
    /// `train.micro_batch_size`.
    pub micro_batches: usize,
    /// `train.global_batch_size`.
    pub global_batch_size: usize,
    /// `parallel.tp`; 1 if it is not given.
    #[serde(default = "one")]
    pub tp: usize,
    /// `parallel.activation_checkpointing`; `none` if it is not given.
    #[serde(default)]
    pub activation_checkpointing: ActivationCheckpointing,
}

fn one() -> usize {
    1
}

/// A key that a table may decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdaptedKey {
    /// `train.global_batch_size`
    GlobalBatchSize,
    /// `train.micro_batch_size`
    MicroBatchSize,
    /// `parallel.tp`
    Tp,
    /// `parallel.activation_checkpointing`
    ActivationCheckpointing,
}

impl AdaptedKey {
    /// A rank's share, and with it the micro-batch size, follows from those before it.
    const ALL: [Self; 4] = [Self::GlobalBatchSize, Self::Tp, Self::ActivationCheckpointing, Self::MicroBatchSize];

    /// Its section and name.
    fn path(self) -> [&'static str; 2] {
        match self {
            Self::GlobalBatchSize => ["train", "global_batch_size"],
            Self::MicroBatchSize => ["train", "micro_batch_size"],
            Self::Tp => ["parallel", "tp"],
            Self::ActivationCheckpointing => ["parallel", "activation_checkpointing"],
        }
    }
}

impl Adaptive {
    /// The guide's table, made for 16 ranks: `pp` 4 x `ep` 4.
    pub const GUIDE: [AdaptiveRow; 4] = [
        row(512, 16, 32, 1, ActivationCheckpointing::None),
        row(2048, 8, 32, 1, ActivationCheckpointing::None),
        row(4096, 4, 16, 2, ActivationCheckpointing::Full),
        row(10240, 2, 8, 2, ActivationCheckpointing::Full),
    ];

    fn is_on(&self) -> bool {
        *self != Self::Guide(false)
    }

    fn rows(&self) -> &[AdaptiveRow] {
        match self {
            Self::Guide(false) => &[],
            Self::Guide(true) => &Self::GUIDE,
            Self::Rows(rows) => rows,
        }
    }

    /// The row for sequences of so many tokens, and the shortest it is for.
    pub(super) fn row(&self, seq_len: usize) -> Option<(&AdaptiveRow, usize)> {
        let rows = self.rows();
        let i = rows.iter().position(|row| seq_len <= row.up_to)?;
        Some((&rows[i], if i == 0 { 1 } else { rows[i - 1].up_to + 1 }))
    }

    /// Refuses rows in another order, and those of no batch.
    fn validate(&self) -> Result<(), ConfigError> {
        let rows = self.rows();
        require(!self.is_on() || !rows.is_empty(), || {
            "parallel.adaptive has no rows: give some, true for the guide's, or false".into()
        })?;
        for (i, row) in rows.iter().enumerate() {
            let AdaptiveRow { up_to, micro_batches, global_batch_size, tp, .. } = row;
            let invalid = |what: String| format!("row {} of parallel.adaptive: {what}", i + 1);
            let counts = [
                ("up_to", up_to),
                ("micro_batches", micro_batches),
                ("global_batch_size", global_batch_size),
                ("tp", tp),
            ];
            for (key, value) in counts {
                require(*value > 0, || invalid(format!("{key} is 0: give at least 1")))?;
            }
            require(micro_batches <= global_batch_size, || {
                invalid(format!(
                    "micro_batches is {micro_batches}, more than the {} of global_batch_size: give at most as many",
                    count(*global_batch_size, "sequence")
                ))
            })?;
            let before = i.checked_sub(1).map_or(0, |before| rows[before].up_to);
            require(*up_to > before, || {
                invalid(format!("up_to is {up_to}, and {before} in the row before: order them from short to long"))
            })?;
        }
        Ok(())
    }
}

const fn row(
    up_to: usize,
    micro_batches: usize,
    global_batch_size: usize,
    tp: usize,
    activation_checkpointing: ActivationCheckpointing,
) -> AdaptiveRow {
    AdaptiveRow { up_to, micro_batches, global_batch_size, tp, activation_checkpointing }
}

/// Drops what a table decides from `base`, if `layer` asks for one; of keys that `layer` gives no table has decided.
pub(super) fn forget(base: &mut Mapping, layer: &Mapping) {
    let asks = at(layer, ["parallel", "adaptive"]).is_some_and(|value| *value != Value::Bool(false));
    if asks {
        for [section, key] in AdaptedKey::ALL.map(AdaptedKey::path).into_iter().chain([ADAPTED]) {
            if let Some(Value::Mapping(section)) = base.get_mut(section) {
                section.remove(key);
            }
        }
    }
    let [section, key] = ADAPTED;
    let adapted = base.get_mut(section).and_then(|section| section.get_mut(key));
    if let Some(Value::Sequence(adapted)) = adapted {
        let given = AdaptedKey::ALL.map(AdaptedKey::path).map(|path| at(layer, path).map(|_| Value::from(path[1])));
        adapted.retain(|name| !given.iter().flatten().any(|given| given == name));
    }
}

const ADAPTED: [&str; 2] = ["parallel", "adapted"];

fn at<'a>(layer: &'a Mapping, [section, key]: [&str; 2]) -> Option<&'a Value> {
    layer.get(section)?.get(key)
}

impl Config {
    /// Takes the table's row for `train.seq_len`, but for keys that `layers`, all in one, give.
    pub(super) fn adapt(&mut self, layers: &Mapping) -> Result<(), ConfigError> {
        let adaptive = self.parallel.adaptive.clone();
        adaptive.validate()?;
        if !adaptive.is_on() {
            self.parallel.adapted.clear();
        }
        let length = self.train.seq_len;
        let Some((row, _)) = adaptive.row(length) else {
            let Some(last) = adaptive.rows().last() else { return Ok(()) }; // it is false
            return Err(ConfigError::Invalid(format!(
                "train.seq_len is {length}, and the last row of parallel.adaptive is up to {last}: give at most so many tokens (--seq-len \
                 {last}), rows of your own with one up to {length}, or --set parallel.adaptive=false",
                last = last.up_to
            )));
        };
        for key in AdaptedKey::ALL.into_iter().filter(|key| at(layers, key.path()).is_none()) {
            match key {
                AdaptedKey::GlobalBatchSize => self.train.global_batch_size = row.global_batch_size,
                AdaptedKey::Tp => self.parallel.tp = row.tp,
                AdaptedKey::ActivationCheckpointing => {
                    self.parallel.activation_checkpointing = row.activation_checkpointing;
                }
                AdaptedKey::MicroBatchSize => {
                    self.train.micro_batch_size = Some(self.share().div_ceil(row.micro_batches))
                }
            }
            if !self.is_adapted(key) {
                self.parallel.adapted.push(key);
            }
        }
        Ok(())
    }

    /// Whether the table decided this key.
    pub(super) fn is_adapted(&self, key: AdaptedKey) -> bool {
        self.parallel.adapted.contains(&key)
    }

    /// What the table chose and why, and what was given instead: lines for the user, none without a table.
    pub(crate) fn describe_adaptive(&self) -> Vec<String> {
        let (train, parallel) = (&self.train, &self.parallel);
        let Some((row, from)) = parallel.adaptive.row(train.seq_len) else { return vec![] };
        let (recompute, micro_batches) = (parallel.activation_checkpointing, self.micro_batches());
        let chosen = format!(
            "adaptive: sequences of {} tokens ({from} to {}): {} of {} per step and rank, batch {}, tp {}, recomputation {}",
            train.seq_len,
            row.up_to,
            count(micro_batches, "micro-batch"),
            count(self.micro_batch_size(), "sequence"),
            train.global_batch_size,
            parallel.tp,
            String::from(recompute),
        );
        let differing = [
            (micro_batches != row.micro_batches).then(|| {
                let share = count(self.share(), "sequence");
                format!(
                    "{} instead of {}, of a share of {share}",
                    count(micro_batches, "micro-batch"),
                    row.micro_batches
                )
            }),
            (train.global_batch_size != row.global_batch_size).then(|| {
                format!("train.global_batch_size {} instead of {}", train.global_batch_size, row.global_batch_size)
            }),
            (parallel.tp != row.tp).then(|| format!("parallel.tp {} instead of {}", parallel.tp, row.tp)),
            (recompute != row.activation_checkpointing).then(|| {
                let row = String::from(row.activation_checkpointing);
                format!("parallel.activation_checkpointing {} instead of {row}", String::from(recompute))
            }),
        ];
        let differing: Vec<String> = differing.into_iter().flatten().collect();
        let other =
            (!differing.is_empty()).then(|| format!("adaptive: other than in the table: {}", differing.join("; ")));
        [chosen].into_iter().chain(other).collect()
    }

    /// Says of what does not fit that the table chose it.
    pub(super) fn name_adaptive(&self, error: ConfigError) -> ConfigError {
        let (ConfigError::Invalid(message), Some((row, _))) = (&error, self.parallel.adaptive.row(self.train.seq_len))
        else {
            return error;
        };
        let chosen = [
            ("tp ", AdaptedKey::Tp, self.parallel.tp == row.tp && row.tp > 1),
            ("global_batch_size", AdaptedKey::GlobalBatchSize, self.train.global_batch_size == row.global_batch_size),
            ("micro_batch_size", AdaptedKey::MicroBatchSize, self.micro_batches() <= row.micro_batches),
        ];
        if !chosen.iter().any(|(name, key, fits)| *fits && self.is_adapted(*key) && message.contains(name)) {
            return error;
        }
        let length = self.train.seq_len;
        ConfigError::Invalid(format!(
            "{message}. That is parallel.adaptive's row up to {} for train.seq_len {length}: what you give counts more",
            row.up_to
        ))
    }
}
