//! What the benchmarks of Kiln share: ranks that wait for orders, an engine with a slow network, computation that
//! sleeps, and the allocator of `train`.

mod nap;
mod rank_threads;
mod slow_engine;

pub use nap::nap;
pub use rank_threads::RankThreads;
pub use slow_engine::SlowEngine;

/// The allocator below that of the `train` program: what is measured pays for memory as a training run does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h, which the bindings do not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Keeps freed memory for the next round, as `train` does; every benchmark calls it first.
pub fn keep_memory() {
    // SAFETY: sets a number in mimalloc's table of options. -1: freed memory is not given back.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}
