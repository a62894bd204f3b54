//! Files that a command writes where its user wants them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Links that lead to links, at most.
const MOST_LINKS: usize = 40;

/// Why a file is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error("{first} and {second} would both write {}: give each a file of its own", path.display())]
    SameFile { first: &'static str, second: &'static str, path: PathBuf },
    #[error("a file called `-` would be written: give a name, or /dev/stdout to print it")]
    Dash,
    #[error("{}: there is no folder {}: create it, or give another path", path.display(), folder.display())]
    NoFolder { path: PathBuf, folder: PathBuf },
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Refuses the same file for two options.
pub fn check_different(files: &[(&'static str, Option<&Path>)]) -> Result<(), OutputError> {
    let mut known: Vec<(&str, PathBuf)> = vec![];
    for (second, path) in files.iter().filter_map(|(option, path)| Some((*option, (*path)?))) {
        let whole = end_of_links(path).and_then(std::path::absolute).unwrap_or_else(|_| path.into());
        if let Some((first, _)) = known.iter().find(|(_, other)| *other == whole) {
            return Err(OutputError::SameFile { first, second, path: path.into() });
        }
        known.push((second, whole));
    }
    Ok(())
}

/// Refuses a path in a folder that there is not, and `-`, which elsewhere means standard output.
pub fn check_folder(path: &Path) -> Result<(), OutputError> {
    if path == Path::new("-") {
        return Err(OutputError::Dash);
    }
    match path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => Err(OutputError::NoFolder { path: path.into(), folder: folder.into() }),
        None => Ok(()),
    }
}

/// Writes a file: completely or not at all, unless a device or a pipe is there, and where a link leads.
pub fn write(path: &Path, text: &str) -> Result<(), OutputError> {
    check_folder(path)?;
    let written = end_of_links(path).and_then(|target| report::replace(&target, text.as_bytes()));
    written.map_err(|source| OutputError::Write { path: path.into(), source })
}

/// Returns where a link leads, unless that is a device or a pipe, whose link is as good.
pub fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Ok(path.into());
    }
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("")).join(link),
            Err(_) => return Ok(path), // no link, or nothing
        }
    }
    Err(io::Error::other("too many links lead to each other"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, symlink};
    use std::process::Command;
    use std::thread;

    #[test]
    fn links_are_followed_and_pipes_are_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "before").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("link", at("second")).unwrap();
        symlink("new", at("dangling")).unwrap();
        symlink("round", at("round")).unwrap();
        write(&at("second"), "after").unwrap();
        write(&at("dangling"), "made").unwrap();
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "after");
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "made");
        assert!(["link", "second", "dangling"].iter().all(|name| at(name).is_symlink()));
        assert!(write(&at("round"), "").unwrap_err().to_string().contains("lead to each other"));
        let same = check_different(&[("--a", Some(&at("second"))), ("--b", None), ("--c", Some(&at("file")))]);
        assert!(same.unwrap_err().to_string().starts_with("--a and --c would both write"));

        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let pipe = at("pipe");
        let reader = thread::spawn(move || fs::read_to_string(pipe).unwrap());
        write(&at("pipe"), "through").unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        assert!(fs::metadata(at("pipe")).unwrap().file_type().is_fifo());
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 7, "{left:?}");
    }
}
