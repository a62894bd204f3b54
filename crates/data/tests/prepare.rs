//! Tests from files on disk to batches.

use std::fs;
use std::path::Path;
use std::thread;

use data::{DataError, Meta, OpenOptions, PrepareOptions, Prepared, Tokenizer, TokenizerSpec, open, prepare};

fn options(cache: &Path) -> OpenOptions {
    OpenOptions { cache: Some(cache.into()), ..OpenOptions::default() }
}

/// All tokens: training tokens, then validation tokens.
fn tokens(prepared: &Prepared) -> Vec<u32> {
    let dataset = &prepared.dataset;
    // Windows of one token. The last token of a split is only a target.
    let val = dataset.val_batch(dataset.val_indices(0, 1), 1).unwrap();
    let mut train = dataset.train_batch(0, 0..dataset.epoch_sequences(1), 1).unwrap();
    train.inputs.sort_unstable();
    [train.inputs, val.inputs].concat().into_iter().map(|token| token as u32).collect()
}

#[test]
fn a_text_file_is_one_document_without_an_end_token_of_which_the_last_tenth_validates() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "\u{feff}one\r\ntwo").unwrap();
    let prepared = open(path.to_str().unwrap(), &options(folder.path())).unwrap();
    let meta = prepared.meta.as_ref().unwrap();
    assert_eq!((meta.documents, meta.text_bytes, meta.tokens, meta.val_tokens, meta.eot), (1, 11, 11, 2, None));
    assert_eq!(prepared.name, path.display().to_string());
    assert_eq!(prepared.vocab_size(), Some(256));
    assert_eq!(tokens(&prepared).len(), 9 - 1 + 2 - 1);
}

#[test]
fn several_documents_end_in_the_end_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(&path, "{\"body\": \"ab\"}\n{\"body\": \"ba\"}\n").unwrap();
    let out = folder.path().join("out");
    let prepare_options = PrepareOptions { text_field: "body".into(), shard_tokens: 4, ..PrepareOptions::default() };
    let meta = prepare(path.to_str().unwrap(), &TokenizerSpec::Char, &out, &prepare_options).unwrap();
    assert_eq!((meta.documents, meta.text_bytes, meta.tokens, meta.eot), (2, 4, 6, Some(0)));
    assert_eq!(meta.shards.iter().map(|shard| shard.tokens).collect::<Vec<_>>(), [4, 2]);
    let bytes: Vec<u8> = fs::read(out.join("train-000000.bin")).unwrap()[1024..].into();
    assert_eq!(bytes, [1, 0, 2, 0, 0, 0, 2, 0]); // a b end b
    let prepared = open(out.to_str().unwrap(), &options(folder.path())).unwrap();
    assert_eq!(prepared.tokenizer.unwrap().decode(&[1, 2]), "ab");
    let error = prepare(path.to_str().unwrap(), &TokenizerSpec::Char, &out, &prepare_options).unwrap_err();
    assert!(matches!(error, DataError::Exists { .. }), "{error}");
}

#[test]
fn a_bpe_is_learned_from_the_text_that_it_then_encodes() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("a.txt"), folder.path().join("out/"));
    let text = "the cat sat on the mat ".repeat(100);
    fs::write(&path, &text).unwrap();
    let prepare_options = PrepareOptions { train_bpe: Some(264), ..PrepareOptions::default() };
    let meta = prepare(path.to_str().unwrap(), &TokenizerSpec::Byte, &out, &prepare_options).unwrap();
    assert_eq!((meta.vocab_size, &meta.tokenizer[..]), (264, "bpe of 264 tokens, learned from the text"));
    assert!(meta.tokens < meta.text_bytes / 2);
    let tokenizer =
        open(out.to_str().unwrap(), &options(tempfile::tempdir().unwrap().path())).unwrap().tokenizer.unwrap();
    assert_eq!(tokenizer.encode(&text).unwrap().len() as u64, meta.tokens);
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["a.txt", "out"]);
}

#[test]
fn nothing_is_left_of_a_folder_that_could_not_be_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(&path, "{\"text\": \"a\"}\n{").unwrap();
    let out = folder.path().join("out");
    prepare(path.to_str().unwrap(), &TokenizerSpec::Byte, &out, &PrepareOptions::default()).unwrap_err();
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".out.lock", "a.jsonl"]);
}

