//! The program `kiln`, which is `train` under the name that `cargo install` gives it.

#[path = "main.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main()
}
