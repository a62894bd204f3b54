//! `train completions`.

use crate::cli;
use crate::config::PRESETS;
use clap::Args;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;

/// Print a script that completes the command line in a shell.
///
/// bash: train completions bash > ~/.local/share/bash-completion/completions/train
///
/// zsh: train completions zsh > "${fpath[1]}/_train"
///
/// fish: train completions fish > ~/.config/fish/completions/train.fish
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    shell: Shell,
}

pub fn run(args: &CompletionsArgs) {
    let mut script = vec![];
    // The normal parser accepts any name, to answer a wrong one with more than this list.
    let presets = || PossibleValuesParser::new(PRESETS.iter().map(|preset| preset.name));
    let mut command = cli::command().mut_arg("model", |arg| arg.value_parser(presets()));
    let name = command.get_name().to_string();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    cli::say(String::from_utf8_lossy(&script).trim_end());
}
