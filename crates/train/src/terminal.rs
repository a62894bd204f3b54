//! Terminal output: colors if wanted, lines that fit the width, and text from files and models without control
//! sequences, which could write to the terminal's title or clipboard.

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::builder::styling::Styles;
use std::borrow::Cow;
use std::env;
use std::io::{self, IsTerminal, Write};
use terminal_size::{Width, terminal_size, terminal_size_of};

/// Style of `warning:`.
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Style of `error:`.
const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Style of details.
const DETAIL: Style = Style::new().dimmed();
/// Style of names and headings.
const HEADING: Style = Style::new().bold();

/// Maximum width of help, in columns.
pub(crate) const HELP_WIDTH: usize = 100;

/// Styles of `--help` and of errors in arguments.
pub(crate) const HELP: Styles = Styles::styled()
    .header(HEADING)
    .usage(HEADING)
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(DETAIL)
    .error(ERROR)
    .valid(AnsiColor::Green.on_default())
    .invalid(AnsiColor::Yellow.on_default());

/// Prints a line to stdout. If the reader has exited (`train ... | head`), the line is dropped, where `println!` would
/// panic. If it cannot be written, for example on a full disk, the process exits with an error. On a terminal, control
/// characters are escaped.
pub(crate) fn say(line: &str) {
    let line = shown(line, io::stdout().is_terminal());
    match writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "error: cannot write to stdout: {error}");
            std::process::exit(1);
        }
        _ => {}
    }
}

/// Whether stderr is colored: if it is a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`; always with
/// `CLICOLOR_FORCE`.
pub(crate) fn has_colors() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// Width in columns of the terminal stderr is connected to.
pub(crate) fn width() -> Option<usize> {
    terminal_size_of(io::stderr()).map(|(Width(columns), _)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// Width at which help is wrapped, determined as in clap.
pub(crate) fn help_width() -> usize {
    let columns = terminal_size().map(|(Width(columns), _)| usize::from(columns));
    let set = || env::var("COLUMNS").ok()?.parse().ok();
    columns.or_else(set).unwrap_or(HELP_WIDTH).min(HELP_WIDTH)
}

/// Writes whole lines to stderr. If the reader has exited (`train ... 2>&1 | head`), the text is dropped, where
/// `eprintln!` would panic.
pub(crate) fn to_stderr(text: &str) {
    let text = shown(text, io::stderr().is_terminal());
    let text = if has_colors() { marked(&text) } else { text };
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// [`to_stderr`] for details.
pub(crate) fn detail_to_stderr(text: &str) {
    let text = shown(text, io::stderr().is_terminal());
    let text = if has_colors() { painted(&text, DETAIL) } else { text.into() };
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// [`to_stderr`] for a box with a dimmed frame.
pub(crate) fn box_to_stderr(text: &str) {
    let text = shown(text, io::stderr().is_terminal());
    let text = if has_colors() { framed(&text).into() } else { text };
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Whether a line is shown even in quiet mode: `warning: ...`.
pub(crate) fn is_warning(line: &str) -> bool {
    line.starts_with("warning: ")
}

/// Colors the word that states a line's severity.
fn marked(line: &str) -> Cow<'_, str> {
    let marks = [("warning:", WARNING), ("error:", ERROR)];
    let found = marks.iter().find_map(|(mark, style)| Some((mark, style, line.strip_prefix(mark)?)));
    found.map_or(line.into(), |(mark, style, rest)| (painted(mark, *style) + rest).into())
}

/// A box with a dimmed frame and bold names; two spaces end a name.
fn framed(text: &str) -> String {
    let edge = painted("│", DETAIL);
    let line = |line: &str| {
        let Some(row) = line.strip_prefix('│').and_then(|line| line.strip_suffix('│')) else {
            return painted(line, DETAIL);
        };
        let named = row.strip_prefix(' ').filter(|row| !row.starts_with(' ')).and_then(|row| row.split_once("  "));
        let row = named.map_or(row.into(), |(name, rest)| format!(" {}  {rest}", painted(name, HEADING)));
        format!("{edge}{row}{edge}")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn painted(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

/// `text` as shown: if `terminal` is set, control characters except line ends and tabs are escaped; otherwise
/// unchanged.
pub(crate) fn shown(text: &str, terminal: bool) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && !"\n\t".contains(c);
    if !terminal || !text.contains(obeyed) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if obeyed(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_a_text() {
        let text = "a\x1b]52;c;aGk=\x07\r\n\té\u{9b}2J\x7f\u{8}";
        let expected = "a\\u{1b}]52;c;aGk=\\u{7}\\u{d}\n\té\\u{9b}2J\\u{7f}\\u{8}";
        assert_eq!(shown(text, true), expected);
        assert_eq!(shown(text, false), text);
        assert!(matches!(shown("plain\n", true), Cow::Borrowed("plain\n")));
    }

    #[test]
    fn the_frame_of_a_box_is_faint_and_its_names_are_bold() {
        let (bold, faint, end) = ("\u{1b}[1m", "\u{1b}[2m", "\u{1b}[0m");
        let expected = format!(
            "{faint}╭─────╮{end}\n{faint}│{end} {bold}a{end}  b {faint}│{end}\n{faint}│{end}    c {faint}│{end}\n{faint}╰─────╯{end}"
        );
        assert_eq!(framed("╭─────╮\n│ a  b │\n│    c │\n╰─────╯"), expected);
    }

    #[test]
    fn of_a_warning_and_an_error_the_first_word_is_coloured_and_nothing_of_other_lines() {
        assert_eq!(marked("warning: it is late"), "\u{1b}[1m\u{1b}[33mwarning:\u{1b}[0m it is late");
        assert_eq!(marked("error: rank 1: lost"), "\u{1b}[1m\u{1b}[31merror:\u{1b}[0m rank 1: lost");
        assert!(matches!(marked("no error: here"), Cow::Borrowed("no error: here")));
        assert!(is_warning("warning: it is late") && !is_warning("no warning: here"));
    }
}
