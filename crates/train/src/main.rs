//! The `train` program; the implementation is in the library.

use train::allocator::Counting;

/// Each step allocates and frees the same large tensors. The system's allocator would return them to the kernel and
/// fault their pages in again: a sixth of the CPU time of a small model.
#[global_allocator]
static ALLOCATOR: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);

/// `mi_option_purge_delay` of mimalloc.h, which the bindings do not define.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Runs the program.
pub fn main() -> std::process::ExitCode {
    // SAFETY: sets a number in mimalloc's table of options. -1 keeps freed memory for the next step instead of
    // returning it.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
    train::cli().run()
}
