//! All modules, PTX text that was loaded into contexts, and the kernels in them that clients have handles of.

use crate::abi::{CUdeviceptr, CUfunction, CUmodule};
use crate::call::refuse;
use crate::card::cards;
use crate::contexts::Context;
use crate::errors::{Answer, Code};
use crate::handles::Table;
use crate::image::{self, Log};
use crate::ptxas::{self, Resources};
use crate::settings::settings;
use crate::spec::{SHARED_DEFAULT, spec};
use ptx::Memory;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_uint};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A module.
pub struct Module {
    /// Its handle.
    pub handle: CUmodule,
    /// The context that it is loaded into.
    pub context: Arc<Context>,
    /// Whether a library has it, so that only the library unloads it.
    pub of_library: bool,
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
    pub fn forget(&self) {
        for handle in self.known().values() {
            let _ = functions().remove(*handle);
        }
    }
}

/// Registers of a thread where no `ptxas` tells them.
const REGISTERS: u32 = 32;

/// A kernel.
pub struct Function {
    /// Its handle.
    pub handle: CUfunction,
    /// The module, whose table has this kernel.
    module: Weak<Module>,
    /// The handle of that module.
    pub module_handle: CUmodule,
    index: usize,
    /// Its name, as long as the handle lives.
    pub name: CString,
    /// Most dynamic shared memory that a launch may ask for, in bytes.
    pub dynamic_shared: AtomicI32,
    carveout: AtomicI32,
    /// Whether clusters of more than 8 blocks are allowed.
    pub large_clusters: AtomicI32,
    cluster_policy: AtomicI32,
    /// Cluster that the client demands, in x, y, z; zeros for none.
    pub cluster: [AtomicI32; 3],
}

/// The kernels that clients have handles of.
pub fn functions() -> &'static Table<Function> {
    static FUNCTIONS: Table<Function> = Table::new(Code::INVALID_HANDLE);
    &FUNCTIONS
}

impl Function {
    /// The kernel number `index` of a module.
    pub fn new(handle: CUfunction, module: &Arc<Module>, index: usize) -> Self {
        let kernel = &module.code().kernels()[index];
        let dynamic = SHARED_DEFAULT as i32 - kernel.static_shared.min(SHARED_DEFAULT) as i32;
        Self {
            handle,
            module: Arc::downgrade(module),
            module_handle: module.handle,
            index,
            name: CString::new(kernel.name.as_str()).unwrap_or_default(),
            dynamic_shared: AtomicI32::new(dynamic),
            carveout: AtomicI32::new(-1),
            large_clusters: AtomicI32::new(0),
            cluster_policy: AtomicI32::new(0),
            cluster: Default::default(),
        }
    }

    /// Its module.
    ///
    /// # Errors
    /// The module is unloaded.
    pub fn module(&self) -> Answer<Arc<Module>> {
        self.module.upgrade().ok_or(Code::INVALID_HANDLE)
    }

    /// The kernel in a module's text.
    pub fn kernel<'a>(&self, module: &'a Module) -> &'a ptx::Kernel {
        &module.code().kernels()[self.index]
    }

    /// What `ptxas` told of it.
    pub fn resources(&self, module: &Module) -> Option<Resources> {
        module.resources.get(&self.kernel(module).name).copied()
    }

    /// Registers of a thread: by `ptxas`, or a guess.
    pub fn registers(&self, module: &Module) -> u32 {
        self.resources(module).map_or(REGISTERS, |found| found.registers.max(1))
    }

    /// The attribute numbered as in `CUfunction_attribute`.
    pub fn attribute(&self, number: c_uint) -> Answer<c_int> {
        let module = self.module()?;
        let kernel = self.kernel(&module);
        let (major, minor) = spec().capability;
        let required = |axis: usize| {
            let set = self.cluster[axis].load(Ordering::Relaxed);
            kernel.required_cluster.map_or(set, |cluster| cluster[axis] as c_int)
        };
        Ok(match number {
            0 => kernel.max_threads as c_int,
            1 => kernel.static_shared as c_int,
            2 => module.constants() as c_int,
            3 => self.resources(&module).map_or(kernel.local, |found| found.stack) as c_int,
            4 => self.registers(&module) as c_int,
            5 | 6 => major * 10 + minor,
            7 => 0,
            8 => self.dynamic_shared.load(Ordering::Relaxed),
            9 => self.carveout.load(Ordering::Relaxed),
            10 => c_int::from(kernel.required_cluster.is_some()),
            11..=13 => required(number as usize - 11),
            14 => self.large_clusters.load(Ordering::Relaxed),
            15 => self.cluster_policy.load(Ordering::Relaxed),
            _ => return Err(Code::INVALID_VALUE),
        })
    }

    /// Sets such an attribute.
    pub fn set_attribute(&self, number: c_uint, value: c_int) -> Answer {
        let module = self.module()?;
        let kernel = self.kernel(&module);
        let target = match number {
            8 => {
                let most = spec().shared_optin - kernel.static_shared as c_int;
                if !(0..=most).contains(&value) {
                    let why = format!(
                        "kernel '{}': {value} bytes of dynamic shared memory are asked for; beside its {} static ones a block may have {most}",
                        kernel.name, kernel.static_shared
                    );
                    return refuse(Code::INVALID_VALUE, &why);
                }
                &self.dynamic_shared
            }
            9 if (-1..=100).contains(&value) => &self.carveout,
            11..=13 if value >= 0 && kernel.required_cluster.is_none() => &self.cluster[number as usize - 11],
            14 => &self.large_clusters,
            15 => &self.cluster_policy,
            _ => return Err(Code::INVALID_VALUE),
        };
        target.store(value, Ordering::Relaxed);
        Ok(())
    }
}