#[test]
fn what_cannot_be_encoded_is_an_error_with_its_source_and_document() {
    let folder = tempfile::tempdir().unwrap();
    Tokenizer::char("ab \n").save(folder.path()).unwrap();
    let path = folder.path().join("a.jsonl");
    // The third document has several pieces.
    let line = |text: String| format!("{{\"text\": \"{text}\"}}\n");
    fs::write(&path, [line("a".into()), line("b".into()), line("ab ".repeat(100_000) + "c")].concat()).unwrap();
    let spec = TokenizerSpec::Path(folder.path().into());
    let error =
        prepare(path.to_str().unwrap(), &spec, &folder.path().join("out"), &PrepareOptions::default()).unwrap_err();
    let expected = format!("{}, document 3: character 'c' at byte 300000 is not one of the 4", path.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[test]
fn pieces_have_the_tokens_of_the_whole_text() {
    // A megabyte, so several pieces, with everything that patterns treat differently around line breaks.
    let unit =
        "fn main() {\n\n    let x = 12;\t// it's a test\r\n}\n \n\nText ends\n\nhere. And so, on\n一二三。\nstop";
    let text = (0..10_000).map(|i| format!("{unit}{i}")).collect::<String>();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, &text).unwrap();
    let tokenizer = Tokenizer::train_bpe([text[..10_000].to_string()].into_iter(), 400).unwrap();
    tokenizer.save(folder.path()).unwrap();
    let spec = TokenizerSpec::Path(folder.path().into());
    let out = folder.path().join("out");
    let meta = prepare(path.to_str().unwrap(), &spec, &out, &PrepareOptions::default()).unwrap();
    assert!(meta.text_bytes > 900_000);
    let bytes = fs::read(out.join("train-000000.bin")).unwrap();
    let found: Vec<u32> =
        bytes[1024..].chunks(2).map(|bytes| u32::from(u16::from_le_bytes([bytes[0], bytes[1]]))).collect();
    assert!(found == tokenizer.encode(&text).unwrap());
}

#[test]
fn the_cache_is_made_once_by_any_number_of_threads_and_depends_on_text_and_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let cached = || fs::read_dir(folder.path().join("cache/prepared")).unwrap().count();
    fs::write(&path, "to be or not to be ".repeat(1000)).unwrap();
    let open = |spec: &TokenizerSpec| {
        let cache = folder.path().join("cache");
        let options = OpenOptions { tokenizer: Some(spec.clone()), ..options(&cache) };
        data::open(path.to_str().unwrap(), &options).unwrap()
    };
    let metas: Vec<Meta> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&TokenizerSpec::Byte).meta.unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(metas.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(cached(), 1);
    open(&TokenizerSpec::Char);
    assert_eq!(cached(), 2);
    fs::write(&path, "another text ".repeat(100)).unwrap();
    open(&TokenizerSpec::Char);
    assert_eq!(cached(), 3);
}

#[test]
fn damage_in_the_cache_is_an_error_that_says_which_folder_to_delete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "to be or not to be").unwrap();
    let open = || open(path.to_str().unwrap(), &options(folder.path()));
    open().unwrap();
    let prepared = fs::read_dir(folder.path().join("prepared")).unwrap().next().unwrap().unwrap().path();
    fs::write(prepared.join("meta.json"), "").unwrap();
    let message = open().unwrap_err().to_string();
    let expected = format!("the prepared data {} in the cache is damaged: delete", prepared.display());
    assert!(message.contains(&expected) && message.contains("meta.json: EOF"), "{message}");
    fs::remove_dir_all(prepared).unwrap();
    open().unwrap();
}

#[test]
fn token_files_are_used_as_they_are_and_checked_against_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.bin");
    let bytes: Vec<u8> = (0..400u16).flat_map(u16::to_le_bytes).collect();
    fs::write(&file, bytes).unwrap();
    let prepared = open(file.to_str().unwrap(), &options(folder.path())).unwrap();
    assert_eq!((prepared.dataset.train_tokens(), prepared.dataset.val_tokens()), (360, 40));
    assert_eq!(prepared.vocab_size(), None);
    let with = |spec, val_fraction| {
        let options = OpenOptions { tokenizer: Some(spec), val_fraction, ..options(folder.path()) };
        open(file.to_str().unwrap(), &options).unwrap_err().to_string()
    };
    assert!(with(TokenizerSpec::Byte, None).contains("token 256 at position 256 is not below the vocabulary of 256"));
    assert!(with(TokenizerSpec::Char, None).contains("do not identify their tokenizer"));
    for fraction in [0.0, -0.1, 1.5, f64::NAN] {
        let expected =
            format!("val_fraction is {fraction}: give a fraction above 0 and at most 1, such as 0.1 for a tenth");
        assert_eq!(with(TokenizerSpec::Byte, Some(fraction)), expected);
    }
}

