//! Modules and their kernels.

use std::fmt;
use std::sync::Arc;

use crate::code::{Inst, Program};
use crate::memory::Memory;

/// PTX that can't be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxError {
    /// Line of the text, counted from 1.
    pub line: u32,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for PtxError {}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Size in bytes.
    pub size: u32,
    /// Alignment in bytes.
    pub align: u32,
    /// Offset in [`crate::Launch::params`].
    pub offset: u32,
}

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Name in the PTX.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Threads of a block at most: by `.maxntid` or `.reqntid`, otherwise 1024.
    pub max_threads: u32,
    /// Block size that `.reqntid` demands.
    pub required_block: Option<[u32; 3]>,
    /// Cluster size that `.reqnctapercluster` demands.
    pub required_cluster: Option<[u32; 3]>,
    /// Bytes of static shared memory.
    pub static_shared: u32,
    /// Bytes of local memory of a thread.
    pub local: u32,
    /// The module's code and the number of the kernel's function in it.
    pub(crate) program: Option<(Arc<Program>, usize)>,
}

impl Kernel {
    /// Bytes of all parameters.
    pub fn param_bytes(&self) -> u32 {
        self.params.last().map_or(0, |last| last.offset + last.size)
    }
}

/// A module variable in `.global` or `.const` memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

/// PTX text, decoded, with its variables in a card's memory.
#[derive(Debug)]
pub struct Module {
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) variables: Vec<(String, Variable)>,
}

impl Module {
    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All kernels, in the order of the text.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Instructions that are not emulated, with their lines. A launch that reaches one ends in a [`crate::Fault`].
    pub fn unsupported(&self) -> Vec<(u32, String)> {
        let Some((program, _)) = self.kernels.first().and_then(|kernel| kernel.program.as_ref()) else {
            return Vec::new();
        };
        let lines = program.code.iter().zip(&program.lines);
        lines
            .filter_map(|(step, line)| match &step.inst {
                Inst::Unknown(message) => Some((*line, message.to_string())),
                _ => None,
            })
            .collect()
    }

    /// The variable of this name.
    pub fn variable(&self, name: &str) -> Option<Variable> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, variable)| *variable)
    }

    /// Frees the module's variables. The memory is the one it was loaded with.
    pub fn unload(self, memory: &Memory) {
        for (_, variable) in self.variables {
            memory.free(variable.address).ok();
        }
    }
}
