//! `train completions`.

use crate::config::presets;
use crate::program;
use crate::terminal::say;
use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use clap_complete::Shell;

/// Print a script that completes the command line in a shell
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    shell: Shell,
}

/// The long help of the command.
pub fn about() -> String {
    let name = program::name();
    format!(
        "Print a script that completes the command line in a shell.\n\n\
         bash: {name} completions bash > ~/.local/share/bash-completion/completions/{name}\n\n\
         zsh: {name} completions zsh > \"${{fpath[1]}}/_{name}\"\n\n\
         fish: {name} completions fish > ~/.config/fish/completions/{name}.fish"
    )
}

pub fn run(args: &CompletionsArgs, command: Command) {
    let mut script = vec![];
    // The normal parser accepts any name, to answer a wrong one with more than this list.
    let names = PossibleValuesParser::new(presets().into_iter().map(|preset| preset.name));
    let mut command = command.mut_arg("model", |arg| arg.value_parser(names));
    let name = command.get_name().to_string();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    say(String::from_utf8_lossy(&script).trim_end());
}