#[test]
fn another_tokenizer_than_a_prepared_folders_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "abcabcabc").unwrap();
    let out = folder.path().join("out");
    prepare(path.to_str().unwrap(), &TokenizerSpec::Byte, &out, &PrepareOptions::default()).unwrap();
    let open = |spec| open(out.to_str().unwrap(), &OpenOptions { tokenizer: Some(spec), ..options(folder.path()) });
    open(TokenizerSpec::Byte).unwrap();
    let message = open(TokenizerSpec::Char).unwrap_err().to_string();
    assert!(message.contains("were made with another tokenizer than char"), "{message}");
}

#[test]
fn a_shard_that_is_not_what_was_written_is_an_error_until_it_is_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "to be or not to be").unwrap();
    let out = folder.path().join("out");
    let prepare_options = PrepareOptions { shard_tokens: 8, ..PrepareOptions::default() };
    let meta = prepare(path.to_str().unwrap(), &TokenizerSpec::Byte, &out, &prepare_options).unwrap();
    assert_eq!(meta.shards.len(), 3);
    let open = || open(out.to_str().unwrap(), &options(folder.path())).map(drop);
    let checked = || fs::read_dir(folder.path().join("checked")).map_or(0, Iterator::count);
    open().unwrap();
    open().unwrap();
    assert_eq!(checked(), 1, "once");
    let shard = out.join(&meta.shards[1].file);
    let bytes = fs::read(&shard).unwrap();
    let mut damaged = bytes.clone();
    damaged.swap(1024, 1026);
    fs::write(&shard, damaged).unwrap();
    for _ in 0..2 {
        let message = open().unwrap_err().to_string();
        assert!(message.contains("train-000001.bin: is not the file that was written: its SHA-256 is "), "{message}");
        assert!(message.contains(meta.shards[1].sha256.as_ref().unwrap()), "{message}");
    }
    fs::write(&shard, bytes).unwrap();
    open().unwrap();
    assert_eq!(checked(), 2);
}

#[test]
fn a_tokenizer_with_a_pattern_without_end_is_an_error_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let model = r#"{"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}"#;
    let split = r#"{"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated", "invert": false}"#;
    let replace = r#"{"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": "a"}"#;
    let path = folder.path().join("a.jsonl");
    fs::write(&path, format!("{{\"text\": \"b\"}}\n{{\"text\": \"{}b\"}}\n", "a".repeat(5000))).unwrap();
    for (part, problem) in [("pre_tokenizer", split), ("normalizer", replace), ("decoder", replace)] {
        let json = format!(r#"{{"version": "1.0", "added_tokens": [], "model": {model}, "{part}": {problem}}}"#);
        fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        let spec = TokenizerSpec::Path(folder.path().join("tokenizer.json"));
        let out = folder.path().join(part);
        let message = prepare(path.to_str().unwrap(), &spec, &out, &PrepareOptions::default()).unwrap_err().to_string();
        let expected = if part == "decoder" { "which is not supported" } else { "take" };
        assert!(message.contains(expected) && message.contains("long") != (part == "decoder"), "{part}: {message}");
        assert!(part == "decoder" || message.contains("document 2"), "{part}: {message}");
    }
}

#[test]
fn a_folder_with_files_for_both_trains_on_one_and_validates_on_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("text");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("train.txt"), "abcabc").unwrap();
    fs::write(source.join("val.txt"), "cab").unwrap();
    fs::write(source.join("notes.md"), "xyz").unwrap();
    let cache = folder.path().join("cache");
    let spec = Some(TokenizerSpec::Char);
    // A fraction would apply to the end of all text, but the files take precedence.
    for val_fraction in [None, Some(0.5)] {
        let options = OpenOptions { tokenizer: spec.clone(), val_fraction, ..options(&cache) };
        let prepared = open(source.to_str().unwrap(), &options).unwrap();
        assert!(prepared.has_split);
        assert_eq!((prepared.dataset.train_tokens(), prepared.dataset.val_tokens()), (7, 4), "each with its end");
        assert_eq!(prepared.dataset.val_batch([0], 3).unwrap().inputs, [3, 1, 2]);
        assert_eq!(prepared.vocab_size(), Some(4), "of both files, and an end");
    }
    let out = folder.path().join("out");
    let prepare_options = PrepareOptions { val_fraction: Some(0.5), ..PrepareOptions::default() };
    let meta = prepare(source.to_str().unwrap(), &TokenizerSpec::Char, &out, &prepare_options).unwrap();
    assert_eq!((meta.tokens, meta.val_tokens), (11, 4));
}

