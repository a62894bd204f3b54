//! Checks a layer key by key, so that an error names the key and its origin.
//!
//! Nothing here lists keys. A serialized default says which keys exist, deserializing a value alone says whether it is
//! right, and the schema says what would be.

use strsim::jaro_winkler;
use yaml_serde::{Mapping, Value};

use super::synonyms::{strategy_called, synonyms};
use super::{Config, ModelConfig, schema};
use crate::error::TrainError;

/// The `model.type` of a layer.
pub(super) fn model_type(layer: &Mapping) -> Option<&str> {
    layer.get("model")?.get("type")?.as_str()
}

/// Rejects unknown keys and values of the wrong type. Normalizes whole numbers written as floats, and names of
/// strategies. `inherited` is the `model.type` of the base.
pub(super) fn check(layer: &mut Mapping, inherited: Option<&str>, origin: &str) -> Result<(), TrainError> {
    let own = layer.get("model").and_then(|model| model.get("type")).cloned();
    if let Some(value) = &own {
        probe("", &["model", "type"], value, origin)?;
    }
    let model_type = own.as_ref().and_then(Value::as_str).or(inherited);
    if model_type.is_none() && layer.get("model").is_some_and(Value::is_mapping) {
        return Err(TrainError::NoModel { origin: origin.into() });
    }
    let model_type = model_type.unwrap_or(ModelConfig::default().type_name());
    Walk { model_type, template: template(model_type), origin }.mapping(layer, &mut Vec::new())
}

/// Sets a key and creates the mappings on its path.
pub(super) fn insert(root: &mut Mapping, path: &[&str], value: Value) {
    let [key, rest @ ..] = path else { return };
    if rest.is_empty() {
        root.insert((*key).into(), value);
        return;
    }
    let inner = root.entry((*key).into()).or_insert(Value::Null);
    if !inner.is_mapping() {
        *inner = Value::Mapping(Mapping::new());
    }
    insert(inner.as_mapping_mut().expect("made one above"), rest, value);
}

/// Shows a value as in YAML.
pub(super) fn shown(value: &Value) -> String {
    let yaml = yaml_serde::to_string(value).unwrap_or_default();
    match value {
        Value::Mapping(_) => "a mapping".into(),
        Value::Sequence(values) => format!("[{}]", values.iter().map(shown_within).collect::<Vec<_>>().join(", ")),
        Value::String(text) => format!("\"{text}\""),
        _ => yaml.trim().into(),
    }
}

/// Shows a list element; a mapping includes its keys.
fn shown_within(value: &Value) -> String {
    let Value::Mapping(keys) = value else { return shown(value) };
    let key = |(key, value): (&Value, &Value)| format!("{}: {}", key.as_str().unwrap_or_default(), shown(value));
    format!("{{{}}}", keys.iter().map(key).collect::<Vec<_>>().join(", "))
}

/// The closest of `names`, if one is close enough.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|candidate| (jaro_winkler(candidate, name), candidate))
        .filter(|(likeness, _)| *likeness >= 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// All keys with their defaults; nullable sections are filled in.
pub(super) fn template(model_type: &str) -> Mapping {
    let optional: &[&[&str]] = &[&["moe"], &["model", "rope_scaling"]];
    let mut layer = Mapping::new();
    insert(&mut layer, &["model", "type"], model_type.into());
    for section in optional {
        let mut filled = layer.clone();
        insert(&mut filled, section, Value::Mapping(Mapping::new()));
        if yaml_serde::from_value::<Config>(Value::Mapping(filled.clone())).is_ok() {
            layer = filled;
        }
    }
    let defaults: Config = yaml_serde::from_value(Value::Mapping(layer)).expect("every key has a default");
    match yaml_serde::to_value(defaults) {
        Ok(Value::Mapping(keys)) => keys,
        _ => unreachable!("a configuration is a mapping"),
    }
}

/// Largest range in which floats represent every whole number.
pub(crate) const EXACT: f64 = (1u64 << 53) as f64;

/// Converts a float without a fraction, if it is in the range where floats represent every whole number.
pub(crate) fn whole(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64)
}

/// Rejects a value that does not deserialize on its own in a configuration of this model type.
fn probe(model_type: &str, path: &[&str], value: &Value, origin: &str) -> Result<(), TrainError> {
    match expected(model_type, path, value) {
        None => Ok(()),
        Some(expected) => {
            Err(TrainError::WrongValue { key: path.join("."), given: shown(value), origin: origin.into(), expected })
        }
    }
}

/// Describes what is expected instead of this value; `None` if it is valid.
fn expected(model_type: &str, path: &[&str], value: &Value) -> Option<String> {
    let mut alone = Mapping::new();
    insert(&mut alone, &["model", "type"], model_type.into());
    insert(&mut alone, path, value.clone());
    match yaml_serde::from_value::<Config>(Value::Mapping(alone)) {
        // The parser accepts null as an empty section; here that would silently discard the inherited one.
        Ok(config) if !value.is_null() || is_null_at(&config, path) => None,
        _ => Some(takes(model_type, path, value)),
    }
}

