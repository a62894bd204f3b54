//! Loads a [`Config`] from YAML files, presets and overrides. Each is a *layer*, a mapping that is checked and then
//! merged over the one it inherits from.

use std::fs::File;
use std::io::Read;
use std::path::{self, Path};
use std::{fmt, fs, io};

use yaml_serde::{Mapping, Value};

use super::{Config, adaptive, check, length, preset};
use crate::error::TrainError;

/// Far more than a configuration needs.
const MAX_BYTES: u64 = 1 << 20;

/// Origin of a configuration.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A preset's name.
    Preset(&'a str),
    /// A YAML file.
    File(&'a Path),
}

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Preset(name) => write!(f, "preset:{name}"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Config {
    /// Loads a configuration with everything it inherits, merges `overrides` over it (`optim.lr=3e-4`; later ones take
    /// precedence), and applies `parallel.adaptive`. Keys are checked one by one; [`Config::validate`] checks that they
    /// fit together.
    ///
    /// # Errors
    /// If a file cannot be read or is not YAML, if files inherit from each other in a circle, or if a key or the type of
    /// a value is unknown.
    pub fn load(source: Source, overrides: &[String]) -> Result<Self, TrainError> {
        let layer = read(source, "", &mut Vec::new())?;
        let set = parse_overrides(overrides)?;
        let resolved = inherit(layer, set, "--set")?;
        let origin = source.to_string();
        if check::model_type(&resolved).is_none() {
            return Err(TrainError::NoModel { origin });
        }
        let mut config: Self = yaml_serde::from_value(Value::Mapping(resolved.clone()))
            .map_err(|error| TrainError::Config(format!("{origin}: {error}")))?;
        config.adapt(&resolved)?;
        Ok(config)
    }

    /// The whole configuration, including defaults, as YAML that [`Config::load`] reads back to an equal one.
    pub fn to_yaml(&self) -> String {
        yaml_serde::to_string(self).expect("a configuration is plain data")
    }
}

/// Reads a file of at most [`MAX_BYTES`].
fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match read as u64 > MAX_BYTES {
        true => Err(io::Error::other(format!("it is longer than {MAX_BYTES} bytes"))),
        false => Ok(text),
    }
}

/// Merges the layer of `source` over its bases. `role` says which file names it, `chain` which files led here.
fn read(source: Source, role: &str, chain: &mut Vec<String>) -> Result<Mapping, TrainError> {
    let (name, text) = match source {
        Source::Preset(name) => (source.to_string(), preset(name)?.yaml.to_string()),
        Source::File(path) => {
            let error = |error| TrainError::ConfigFile { file: path.into(), role: role.into(), error };
            // Canonical paths, so that two spellings of one path count as the same file.
            let name = path.canonicalize().unwrap_or_else(|_| path.into()).display().to_string(); // a pipe has none
            // A file given by the user may be a shell pipe, but a base must be a regular file, so that loading never
            // blocks.
            if !role.is_empty() && !fs::metadata(path).map_err(error)?.is_file() {
                return Err(error(io::Error::other("it is no regular file")));
            }
            (name, text_of(path).map_err(error)?)
        }
    };
    let known = chain.iter().position(|earlier| *earlier == name);
    chain.push(name);
    if let Some(first) = known {
        return Err(TrainError::ConfigCycle { chain: chain.split_off(first) });
    }
    let origin = source.to_string();
    let mut layer = match yaml_serde::from_str(&text) {
        Ok(Value::Mapping(layer)) => layer,
        Ok(Value::Null) => Mapping::new(),
        Ok(_) => {
            return Err(TrainError::Config(format!(
                "{origin} has no sections: give for example `optim: {{lr: 3e-4}}`"
            )));
        }
        Err(error) => return Err(TrainError::ConfigSyntax { origin, error }),
    };
    let base = match layer.remove("base") {
        None => Mapping::new(),
        Some(Value::String(base)) => {
            let role = format!(", the base of {origin} and relative to it");
            match (base.strip_prefix("preset:"), source) {
                (Some(name), _) => read(Source::Preset(name), &role, chain)?,
                (None, Source::File(path)) => read(Source::File(&path.with_file_name(base)), &role, chain)?,
                (None, Source::Preset(_)) => read(Source::File(Path::new(&base)), &role, chain)?,
            }
        }
        Some(other) => {
            let expected = "a file's path or `preset:NAME`".into();
            return Err(TrainError::WrongValue { key: "base".into(), given: check::shown(&other), origin, expected });
        }
    };
    let mut resolved = inherit(base, layer, &origin)?;
    if let Source::Preset(name) = source {
        resolved.insert("preset".into(), name.into());
    }
    Ok(resolved)
}

/// Checks `layer` and merges it over `base`. A different `model.type` drops the base's model, whose keys it does not
/// have, and the experts.
fn inherit(mut base: Mapping, mut layer: Mapping, origin: &str) -> Result<Mapping, TrainError> {
    check::check(&mut layer, check::model_type(&base), origin)?;
    let (inherited, own) = (check::model_type(&base), check::model_type(&layer));
    if inherited.is_some() && own.is_some() && inherited != own {
        base.remove("model");
        base.remove("moe");
    }
    adaptive::forget(&mut base, &layer);
    length::choose(&mut base, &layer, origin)?;
    merge(&mut base, layer);
    Ok(base)
}

/// Merges `over` into `under`: mappings key by key; other values replace.
fn merge(under: &mut Mapping, over: Mapping) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Mapping(under)), Value::Mapping(over)) => merge(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// Whether overrides set a key, directly or within its section (`optim={lr: 1}`).
pub(crate) fn is_overridden(overrides: &[String], key: &str) -> bool {
    let layer = parse_overrides(overrides).unwrap_or_default();
    let mut names = key.split('.');
    let first = names.next().and_then(|name| layer.get(name));
    names.try_fold(first, |value, name| Some(value?.get(name))).flatten().is_some()
}

/// Returns a configuration file, for any folder, that inherits from `base` and has the overrides.
pub(crate) fn file_with(base: Option<Source>, overrides: &[String]) -> Result<String, TrainError> {
    let base = base.map(|base| match base {
        Source::File(path) => path::absolute(path).unwrap_or(path.into()).display().to_string(),
        preset => preset.to_string(),
    });
    let mut layer: Mapping = base.into_iter().map(|base| ("base".into(), base.into())).collect();
    merge(&mut layer, parse_overrides(overrides)?);
    Ok(yaml_serde::to_string(&layer).expect("a layer is plain data"))
}

/// Parses the overrides into one layer.
fn parse_overrides(overrides: &[String]) -> Result<Mapping, TrainError> {
    let mut layer = Mapping::new();
    for given in overrides {
        let malformed = || TrainError::Override { given: given.clone() };
        let (key, value) = given.split_once('=').ok_or_else(malformed)?;
        let path: Vec<&str> = key.trim().split('.').collect();
        if path.contains(&"") {
            return Err(malformed());
        }
        let value = yaml_serde::from_str(value)
            .map_err(|error| TrainError::ConfigSyntax { origin: format!("--set {given}"), error })?;
        check::insert(&mut layer, &path, value);
    }
    Ok(layer)
}
