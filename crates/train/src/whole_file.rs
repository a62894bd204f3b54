//! Files of a folder that may come from somebody else: written whole, and never through a link.

use safetensors::SafeTensorError;
use safetensors::tensor::View;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Opens a file for writing, unless it is a symbolic link: what that points to is not the run's.
pub(crate) fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(|error| match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            io::Error::other("it is a symbolic link, which Kiln does not follow; remove it")
        }
        _ => error,
    })
}

/// The bytes of a regular file; what else has its name could block, or never end.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe that nobody writes to would not even be opened.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file; remove it"));
    }
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Has `write` write beside `path`, then renames: whoever looks finds the file as it was, or whole. A link at either
/// place is replaced, and what it points to is left alone.
pub(crate) fn write_whole(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = PathBuf::from(beside);
    // What lies there, of a process that was killed or a link, goes; then only a new file will do.
    let _ = fs::remove_file(&beside);
    let created = File::create_new(&beside).map(drop);
    let written = created.and_then(|()| write(&beside)).and_then(|()| File::open(&beside)?.sync_all());
    written.and_then(|()| fs::rename(&beside, path)).inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}

/// [`write_whole`]s a safetensors file, a tensor at a time.
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
