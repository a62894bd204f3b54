//! The memory that the ranks of one machine share.
//!
//! Open MPI keeps it as files in `/dev/shm`, 4 MiB a rank. mpirun removes them, but not if it is killed. A launch
//! therefore gives its attempts a folder of their own there, empties it before each attempt, and removes it at the end.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A folder in memory, of which nobody else knows the name; removed when dropped.
pub struct Segments(PathBuf);

impl Segments {
    /// Creates the folder; returns `None` where there is no such file system.
    pub fn new() -> Option<Self> {
        let template = CString::new("/dev/shm/kiln-mpi-XXXXXX").expect("it has no zero").into_raw();
        // SAFETY: the template is a string of this function, which is changed in place and taken back.
        let (made, path) = unsafe { (!libc::mkdtemp(template).is_null(), CString::from_raw(template)) };
        made.then(|| Self(Path::new(OsStr::from_bytes(path.as_bytes())).into()))
    }

    /// Removes what a killed mpirun has left, and returns the options that make the next one use the folder. Open MPI 4
    /// reads the first, and Open MPI 5 the second.
    pub fn options(&self) -> impl Iterator<Item = OsString> {
        for left in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = fs::remove_file(left.path());
        }
        let of = |name: &str| ["--mca".into(), name.into(), self.0.clone().into_os_string()];
        ["btl_vader_backing_directory", "btl_sm_backing_directory"].into_iter().flat_map(of)
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
