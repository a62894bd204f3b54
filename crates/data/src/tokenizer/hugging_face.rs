//! Tokenizers of the crate `tokenizers`, which Python's package runs as well.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, fs};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Model, ModelWrapper, OffsetType, PreTokenizerWrapper};

use super::export;
use super::patterns::Patterns;
use super::words::{self, TextPart};
use crate::{DataError, quiet, source};

/// Names of the end-of-text token if no configuration gives one: those of GPT-2, DeepSeek, Llama 2, Llama 3 and Gemma.
const EOT: [&str; 5] = [END_OF_TEXT, "<｜end▁of▁sentence｜>", "</s>", "<|end_of_text|>", "<eos>"];
const END_OF_TEXT: &str = "<|endoftext|>";

/// Words whose tokens each thread caches. Most of a text consists of the same few ten thousand words.
const CACHED_WORDS: usize = 1 << 17;

/// More tokens than any tokenizer has. The crate allocates memory for as many as it is asked for.
const MAX_VOCABULARY: usize = 1 << 20;

/// Longest word worth caching, in bytes.
const CACHED_BYTES: usize = 32;

/// The tokens of words, for the tokenizer with this number.
type Cache = (u64, HashMap<Box<str>, Box<[u32]>>);

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
}

#[derive(Clone)]
pub struct HuggingFace {
    tokenizer: Arc<tokenizers::Tokenizer>,
    /// Set if the file contains its own regular expressions.
    patterns: Option<Arc<Patterns>>,
    /// Set if the tokenizer splits text like GPT-2's: a unique number for the cache, and the names that must not be
    /// split.
    gpt2: Option<(u64, Vec<String>)>,
    pub vocab_size: usize,
    /// Name and id of the end-of-text token.
    pub eot: Option<(String, u32)>,
}

