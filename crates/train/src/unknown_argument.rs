//! What an argument that does not exist may have meant: a flag, a key for `--set`, or a preset.

use crate::config::{Config, ModelConfig, PRESETS, Source, keys, last_part, nearest, synonyms};
use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::path::Path;

/// Adds a tip to an error in the arguments of training, which are `args` without the program's name.
pub(crate) fn explain(mut error: Error, command: &Command, args: &[String]) -> Error {
    let is_other_command = |name: &String| name != "config" && command.find_subcommand(name).is_some();
    if args.first().is_some_and(is_other_command) {
        return error;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (given, tip) = match (text(ContextKind::InvalidArg), text(ContextKind::InvalidSubcommand)) {
        (Some(given), _) if error.kind() == ErrorKind::UnknownArgument => (given.clone(), meant(&given, command, args)),
        // Any word may be a command to clap.
        (None, Some(given)) if command.find_subcommand(&given).is_none() => (given.clone(), stray(&given, args)),
        _ => return error,
    };
    if tip.is_some() || error.kind() == ErrorKind::ArgumentConflict {
        error = Error::new(ErrorKind::UnknownArgument).with_cmd(command);
        error.insert(ContextKind::InvalidArg, ContextValue::String(given));
        if let Some(tip) = tip {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![format!("did you mean {tip}?").into()]));
        }
    }
    error
}

/// What a flag that does not exist may have meant.
fn meant(given: &str, command: &Command, args: &[String]) -> Option<String> {
    let Some(flag) = given.strip_prefix("--") else { return stray(given, args) };
    let flag = flag.split('=').next().unwrap_or_default();
    let value = value_of(&format!("--{flag}"), args).filter(|value| !value.starts_with("--"));
    let name = flag.replace('-', "_").to_lowercase();
    let flags: Vec<String> =
        command.get_arguments().filter_map(|arg| arg.get_long()).map(|long| long.replace('-', "_")).collect();
    let as_flag = |name: &str| {
        format!("`--{}{}`", name.replace('_', "-"), value.map_or(String::new(), |value| format!(" {value}")))
    };
    let as_key = |key: &String| format!("`--set {key}={}`", value.unwrap_or("VALUE"));

    let kinds = kinds(args);
    for kind in &kinds {
        let keys = keys(kind);
        for same in synonyms(&name) {
            if flags.iter().any(|flag| flag == same) {
                return Some(as_flag(same));
            }
            let named: Vec<String> =
                keys.iter().filter(|key| *key == same || last_part(key) == same).map(as_key).collect();
            if !named.is_empty() {
                return Some(named.join(" or "));
            }
        }
    }
    let keys = keys(kinds[0]);
    let near = nearest(&name, flags.iter().map(String::as_str).chain(keys.iter().map(|key| last_part(key))))?;
    match flags.iter().find(|flag| *flag == near) {
        Some(flag) => Some(as_flag(flag)),
        None => keys.iter().find(|key| last_part(key) == near).map(as_key),
    }
}

/// What a word that belongs to no flag may have meant.
fn stray(given: &str, args: &[String]) -> Option<String> {
    let place = args.iter().position(|arg| arg == given)?;
    match &args[..place] {
        [.., set, key] if set == "--set" && !key.contains('=') => Some(format!("`--set {key}={given}`")),
        _ => PRESETS.iter().find(|preset| preset.name == given).map(|preset| format!("`--model {}`", preset.name)),
    }
}

/// The kinds of model, the one that the arguments name first.
fn kinds(args: &[String]) -> Vec<&'static str> {
    let preset = value_of("--model", args).map(Source::Preset);
    let source = preset.or_else(|| value_of("--config", args).map(|file| Source::File(Path::new(file))));
    let named = source.and_then(|source| Config::load(source, &[]).ok()).map(|config| config.model.type_name());
    let others = ModelConfig::TYPES.into_iter().filter(|kind| Some(*kind) != named);
    named.into_iter().chain(others).collect()
}

/// The value that follows a flag, after a space or `=`.
fn value_of<'a>(flag: &str, args: &'a [String]) -> Option<&'a str> {
    args.iter().enumerate().find_map(|(i, arg)| match arg.strip_prefix(flag)? {
        "" => args.get(i + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    })
}
