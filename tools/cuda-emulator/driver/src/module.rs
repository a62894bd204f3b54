//! Modules: PTX text that was loaded into a context.

use crate::abi::{CUcontext, CUdeviceptr, CUfunction, CUmodule};
use crate::call::{api, out, out_opt, unsupported};
use crate::card::cards;
use crate::context::{Context, current};
use crate::engine::engine;
use crate::errors::{Answer, Code};
use crate::function::{Function, functions};
use crate::handles::Table;
use crate::image::{self, Log};
use crate::ptxas::{self, Resources};
use crate::settings::settings;
use ptx::Memory;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

/// A module.
pub struct Module {
    /// Its handle.
    pub handle: CUmodule,
    /// The context that it is loaded into.
    pub context: Arc<Context>,
    /// Whether a library has it, so that only the library unloads it.
    of_library: bool,
    /// The decoded text; taken when the last launch of it is done.
    code: Option<ptx::Module>,
    memory: Arc<Memory>,
    /// What `ptxas` told, by kernel.
    pub resources: HashMap<String, Resources>,
    /// Names of the variables in constant memory.
    constants: Vec<String>,
    functions: Mutex<HashMap<String, CUfunction>>,
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Some(code) = self.code.take() {
            code.unload(&self.memory);
        }
    }
}

/// All live modules.
pub fn modules() -> &'static Table<Module> {
    static MODULES: Table<Module> = Table::new(Code::INVALID_HANDLE);
    &MODULES
}

/// Unloads the modules of a context.
pub fn close_all(context: CUcontext) {
    for module in modules().remove_all(|module| module.context.handle == context) {
        module.forget();
    }
}

/// Unloads a module after the work that may use it.
///
/// # Errors
/// There is no such module.
pub fn unload(handle: CUmodule) -> Answer {
    let module = modules().remove(handle)?;
    engine().wait(&engine().tails(module.context.handle));
    module.forget();
    Ok(())
}

/// Loads PTX text into a context.
///
/// # Errors
/// The text cannot be assembled or decoded, which the log and stderr explain.
pub fn load(context: Arc<Context>, text: &str, of_library: bool, log: Log) -> Answer<Arc<Module>> {
    let mut resources = HashMap::new();
    if let Some(ptxas) = &settings().ptxas {
        match ptxas::assemble(ptxas, text) {
            Ok(found) => resources = found,
            Err(message) => return log.fail(Code::INVALID_PTX, &format!("ptxas refuses the module:\n{message}")),
        }
    }
    let memory = cards()[context.card].memory.clone();
    let code = match ptx::Module::load(text, &memory) {
        Ok(code) => Some(code),
        Err(error) => return image::wrong(text, &error, log),
    };
    let constants = text.lines().filter_map(constant).map(str::to_owned).collect();
    let functions = Mutex::default();
    Ok(modules().add(|handle| Module { handle, context, of_library, code, memory, resources, constants, functions }))
}

/// The name that a line declares in constant memory: `.visible .const .align 4 .b8 name[40] = {`.
fn constant(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    words.by_ref().take_while(|word| word.starts_with('.')).find(|&word| word == ".const")?;
    let name = words.find(|word| !word.starts_with('.') && !word.starts_with(|c: char| c.is_ascii_digit()))?;
    name.split(['[', ';', '=']).next()
}

impl Module {
    /// The decoded text.
    pub fn code(&self) -> &ptx::Module {
        self.code.as_ref().unwrap_or_else(|| unreachable!("the text stays until the module is dropped"))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, CUfunction>> {
        self.functions.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The handle of a kernel, the same each time.
    ///
    /// # Errors
    /// The module has no such kernel.
    pub fn function(self: &Arc<Self>, name: &str) -> Answer<CUfunction> {
        let index = self.code().kernels().iter().position(|kernel| kernel.name == name).ok_or(Code::NOT_FOUND)?;
        let make = || functions().add(|handle| Function::new(handle, self, index)).handle;
        Ok(*self.known().entry(name.to_owned()).or_insert_with(make))
    }

    /// A variable: address and size.
    ///
    /// # Errors
    /// The module has no such variable.
    pub fn variable(&self, name: &str) -> Answer<(CUdeviceptr, usize)> {
        let found = self.code().variable(name).ok_or(Code::NOT_FOUND)?;
        Ok((found.address, found.size as usize))
    }

    /// Bytes of its variables in constant memory.
    pub fn constants(&self) -> u64 {
        let sizes = self.constants.iter().filter_map(|name| self.code().variable(name));
        sizes.map(|found| found.size).sum()
    }

    /// Ends the handles of its kernels.
    fn forget(&self) {
        for handle in self.known().values() {
            let _ = functions().remove(*handle);
        }
    }
}

/// Loads what lies at `image` into the current context.
unsafe fn load_image(to: *mut CUmodule, image: *const c_void, log: Log) -> Answer {
    let context = current()?;
    crate::capture::forbid_unsafe(&context)?;
    // SAFETY: the caller's.
    unsafe {
        let text = image::text(image, log)?;
        out(to, load(context, &text, false, log)?.handle)
    }
}

api! {
    fn cuModuleLoadData(to: *mut CUmodule, image: *const c_void) {
        load_image(to, image, Log::default())
    }
    fn cuModuleLoadDataEx(
        to: *mut CUmodule, image: *const c_void, count: c_uint, options: *const c_uint, values: *const usize,
    ) {
        load_image(to, image, Log::read(count, options, values)?)
    }
    fn cuModuleLoadFatBinary(to: *mut CUmodule, image: *const c_void) {
        load_image(to, image, Log::default())
    }
    fn cuModuleLoad(to: *mut CUmodule, path: *const c_char) {
        let path = crate::call::text(path)?;
        let mut bytes = std::fs::read(&path).map_err(|_| Code::FILE_NOT_FOUND)?;
        bytes.extend([0; 4]);
        load_image(to, bytes.as_ptr().cast(), Log::default())
    }
    fn cuModuleUnload(module: CUmodule) {
        current()?;
        if modules().get(module)?.of_library {
            return Err(Code::NOT_PERMITTED);
        }
        unload(module)
    }
    fn cuModuleGetFunction(to: *mut CUfunction, module: CUmodule, name: *const c_char) {
        current()?;
        out(to, modules().get(module)?.function(&crate::call::text(name)?)?)
    }
    fn cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule) {
        out(count, modules().get(module)?.code().kernels().len() as c_uint)
    }
    fn cuModuleEnumerateFunctions(to: *mut CUfunction, count: c_uint, module: CUmodule) {
        let module = modules().get(module)?;
        for (index, kernel) in module.code().kernels().iter().take(count as usize).enumerate() {
            out(to.add(index), module.function(&kernel.name)?)?;
        }
        Ok(())
    }
    fn cuModuleGetGlobal_v2(address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char) {
        current()?;
        let (at, size) = modules().get(module)?.variable(&crate::call::text(name)?)?;
        out_opt(address, at);
        out_opt(bytes, size);
        Ok(())
    }
    fn cuModuleGetLoadingMode(mode: *mut c_int) {
        // Eager.
        out(mode, 1)
    }
    fn cuModuleGetTexRef(_to: *mut usize, _module: CUmodule, _name: *const c_char) {
        unsupported("cuModuleGetTexRef")
    }
    fn cuModuleGetSurfRef(_to: *mut usize, _module: CUmodule, _name: *const c_char) {
        unsupported("cuModuleGetSurfRef")
    }
}
