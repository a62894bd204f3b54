//! Limits of what a hostile file may cost: memory is counted while such files are read.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;

use data::{OpenOptions, open};
use test_kit::memory::{Counting, held, most_held, restart};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs one test at a time, because each would count the others' memory.
static ALONE: Mutex<()> = Mutex::new(());

/// The result of opening a source, and the peak of additional bytes held while it was opened.
fn opened(source: &Path) -> (String, usize) {
    let cache = tempfile::tempdir().unwrap();
    let options = OpenOptions { cache: Some(cache.path().into()), ..OpenOptions::default() };
    let before = held();
    restart();
    let result = open(source.to_str().unwrap(), &options);
    let most = most_held() - before;
    (result.map_or_else(|error| error.to_string(), |prepared| prepared.dataset.train_tokens().to_string()), most)
}

#[test]
fn a_long_line_costs_its_own_length_and_not_a_tree_of_its_values() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let (number, nested) = ("1,".repeat(4 << 20), "[".repeat(4 << 20) + &"]".repeat(4 << 20));
    for values in [&format!("[{number}1]"), &nested] {
        fs::write(&path, format!("{{\"n\": {values}, \"text\": \"to be or not to be\"}}\n")).unwrap();
        let (result, most) = opened(&path);
        assert_eq!(result, "17", "of 19 tokens, the last two validate");
        assert!(most < 5 * values.len(), "{most} bytes for a line of {}", values.len());
    }
    fs::write(&path, format!("{{\"n\": \"{}\"}}\n", "a".repeat(70 << 20))).unwrap();
    let (result, most) = opened(&path);
    assert!(result.contains("a.jsonl, line 1: is longer than 67108864 bytes"), "{result}");
    assert!(most < 200 << 20, "{most}");
}

#[test]
fn a_file_that_unpacks_to_far_more_than_text_is_an_error_that_says_how_to_insist() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let gzip = |bytes| {
        let (text, mut packed) = (std::io::repeat(b'a').take(bytes), Vec::new());
        flate2::read::GzEncoder::new(text, flate2::Compression::best()).read_to_end(&mut packed).unwrap();
        packed
    };
    let (gz, small) = (gzip(70 << 20), gzip(10 << 20));
    let zst = zstd::encode_all(std::io::repeat(b'a').take(70 << 20), 1).unwrap();
    for (name, bytes, command) in [("a.txt.gz", &gz, "gzip -dk"), ("a.txt.zst", &zst, "zstd -dk")] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let (result, most) = opened(&path);
        let expected = format!("if you trust it, unpack it yourself (`{command} {}`)", path.display());
        assert!(result.contains("unpacks to far more than text does (67") && result.contains(&expected), "{result}");
        assert!(most < 300 << 20, "{most}");
    }
    fs::write(folder.path().join("b.txt.gz"), small).unwrap();
    assert_eq!(opened(&folder.path().join("b.txt.gz")).0, ((10 << 20) * 9 / 10).to_string());
}
