//! Sets `KILN_VERSION` for `--version`: the version, followed by the commit if the source is a Git work tree. It reads
//! Git's files and does not need Git itself.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").expect("Cargo says it");
    // Only this project's own repository counts: unpacked inside another repository, Kiln is not at one of its commits.
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("Cargo says it")).join("../..");
    let commit = git_folder(&root.join(".git")).and_then(|git| {
        // Each commit, checkout and reset adds a line to the log. A watched file that does not exist would rerun this
        // every time.
        let watched = ["HEAD", "logs/HEAD"].map(|file| git.join(file));
        watched
            .iter()
            .filter(|file| file.is_file())
            .for_each(|file| println!("cargo::rerun-if-changed={}", file.display()));
        commit(&git)
    });
    let commit = commit.map_or(String::new(), |commit| format!(" ({})", &commit[..10]));
    println!("cargo::rustc-env=KILN_VERSION={version}{commit}");
}

/// `.git` itself, or the folder it points to, as in a linked work tree.
fn git_folder(git: &Path) -> Option<PathBuf> {
    if git.is_dir() {
        return Some(git.into());
    }
    let text = fs::read_to_string(git).ok()?;
    Some(git.parent()?.join(text.strip_prefix("gitdir:")?.trim()))
}

/// The commit that is checked out.
fn commit(git: &Path) -> Option<String> {
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let commit = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_string(),
        Some(branch) => {
            // All work trees share the branches.
            let common = fs::read_to_string(git.join("commondir"));
            let common = common.map_or_else(|_| git.into(), |path| git.join(path.trim()));
            let loose = || fs::read_to_string(common.join(branch)).ok();
            let packed = || {
                let refs = fs::read_to_string(common.join("packed-refs")).ok()?;
                refs.lines().find_map(|line| Some(line.strip_suffix(branch)?.strip_suffix(' ')?.to_string()))
            };
            loose().or_else(packed)?.trim().to_string()
        }
    };
    (commit.len() >= 40 && commit.chars().all(|c| c.is_ascii_hexdigit())).then_some(commit)
}
