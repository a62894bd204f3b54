//! The program `train` under a second name, `kiln`.

#[path = "main.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main()
}
