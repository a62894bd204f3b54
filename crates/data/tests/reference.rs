//! Compares token ids with those of Python's `tokenizers`, written by `tests/reference/make_tokenizer.py`.

use std::path::{Path, PathBuf};

use data::Tokenizer;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/tokenizer")
}

#[test]
fn ids_and_text_are_those_of_python() {
    let tokenizer = Tokenizer::open(&folder()).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.eot()), (500, Some(0)));
    let expected = std::fs::read(folder().join("expected.json")).unwrap();
    for Expected { text, ids, decoded } in serde_json::from_slice::<Vec<Expected>>(&expected).unwrap() {
        assert_eq!(tokenizer.encode(&text).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids), decoded);
    }
}

#[test]
fn the_files_of_gpt2_give_the_same_ids_as_its_tokenizer_json() {
    let tokenizer = Tokenizer::open(&folder()).unwrap();
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder().join("tokenizer.json")).unwrap()).unwrap();
    let copy = tempfile::tempdir().unwrap();
    std::fs::write(copy.path().join("vocab.json"), json["model"]["vocab"].to_string()).unwrap();
    let pair = |pair: &serde_json::Value| format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
    let merges: String = json["model"]["merges"].as_array().unwrap().iter().map(pair).collect();
    std::fs::write(copy.path().join("merges.txt"), format!("#version: 0.2\n{merges}")).unwrap();
    let files = Tokenizer::open(copy.path()).unwrap();
    let text = "Hello, world! It's 12 o'clock.\n\n<|endoftext|>Next";
    assert_eq!(files.encode(text).unwrap(), tokenizer.encode(text).unwrap());
    assert_eq!(files.eot(), tokenizer.eot());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn any_text_has_the_ids_that_the_crate_tokenizers_finds(
        text in "([a-c]{1,3}|'(s|t|re|ve|m|ll|d|S)|[ \\t\\n\\r]{1,3}|[0-9.,;!-]|[é中²\u{301}\u{a0}\u{3000}\u{85}\u{1c}]|\\PC|<\\|endoftext\\|>){0,30}"
    ) {
        thread_local! {
            static BOTH: (Tokenizer, tokenizers::Tokenizer) = (
                Tokenizer::open(&folder()).unwrap(),
                tokenizers::Tokenizer::from_file(folder().join("tokenizer.json")).unwrap(),
            );
        }
        BOTH.with(|(ours, theirs)| {
            let expected = theirs.encode(&text[..], false).unwrap();
            prop_assert_eq!(ours.encode(&text).unwrap(), expected.get_ids());
            prop_assert_eq!(ours.decode(expected.get_ids()), &text[..]);
            Ok(())
        })?;
    }
}
