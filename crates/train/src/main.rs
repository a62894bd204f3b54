//! The `train` program; everything it does is in the library.

fn main() -> std::process::ExitCode {
    train::cli::main()
}
