//! Advice for a name that matches nothing on this machine.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::{DEFAULT_SOURCE, SHAKESPEARE};

/// What to do about data that does not exist.
pub fn advice(source: &str) -> String {
    if source == "-" {
        return "standard input is not read: write the text to a file, and give that".into();
    }
    let otherwise = || match similar(source) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "check the path, or give other data".into(),
    };
    how_to_get(source, "dataset").unwrap_or_else(otherwise)
}

/// How to download `name`, if it is a URL or looks like the name of a `kind` ("model" or "dataset") on the Hugging Face
/// hub. Kiln itself reads only local files.
pub fn how_to_get(name: &str, kind: &str) -> Option<String> {
    const LOCAL: &str = "only files of this machine are read";
    let on_hub = ["hf://", "https://huggingface.co/", "https://hf.co/"].iter().find_map(|hub| name.strip_prefix(hub));
    if on_hub.is_none() && name.contains("://") {
        return Some(format!("{LOCAL}: download it (`curl -LO {name}`), then give the file"));
    }
    let path = on_hub.unwrap_or(name);
    let (path, kind) = path.strip_prefix("datasets/").map_or((path, kind), |path| (path, "dataset"));
    let (owner, repository) = match path.split_once('/') {
        Some((owner, rest)) => {
            let repository = rest.split(['/', '@']).next()?;
            if on_hub.is_none() && (repository != rest || is_path(owner, repository)) {
                return None;
            }
            (owner, repository)
        }
        // From before names had owners.
        None if kind == "model" && ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"].contains(&path) => {
            ("openai-community", path)
        }
        None => return None,
    };
    let of_kind = if kind == "dataset" { " --repo-type dataset" } else { "" };
    Some(format!(
        "{LOCAL}; a {kind} on the Hugging Face hub is downloaded by `hf download {owner}/{repository}{of_kind} --local-dir \
         {repository}` (after `pip install huggingface_hub`): then give the folder {repository}"
    ))
}

/// Whether `owner/repository` is meant as a path, not as a name on the hub.
fn is_path(owner: &str, repository: &str) -> bool {
    let of_hub = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
    };
    let ending = Path::new(repository).extension().and_then(OsStr::to_str);
    let is_file = ending.is_some_and(|ending| ending.chars().all(char::is_alphabetic));
    is_file || !of_hub(owner) || !of_hub(repository) || Path::new(owner).exists()
}

/// A named source, or a file in the folder of `source`, that the user may have meant.
fn similar(source: &str) -> Option<String> {
    let lower = source.to_lowercase();
    let path = Path::new(source);
    let (folder, file) = (path.parent()?, path.file_name()?.to_str()?);
    let beside = if folder == Path::new("") { Path::new(".") } else { folder };
    let near = |name: String| {
        let likeness = strsim::normalized_damerau_levenshtein(file, &name);
        (likeness > 0.8).then_some((likeness, name))
    };
    if let Some(name) =
        [DEFAULT_SOURCE, SHAKESPEARE].into_iter().find(|name| lower.contains(name) || near(name.to_string()).is_some())
    {
        return Some(name.into());
    }
    let files = fs::read_dir(beside).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let (_, best) = names.filter_map(near).max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(folder.join(best).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_and_urls_are_told_from_paths() {
        let get = |name: &str| how_to_get(name, "model");
        for (name, command) in [
            ("openai-community/gpt2", "`hf download openai-community/gpt2 --local-dir gpt2`"),
            ("gpt2", "`hf download openai-community/gpt2 --local-dir gpt2`"),
            (
                "hf://deepseek-ai/DeepSeek-V2-Lite@main",
                "`hf download deepseek-ai/DeepSeek-V2-Lite --local-dir DeepSeek-V2-Lite`",
            ),
            (
                "https://huggingface.co/datasets/roneneldan/TinyStories/blob/main/a.parquet",
                "`hf download roneneldan/TinyStories --repo-type dataset --local-dir TinyStories`",
            ),
            ("https://example.org/a.txt", "`curl -LO https://example.org/a.txt`"),
        ] {
            let found = get(name).unwrap();
            assert!(found.starts_with("only files of this machine are read") && found.contains(command), "{found}");
        }
        // The tests run in a folder that contains `src`.
        for path in ["gpt3", "data/a.txt", "./a/b", "../b", "/a/b", "a/b/c", "src/none", "a b/c", ""] {
            assert_eq!(get(path), None, "{path}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_one_that_is_there_is_answered_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name).display().to_string();
        fs::write(path("input.txt"), "").unwrap();
        assert_eq!(similar(&path("inptu.txt")), Some(path("input.txt")));
        assert_eq!(similar(&path("output.txt")), None);
        for name in ["shakspeare", "tinyshakespeare", "Shakespeare"] {
            assert_eq!(similar(name).as_deref(), Some("shakespeare"), "{name}");
        }
    }
}
