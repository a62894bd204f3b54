//! `train presets`: lists the named models.

use crate::config::{Config, Preset, Source, presets};
use crate::error::TrainError;
use crate::format::{human, wrapped};
use crate::terminal;
use crate::terminal::say;
use crate::training::set_vocabulary;
use clap::Args;

/// List the models of `--model` with their parameters.
#[derive(Debug, Args)]
pub struct PresetsArgs {}

pub fn run(_: &PresetsArgs) -> Result<(), TrainError> {
    say(&format!("{:<18}{:>10}", "--model", "parameters"));
    for preset in presets() {
        let mut config = Config::load(Source::Preset(preset.name), &[])?;
        // A preset without a vocabulary takes the tokenizer's; the byte tokenizer's size is known without a corpus.
        set_vocabulary(&mut config, Some(data::Tokenizer::byte().vocab_size()))?;
        say(&format!("{:<18}{:>10}  {}", preset.name, human(config.parameter_count()), preset.about));
    }
    Ok(())
}

/// The values of `--model`, for `--help`.
pub fn help() -> String {
    const NAME: usize = 20;
    let room = terminal::help_width().saturating_sub(NAME).max(NAME);
    let line = |preset: Preset| {
        let about = wrapped(preset.about, room).join(&format!("\n{:NAME$}", ""));
        format!("  {:<18}{about}\n", preset.name)
    };
    format!("Models (--model):\n{}", presets().into_iter().map(line).collect::<String>())
}
