//! Where CubeCL keeps which variant of a kernel is the fastest on this machine's devices: trying them out takes
//! minutes.

use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::environment;

/// Puts the results into the user's cache folder. To be called before the first use of a device.
///
/// CubeCL would take a `cubecl.toml` from the current folder and those above it, which may be a run's folder from
/// anywhere: it says which files are written. Environment variables count.
pub fn choose() {
    let mut config = CubeClRuntimeConfig::default().override_from_env();
    // CubeCL's own default: `target` of the Cargo project around the current folder.
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Global;
    }
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
