//! Tests of sources: the text that files, folders and names provide.

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
fn a_column_of_csv_and_tsv_is_read_as_documents() {
    let folder = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8], &[&str]); 4] = [
        (
            "a.csv",
            b"\xef\xbb\xbfid, text\r\n1,one\r\n2,\"two, \"\"too\"\"\nthree\"\r\n3,\r\n",
            &["one", "two, \"too\"\nthree"],
        ),
        ("b.tsv", b"text\tid\none, two\t1\n\nsay \"a\"\t2", &["one, two", "say \"a\""]),
        ("c.csv.gz", &gzip(b"text\none\ntwo\n"), &["one", "two"]),
        ("d.csv", b"text\n", &[]),
    ];
    for (name, bytes, expected) in files {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        assert_eq!(texts(&path).unwrap(), expected, "{name}");
    }
}

#[test]
fn a_folder_says_which_files_train_and_validate_and_counts_those_that_do_neither() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().display().to_string();
    let note = || match find(&name).unwrap() {
        Source::Text(text) => (text.has_split(), text.note),
        Source::Tokens(tokens) => (!tokens.val.is_empty(), tokens.note),
        Source::Prepared(_) => panic!("nobody has prepared it"),
    };
    let write = |file: &str| {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "a\n").unwrap();
    };
    write("train.txt");
    assert_eq!(note(), (false, None));
    ["b/scan.pdf", "b/photo.jpg", ".hidden.pdf", "package.json"].into_iter().for_each(write);
    let left_out = "3 others are left out (1 .jpg, 1 .json, 1 .pdf)";
    assert_eq!(note(), (false, Some(format!("{name}: 1 file is read; {left_out}"))));
    ["val.txt", "test.txt"].into_iter().for_each(write);
    let left_out = "4 others are left out (1 .jpg, 1 .json, 1 .pdf, 1 of other kinds)";
    assert_eq!(note(), (true, Some(format!("{name}: 1 file trains, 1 validates; {left_out}"))));
    ["train.bin", "val.bin", "meta.pkl"].into_iter().for_each(write);
    let left_out = "5 others are left out (3 .txt, 1 .json, 1 .pkl)";
    assert_eq!(note(), (true, Some(format!("{name}: 1 file trains, 1 validates; {left_out}"))));
}

