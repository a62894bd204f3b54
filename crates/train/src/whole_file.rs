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
