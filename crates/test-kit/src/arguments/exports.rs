//! Finds the public functions of a crate by reading its source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the functions, and the methods as `Type::method`, that a crate of the workspace exports without features.
///
/// # Panics
/// If there is no such crate.
pub fn exported(name: &str) -> BTreeSet<String> {
    let src = &Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
    let mut names = BTreeSet::new();
    module(&src.join("lib.rs"), src, &mut names);
    let is_type = |name: &String| name.starts_with(char::is_uppercase);
    let types: BTreeSet<String> = names.iter().filter(|name| is_type(name)).cloned().collect();
    names.retain(|name| !is_type(name));
    methods(src, &types, &mut names);
    names
}

/// Collects the exports of a module's file, whose submodules are in `folder`.
fn module(file: &Path, folder: &Path, names: &mut BTreeSet<String>) {
    let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut of_feature = false;
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let item = line.strip_prefix("pub ").filter(|_| !of_feature);
        of_feature = line.starts_with("#[cfg(feature") || (of_feature && line.starts_with("#["));
        let Some(item) = item else { continue };
        if let Some(name) = item.strip_prefix("mod ").and_then(|item| item.strip_suffix(';')) {
            let (alone, own) = (folder.join(format!("{name}.rs")), folder.join(name));
            module(&if alone.exists() { alone } else { own.join("mod.rs") }, &own, names);
        } else if let Some(list) = item.strip_prefix("use ") {
            let mut list = list.to_string();
            while !list.contains(';') {
                list += lines.next().expect("a list ends");
            }
            // Either `a::b::{C, d}` or `a::C`.
            let list = list.trim_end_matches(';');
            let list = list.split_once('{').map_or_else(|| list.rsplit("::").next().unwrap_or(list), |(_, list)| list);
            names.extend(
                list.trim_end_matches('}')
                    .split(',')
                    .map(|name| name.trim().into())
                    .filter(|name: &String| !name.is_empty()),
            );
        } else {
            names.extend(defined(item));
        }
    }
}

/// The name of the function or type that this line defines.
fn defined(item: &str) -> Option<String> {
    let item = ["const ", "unsafe "].into_iter().fold(item, |item, word| item.strip_prefix(word).unwrap_or(item));
    let name = ["fn ", "struct ", "enum "].into_iter().find_map(|word| item.strip_prefix(word))?;
    Some(name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
}

/// Collects the public methods of these types.
fn methods(folder: &Path, types: &BTreeSet<String>, names: &mut BTreeSet<String>) {
    let entries = fs::read_dir(folder).expect("the source is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of a folder").path()).collect();
    paths.sort();
    for path in paths {
        if path.ends_with("cube") || path.ends_with("cube.rs") {
            continue; // behind a feature
        }
        if path.is_dir() {
            methods(&path, types, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("a source");
            let mut of: Option<&String> = None;
            for line in source.lines() {
                if line.starts_with("impl") && !line.contains(" for ") {
                    of = types.get(&implemented(line));
                } else if line.starts_with('}') {
                    of = None;
                }
                if let (Some(of), Some(name)) = (of, line.strip_prefix("    pub ").and_then(defined)) {
                    names.insert(format!("{of}::{name}"));
                }
            }
        }
    }
}

/// The type in a line `impl<T: Bound<U>> Type<T> {`.
fn implemented(line: &str) -> String {
    let mut depth = 0;
    let outside = line.trim_start_matches("impl").chars().filter(|c| {
        depth += i32::from(*c == '<') - i32::from(*c == '>');
        depth == 0 && *c != '>'
    });
    outside.skip_while(|c| c.is_whitespace()).take_while(|c| c.is_alphanumeric()).collect()
}
