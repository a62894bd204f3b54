//! CubeCL's setup: one stream per device, and where it stores the fastest variant of each kernel, because autotuning
//! takes minutes.

use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::environment;
use std::fs::{File, create_dir_all};
use std::path::Path;
use std::sync::OnceLock;

/// Stores autotuning results in the user's cache folder, and puts all threads' work on a device into one stream. Must
/// be called before the first use of a device.
///
/// With one stream per thread, a thread may write a tensor in place while another thread's earlier kernel still reads
/// it: CubeCL 0.11.3 orders a kernel after the allocation of its inputs, but not after other streams' kernels that have
/// written them since, or that read its outputs. Two ranks on one device then had losses that differed from run to run.
/// One stream also has one memory pool.
///
/// Compiled kernels are not kept: two cards of one process read and write the database at the same time then, and a
/// rank panicked within it (turso 0.8.3, "reader slot released by non-owner").
///
/// `cubecl.toml` files are ignored. CubeCL would read one from the current folder or its parents, which may be a run
/// folder of unknown origin, and such a file decides which files are written. Environment variables do apply.
pub fn choose() {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    // CubeCL's own default: `target` of the Cargo project around the current folder.
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Global;
    }
    static LOCK: OnceLock<Option<File>> = OnceLock::new();
    LOCK.get_or_init(|| {
        let (name, lock) = unused(&config.environment.path.root(), &config.environment.name)?;
        config.environment.name = name;
        Some(lock)
    });
    config.streaming.max_streams = 1;
    CubeClRuntimeConfig::try_set(config);
}

/// The first of the caches `NAME`, `NAME-2`, `NAME-3` and so on that no other process uses, and the lock that keeps
/// others from it. `None` if the folder cannot be written.
///
/// CubeCL 0.11.3 lets processes share the database of a cache (turso 0.8.3, whose support for that is experimental).
/// A rank of one of two runs then panicked with "reader slot released by non-owner".
fn unused(root: &Path, name: &str) -> Option<(String, File)> {
    create_dir_all(root).ok()?;
    for n in 1.. {
        let name = if n == 1 { name.to_owned() } else { format!("{name}-{n}") };
        let lock = File::create(root.join(format!("{name}.lock"))).ok()?;
        match lock.try_lock() {
            Ok(()) => return Some((name, lock)),
            Err(std::fs::TryLockError::WouldBlock) => {}
            Err(std::fs::TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// A line for the user: where the results are, and whether there are any.
pub fn line() -> String {
    let file = environment::path();
    if CubeClRuntimeConfig::get().autotune.disable_cache {
        "every run tunes kernels again, which takes minutes: CUBECL_AUTOTUNE_CACHE is off".into()
    } else if file.exists() {
        format!("what earlier runs found out about kernels is in {}", file.display())
    } else {
        format!("the first run tunes kernels, for minutes; what it finds is kept in {}", file.display())
    }
}

#[cfg(test)]
mod tests {
    use super::unused;

    #[test]
    fn processes_that_run_at_once_have_caches_of_their_own() {
        let root = tempfile::tempdir().unwrap();
        let (first, lock) = unused(root.path(), "default").unwrap();
        let (second, _lock) = unused(root.path(), "default").unwrap();
        drop(lock);
        let (third, _lock) = unused(root.path(), "default").unwrap();
        assert_eq!([first.as_str(), &second, &third], ["default", "default-2", "default"]);
    }
}
