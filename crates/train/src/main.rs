//! The `train` program; everything it does is in the library.

use train::allocator::Counting;

/// A step makes and frees the same large tensors again and again. The system's allocator gives each back to the kernel
/// and pays for its pages anew: a sixth of the CPU time of a small model.
#[global_allocator]
static ALLOCATOR: Counting<mimalloc::MiMalloc> = Counting(mimalloc::MiMalloc);

/// `mi_option_purge_delay` of mimalloc.h, which the bindings do not name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

fn main() -> std::process::ExitCode {
    // SAFETY: sets a number in mimalloc's table of options. -1: freed memory is kept for the next step, not given back.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
    // SAFETY: SIG_IGN runs no code of ours. A file beyond `ulimit -f` is then an error like that of a full disk.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    train::cli::main()
}
