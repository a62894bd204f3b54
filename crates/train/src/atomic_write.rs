//! Writes files in folders that may come from someone else: completely, and never through a link.

use safetensors::SafeTensorError;
use safetensors::tensor::View;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Opens a file for writing unless it is a symbolic link, whose target does not belong to the run.
pub(crate) fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(|error| match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            io::Error::other("it is a symbolic link, which Kiln does not follow; remove it")
        }
        _ => error,
    })
}

/// Reads a regular file; other kinds of files could block or never end.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe without a writer would already block.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file; remove it"));
    }
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Lets `write` write a file next to `path`, then renames it: readers find either the old file or the complete new one.
/// A link at either place is replaced, and its target is left alone.
pub(crate) fn write_whole(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = PathBuf::from(beside);
    // Removes a leftover of a killed process or a link; after that, only a new file is accepted.
    let _ = fs::remove_file(&beside);
    let created = File::create_new(&beside).map(drop);
    let written = created.and_then(|()| write(&beside)).and_then(|()| File::open(&beside)?.sync_all());
    written.and_then(|()| fs::rename(&beside, path)).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}

/// [`write_whole`] for a safetensors file, one tensor at a time.
pub(crate) fn write_safetensors<N: AsRef<str> + Ord + Display, V: View>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, V)>,
    metadata: Option<HashMap<String, String>>,
) -> io::Result<()> {
    write_whole(path, |file| {
        safetensors::serialize_to_file(tensors, metadata, file).map_err(|error| match error {
            SafeTensorError::IoError(error) => error,
            error => io::Error::other(error),
        })
    })
}
