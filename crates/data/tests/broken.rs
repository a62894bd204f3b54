//! Broken files of every kind end in an error, or are read if the damage is harmless. They never cause a panic, nor an
//! allocation that a number in the file dictates.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use data::{OpenOptions, PrepareOptions, Tokenizer, TokenizerSpec, open, prepare};
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use test_kit::memory::{Counting, largest_block, restart};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The largest single request that is accepted. A wrong number would ask for much at once.
const MOST: usize = 64 << 20;

/// Opens a source in a fresh cache, and reads a batch if it opens.
fn try_source(source: &Path) {
    let cache = tempfile::tempdir().unwrap();
    restart();
    for tokenizer in [None, Some(TokenizerSpec::Byte), Some(TokenizerSpec::Char)] {
        let options = OpenOptions { cache: Some(cache.path().into()), tokenizer, ..OpenOptions::default() };
        match open(source.to_str().unwrap(), &options) {
            Ok(prepared) if prepared.dataset.check(2).is_ok() => {
                prepared.dataset.train_batch(1, 0..4, 2).unwrap();
                prepared.dataset.val_batch(prepared.dataset.val_indices(0, 2), 2).unwrap();
            }
            Ok(_) => {}
            Err(error) => assert!(error.to_string().len() > 20, "{error}"),
        }
    }
    let largest = largest_block();
    assert!(largest < MOST, "{largest} bytes asked for at once");
}

fn parquet(texts: &[&str], encoding: Option<Encoding>) -> Vec<u8> {
    let schema = Arc::new(parse_message_type("message m { optional binary text (UTF8); required int32 n; }").unwrap());
    let mut bytes = Vec::new();
    let properties = match encoding {
        None => WriterProperties::builder().build(),
        Some(encoding) => WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_column_encoding("text".into(), encoding)
            .build(),
    };
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    for texts in texts.chunks(3) {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = texts.iter().map(|&text| text.into()).collect();
        let (mut levels, nulls) = (vec![1; values.len()], [0]); // a null after each group
        levels.extend(nulls);
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let numbers: Vec<i32> = (0..levels.len() as i32).collect();
        column.typed::<parquet::data_type::Int32Type>().write_batch(&numbers, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const LINES: &[u8] = b"{\"text\": \"one \\u00e9 two\", \"n\": [1, {}]}\n{\"text\": \"three\\nfour\"}\n";

const PARQUET: [&str; 5] = ["one two", "three", "", "four é", "five"];

/// Intact files of every kind, to be damaged.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let tokens: Vec<u8> = (0..60u32).flat_map(u32::to_le_bytes).collect();
    let header = |words: [u32; 3]| {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(1024, 0);
        [&bytes[..], &tokens].concat()
    };
    vec![
        ("a.jsonl", LINES.into()),
        ("a.jsonl.gz", gzip(LINES)),
        ("a.jsonl.zst", zstd::encode_all(LINES, 1).unwrap()),
        ("a.txt", "one é two\n三\n".repeat(9).into()),
        ("u16.bin", header([20_240_520, 1, 120])),
        ("u32.bin", header([20_240_801, 7, 60])),
        ("a.parquet", parquet(&PARQUET, None)),
        ("lengths.parquet", parquet(&PARQUET, Some(Encoding::DELTA_LENGTH_BYTE_ARRAY))),
        ("prefixes.parquet", parquet(&PARQUET, Some(Encoding::DELTA_BYTE_ARRAY))),
    ]
}

/// Damage: bytes overwritten at random positions, and possibly a truncation.
fn damage() -> impl Strategy<Value = (Vec<(prop::sample::Index, u8)>, Option<prop::sample::Index>)> {
    let bytes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    (bytes, prop::option::weighted(0.2, any::<prop::sample::Index>()))
}

fn damaged(mut bytes: Vec<u8>, (at, cut): &(Vec<(prop::sample::Index, u8)>, Option<prop::sample::Index>)) -> Vec<u8> {
    for (index, byte) in at {
        let index = index.index(bytes.len());
        bytes[index] = *byte;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes
}

#[test]
fn the_files_are_read_when_they_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files() {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let options = OpenOptions { cache: Some(folder.path().join("cache")), ..OpenOptions::default() };
        let prepared = open(path.to_str().unwrap(), &options).unwrap();
        if name.ends_with(".parquet") {
            let meta = prepared.meta.unwrap();
            assert_eq!((meta.documents, meta.text_bytes), (4, 7 + 5 + 7 + 4));
        }
    }
    let path = folder.path().join("a.parquet");
    let refused = |field: &str| {
        let options = OpenOptions { text_field: field.into(), ..OpenOptions::default() };
        open(path.to_str().unwrap(), &options).unwrap_err().to_string()
    };
    let message = refused("body");
    assert!(message.contains("a.parquet has no column \"body\" of strings, but text, n: name the one"), "{message}");
    let message = refused("n");
    assert!(
        message.starts_with("column \"n\" of ") && message.contains(" holds INT32, not strings: name"),
        "{message}"
    );
    // The name of the column, then its codec: 0 is none, and 4 is Brotli, whose zigzag encoding is 8.
    let mut bytes = fs::read(&path).unwrap();
    let codecs: Vec<usize> = (9..bytes.len()).filter(|&at| bytes[..at].ends_with(b"\x18\x04text\x15\x00")).collect();
    codecs.iter().for_each(|at| bytes[at - 1] = 8);
    fs::write(&path, bytes).unwrap();
    let message = refused("text");
    assert!(
        message.contains("(Parquet error: its text is compressed by BROTLI, and Snappy, gzip, LZ4 and"),
        "{message}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_sources_do_no_harm(damage in damage(), which in 0usize..9) {
        let folder = tempfile::tempdir().unwrap();
        let (name, bytes) = files().swap_remove(which);
        let path = folder.path().join(name);
        fs::write(&path, damaged(bytes, &damage)).unwrap();
        try_source(&path);
    }

    #[test]
    fn arbitrary_bytes_under_any_name_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..3000), which in 0usize..9) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(files()[which].0);
        fs::write(&path, bytes).unwrap();
        try_source(&path);
    }

    #[test]
    fn damaged_folders_do_no_harm(damage in damage(), which in 0usize..4, char: bool) {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("a.txt");
        fs::write(&text, "to be or not to be").unwrap();
        let out = folder.path().join("out");
        let spec = if char { TokenizerSpec::Char } else { TokenizerSpec::Byte };
        prepare(text.to_str().unwrap(), &spec, &out, &PrepareOptions::default()).unwrap();
        let path = out.join(["meta.json", "tokenizer.json", "tokenizer_config.json", "train-000000.bin"][which]);
        fs::write(&path, damaged(fs::read(&path).unwrap(), &damage)).unwrap();
        try_source(&out);
    }

    #[test]
    fn damaged_tokenizers_do_no_harm(damage in damage(), text: String) {
        let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/tokenizer/tokenizer.json");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, damaged(fs::read(reference).unwrap(), &damage)).unwrap();
        restart();
        if let Ok(tokenizer) = Tokenizer::open(&path) {
            _ = tokenizer.encode(&text).map(|tokens| tokenizer.decode(&tokens));
            tokenizer.decode(&[0, 499, 500, u32::MAX]);
        }
        prop_assert!(largest_block() < MOST);
    }
}