impl HuggingFace {
    /// Reads a `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let (json, vocab, merges) = (path.join("tokenizer.json"), path.join("vocab.json"), path.join("merges.txt"));
        if path.is_file() {
            Self::from_json(path)
        } else if json.is_file() {
            Self::from_json(&json)
        } else if vocab.is_file() && merges.is_file() {
            Self::from_gpt2(&vocab, &merges)
        } else {
            let known = || {
                "give byte, char, gpt2, a tokenizer.json, or a folder with one or with vocab.json and merges.txt".into()
            };
            let elsewhere = || source::how_to_get(path.to_str()?, "model").filter(|_| !path.exists());
            Err(DataError::NoTokenizer { path: path.into(), problem: elsewhere().unwrap_or_else(known) })
        }
    }

    fn from_json(path: &Path) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(|error| DataError::read(path, error))?;
        let wrong = |problem: String| DataError::Tokenizer { path: path.into(), problem };
        // The crate panics on some files that are JSON but not a tokenizer. That is the file's error, not a bug of
        // Kiln.
        match quiet::catch(|| tokenizers::Tokenizer::from_bytes(bytes)) {
            Some(Ok(tokenizer)) => Self::new(tokenizer, eos_token_beside(path)?).map_err(wrong),
            Some(Err(error)) => Err(wrong(error.to_string())),
            None => Err(wrong("it is not a tokenizer".into())),
        }
    }

    fn from_gpt2(vocab: &Path, merges: &Path) -> Result<Self, DataError> {
        let wrong = |problem: String| DataError::Tokenizer { path: vocab.into(), problem };
        let bpe = BPE::from_file(&vocab.to_string_lossy(), &merges.to_string_lossy()).build();
        let mut tokenizer = byte_level(bpe.map_err(|error| wrong(error.to_string()))?);
        if tokenizer.token_to_id(END_OF_TEXT).is_some() {
            let added = tokenizer.add_special_tokens([AddedToken::from(END_OF_TEXT, true)]);
            added.map_err(|error| wrong(error.to_string()))?;
        }
        Self::new(tokenizer, eos_token_beside(vocab)?).map_err(wrong)
    }

    pub fn train(texts: impl Iterator<Item = String> + Send, vocab_size: usize) -> Result<Self, DataError> {
        check_bpe(vocab_size)?;
        let wrong = |problem: String| DataError::TrainBpe { vocab_size, problem };
        let trainer = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .show_progress(std::io::stderr().is_terminal())
            .build();
        let mut tokenizer = byte_level(BPE::default());
        tokenizer.train(&mut TrainerWrapper::from(trainer), texts).map_err(|error| wrong(error.to_string()))?;
        Self::new(tokenizer, None).map_err(wrong)
    }

    fn new(mut tokenizer: tokenizers::Tokenizer, eos_token: Option<String>) -> Result<Self, String> {
        // A file may request truncation or padding, which would lose or add tokens.
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        tokenizer.with_padding(None);
        // Ids may have gaps, so the number of tokens is not enough.
        let highest = tokenizer.get_vocab(true).into_values().max().ok_or("it has no tokens")?;
        if highest >= i32::MAX as u32 {
            return Err(format!("token id {highest} is too large"));
        }
        let eot = end_of_text(&tokenizer, eos_token);
        let patterns = Patterns::of(&tokenizer).map_err(|error| error.to_string())?.map(Arc::new);
        let gpt2 = gpt2_names(&tokenizer).map(|names| {
            static COUNTER: AtomicU64 = AtomicU64::new(1); // 0 is an empty cache
            (COUNTER.fetch_add(1, Ordering::Relaxed), names)
        });
        Ok(Self { tokenizer: Arc::new(tokenizer), patterns, gpt2, vocab_size: highest as usize + 1, eot })
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        match &self.gpt2 {
            Some((number, names)) if !names.iter().any(|name| text.contains(name)) => {
                CACHE.with_borrow_mut(|cache| self.encode_words(text, *number, cache, &mut ids))?;
            }
            _ => self.encode_whole(text, &mut ids)?,
        }
        Ok(ids)
    }

    fn encode_words(&self, text: &str, number: u64, cache: &mut Cache, ids: &mut Vec<u32>) -> Result<(), DataError> {
        if cache.0 != number {
            *cache = (number, HashMap::new());
        }
        let cache = &mut cache.1;
        for part in words::parts(text) {
            let word = match part {
                TextPart::Word(word) => word,
                TextPart::Stretch(text) => {
                    self.encode_whole(text, ids)?;
                    continue;
                }
            };
            if let Some(known) = cache.get(word) {
                ids.extend_from_slice(known);
                continue;
            }
            let start = ids.len();
            self.encode_whole(word, ids)?;
            if word.len() <= CACHED_BYTES && cache.len() < CACHED_WORDS {
                cache.insert(word.into(), ids[start..].into());
            }
        }
        Ok(())
    }

    fn encode_whole(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        let encode = || match &self.patterns {
            None => self.tokenizer.encode_fast(text, false),
            Some(patterns) => {
                let mut split = patterns.split(&self.tokenizer, text)?;
                self.tokenizer.get_model().tokenize_in_pretokenized(&mut split, None)?;
                let encoding = split.into_encoding(None, 0, OffsetType::None)?;
                self.tokenizer.post_process(encoding, None, false)
            }
        };
        // The crate panics on the rules of some files.
        match quiet::catch(encode) {
            Some(Ok(encoding)) => ids.extend_from_slice(encoding.get_ids()),
            Some(Err(error)) => return Err(DataError::Encode { problem: error.to_string() }),
            None => {
                return Err(DataError::Encode { problem: "its rules contradict each other, or take too long".into() });
            }
        }
        Ok(())
    }

    pub fn decode(&self, tokens: &[u32]) -> String {
        let known = |token: &u32| self.tokenizer.id_to_token(*token).is_some();
        let replacement = char::REPLACEMENT_CHARACTER.to_string();
        let decode = |tokens: &[u32]| {
            let text = quiet::catch(|| self.tokenizer.decode(tokens, false)).and_then(Result::ok);
            text.unwrap_or_else(|| replacement.clone())
        };
        // The crate leaves out unknown ids.
        tokens.split(|token| !known(token)).map(decode).collect::<Vec<_>>().join(&replacement)
    }

    pub fn to_json(&self) -> String {
        self.tokenizer.to_string(true).expect("a tokenizer that was read or trained has a JSON form")
    }
}

