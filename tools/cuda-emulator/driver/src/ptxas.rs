//! Assembling with `ptxas`, which finds what a reader of PTX does not, and tells registers.

use crate::settings::{Arch, settings};
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What `ptxas` tells of a kernel.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of registers that are kept in memory, stored and loaded.
    pub spilled: (u32, u32),
    /// Bytes of the stack of a thread.
    pub stack: u32,
}

/// Name of the card's architecture for compilers.
pub fn arch() -> &'static str {
    match settings().arch {
        Arch::Sm80 => "sm_80",
        Arch::Sm90a => "sm_90a",
    }
}

/// Assembles `text` for the card and returns what each kernel needs.
///
/// # Errors
/// The assembler's message.
pub fn assemble(ptxas: &Path, text: &str) -> Result<HashMap<String, Resources>, String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("kiln-emulated-{}-{}.ptx", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let arch = format!("--gpu-name={}", arch());
    let output = Command::new(ptxas).args([&arch, "--verbose", "--output-file=/dev/null"]).arg(&file).output();
    let _ = std::fs::remove_file(&file);
    let output = output.map_err(|error| format!("{}: {error}", ptxas.display()))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(resources(&said)) } else { Err(said.trim().to_owned()) }
}

/// Reads `Compiling entry function 'k'`, the bytes of its stack and `Used 32 registers`.
fn resources(said: &str) -> HashMap<String, Resources> {
    let mut found: HashMap<String, Resources> = HashMap::new();
    let mut current = String::new();
    for line in said.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1).and_then(|rest| rest.split('\'').next()) {
            current = name.to_owned();
            found.insert(current.clone(), Resources::default());
        }
        let Some(row) = found.get_mut(&current) else { continue };
        let before = |what: &str| {
            let number = line.split(what).next().filter(|start| start.len() < line.len())?;
            number.rsplit([' ', ',']).find(|word| !word.is_empty())?.parse::<u32>().ok()
        };
        // A device function has its own line of properties; a kernel's comes first.
        if let (Some(stack), Some(stored), Some(loaded)) =
            (before(" bytes stack frame"), before(" bytes spill stores"), before(" bytes spill loads"))
            && row.registers == 0
        {
            (row.stack, row.spilled) = (stack, (stored, loaded));
        }
        if let Some(registers) = before(" registers").filter(|_| line.contains("Used ")) {
            row.registers = registers;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_spills_are_read_by_kernel() {
        let said = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'first' for 'sm_80'\n\
            ptxas info    : Function properties for first\n\
            \x20   16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 380 bytes cmem[0]\n\
            ptxas info    : Compiling entry function 'second' for 'sm_80'\n\
            ptxas info    : Used 10 registers, 352 bytes cmem[0]\n";
        let found = resources(said);
        assert_eq!(found["first"], Resources { registers: 255, spilled: (8, 12), stack: 16 });
        assert_eq!(found["second"], Resources { registers: 10, ..Resources::default() });
    }
}
