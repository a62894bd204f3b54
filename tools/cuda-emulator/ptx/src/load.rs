//! From PTX text to a module.

use crate::decode::decode;
use crate::memory::Memory;
use crate::module::{Module, PtxError};
use crate::parse::parse;

/// Functions of libcudadevrt, behind the module's own text so that lines stay what they are.
const DEVICE_RUNTIME: &str = include_str!("device_runtime.ptx");

impl Module {
    /// Parses and decodes `text` and allocates its variables.
    ///
    /// # Errors
    ///
    /// Text that is no PTX, a directive that is not emulated, or variables that do not fit into memory. An instruction that is not
    /// emulated is no error here: it ends the launch that reaches it.
    pub fn load(text: &str, memory: &Memory) -> Result<Self, PtxError> {
        // As a linker does with a library: what the text declares and does not define.
        let linked;
        let text = if text.contains("cudaCG") {
            linked = format!("{text}\n{DEVICE_RUNTIME}");
            linked.as_str()
        } else {
            text
        };
        let ast = parse(text)?;
        decode(text, &ast, memory)
    }
}
