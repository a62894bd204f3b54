//! Writes the code of every kernel of `fused` and `moe` into a folder, with a manifest for `scripts/check_kernels.py`.
//! It needs no GPU.
//!
//! `cargo run -p kiln-moe --features offline --example compile_kernels -- DIR`
//!
//! It fails if the sources contain a kernel that is not listed for compilation.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use fused::cube::offline::{Compiled, Compiler};
use serde_json::{Value, json};

fn main() -> io::Result<()> {
    let dir = PathBuf::from(env::args().nth(1).expect("usage: compile_kernels DIR"));
    let (of_fused, of_moe) = (fused::cube::kernels::cases(), moe::kernels::offline::cases());
    let unlisted = [fused::cube::kernels::unlisted(&of_fused), moe::kernels::offline::unlisted(&of_moe)].concat();
    if !unlisted.is_empty() {
        return Err(io::Error::other(format!(
            "kernels without a `KernelCase` in their `cases`: {}",
            unlisted.join(", ")
        )));
    }
    fs::create_dir_all(&dir)?;
    let compiled = of_fused.into_iter().chain(of_moe).flat_map(|case| case.compile().collect::<Vec<_>>());
    let manifest =
        compiled.enumerate().map(|(i, compiled)| write(&dir, i, compiled)).collect::<io::Result<Vec<_>>>()?;
    fs::write(dir.join("manifest.json"), serde_json::to_string_pretty(&manifest)?)
}

/// Writes the code as file `i` of the folder. Returns its manifest entry.
fn write(dir: &Path, i: usize, compiled: Compiled) -> io::Result<Value> {
    let Compiled { kernel, target, instructions, code } = compiled;
    let (compiler, extension) = match target.compiler {
        Compiler::Cpp => ("cpp", "cu"),
        Compiler::Llvm => ("llvm", "ptx"),
    };
    let mut entry = json!({ "kernel": kernel, "compiler": compiler, "sm": target.sm, "instructions": instructions });
    match code {
        Ok(code) => {
            let file = format!("{i}.{extension}");
            fs::write(dir.join(&file), code.source)?;
            entry["file"] = file.into();
            entry["shared_memory"] = code.shared_memory.into();
        }
        Err(error) => entry["error"] = error.into(),
    }
    Ok(entry)
}
