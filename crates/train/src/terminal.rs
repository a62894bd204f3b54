//! What comes from files and models, on a terminal: it may hold sequences that the terminal obeys, and type into its title or clipboard.

use std::borrow::Cow;

/// `text` as it is shown where `terminal` says that a terminal shows it: control characters, but for line ends and tabs, as escapes.
/// Elsewhere it is as it is.
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
}
