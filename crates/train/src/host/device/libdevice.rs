//! NVIDIA's libdevice (`exp`, `tanh` and similar functions), which LLVM links into kernels. The file belongs to the
//! CUDA toolkit, not to the driver.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const FILE: &str = "nvvm/libdevice/libdevice.10.bc";
/// Where CubeCL searches, in this order, unless `CUDA_PATH` is set.
const TOOLKITS: [&str; 4] = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"];

/// Searches for the file where CubeCL will search, because CubeCL would fail only in the first kernel that needs it.
///
/// # Errors
/// Where it searched, and how to get the file.
#[cfg_attr(test, allow(dead_code))]
pub fn find() -> Result<PathBuf, String> {
    find_in(env::var_os("CUDA_PATH"), &TOOLKITS.map(Path::new))
}

fn find_in(cuda_path: Option<OsString>, toolkits: &[&Path]) -> Result<PathBuf, String> {
    // As in CubeCL, the first existing folder is used, even if the file is not in it.
    let folder = |toolkit: &&&Path| toolkit.join(FILE).parent().is_some_and(Path::is_dir);
    let toolkit = match &cuda_path {
        Some(path) => Some(Path::new(path)),
        None => toolkits.iter().find(folder).copied(),
    };
    let file = toolkit.map(|toolkit| toolkit.join(FILE));
    if let Some(file) = file.filter(|file| file.is_file()) {
        return Ok(file);
    }
    let looked = match &cuda_path {
        Some(path) => format!("{}, where CUDA_PATH points", Path::new(path).join(FILE).display()),
        None => format!(
            "{FILE} in {}",
            toolkits.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    };
    Err(format!(
        "the CUDA toolkit's libdevice.10.bc is missing, out of which kernels get `exp` and `tanh`. Looked for {looked}. Install the toolkit \
         (on Debian and Ubuntu the package nvidia-cuda-toolkit), or get the file alone with `pip install --target DIR \
         nvidia-cuda-nvcc-cu12` and CUDA_PATH=DIR/nvidia/cuda_nvcc"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_is_looked_for_where_cubecl_does() {
        let [toolkit, empty] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let file = toolkit.path().join(FILE);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let both = [empty.path(), toolkit.path()];

        let missing = find_in(None, &both).unwrap_err();
        assert!(missing.contains(&format!("{FILE} in {}, {}", both[0].display(), both[1].display())), "{missing}");
        assert!(missing.contains("nvidia-cuda-toolkit"), "{missing}");
        fs::write(&file, "").unwrap();
        assert_eq!(find_in(None, &both), Ok(file.clone()));
        assert_eq!(find_in(Some(toolkit.path().into()), &[]), Ok(file));

        let missing = find_in(Some(empty.path().into()), &both).unwrap_err();
        assert!(missing.contains("where CUDA_PATH points"), "{missing}");
    }
}
