//! How CubeCL is set up: one stream a device, and where it keeps which variant of a kernel is the fastest on this
//! machine's devices, since trying them out takes minutes.

use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::environment;

/// Puts the results into the user's cache folder, and all threads' work on a device into one stream. To be called before
/// the first use of a device.
///
/// With a stream a thread, one thread may write a tensor in place while another thread's kernel, launched before, still
/// reads it: CubeCL 0.11.3 sees to it that a kernel comes after what wrote its inputs, and not after what reads its
/// outputs. Two ranks on one device then had losses that differed from run to run. One stream also has one pool of
/// memory.
///
/// CubeCL would take a `cubecl.toml` from the current folder and those above it, which may be a run's folder from
/// anywhere: it says which files are written. Environment variables count.
pub fn choose() {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    // CubeCL's own default: `target` of the Cargo project around the current folder.
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Global;
    }
    config.streaming.max_streams = 1;
    CubeClRuntimeConfig::try_set(config);
}

/// A line for the user about where the results are, and whether there are any.
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
