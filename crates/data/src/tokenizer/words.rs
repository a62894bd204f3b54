//! Finds GPT-2's words in ASCII text without its regular expression.
//!
//! GPT-2 splits text by `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` and encodes each
//! word by itself. Most words of a text have occurred before, so splitting costs more than encoding, and the regular
//! expression is most of that cost. For ASCII this scanner finds the same words. It leaves a stretch with other
//! characters to the regular expression, up to the next place where a word surely ends: after an ASCII letter, and
//! before a line break or before a space and a letter.

/// A part of a text that is encoded separately.
#[derive(Debug, PartialEq, Eq)]
pub enum TextPart<'a> {
    /// One word.
    Word(&'a str),
    /// Words that are not all ASCII.
    Stretch(&'a str),
}

/// The parts of a text, in order.
pub fn parts(text: &str) -> impl Iterator<Item = TextPart<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let word = word(rest.as_bytes());
        let (part, after) = rest.split_at(word.unwrap_or_else(|| stretch(rest.as_bytes())));
        rest = after;
        Some(if word.is_some() { TextPart::Word(part) } else { TextPart::Stretch(part) })
    })
}

/// The length of the first word of a nonempty text. None if ASCII alone does not determine it.
fn word(text: &[u8]) -> Option<usize> {
    for suffix in ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"] {
        if text[0] == b'\'' && text.starts_with(suffix.as_bytes()) {
            return Some(suffix.len());
        }
    }
    let lead = usize::from(text[0] == b' ');
    match text.get(lead).map(|&byte| class(byte)) {
        // ` ?\p{L}+`, ` ?\p{N}+`, ` ?[^\s\p{L}\p{N}]+`
        Some(class @ (Class::Letter | Class::Digit | Class::Other)) => run(text, lead, class),
        Some(Class::Foreign) => None,
        Some(Class::Space) | None => {
            let end = run(text, 0, Class::Space)?;
            // `\s+(?!\S)` leaves the last space to the next word; `\s+` takes a single one.
            Some(if end == text.len() || end == 1 { end } else { end - 1 })
        }
    }
}

/// Where the run of bytes of a class that begins at `start` ends. None if a non-ASCII character follows.
fn run(text: &[u8], start: usize, expected: Class) -> Option<usize> {
    match text[start..].iter().position(|&byte| class(byte) != expected) {
        None => Some(text.len()),
        Some(at) if class(text[start + at]) == Class::Foreign => None,
        Some(at) => Some(start + at),
    }
}

/// The length of the stretch up to where a word surely ends.
fn stretch(text: &[u8]) -> usize {
    let ends = |at: &usize| {
        text[at - 1].is_ascii_alphabetic()
            && match text[*at] {
                b'\n' | b'\r' => true,
                b' ' => text.get(at + 1).is_some_and(u8::is_ascii_alphabetic),
                _ => false,
            }
    };
    (1..text.len()).find(ends).unwrap_or(text.len())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    Space,
    Other,
    Foreign,
}

fn class(byte: u8) -> Class {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
        b'0'..=b'9' => Class::Digit,
        b'\t'..=b'\r' | b' ' => Class::Space,
        0x80.. => Class::Foreign,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_is_split_into_gpt2s_words_and_the_rest_is_left_whole() {
        let words = ["It", "'s", " a", " ", " test", "...", "\n", "\n", "12", "x", " '", "tis", "\t "];
        assert!(parts(&words.concat()).eq(words.map(TextPart::Word)));
        let found: Vec<TextPart> = parts("a caf\u{e9} or two\nb").collect();
        let two = TextPart::Word(" two");
        assert_eq!(
            found,
            [TextPart::Word("a"), TextPart::Stretch(" caf\u{e9} or"), two, TextPart::Word("\n"), TextPart::Word("b")]
        );
    }
}
