//! Shared parts of Kiln's benchmarks: persistent rank threads, an engine with a slow network, computation that sleeps,
//! and the allocator of `train`.

mod nap;
mod rank_threads;
mod slow_engine;

pub use nap::nap;
pub use rank_threads::RankThreads;
pub use slow_engine::SlowEngine;

/// The allocator of the `train` program, so that measurements pay for memory as a training run does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h, which the bindings do not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Keeps freed memory for the next round, as `train` does. Every benchmark calls this first.
pub fn keep_memory() {
    // SAFETY: sets a number in mimalloc's table of options. -1 means that freed memory is not returned to the system.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}
