//! A layout that follows the sequence length. Activations grow with the tokens of a micro-batch. Longer sequences
//! therefore run in smaller micro-batches, are spread over more ranks, and recompute more instead of keeping it.
//!
//! The table acts as a layer of the configuration just below the one that asks for it. Values given in that layer or
//! above take precedence over the table; inherited values do not.
//!
//! ```text
//! base: preset:deepseek                      train.global_batch_size 32, micro_batch_size 8: dropped
//!        the table's row for train.seq_len   train.global_batch_size 16, 4 micro-batches, parallel.tp 2, ..
//! parallel: {adaptive: true, tp: 1}          parallel.tp 1 is kept
//! --batch-size 64                            and so is this
//! ```

use super::Config;
use super::validate::require;
use crate::error::TrainError;
use crate::format::count;
use fsdp::ActivationCheckpointing;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use yaml_serde::{Mapping, Value};

/// Whether the layout follows `train.seq_len`, and by which table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Adaptive {
    /// false for none, true for the built-in table, [`Adaptive::TABLE`].
    BuiltIn(bool),
    /// A table of your own, rows ordered from short sequences to long ones.
    Rows(Vec<AdaptiveRow>),
}

/// Settings for sequences of up to `up_to` tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveRow {
    /// The longest sequence this row applies to, in tokens.
    pub up_to: usize,
    /// Micro-batches per step on each rank, capped at the sequences of the rank's share; determines
    /// `train.micro_batch_size`.
    pub micro_batches: usize,
    /// `train.global_batch_size`.
    pub global_batch_size: usize,
    /// `parallel.tp`; 1 by default.
    #[serde(default = "one")]
    pub tp: usize,
    /// `parallel.activation_checkpointing`; `none` by default.
    #[serde(default)]
    pub activation_checkpointing: ActivationCheckpointing,
}

fn one() -> usize {
    1
}

/// A key that the table may set.
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
    /// The micro-batch size comes last because it follows from a rank's share, which the others determine.
    const ALL: [Self; 4] = [Self::GlobalBatchSize, Self::Tp, Self::ActivationCheckpointing, Self::MicroBatchSize];

    /// Section and name of the key.
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
    /// The built-in table, made for 16 ranks: `pp` 4 x `ep` 4.
    pub const TABLE: [AdaptiveRow; 4] = [
        row(512, 16, 32, 1, ActivationCheckpointing::None),
        row(2048, 8, 32, 1, ActivationCheckpointing::None),
        row(4096, 4, 16, 2, ActivationCheckpointing::Full),
        row(10240, 2, 8, 2, ActivationCheckpointing::Full),
    ];

    fn is_on(&self) -> bool {
        *self != Self::BuiltIn(false)
    }

    fn rows(&self) -> &[AdaptiveRow] {
        match self {
            Self::BuiltIn(false) => &[],
            Self::BuiltIn(true) => &Self::TABLE,
            Self::Rows(rows) => rows,
        }
    }

    /// The row for sequences of `seq_len` tokens, and the shortest length it covers.
    pub(super) fn row(&self, seq_len: usize) -> Option<(&AdaptiveRow, usize)> {
        let rows = self.rows();
        let i = rows.iter().position(|row| seq_len <= row.up_to)?;
        Some((&rows[i], if i == 0 { 1 } else { rows[i - 1].up_to + 1 }))
    }

    /// Rejects rows that are out of order or have zero sizes.
    fn validate(&self) -> Result<(), TrainError> {
        let rows = self.rows();
        require(!self.is_on() || !rows.is_empty(), || {
            "parallel.adaptive has no rows: give some, true for the built-in table, or false".into()
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

/// Drops the table's keys from `base` if `layer` asks for a table, and unmarks keys that `layer` sets itself.
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
    /// Applies the table's row for `train.seq_len`, except to keys that `layers`, all merged into one, set.
    pub(super) fn adapt(&mut self, layers: &Mapping) -> Result<(), TrainError> {
        let adaptive = self.parallel.adaptive.clone();
        adaptive.validate()?;
        if !adaptive.is_on() {
            self.parallel.adapted.clear();
        }
        let length = self.train.seq_len;
        let Some((row, _)) = adaptive.row(length) else {
            let Some(last) = adaptive.rows().last() else { return Ok(()) }; // adaptive is false
            return Err(TrainError::Config(format!(
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

    /// Whether the table set this key.
    pub(super) fn is_adapted(&self, key: AdaptedKey) -> bool {
        self.parallel.adapted.contains(&key)
    }

    /// Lines for the user: what the table chose and why, and which values override it. Empty without a table.
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
            (!differing.is_empty()).then(|| format!("adaptive: differs from the table: {}", differing.join("; ")));
        [chosen].into_iter().chain(other).collect()
    }

    /// Adds to an error that the table chose the value at fault.
    pub(super) fn name_adaptive(&self, error: TrainError) -> TrainError {
        let (TrainError::Config(message), Some((row, _))) = (&error, self.parallel.adaptive.row(self.train.seq_len))
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
        TrainError::Config(format!(
            "{message}. That is parallel.adaptive's row up to {} for train.seq_len {length}: what you give counts more",
            row.up_to
        ))
    }
}
