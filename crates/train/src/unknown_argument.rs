//! Suggestions for an unknown argument: a flag, a key for `--set`, or a preset.

mod foreign;

use crate::config::{
    Config, ModelConfig, Source, keys, last_part, nearest, preset_meant, strategy_called, synonyms, value_called,
};
use crate::run::resume::LATEST;
use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::path::Path;

/// Adds a tip to an error in the training arguments; `args` are all arguments without the program's name.
pub(crate) fn explain(mut error: Error, command: &Command, args: &[String]) -> Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let mut built = command.clone();
    built.build(); // subcommands get their whole names
    let named = args.first().and_then(|name| built.find_subcommand(name));
    // These take the training arguments, too.
    let trains = |named: &&Command| ["config", "plan"].contains(&named.get_name());
    let command = named.filter(trains).unwrap_or(command);
    if let Some(other) = named.filter(|named| !trains(named)) {
        let given = text(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument);
        if let Some(meant) = given.and_then(|given| meant_of(&given, other, args)) {
            error.remove(ContextKind::SuggestedArg);
            suggest(&mut error, format!("did you mean {meant}?"));
        }
        return error;
    }
    if let ErrorKind::ArgumentConflict = error.kind()
        && args.iter().any(|arg| arg.starts_with("--config"))
        && args.iter().any(|arg| arg.starts_with("--model"))
    {
        suggest(
            &mut error,
            "a file names its model itself: write `base: preset:NAME` into it, and leave --model out".into(),
        );
        return error;
    }
    let (given, tip) = match (text(ContextKind::InvalidArg), text(ContextKind::InvalidSubcommand)) {
        (Some(given), _) if error.kind() == ErrorKind::UnknownArgument => (given.clone(), meant(&given, command, args)),
        // clap takes any word for a possible command.
        (None, Some(given)) if command.find_subcommand(&given).is_none() => (given.clone(), stray(&given, args)),
        _ => return error,
    };
    if tip.is_some() || error.kind() == ErrorKind::ArgumentConflict {
        error = Error::new(ErrorKind::UnknownArgument).with_cmd(command);
        error.insert(ContextKind::InvalidArg, ContextValue::String(given));
        if let Some(tip) = tip {
            suggest(&mut error, tip);
        }
    }
    error
}

fn suggest(error: &mut Error, tip: String) {
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
}

/// The flag of a command other than training that the given one is a synonym of.
fn meant_of(given: &str, command: &Command, args: &[String]) -> Option<String> {
    let (name, value) = parts(given, args)?;
    let flags = flags(command);
    let same = synonyms(&name).find(|same| flags.iter().any(|flag| flag == same))?;
    Some(as_flag(same, value))
}

/// The name of a flag, written with underscores, and its value if it has one; `None` if it is not a flag.
fn parts<'a>(given: &str, args: &'a [String]) -> Option<(String, Option<&'a str>)> {
    let flag = given.strip_prefix("--")?.split('=').next()?;
    let value = value_of(&format!("--{flag}"), args).filter(|value| !value.starts_with("--"));
    Some((flag.replace('-', "_").to_lowercase(), value))
}

/// All flags of a command, written with underscores.
fn flags(command: &Command) -> Vec<String> {
    command.get_arguments().filter_map(|arg| arg.get_long()).map(|long| long.replace('-', "_")).collect()
}

/// A tip for an unknown flag.
fn meant(given: &str, command: &Command, args: &[String]) -> Option<String> {
    let Some((name, value)) = parts(given, args) else { return stray(given, args) };
    let flags = flags(command);
    if let Some(strategy) = strategy_called(&name) {
        return Some(format!("did you mean `--strategy {}`?", strategy.name()));
    }
    // torchtitan's flags include their section.
    let names = [&name, last_part(&name)];
    if let Some(tip) = names.iter().find_map(|name| foreign::flag(name)) {
        return Some(tip);
    }
    let meant =
        names.iter().find_map(|name| same(name, value, &flags, args)).or_else(|| near(&name, value, &flags, args));
    meant.map(|meant| format!("did you mean {meant}?"))
}

