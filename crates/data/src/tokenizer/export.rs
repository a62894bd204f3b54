//! Writes a tokenizer's files in Hugging Face's format, even for Kiln's own tokenizers.
//!
//! | | model | words | decoder |
//! |---|---|---|---|
//! | byte | BPE of 256 tokens without merges | the whole text, as GPT-2's characters for bytes | the reverse mapping |
//! | char | word level, one word per character | single characters | concatenation |
//!
//! `tokenizer_config.json` holds what `transformers` needs to know and, under `kiln_tokenizer`, which of the two it is.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Kind, Tokenizer};
use crate::DataError;

const JSON: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const KEY: &str = "kiln_tokenizer";

pub fn files(tokenizer: &Tokenizer) -> Vec<(String, Vec<u8>)> {
    let mut config = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false });
    match &tokenizer.0 {
        Kind::Byte => config[KEY] = "byte".into(),
        Kind::Char(_) => config[KEY] = "char".into(),
        // Not for the two above, whose end-of-text token must stay an ordinary token: a special one would also be
        // recognized in text.
        Kind::HuggingFace(tokenizer) => config["eos_token"] = tokenizer.eot.as_ref().map(|(name, _)| &name[..]).into(),
    }
    let files = [(JSON, tokenizer_json(tokenizer)), (CONFIG, format!("{config:#}\n"))];
    files.map(|(name, text)| (name.into(), text.into_bytes())).into()
}

pub fn tokenizer_json(tokenizer: &Tokenizer) -> String {
    match &tokenizer.0 {
        Kind::Byte => byte_json(),
        Kind::Char(chars) => char_json(chars),
        Kind::HuggingFace(tokenizer) => tokenizer.to_json(),
    }
}

/// The byte or character tokenizer in a folder, or next to the given file. None for any other tokenizer.
pub fn load(path: &Path) -> Result<Option<Kind>, DataError> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let path = folder.join(JSON);
    if !path.is_file() {
        return Ok(None);
    }
    match config(folder)?.get(KEY).and_then(Value::as_str) {
        Some("byte") => Ok(Some(Kind::Byte)),
        Some("char") => {
            let bytes = fs::read(&path).map_err(|error| DataError::read(&path, error))?;
            let chars = parse_chars(&bytes).map_err(|problem| DataError::Tokenizer { path, problem })?;
            Ok(Some(Kind::Char(chars)))
        }
        Some(kind) => {
            let problem = format!("{KEY} is {kind:?}, neither byte nor char");
            Err(DataError::Tokenizer { path: folder.join(CONFIG), problem })
        }
        None => Ok(None),
    }
}

/// The name of the end-of-text token that a folder's `tokenizer_config.json` gives as `eos_token`.
pub fn eos_token(folder: &Path) -> Result<Option<String>, DataError> {
    let config = config(folder)?;
    let token = &config["eos_token"];
    // A name, or an object with the name and the rules for finding the token in text.
    Ok(token.as_str().or(token["content"].as_str()).map(str::to_string))
}

/// A folder's `tokenizer_config.json`. Null if there is none.
fn config(folder: &Path) -> Result<Value, DataError> {
    let path = folder.join(CONFIG);
    if !path.is_file() {
        return Ok(Value::Null);
    }
    let bytes = fs::read(&path).map_err(|error| DataError::read(&path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| DataError::Tokenizer { path, problem: error.to_string() })
}

/// The characters of a file written by Kiln, in the order of their ids.
fn parse_chars(bytes: &[u8]) -> Result<Vec<char>, String> {
    #[derive(Deserialize)]
    struct File {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        vocab: std::collections::BTreeMap<char, u32>,
    }
    let file: File = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    // The map is ordered by code point, as are the ids.
    let expected = (0..).zip(&file.model.vocab).find(|(id, (_, found))| id != *found);
    match expected {
        Some((id, (char, found))) => Err(format!("character {char:?} has id {found} where {id} is next")),
        None if file.model.vocab.is_empty() => Err("it has no characters".into()),
        None => Ok(file.model.vocab.into_keys().collect()),
    }
}

fn file(pre_tokenizer: Value, decoder: Value, model: Value) -> String {
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": decoder,
        "model": model,
    });
    format!("{file:#}\n")
}

fn byte_json() -> String {
    let rules = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let vocab: Map<_, _> = (0..=255).map(|byte| (byte_char(byte).to_string(), byte.into())).collect();
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": false,
        "vocab": vocab,
        "merges": [],
    });
    file(rules.clone(), rules, model)
}

fn char_json(chars: &[char]) -> String {
    let words = json!({ "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false });
    let vocab: Map<_, _> = chars.iter().zip(0..).map(|(char, id)| (char.to_string(), Value::from(id))).collect();
    // The unknown token is not in the vocabulary, so an unknown character is an error there as well.
    file(words, json!({ "type": "Fuse" }), json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" }))
}

/// GPT-2's printable character for a byte: the byte itself if Latin-1 prints it, else a code point from 256 on.
fn byte_char(byte: u8) -> char {
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let code =
        if prints(byte) { u32::from(byte) } else { 256 + (0..byte).filter(|&byte| !prints(byte)).count() as u32 };
    char::from_u32(code).expect("at most 256 + 255")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn hugging_faces_tokenizer_of_our_file_finds_our_ids_and_our_text(text in "(\\PC|[ \\n\\r\\t\\x00é]){0,40}") {
            for tokenizer in [Tokenizer::byte(), Tokenizer::char(&text)] {
                if tokenizer.vocab_size() == 0 {
                    continue;
                }
                let theirs = tokenizers::Tokenizer::from_bytes(tokenizer_json(&tokenizer)).unwrap();
                let ids = tokenizer.encode(&text).unwrap();
                let encoding = theirs.encode(&text[..], false).unwrap();
                prop_assert_eq!(encoding.get_ids(), &ids[..]);
                prop_assert_eq!(theirs.decode(&ids, false).unwrap(), &text[..]);
                let folder = tempfile::tempdir().unwrap();
                tokenizer.save(folder.path()).unwrap();
                let opened = Tokenizer::open(folder.path()).unwrap();
                prop_assert!(opened.same_as(&tokenizer) && !matches!(opened.0, Kind::HuggingFace(_)));
            }
        }
    }

    #[test]
    fn a_character_file_with_other_ids_is_an_error() {
        assert_eq!(
            parse_chars(br#"{"model": {"vocab": {"a": 0, "b": 2}}}"#).unwrap_err(),
            "character 'b' has id 2 where 1 is next"
        );
        assert!(parse_chars(br#"{"model": {"vocab": {"ab": 0}}}"#).is_err());
    }
}
