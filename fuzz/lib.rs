//! Helpers shared by the fuzz targets.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::{fs, process};

use data::{PrepareOptions, TokenizerSpec};

/// This process's folder inside that of `scripts/fuzz.sh`, which removes it.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let parent = std::env::var_os("KILN_FUZZ_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = parent.join(format!("kiln-fuzz-{}", process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder can be made");
    folder
});

/// A path in that folder.
pub fn path(name: &str) -> PathBuf {
    FOLDER.join(name)
}

/// Prepares a source with this name and these bytes, and discards the result.
pub fn prepare(name: &str, bytes: &[u8]) {
    let (source, out) = (path(name), path("out"));
    fs::write(&source, bytes).expect("memory has room");
    let _ = data::prepare(source.to_str().expect("it is text"), &TokenizerSpec::Byte, &out, &PrepareOptions::default());
    let _ = fs::remove_dir_all(&out);
}