/// The flag or the keys that a name is a synonym of.
fn same(name: &str, value: Option<&str>, flags: &[String], args: &[String]) -> Option<String> {
    for kind in &kinds(args) {
        let keys = keys(kind);
        for same in synonyms(name) {
            if flags.iter().any(|flag| flag == same) {
                return Some(as_flag(same, value));
            }
            let named: Vec<String> = keys
                .iter()
                .filter(|key| *key == same || last_part(key) == same)
                .map(|key| as_key(key, value))
                .collect();
            if !named.is_empty() {
                return Some(named.join(" or "));
            }
        }
    }
    None
}

/// The flag or key with the closest name; never a section, and never a name so short (`ep`) that many names begin with
/// it.
fn near(name: &str, value: Option<&str>, flags: &[String], args: &[String]) -> Option<String> {
    let all = keys(kinds(args)[0]);
    let has_keys =
        |section: &str| all.iter().any(|key| key.strip_prefix(section).is_some_and(|key| key.starts_with('.')));
    let keys: Vec<&String> = all.iter().filter(|key| !has_keys(key)).collect();
    let names = flags.iter().map(String::as_str).chain(keys.iter().map(|key| last_part(key)));
    let near = nearest(name, names.filter(|near| near.len() > 2 || name.len() <= 3))?;
    match flags.iter().find(|flag| *flag == near) {
        Some(flag) => Some(as_flag(flag, value)),
        None => keys.into_iter().find(|key| last_part(key) == near).map(|key| as_key(key, value)),
    }
}

fn as_flag(name: &str, value: Option<&str>) -> String {
    let value = match (name, value) {
        // nanoGPT's `--init_from=resume`, and `--resume_from_checkpoint True` in transformers.
        ("resume", Some("resume" | "True" | "true")) => Some(LATEST),
        (_, value) => value,
    };
    format!("`--{}{}`", name.replace('_', "-"), value.map_or(String::new(), |value| format!(" {value}")))
}

fn as_key(key: &str, value: Option<&str>) -> String {
    format!("`--set {key}={}`", value.map_or("VALUE", |value| value_called(key, value)))
}

/// A tip for a word that belongs to no flag.
fn stray(given: &str, args: &[String]) -> Option<String> {
    let place = args.iter().position(|arg| arg == given)?;
    if let [.., set, key] = &args[..place]
        && set == "--set"
        && !key.contains('=')
    {
        return Some(format!("did you mean `--set {key}={given}`?"));
    }
    if let ("resume" | "continue" | "restart", 0) = (given, place) {
        let run = args.get(1).filter(|run| !run.starts_with('-')).map_or(LATEST, String::as_str);
        return Some(format!("did you mean `--resume {run}`?"));
    }
    let model = preset_meant(given).map(|preset| format!("did you mean `--model {}`?", preset.name));
    model.or_else(|| foreign::command(given).filter(|_| place == 0))
}

/// The kinds of model, starting with the one that the arguments name.
fn kinds(args: &[String]) -> Vec<&'static str> {
    let preset = value_of("--model", args).map(Source::Preset);
    let source = preset.or_else(|| value_of("--config", args).map(|file| Source::File(Path::new(file))));
    let named = source.and_then(|source| Config::load(source, &[]).ok()).map(|config| config.model.type_name());
    let others = ModelConfig::types().into_iter().filter(|kind| Some(*kind) != named);
    named.into_iter().chain(others).collect()
}

/// The value that follows a flag, after a space or `=`; the last one if the flag is repeated.
fn value_of<'a>(flag: &str, args: &'a [String]) -> Option<&'a str> {
    let value = |(i, arg): (usize, &'a String)| match arg.strip_prefix(flag)? {
        "" => args.get(i + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    };
    args.iter().enumerate().rev().find_map(value)
}