impl fmt::Debug for HuggingFace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HuggingFace").field("vocab_size", &self.vocab_size).field("eot", &self.eot).finish()
    }
}

/// Whether a BPE of this many tokens can be learned.
pub fn check_bpe(vocab_size: usize) -> Result<(), DataError> {
    let problem = match vocab_size {
        0..257 => format!("256 bytes and {END_OF_TEXT} need 257"),
        257..=MAX_VOCABULARY => return Ok(()),
        _ => format!("give at most {MAX_VOCABULARY}"),
    };
    Err(DataError::TrainBpe { vocab_size, problem })
}

fn eos_token_beside(file: &Path) -> Result<Option<String>, DataError> {
    export::eos_token(file.parent().unwrap_or(file))
}

/// Name and id of the end-of-text token: the given one if the vocabulary has it, else a special token with a usual
/// name. An ordinary token with such a name is a word of the text.
fn end_of_text(tokenizer: &tokenizers::Tokenizer, given: Option<String>) -> Option<(String, u32)> {
    let given = given.and_then(|name| tokenizer.token_to_id(&name).map(|id| (name, id)));
    given.or_else(|| {
        let added = tokenizer.get_added_tokens_decoder();
        EOT.into_iter().find_map(|name| {
            let (id, _) = added.iter().find(|(_, token)| token.special && token.content == name)?;
            Some((name.to_string(), *id))
        })
    })
}

/// The names of `tokenizer`'s added tokens, which may span several words, if it splits text like GPT-2's and encodes
/// each word by itself.
fn gpt2_names(tokenizer: &tokenizers::Tokenizer) -> Option<Vec<String>> {
    let rules = match tokenizer.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::ByteLevel(rules)) => rules,
        _ => return None,
    };
    let plain = match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) => bpe.dropout.is_none(),
        _ => false,
    };
    let names: Vec<String> = tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    // Each text is searched for each name.
    let few = names.len() <= 8;
    (plain && few && rules.use_regex && !rules.add_prefix_space && tokenizer.get_normalizer().is_none())
        .then_some(names)
}

/// A tokenizer that wraps a BPE in GPT-2's rules for words and bytes.
fn byte_level(bpe: BPE) -> tokenizers::Tokenizer {
    let rules = ByteLevel::new(false, true, true);
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    tokenizer.with_pre_tokenizer(Some(rules)).with_decoder(Some(rules)).with_post_processor(Some(rules));
    tokenizer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tokenizer;
    use serde_json::{Value, json};

    #[test]
    fn the_end_of_text_is_what_the_configuration_says_else_a_special_token_of_a_usual_name() {
        let end = |special| {
            json!([{
                "id": 1, "content": "</s>", "special": special,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            }])
        };
        let cases = [
            (json!([]), Value::Null, None),
            (end(false), Value::Null, None),
            (end(true), Value::Null, Some(1)),
            (end(true), json!("absent"), Some(1)),
            (end(true), json!("<end>"), Some(2)),
            (json!([]), json!({ "content": "<end>", "special": true }), Some(2)),
        ];
        for (added, eos_token, expected) in cases {
            let folder = tempfile::tempdir().unwrap();
            let write = |name: &str, value: Value| fs::write(folder.path().join(name), value.to_string()).unwrap();
            let model = json!({ "type": "WordLevel", "vocab": { "a": 0, "</s>": 1, "<end>": 2 }, "unk_token": "a" });
            write("tokenizer.json", json!({ "version": "1.0", "added_tokens": added, "model": model }));
            write("tokenizer_config.json", json!({ "eos_token": eos_token }));
            let tokenizer = Tokenizer::open(folder.path()).unwrap();
            assert_eq!(tokenizer.eot(), expected, "{added} {eos_token}");
            tokenizer.save(folder.path()).unwrap();
            assert_eq!(Tokenizer::open(folder.path()).unwrap().eot(), expected);
        }
    }
}
