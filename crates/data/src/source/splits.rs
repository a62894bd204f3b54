//! Divides a folder's files into training and validation files by their names, and describes the rest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::files::TextFile;
use crate::error::count;

/// Extensions of files that may form a split. `train.py` is source code.
const DATA: &[&str] = &["txt", "text", "json", "jsonl", "ndjson", "csv", "tsv", "parquet"];

/// How many kinds of files a note names.
const NAMED_KINDS: usize = 3;

/// The training files, the validation files, and the others. All files train unless there are files for both splits,
/// such as `train.txt` and `val.txt`, or `train-00000-of-00002.parquet` and `validation-00000-of-00001.parquet`.
pub fn split(files: Vec<TextFile>) -> [Vec<TextFile>; 3] {
    let is_of = |names: &'static [&str]| {
        move |file: &TextFile| split_name(&file.path).is_some_and(|name| names.contains(&&*name))
    };
    let (trains, validates) = (is_of(&["train"]), is_of(&["val", "valid", "validation"]));
    if !files.iter().any(&trains) || !files.iter().any(&validates) {
        return [files, vec![], vec![]];
    }
    let (train, others): (Vec<_>, Vec<_>) = files.into_iter().partition(&trains);
    let (val, others) = others.into_iter().partition(&validates);
    [train, val, others]
}

/// The first word of a file's name, if only a number follows it.
fn split_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_lowercase();
    let (stem, endings) = name.split_once('.')?;
    if !endings.split('.').any(|ending| DATA.contains(&ending)) {
        return None;
    }
    let word = stem.split(['-', '_']).next()?;
    let number = stem[word.len()..].trim_start_matches(['-', '_']);
    (number.is_empty() || number.starts_with(|c: char| c.is_ascii_digit())).then(|| word.into())
}

/// A note for the user about a folder's files: how many train and validate, and what is left out. None if all files
/// train.
pub fn note(folder: &str, [train, val]: [usize; 2], left_out: &[PathBuf]) -> Option<String> {
    if val == 0 && left_out.is_empty() {
        return None;
    }
    let (files, verb) = (count(train as u64, "file"), |number| if number == 1 { "s" } else { "" });
    let mut note = match val {
        0 => format!("{folder}: {files} {} read", if train == 1 { "is" } else { "are" }),
        _ => format!("{folder}: {files} train{}, {val} validate{}", verb(train), verb(val)),
    };
    if !left_out.is_empty() {
        let number = left_out.len();
        let (others, are) = if number == 1 { ("other", "is") } else { ("others", "are") };
        note += &format!("; {number} {others} {are} left out ({})", kinds(left_out));
    }
    Some(note)
}

/// Counts files by extension, the most frequent first.
fn kinds(files: &[PathBuf]) -> String {
    let mut kinds = BTreeMap::<String, usize>::new();
    for file in files {
        let ending = file.extension().map(|ending| format!(".{}", ending.to_string_lossy().escape_debug()));
        *kinds.entry(ending.unwrap_or_else(|| "without an ending".into())).or_default() += 1;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, number)| std::cmp::Reverse(*number)); // stable: equal counts stay in alphabetical order
    let rest: usize = kinds.iter().skip(NAMED_KINDS).map(|(_, number)| number).sum();
    let mut named: Vec<String> =
        kinds.iter().take(NAMED_KINDS).map(|(ending, number)| format!("{number} {ending}")).collect();
    named.extend((rest > 0).then(|| format!("{rest} of other kinds")));
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_split_by_names_of_data_where_there_are_files_for_both() {
        let split = |names: &[&str]| split(names.iter().map(|name| TextFile::new(name.into())).collect());
        let names = |files: &[TextFile]| files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>();
        for (given, train, val, others) in [
            (
                &["a/test.txt", "a/train.txt", "a/val.txt"][..],
                &["a/train.txt"][..],
                &["a/val.txt"][..],
                &["a/test.txt"][..],
            ),
            (&["Train.JSONL.gz", "valid.jsonl"], &["Train.JSONL.gz"], &["valid.jsonl"], &[]),
            (
                &["train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "validation-00000-of-00001.parquet"],
                &["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
                &["validation-00000-of-00001.parquet"],
                &[],
            ),
            (&["train.txt", "b.txt"], &["train.txt", "b.txt"], &[], &[]),
            (&["b.txt", "val.txt"], &["b.txt", "val.txt"], &[], &[]),
            (&["train.py", "val.py"], &["train.py", "val.py"], &[], &[]),
            (&["training.txt", "val.txt"], &["training.txt", "val.txt"], &[], &[]),
            (&["train-notes.txt", "val.txt"], &["train-notes.txt", "val.txt"], &[], &[]),
        ] {
            assert_eq!(split(given).map(|files| names(&files)), [train, val, others].map(|n| n.to_vec()), "{given:?}");
        }
    }

    #[test]
    fn what_is_left_out_is_counted_by_kind() {
        let files = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let note = |counts, names: &[&str]| note("d", counts, &files(names));
        assert_eq!(note([3, 0], &[]), None);
        assert_eq!(note([1, 2], &[]).unwrap(), "d: 1 file trains, 2 validate");
        assert_eq!(note([2, 1], &["a.md"]).unwrap(), "d: 2 files train, 1 validates; 1 other is left out (1 .md)");
        let many = ["a.pdf", "b.jpg", "c.pdf", "LICENSE", "d.x", "e.y"];
        assert_eq!(
            note([1, 0], &many).unwrap(),
            "d: 1 file is read; 6 others are left out (2 .pdf, 1 .jpg, 1 .x, 2 of other kinds)"
        );
    }
}