#[test]
fn data_of_their_own_validate_with_the_tokenizer_of_those_that_train() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let tokens = |tokens: &[u16]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
    fs::write(path("text.txt"), "abcabcabcabcabcabcab").unwrap();
    fs::write(path("wiki.txt"), "ccc").unwrap();
    fs::write(path("other.txt"), "xyz").unwrap();
    fs::create_dir(path("tokens")).unwrap();
    fs::write(path("tokens/train.bin"), tokens(&[1; 9])).unwrap();
    fs::write(path("tokens/val.bin"), tokens(&[2; 5])).unwrap();
    let options = OpenOptions { tokenizer: Some(TokenizerSpec::Char), ..options(&folder.path().join("cache")) };
    let mut prepared = open(&path("text.txt"), &options).unwrap();
    assert_eq!((prepared.dataset.train_tokens(), prepared.dataset.val_tokens()), (18, 2));
    let open_set = |name: &str| prepared.open_validation(&path(name), &options);
    let sets = [open_set("wiki.txt").unwrap(), open_set("tokens").unwrap()];
    assert_eq!(sets.each_ref().map(|set| (set.train_tokens(), set.val_tokens())), [(0, 3), (0, 5)]);
    assert_eq!(sets[0].val_batch([0], 2).unwrap().inputs, [2, 2]);
    let error = open_set("other.txt").unwrap_err().to_string();
    assert!(error.contains("character 'x' at byte 0 is not one of the 3 characters"), "{error}");
    let before = prepared.fingerprint().unwrap();
    prepared.validate_on(&sets);
    assert_eq!((prepared.dataset.train_tokens(), prepared.dataset.val_tokens()), (20, 8), "all of its own trains");
    assert_ne!(prepared.fingerprint().unwrap(), before);

    let mut blind = open(&path("tokens"), &self::options(folder.path())).unwrap();
    let error = blind.open_validation(&path("wiki.txt"), &options).unwrap_err().to_string();
    assert!(error.contains("wiki.txt is text, and the data that trains are tokens without a tokenizer"), "{error}");
    blind.validate_on(&sets[..1]);
    assert_eq!(
        (blind.dataset.train_tokens(), blind.dataset.val_tokens()),
        (9, 3),
        "what validated still does not train"
    );
}

#[test]
fn a_fingerprint_is_of_the_tokens_wherever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "The five boxing wizards jump quickly. ".repeat(100);
    let fingerprint =
        |name: &str| open(&path(name), &options(&folder.path().join("cache"))).unwrap().fingerprint().unwrap();
    fs::write(path("a.txt"), &text).unwrap();
    fs::write(path("b.txt"), &text).unwrap();
    fs::write(path("c.txt"), text.replacen("boxing", "foxing", 1)).unwrap();
    fs::write(path("d.bin"), text.bytes().flat_map(|byte| [byte, 0]).collect::<Vec<u8>>()).unwrap();
    fs::write(path("e.bin"), text[1..].bytes().flat_map(|byte| [byte, 0]).collect::<Vec<u8>>()).unwrap();
    assert_eq!(fingerprint("a.txt"), fingerprint("b.txt"));
    assert_eq!(fingerprint("a.txt").len(), 32);
    let all: std::collections::BTreeSet<_> = ["a.txt", "c.txt", "d.bin", "e.bin"].map(fingerprint).into();
    assert_eq!(all.len(), 4);
}

#[test]
fn the_largest_token_is_found_in_either_split() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |tokens: &[u16]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
    let mut train = vec![3u16; 2_500_000];
    for (at, token, val, expected) in [(0, 50256, 7, 50256), (2_499_999, 300, 7, 300), (1_048_576, 3, 65535, 65535)] {
        train.fill(3);
        train[at] = token;
        fs::write(folder.path().join("train.bin"), bytes(&train)).unwrap();
        fs::write(folder.path().join("val.bin"), bytes(&[val; 9])).unwrap();
        let prepared = open(folder.path().to_str().unwrap(), &options(folder.path())).unwrap();
        assert_eq!(prepared.vocab_size(), None);
        assert_eq!(prepared.dataset.largest_token(false).unwrap(), Some(expected));
    }
}
