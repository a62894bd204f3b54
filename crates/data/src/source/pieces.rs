//! Cuts long texts so that they can be encoded in parallel and in little memory, without changing their tokens.
//!
//! A tokenizer like GPT-2's splits text into words by a pattern and never merges across words, so a cut between two
//! words is harmless if both sides still split the same way. That holds between an ASCII letter and a line break, and
//! between an ASCII letter and a space followed by another ASCII letter, for GPT-2's pattern and for those of Llama 3
//! and DeepSeek: a run of letters ends there, and a line break, or a space with its word, begins. It does not hold
//! between line breaks or after a full stop, where patterns differ in what a line break belongs to.

use crate::DataError;

/// Size of a piece, unless there is no good place to cut.
pub const BYTES: usize = 128 << 10;

/// Size at which a piece is cut anywhere.
const MAX_BYTES: usize = 4 << 20;

/// A part of a document's text.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    /// Whether the document ends here.
    pub end: bool,
    /// Whether the piece comes from a validation file.
    pub validates: bool,
}

impl Piece {
    /// A piece of a training document.
    pub fn new(text: &str, end: bool) -> Self {
        Self { text: text.into(), end, validates: false }
    }
}

/// The receiver of a source's pieces.
pub type Emit<'a> = &'a mut dyn FnMut(Piece) -> Result<(), DataError>;

/// Emits a whole document. Emits nothing if it is empty.
pub fn document(mut text: &str, emit: Emit<'_>) -> Result<(), DataError> {
    while text.len() > BYTES {
        let mut size = BYTES;
        let at = loop {
            let head = &text[..text.floor_char_boundary(size)];
            match cut(head) {
                Some(at) => break at,
                None if size >= MAX_BYTES.min(text.len()) => break head.len(),
                None => size *= 2,
            }
        };
        let (head, tail) = text.split_at(at);
        emit(Piece::new(head, tail.is_empty()))?;
        text = tail;
    }
    if text.is_empty() { Ok(()) } else { emit(Piece::new(text, true)) }
}

/// The last place where `text` can be cut without changing its tokens.
pub fn cut(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let harmless = |&at: &usize| {
        bytes[at - 1].is_ascii_alphabetic()
            && match bytes[at] {
                b'\n' | b'\r' => true,
                b' ' => bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic),
                _ => false,
            }
    };
    // Text without such places, such as Chinese: exact with GPT-2; with other tokenizers a token more or less.
    let passable = |&at: &usize| matches!(bytes[at], b'\n' | b'\r') && !ends_in_space(&text[..at]);
    (1..bytes.len()).rev().find(harmless).or_else(|| (1..bytes.len()).rev().find(passable))
}

/// Where to cut text that may continue. None: read on first. Some text always remains after the cut, so the document
/// can end with it if nothing follows.
pub fn cut_stream(text: &str) -> Option<usize> {
    let last = || text.char_indices().next_back().map(|(at, _)| at);
    cut(text).or_else(|| if text.len() >= MAX_BYTES { last() } else { None })
}

fn ends_in_space(text: &str) -> bool {
    text.chars().next_back().is_some_and(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_after_letters_before_lines_or_words_else_before_lines() {
        let cases = [
            ("one two\nthree", Some(7)),
            ("one two three", Some(7)),
            ("end.\n\nOne's", Some(4)),
            ("a  b", None),
            ("一二。\n三", Some(9)),
            ("x\r\n", Some(1)),
            ("", None),
        ];
        for (text, at) in cases {
            assert_eq!(cut(text), at, "{text:?}");
        }
    }

    #[test]
    fn the_pieces_of_a_document_join_to_it_and_only_the_last_is_its_end() {
        let line = "let x = y_1;\n// to be\n";
        for text in [line.repeat(50_000), "é".repeat(3_000_000), "a".into(), String::new()] {
            let mut pieces = Vec::new();
            document(&text, &mut |piece| {
                pieces.push(piece);
                Ok(())
            })
            .unwrap();
            assert!(pieces.iter().all(|piece| !piece.text.is_empty() && piece.text.len() <= MAX_BYTES));
            let ends: Vec<bool> = pieces.iter().map(|piece| piece.end).collect();
            assert_eq!(ends.iter().rposition(|end| *end), pieces.len().checked_sub(1));
            assert!(ends.iter().filter(|end| **end).count() <= 1);
            assert!(pieces.into_iter().map(|piece| piece.text).collect::<String>() == text);
        }
    }
}
