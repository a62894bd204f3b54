//! `train man`.

use crate::config::{Preset, presets};
use crate::program;
use crate::terminal::say;
use clap::{Args, Command};
use clap_mangen::Man;
use std::io;

/// Print the manual page, or that of a subcommand, for `man -l -`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// A subcommand, such as generate
    command: Option<String>,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ManError {
    #[error("there is no subcommand {0}: `{program} --help` lists them", program = program::name())]
    NoCommand(String),
    #[error("cannot write the page: {0}")]
    Write(#[from] io::Error),
}

pub fn run(args: &ManArgs, mut command: Command) -> Result<(), ManError> {
    command.build();
    let source = format!("{} {}", command.get_name(), command.get_version().unwrap_or_default());
    if let Some(name) = &args.command {
        let found = command.find_subcommand(name);
        command = found.cloned().ok_or_else(|| ManError::NoCommand(name.clone()))?;
    }
    let mut page = vec![];
    // The text after the help becomes a separate section instead of lines of a paragraph.
    let command = command.after_help(None::<&str>);
    Man::new(command).source(source).render(&mut page)?;
    if args.command.is_none() {
        page.extend(models().into_bytes());
    }
    say(String::from_utf8_lossy(&page).trim_end());
    Ok(())
}

/// The section on the values of `--model`.
fn models() -> String {
    let escaped = |text: &str| text.replace('\\', r"\e").replace('-', r"\-");
    let entry = |preset: Preset| format!(".TP\n\\fB{}\\fR\n{}\n", escaped(preset.name), escaped(preset.about));
    format!(".SH MODELS\n{}", presets().into_iter().map(entry).collect::<String>())
}
