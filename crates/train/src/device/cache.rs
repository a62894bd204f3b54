//! CubeCL's setup: one stream per device, and where it stores the fastest variant of each kernel, because autotuning
//! takes minutes.

use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::environment;

/// Stores autotuning results in the user's cache folder, and puts all threads' work on a device into one stream. Must
/// be called before the first use of a device.
///
/// With one stream per thread, a thread may write a tensor in place while another thread's earlier kernel still reads
/// it: CubeCL 0.11.3 orders a kernel after the allocation of its inputs, but not after other streams' kernels that have
/// written them since, or that read its outputs. Two ranks on one device then had losses that differed from run to run.
/// One stream also has one memory pool.
///
/// `cubecl.toml` files are ignored. CubeCL would read one from the current folder or its parents, which may be a run
/// folder of unknown origin, and such a file decides which files are written. Environment variables do apply.
pub fn choose() {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    // CubeCL's own default: `target` of the Cargo project around the current folder.
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Global;
    }
    config.streaming.max_streams = 1;
    CubeClRuntimeConfig::try_set(config);
}

/// A line for the user: where the results are, and whether there are any.
pub fn line() -> String {
    let file = environment::path();
    if CubeClRuntimeConfig::get().autotune.disable_cache {
        "kernels are tuned anew in every run, for minutes: CUBECL_AUTOTUNE_CACHE is off".into()
    } else if file.exists() {
        format!("what earlier runs found out about kernels is in {}", file.display())
    } else {
        format!("the first run tunes kernels, for minutes; what it finds is kept in {}", file.display())
    }
}
