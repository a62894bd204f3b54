//! Decodes tokens that arrive one by one.

use super::Tokenizer;

/// Tokens to wait for a complete character. A character has at most four bytes, but a token may end one and begin the
/// next. After this many tokens, the bytes are taken for something other than text.
const PATIENCE: usize = 8;

/// Turns tokens into text as they arrive. Only complete characters come out, so a terminal can print each piece.
#[derive(Debug, Clone)]
pub struct Decoder {
    tokenizer: Tokenizer,
    /// The last printed token, then the unprinted ones. The printed one is kept because some tokenizers drop the space
    /// before the first token.
    tokens: Vec<u32>,
    /// How many of `tokens`, and how many bytes of their text, have been printed.
    printed: (usize, usize),
}

impl Decoder {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, tokens: Vec::new(), printed: (0, 0) }
    }

    /// The text that this token completes. Empty while a character is incomplete.
    pub fn push(&mut self, token: u32) -> String {
        self.tokens.push(token);
        let text = self.tokenizer.decode(&self.tokens);
        let waits = text.ends_with(char::REPLACEMENT_CHARACTER) && self.tokens.len() - self.printed.0 < PATIENCE;
        if waits { String::new() } else { self.print(&text) }
    }

    /// The remaining text at the end. An incomplete character becomes `U+FFFD`.
    pub fn finish(mut self) -> String {
        let text = self.tokenizer.decode(&self.tokens);
        self.print(&text)
    }

    fn print(&mut self, text: &str) -> String {
        let new = text.get(self.printed.1..).unwrap_or_default().to_string();
        if self.tokens.len() > self.printed.0 {
            self.tokens.drain(..self.tokens.len() - 1);
            self.printed = (1, self.tokenizer.decode(&self.tokens).len());
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_pieces_join_to_the_text_and_none_ends_inside_a_character(text in any::<String>()) {
            let text = text.replace(char::REPLACEMENT_CHARACTER, ""); // looks like an incomplete character
            let bpe = Tokenizer::train_bpe(["a b a b é".to_string()].into_iter(), 260).unwrap();
            for tokenizer in [Tokenizer::byte(), Tokenizer::char(&text), bpe] {
                let mut decoder = tokenizer.decoder();
                let pieces: String = tokenizer.encode(&text).unwrap().into_iter().map(|id| decoder.push(id)).collect();
                prop_assert_eq!(pieces + &decoder.finish(), &text[..]);
            }
        }
    }

    #[test]
    fn a_character_comes_out_when_it_is_whole_and_garbage_soon() {
        let mut decoder = Tokenizer::byte().decoder();
        assert_eq!([0x61, 0xC3, 0xA9, 0x62].map(|byte| decoder.push(byte)), ["a", "", "é", "b"]);
        assert_eq!([0xFF; 8].map(|byte| decoder.push(byte)).concat(), "\u{fffd}".repeat(8));
        decoder.push(0xC3);
        assert_eq!(decoder.finish(), "\u{fffd}");
    }
}
