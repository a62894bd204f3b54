//! Text to token ids and back.

use super::DataError;
use crate::config::TokenizerKind;

/// A map between text and token ids, `0..vocab_size`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokenizer {
    /// A token is a byte of the UTF-8 text: 256 ids, and every text has an encoding.
    Byte,
    /// A token is a character, its id the index in `chars` (as in nanoGPT's `shakespeare_char`).
    Char {
        /// The characters of the training text, sorted, each once.
        chars: Vec<char>,
    },
}

impl Tokenizer {
    /// The tokenizer of `kind`; a character vocabulary is that of the whole of `corpus`, both splits.
    pub fn new(kind: TokenizerKind, corpus: &str) -> Self {
        match kind {
            TokenizerKind::Byte => Self::Byte,
            TokenizerKind::Char => {
                // A table over all code points is many times faster than a set for a text of millions of characters.
                let mut seen = vec![false; char::MAX as usize + 1];
                corpus.chars().for_each(|char| seen[char as usize] = true);
                Self::Char { chars: ('\0'..=char::MAX).filter(|&char| seen[char as usize]).collect() }
            }
        }
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Byte => 256,
            Self::Char { chars } => chars.len(),
        }
    }

    /// The token ids of `text`.
    ///
    /// # Errors
    /// A character that the training text did not have ([`Tokenizer::Char`] only).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match self {
            Self::Byte => Ok(text.bytes().map(u32::from).collect()),
            Self::Char { chars } => {
                let id = |(offset, char)| match chars.binary_search(&char) {
                    Ok(id) => Ok(id as u32),
                    Err(_) => Err(DataError::UnknownChar { char, offset, vocab_size: chars.len() }),
                };
                text.char_indices().map(id).collect()
            }
        }
    }

    /// The text of `tokens`. What is not text becomes `U+FFFD`: bytes that are not UTF-8 (generation may stop inside a
    /// character), and ids outside the vocabulary (a model's embedding may be padded to more ids).
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Byte => {
                // 0xFF occurs in no UTF-8 text, so an id above 255 is replaced too.
                let bytes: Vec<u8> = tokens.iter().map(|&token| u8::try_from(token).unwrap_or(0xFF)).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Char { chars } => {
                let char = |&token: &u32| chars.get(token as usize).copied();
                tokens.iter().map(|token| char(token).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_undoes_encoding(text in any::<String>()) {
            for kind in [TokenizerKind::Byte, TokenizerKind::Char] {
                let tokenizer = Tokenizer::new(kind, &text);
                let tokens = tokenizer.encode(&text).unwrap();
                prop_assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_size()));
                prop_assert_eq!(tokenizer.decode(&tokens), &text[..]);
            }
        }
    }

    #[test]
    fn the_character_vocabulary_is_sorted_and_holds_each_character_once() {
        let tokenizer = Tokenizer::new(TokenizerKind::Char, "hello, é!");
        assert_eq!(tokenizer, Tokenizer::Char { chars: vec![' ', '!', ',', 'e', 'h', 'l', 'o', 'é'] });
        assert_eq!(tokenizer.encode("hole").unwrap(), [4, 6, 5, 3]);
    }

    #[test]
    fn a_character_outside_the_vocabulary_is_named() {
        let error = Tokenizer::new(TokenizerKind::Char, "abc").encode("cabé").unwrap_err();
        assert_eq!(
            error.to_string(),
            "character 'é' at byte 3 is not one of the 3 characters of the training text: leave it out, or train with \
             the byte tokenizer"
        );
    }

    #[test]
    fn tokens_that_are_not_text_decode_to_the_replacement_character() {
        assert_eq!(Tokenizer::Byte.decode(&[104, 105, 0xC3]), "hi\u{fffd}");
        assert_eq!(Tokenizer::Byte.decode(&[104, 256, 105]), "h\u{fffd}i");
        assert_eq!(Tokenizer::new(TokenizerKind::Char, "ab").decode(&[1, 2, 0]), "b\u{fffd}a");
    }
}
