use safetensors::SafeTensorError;
use safetensors::tensor::View;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Has `write` write beside `path`, then renames: whoever looks finds the file as it was, or whole.
pub(crate) fn write_whole(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = PathBuf::from(beside);
    let written = write(&beside).and_then(|()| File::open(&beside)?.sync_all());
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
