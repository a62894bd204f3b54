//! Converts text to token ids and back.

mod decoder;
mod export;
mod hugging_face;
mod patterns;
mod spec;
mod words;

use std::path::Path;

use crate::DataError;
use hugging_face::HuggingFace;

pub use decoder::Decoder;
pub(crate) use hugging_face::check_bpe;
pub use spec::TokenizerSpec;

/// A map between text and token ids, `0..vocab_size`. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Tokenizer(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// One token per byte of the UTF-8 text: 256 ids, and every text has an encoding.
    Byte,
    /// One token per character. Its id is its index in this sorted list (as in nanoGPT's `shakespeare_char`).
    Char(Vec<char>),
    HuggingFace(HuggingFace),
}

impl Tokenizer {
    /// The tokenizer with one token per byte.
    pub fn byte() -> Self {
        Self(Kind::Byte)
    }

    /// The tokenizer with one token per distinct character of `text`, ordered by code point. `\0` acts as the end of a
    /// document.
    pub fn char(text: &str) -> Self {
        let mut seen = CharSet::default();
        seen.add(text);
        seen.into_tokenizer()
    }

    /// Opens the tokenizer in a folder: one written by [`save`](Self::save), a Hugging Face `tokenizer.json`, or
    /// GPT-2's `vocab.json` and `merges.txt`. The path of a `tokenizer.json` also works.
    ///
    /// # Errors
    /// If there are no such files, or they are not a tokenizer.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        match export::load(path)? {
            Some(kind) => Ok(Self(kind)),
            None => HuggingFace::open(path).map(Kind::HuggingFace).map(Self),
        }
    }

    /// Learns a byte-level BPE like GPT-2's from texts, with the special token `<|endoftext|>`. Progress goes to stderr
    /// if that is a terminal.
    ///
    /// # Errors
    /// If the vocabulary has no room for the 256 bytes and the special token, or has more than a million tokens.
    pub fn train_bpe(texts: impl Iterator<Item = String> + Send, vocab_size: usize) -> Result<Self, DataError> {
        HuggingFace::train(texts, vocab_size).map(Kind::HuggingFace).map(Self)
    }

    /// Name and contents of `tokenizer.json` and `tokenizer_config.json` in Hugging Face's format, whatever the kind of
    /// tokenizer. `transformers` reads them and finds the same ids.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        export::files(self)
    }

    /// Writes [`files`](Self::files) into a folder, from which [`open`](Self::open) reads them.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), DataError> {
        self.files().into_iter().try_for_each(|(name, bytes)| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|error| DataError::write(&path, error))
        })
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        match &self.0 {
            Kind::Byte => 256,
            Kind::Char(chars) => chars.len(),
            Kind::HuggingFace(tokenizer) => tokenizer.vocab_size,
        }
    }

    /// The token after each document, if there is one: the `eos_token` of a `tokenizer_config.json`, else a special
    /// token with one of the usual names.
    pub fn eot(&self) -> Option<u32> {
        match &self.0 {
            Kind::Byte => Some(0),
            Kind::Char(chars) => chars.binary_search(&'\0').ok().map(|id| id as u32),
            Kind::HuggingFace(tokenizer) => tokenizer.eot.as_ref().map(|(_, id)| *id),
        }
    }

    /// The token ids of `text`. Names of special tokens in the text become these tokens, as in Python. No token is
    /// added.
    ///
    /// # Errors
    /// If a character did not occur in the training text (character tokenizers only), or if the vocabulary does not
    /// cover the text and has no unknown token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        match &self.0 {
            Kind::Byte => Ok(text.bytes().map(u32::from).collect()),
            Kind::Char(chars) => {
                let id = |(offset, char)| match chars.binary_search(&char) {
                    Ok(id) => Ok(id as u32),
                    Err(_) => Err(DataError::UnknownChar { char, offset, vocab_size: chars.len() }),
                };
                text.char_indices().map(id).collect()
            }
            Kind::HuggingFace(tokenizer) => tokenizer.encode(text),
        }
    }

    /// The text of `tokens`. What is not text becomes `U+FFFD`: bytes that are not UTF-8 (generation may stop inside a
    /// character), and ids outside the vocabulary (a model's embedding may be padded to more ids).
    pub fn decode(&self, tokens: &[u32]) -> String {
        match &self.0 {
            Kind::Byte => {
                // 0xFF occurs in no UTF-8 text, so an id above 255 is also replaced.
                let bytes: Vec<u8> = tokens.iter().map(|&token| u8::try_from(token).unwrap_or(0xFF)).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Kind::Char(chars) => {
                let char = |&token: &u32| chars.get(token as usize).copied();
                tokens.iter().map(|token| char(token).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
            }
            Kind::HuggingFace(tokenizer) => tokenizer.decode(tokens),
        }
    }

    /// A decoder for tokens that arrive one by one.
    pub fn decoder(&self) -> Decoder {
        Decoder::new(self.clone())
    }

    /// The tokenizer's `tokenizer.json`.
    pub(crate) fn to_json(&self) -> String {
        export::tokenizer_json(self)
    }

    /// Whether both are the same tokenizer.
    pub fn same_as(&self, other: &Self) -> bool {
        self.to_json() == other.to_json()
    }

    /// Whether a token is a character.
    pub(crate) fn is_char(&self) -> bool {
        matches!(self.0, Kind::Char(_))
    }
}

/// The characters of a text.
pub(crate) struct CharSet {
    /// Indexed by code point: for a text of millions of characters this is many times faster than a set.
    seen: Vec<bool>,
}

impl Default for CharSet {
    fn default() -> Self {
        Self { seen: vec![false; char::MAX as usize + 1] }
    }
}

impl CharSet {
    pub fn add(&mut self, text: &str) {
        text.chars().for_each(|char| self.seen[char as usize] = true);
    }

    pub fn into_tokenizer(self) -> Tokenizer {
        Tokenizer(Kind::Char(('\0'..=char::MAX).filter(|&char| self.seen[char as usize]).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_undoes_encoding(text in any::<String>()) {
            for tokenizer in [Tokenizer::byte(), Tokenizer::char(&text)] {
                let tokens = tokenizer.encode(&text).unwrap();
                prop_assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_size()));
                prop_assert_eq!(tokenizer.decode(&tokens), &text[..]);
            }
        }
    }

    #[test]
    fn the_character_vocabulary_is_sorted_and_holds_each_character_once() {
        let tokenizer = Tokenizer::char("hello, é!");
        assert_eq!(tokenizer.vocab_size(), 8);
        assert_eq!(tokenizer.decode(&Vec::from_iter(0..8)), " !,ehloé");
        assert_eq!(tokenizer.encode("hole").unwrap(), [4, 6, 5, 3]);
        assert_eq!((tokenizer.eot(), Tokenizer::char("a\0").eot()), (None, Some(0)));
    }

    #[test]
    fn a_character_outside_the_vocabulary_is_named() {
        let error = Tokenizer::char("abc").encode("cabé").unwrap_err();
        assert_eq!(
            error.to_string(),
            "character 'é' at byte 3 is not one of the 3 characters of the training text: leave it out, or train with \
             the byte tokenizer"
        );
    }

    #[test]
    fn tokens_that_are_not_text_decode_to_the_replacement_character() {
        assert_eq!(Tokenizer::byte().decode(&[104, 105, 0xC3]), "hi\u{fffd}");
        assert_eq!(Tokenizer::byte().decode(&[104, 256, 105]), "h\u{fffd}i");
        assert_eq!(Tokenizer::char("ab").decode(&[1, 2, 0]), "b\u{fffd}a");
    }

    #[test]
    fn a_trained_bpe_encodes_any_text_and_comes_back_from_its_folder() {
        let text = "the cat sat on the mat; the dog sat on the log\n".repeat(20);
        let trained = Tokenizer::train_bpe([text.clone()].into_iter(), 300).unwrap();
        assert_eq!(trained.eot(), Some(0));
        assert!((270..=300).contains(&trained.vocab_size()), "{}", trained.vocab_size());
        let folder = tempfile::tempdir().unwrap();
        trained.save(folder.path()).unwrap();
        let opened = Tokenizer::open(folder.path()).unwrap();
        let odd = "the dog, 𝄞 <|endoftext|>é";
        for text in [&text[..], odd] {
            let tokens = trained.encode(text).unwrap();
            assert_eq!(tokens, opened.encode(text).unwrap());
            assert_eq!(opened.decode(&tokens), text);
            assert!(tokens.len() < text.len());
        }
        let error = Tokenizer::train_bpe(std::iter::empty(), 256).unwrap_err().to_string();
        assert_eq!(error, "cannot train a tokenizer of 256 tokens: 256 bytes and <|endoftext|> need 257");
    }
}