#[test]
fn the_errors_of_a_source_name_the_file_the_line_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() - 6);
        bytes
    };
    let text = "a text that is long enough to be compressed\n".repeat(20);
    let cases: [(&str, Vec<u8>, &str); 27] = [
        ("empty.txt", vec![], "is empty: give a text"),
        ("latin1.txt", b"caf\xe9".into(), "is not UTF-8 text (first bad byte at offset 3): convert it"),
        ("cut.txt", b"caf\xc3".into(), "is not UTF-8 text (first bad byte at offset 3): convert it"),
        ("a.jsonl", b"{\"text\": \"a\"}\n{\"text\": ".into(), "a.jsonl, line 2: is not JSON"),
        (
            "b.jsonl",
            b"\n{\"body\": \"a\", \"n\": 1}\n".into(),
            "b.jsonl, line 2: has no field \"text\", but body, n: name the one that holds the text as text_field",
        ),
        ("c.jsonl", b"{\"text\": 3}".into(), "c.jsonl, line 1: \"text\" is not a string"),
        (
            "g.jsonl",
            br#"{"text": "\ud83d"}"#.into(),
            "g.jsonl, line 1: has an escape from \\ud800 to \\udfff without its",
        ),
        (
            "h.jsonl",
            br#"{"text": "\ude00"}"#.into(),
            "h.jsonl, line 1: has an escape from \\ud800 to \\udfff without its",
        ),
        ("d.jsonl", b"[]".into(), "d.jsonl, line 1: is an array, not an object (`jq -c"),
        ("e.json", b"[\n{\"text\": \"a\"}\n]".into(), "e.json, line 1: is an array, not an object (`jq -c"),
        ("f.jsonl", b"3".into(), "f.jsonl, line 1: is not an object"),
        ("a.json", b"{\"text\": \"a\"}\n{\n".into(), "a.json, line 2: is not JSON"),
        ("a.txt.gz", cut(gzip(text.as_bytes())), "a.txt.gz is not whole gzip data"),
        ("b.jsonl.gz", b"no gzip".into(), "b.jsonl.gz is not whole gzip data"),
        ("a.zst", cut(zstd::encode_all(text.as_bytes(), 1).unwrap()), "a.zst is not whole zstd data"),
        (
            "a.csv",
            b"id,body\n1,a\n".into(),
            "a.csv names no column \"text\" in its first line, but id, body: name the one that holds the text as text_field",
        ),
        (
            "b.csv",
            b"id,text\n1,a\n\n2,b,c\n".into(),
            "b.csv, row 2 below the header: has 3 fields, and the header 2 columns: put fields",
        ),
        (
            "c.tsv",
            b"text\na\ncaf\xe9\n".into(),
            "c.tsv, row 2 below the header: the text in column \"text\" is not UTF-8",
        ),
        (
            "d.csv",
            [b"text\n\"".to_vec(), vec![b'a'; 65 << 20]].concat(),
            "d.csv, row 1 below the header: is longer than 67108864 bytes",
        ),
        (
            "g.csv",
            [b"id,text\n0,one\n1,\"abc\n".to_vec(), b"2,two\n".repeat(9000)].concat(),
            "g.csv, row 2 below the header: a quote opens here and is never closed: close it",
        ),
        ("h.csv", b"id,\"text\n1,a\n".into(), "h.csv, header: a quote opens here and is never closed: close it"),
        ("i.csv", b"text,id,text\na,1,b\n".into(), "i.csv, header: names column \"text\" twice: give one"),
        (
            "j.csv",
            b"id;text\n1;a\n".into(),
            "j.csv names no column \"text\" in its first line, but id;text: its columns are separated by ';': write it again",
        ),
        (
            "k.tsv",
            b"id,text\n1,a\n".into(),
            "k.tsv names no column \"text\" in its first line, but id,text: its columns",
        ),
        ("e.csv.gz", cut(gzip(b"text\none\ntwo")), "e.csv.gz is not whole gzip data"),
        ("f.csv", b"no header\n".into(), "f.csv names no column \"text\" in its first line, but no header: name"),
        ("a.parquet", b"PAR1nothing of the kindPAR1".into(), "a.parquet is not a Parquet file that can be read"),
    ];
    for (name, bytes, expected) in cases {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let message = texts(&path).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(name), "{name}: {message}");
    }
    let message = texts(Path::new("-")).unwrap_err().to_string();
    assert!(
        message.contains("data - does not exist: standard input is not read: write the text to a file"),
        "{message}"
    );
    let message = texts(Path::new("/dev/null")).unwrap_err().to_string();
    assert!(message.contains("data /dev/null is a pipe or a device, not a regular file"), "{message}");
    let run = tempfile::tempdir().unwrap();
    ["config.yaml", "metrics.jsonl"].iter().for_each(|file| fs::write(run.path().join(file), "{}").unwrap());
    assert!(texts(run.path()).unwrap_err().to_string().contains("is the folder of a run, not data: give the text"));
    let message = texts(&folder.path().join("absent.txt")).unwrap_err().to_string();
    assert!(message.contains("absent.txt does not exist: check the path"), "{message}");
    let empty = tempfile::tempdir().unwrap();
    assert!(texts(empty.path()).unwrap_err().to_string().contains("holds no text, JSONL, CSV, Parquet or .bin files"));
}

#[test]
fn lines_with_null_for_their_text_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(&path, "{\"text\": null}\n{\"text\": \"one\"}\n{\"text\": null, \"n\": 1}\n").unwrap();
    let Source::Text(source) = find(path.to_str().unwrap()).unwrap() else { panic!("tokens") };
    for _ in 0..2 {
        let mut documents = vec![];
        source
            .read("text", &mut |piece| {
                documents.push(piece.text);
                Ok(())
            })
            .unwrap();
        assert_eq!((documents, source.counts.nulls.load(Ordering::Relaxed)), (vec!["one".into()], 2));
    }
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
