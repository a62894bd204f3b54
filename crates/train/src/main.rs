//! The `train` program; everything it does is in the library.

/// A step makes and frees the same large tensors again and again. The system's allocator gives each back to the kernel and
/// pays for its pages anew: a fifth of the CPU time of a small model.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    train::cli::main()
}
