use crate::cli::say;
use crate::config::{Config, ConfigError, PRESETS, Source};
use crate::run::set_vocabulary;
use crate::units::parameter_count;
use crate::words::human;
use clap::Args;

/// Lists the models of `--model` with their parameters.
#[derive(Debug, Args)]
pub struct PresetsArgs {}

pub fn run(_: &PresetsArgs) -> Result<(), ConfigError> {
    say(&format!("{:<18}{:>10}", "--model", "parameters"));
    for preset in PRESETS {
        let mut config = Config::load(Source::Preset(preset.name), &[])?;
        // One without a vocabulary takes the tokenizer's, which the kind of byte tokens tells without a corpus.
        set_vocabulary(&mut config, Some(data::Tokenizer::byte().vocab_size()))?;
        say(&format!("{:<18}{:>10}  {}", preset.name, human(parameter_count(&config)), preset.about));
    }
    Ok(())
}
