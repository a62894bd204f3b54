use std::io::Write;

use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

fn texts(source: &Path) -> Result<Vec<String>, DataError> {
    let Source::Text(source) = find(source.to_str().unwrap())? else { panic!("tokens") };
    let (mut documents, mut open) = (Vec::new(), String::new());
    source.read("text", &mut |piece| {
        open.push_str(&piece.text);
        if piece.end {
            documents.push(std::mem::take(&mut open));
        }
        Ok(())
    })?;
    assert!(open.is_empty());
    Ok(documents)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_folder_is_its_text_files_in_order_of_their_paths_of_every_kind() {
    let folder = tempfile::tempdir().unwrap();
    let lines = b"\xef\xbb\xbf{\"text\": \"e\", \"n\": 1}\n\n{\"text\": \"\"}\n{\"text\": \"f\"}";
    let files: [(&str, Vec<u8>); 9] = [
        ("a.txt", b"a".into()),
        ("b/c.rs", b"b".into()),
        ("b/d.md.gz", gzip(b"c")),
        ("b/e.txt.zst", zstd::encode_all(&b"d"[..], 1).unwrap()),
        ("c.jsonl.gz", gzip(lines)),
        ("d.json.gz", gzip(b"{\"text\": \"g\"}")),
        ("package.json", b"{}".into()),
        ("photo.jpg", b"\xff".into()),
        (".hidden.txt", b"\xff".into()),
    ];
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(texts(folder.path()).unwrap(), ["a", "b", "c", "d", "e", "f", "g"]);
}

#[test]
fn the_folders_of_nanogpt_and_llmc_are_recognized() {
    let names =
        [["train.bin", "val.bin", "meta.pkl"], ["x_train_000001.bin", "x_val_000000.bin", "x_train_000000.bin"]];
    for names in names {
        let folder = tempfile::tempdir().unwrap();
        names.iter().for_each(|name| fs::write(folder.path().join(name), [0; 4]).unwrap());
        let Source::Tokens(files) = find(folder.path().to_str().unwrap()).unwrap() else { panic!() };
        let mut train: Vec<_> = names.iter().filter(|name| name.contains("train")).collect();
        train.sort();
        assert!(files.train.iter().eq(&train.iter().map(|name| folder.path().join(name)).collect::<Vec<_>>()));
        assert_eq!(files.val, [folder.path().join(names[1])]);
    }
}

#[test]
fn token_files_of_other_names_train_and_another_meta_json_makes_no_prepared_folder() {
    let folder = tempfile::tempdir().unwrap();
    let found = || find(folder.path().to_str().unwrap()).unwrap();
    fs::write(folder.path().join("meta.json"), "{\"title\": \"a book\"}").unwrap();
    fs::write(folder.path().join("a.txt"), "a").unwrap();
    assert!(matches!(found(), Source::Text(_)));
    ["b.bin", "a.bin"].iter().for_each(|name| fs::write(folder.path().join(name), [0; 4]).unwrap());
    assert!(matches!(found(), Source::Text(_)));
    fs::remove_file(folder.path().join("a.txt")).unwrap();
    let Source::Tokens(files) = found() else { panic!() };
    assert_eq!((files.train, files.val), (["a.bin", "b.bin"].map(|name| folder.path().join(name)).into(), vec![]));
    fs::write(folder.path().join("meta.json"), "{\"shards\": [").unwrap();
    assert!(matches!(found(), Source::Prepared(_)));
    fs::write(folder.path().join("meta.json"), "").unwrap();
    assert!(matches!(found(), Source::Tokens(_)));
    fs::write(folder.path().join("train-000000.bin"), [0; 4]).unwrap();
    assert!(matches!(found(), Source::Prepared(_)), "whose meta.json is damaged");
}

#[test]
fn the_errors_of_a_source_name_the_file_the_line_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() - 6);
        bytes
    };
    let text = "a text that is long enough to be compressed\n".repeat(20);
    let cases: [(&str, Vec<u8>, &str); 14] = [
        ("empty.txt", vec![], "is empty: give a text"),
        ("latin1.txt", b"caf\xe9".into(), "is not UTF-8 text (first bad byte at offset 3): convert it"),
        ("cut.txt", b"caf\xc3".into(), "is not UTF-8 text (first bad byte at offset 3): convert it"),
        ("a.jsonl", b"{\"text\": \"a\"}\n{\"text\": ".into(), "a.jsonl, line 2: is not JSON"),
        (
            "b.jsonl",
            b"\n{\"body\": \"a\", \"n\": 1}\n".into(),
            "b.jsonl, line 2: has no field \"text\", but body, n: name the one that holds the text as data.text_field",
        ),
        ("c.jsonl", b"{\"text\": 3}".into(), "c.jsonl, line 1: \"text\" is not a string"),
        ("d.jsonl", b"[]".into(), "d.jsonl, line 1: is an array, not an object (`jq -c"),
        ("e.json", b"[\n{\"text\": \"a\"}\n]".into(), "e.json, line 1: is an array, not an object (`jq -c"),
        ("f.jsonl", b"3".into(), "f.jsonl, line 1: is not an object"),
        ("a.json", b"{\"text\": \"a\"}\n{\n".into(), "a.json, line 2: is not JSON"),
        ("a.txt.gz", cut(gzip(text.as_bytes())), "a.txt.gz is not whole gzip data"),
        ("b.jsonl.gz", b"no gzip".into(), "b.jsonl.gz is not whole gzip data"),
        ("a.zst", cut(zstd::encode_all(text.as_bytes(), 1).unwrap()), "a.zst is not whole zstd data"),
        ("a.parquet", b"PAR1nothing of the kindPAR1".into(), "a.parquet is not a Parquet file that can be read"),
    ];
    for (name, bytes, expected) in cases {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let message = texts(&path).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(name), "{name}: {message}");
    }
    let message = texts(&folder.path().join("absent.txt")).unwrap_err().to_string();
    assert!(message.contains("absent.txt does not exist: check the path"), "{message}");
    let empty = tempfile::tempdir().unwrap();
    assert!(texts(empty.path()).unwrap_err().to_string().contains("holds no text, JSONL, Parquet or .bin files"));
}

#[test]
fn a_file_that_ends_where_a_piece_is_full_ends_its_document() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    for text in ["a".repeat(4 << 20), "é".repeat(4 << 20)] {
        fs::write(&path, &text).unwrap();
        assert!(texts(&path).unwrap() == [text]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn a_file_is_read_in_pieces_that_join_to_it(unit in "(\\PC|[ \\na-z]){1,300}", times in 1usize..3000) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        let text = unit.repeat(times);
        fs::write(&path, &text).unwrap();
        prop_assert!(texts(&path).unwrap().concat() == text);
    }
}