/// Describes the values a key accepts, given one that it does not.
fn takes(model_type: &str, path: &[&str], value: &Value) -> String {
    let root = schema::root();
    let schema = path.iter().fold(&root, |section, name| schema::of_key(section, name, model_type));
    // The kinds of model are values of `type`, not of `model`.
    let names = if path == ["model"] { vec![] } else { schema::variants(schema) };
    let types = schema::types(schema).into_iter().map(|name| match name {
        "integer" if value.as_f64().is_some_and(|number| number > EXACT) => "a smaller whole number",
        "integer" => "a whole number, 0 or above",
        "number" => "a number",
        "boolean" => "true or false",
        "string" => "a string",
        "object" => "a section, with keys and values below it",
        "named" => "a section of names, such as {wiki: wiki.txt}",
        "array" => "a list of whole numbers, such as [2, 4]",
        "names" => "a list of names, such as [tp]",
        "rows" => "a list of rows, such as [{up_to: 512, micro_batches: 16, global_batch_size: 32, tp: 1, activation_checkpointing: none}]",
        other => other,
    });
    let mut all: Vec<String> = match names.is_empty() {
        true => types.map(str::to_string).collect(),
        false => names.into_iter().map(|(name, _)| format!("`{name}`")).collect(),
    };
    all.dedup();
    let last = all.pop().unwrap_or_default();
    if all.is_empty() { last } else { format!("{} or {last}", all.join(", ")) }
}

fn is_null_at(config: &Config, path: &[&str]) -> bool {
    let root = yaml_serde::to_value(config).unwrap_or_default();
    path.iter().try_fold(&root, |section, key| section.get(key)).is_some_and(Value::is_null)
}

struct Walk<'a> {
    model_type: &'a str,
    template: Mapping,
    origin: &'a str,
}

impl Walk<'_> {
    fn mapping<'k>(&self, layer: &'k mut Mapping, path: &mut Vec<&'k str>) -> Result<(), TrainError> {
        for (key, value) in layer {
            let Some(name) = key.as_str() else {
                let section = if path.is_empty() { "the top".into() } else { format!("`{}`", path.join(".")) };
                return Err(TrainError::Config(format!(
                    "a key of {section} in {} is {}: give a name",
                    self.origin,
                    shown(key)
                )));
            };
            path.push(name);
            match (self.at(path), value) {
                (None, value) => return Err(self.unknown(path, value)),
                (Some(Value::Mapping(_)), Value::Mapping(inner)) => self.mapping(inner, path)?,
                (Some(_), value) => {
                    // YAML reads `1e3` as a float, but users mean a whole number.
                    if let Some(whole) = value.as_f64().and_then(whole)
                        && expected(self.model_type, path, value).is_some()
                    {
                        *value = whole.into();
                    }
                    if let ["parallel", "strategy"] = path[..]
                        && let Some(strategy) = value.as_str().and_then(strategy_called)
                    {
                        *value = strategy.name().into();
                    }
                    probe(self.model_type, path, value, self.origin)?;
                }
            }
            path.pop();
        }
        Ok(())
    }

    fn at(&self, path: &[&str]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.template.get(first)?, |section, key| section.get(key))
    }

    fn unknown(&self, path: &[&str], value: &Value) -> TrainError {
        let (name, section) = path.split_last().expect("a key has a name");
        let siblings: Vec<&str> = match self.at(section) {
            Some(Value::Mapping(keys)) => keys.keys().filter_map(Value::as_str).collect(),
            _ => self.template.keys().filter_map(Value::as_str).collect(),
        };
        let section = section.join(".");
        let dotted = |name: &str| if section.is_empty() { name.into() } else { format!("{section}.{name}") };
        let key = dotted(name);
        let prefix = dotted("");
        let same =
            synonyms(name).map(|same| same.strip_prefix(&prefix).unwrap_or(same)).find(|same| siblings.contains(same));
        // `Optim.LR` is written `optim: {LR: ..}`; its section is the first part to be unknown.
        let mut whole = key.to_lowercase();
        let mut inner = value;
        while let Some((name, below)) = inner.as_mapping().and_then(|keys| keys.iter().next()) {
            whole.extend([".", &name.as_str().unwrap_or_default().to_lowercase()]);
            inner = below;
        }
        let hint = if keys(self.model_type).contains(&whole) {
            format!("did you mean `{whole}`?")
        } else if let Some(near) = same.or_else(|| nearest(name, siblings.iter().copied())) {
            format!("did you mean `{}`?", dotted(near))
        } else if let Some(elsewhere) =
            keys(self.model_type).into_iter().find(|key| jaro_winkler(last_part(key), name) >= 0.95)
        {
            format!("did you mean `{elsewhere}`?")
        } else {
            let other = ModelConfig::types().into_iter().find(|other| {
                *other != self.model_type && section == "model" && template(other)["model"].get(name).is_some()
            });
            let whose = other.map(|other| format!("it belongs to `model.type: {other}`, not {}; ", self.model_type));
            let keys =
                if section.is_empty() { "the sections are".into() } else { format!("the keys of `{section}` are") };
            format!("{}{keys} {}", whose.unwrap_or_default(), siblings.join(", "))
        };
        TrainError::UnknownKey { key, origin: self.origin.into(), hint }
    }
}

/// All dotted keys of a model's configuration.
pub(crate) fn keys(model_type: &str) -> Vec<String> {
    dotted_keys(&template(model_type), "")
}

fn dotted_keys(section: &Mapping, prefix: &str) -> Vec<String> {
    let below = |(key, value): (&Value, &Value)| {
        let key = format!("{prefix}{}", key.as_str().unwrap_or_default());
        let inner = value.as_mapping().map_or(vec![], |inner| dotted_keys(inner, &format!("{key}.")));
        std::iter::once(key).chain(inner).collect::<Vec<_>>()
    };
    section.iter().flat_map(below).collect()
}

/// The last part of a dotted key.
pub(crate) fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}
