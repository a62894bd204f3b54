//! Kernels of modules, and their attributes.

use crate::abi::{CUfunction, CUmodule};
use crate::call::{api, out, out_opt, refuse};
use crate::context::current;
use crate::errors::{Answer, Code};
use crate::handles::Table;
use crate::module::Module;
use crate::ptxas::Resources;
use crate::spec::{SHARED_DEFAULT, spec};
use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Weak};

/// Registers of a thread where no `ptxas` tells them.
const REGISTERS: u32 = 32;

/// A kernel.
pub struct Function {
    /// Its handle.
    pub handle: CUfunction,
    /// The module, whose table has this kernel.
    module: Weak<Module>,
    module_handle: CUmodule,
    index: usize,
    name: CString,
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

/// The kernel of a handle, which may be one of a library.
///
/// # Errors
/// There is no such kernel.
pub fn resolve(handle: CUfunction) -> Answer<Arc<Function>> {
    functions().get(handle).or_else(|_| functions().get(crate::library::function(handle)?))
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

api! {
    fn cuFuncGetAttribute(value: *mut c_int, number: c_uint, function: CUfunction) {
        current()?;
        out(value, resolve(function)?.attribute(number)?)
    }
    fn cuFuncSetAttribute(function: CUfunction, number: c_uint, value: c_int) {
        current()?;
        resolve(function)?.set_attribute(number, value)
    }
    fn cuFuncSetCacheConfig(function: CUfunction, _config: c_uint) {
        // A wish about caches, which change no result.
        resolve(function).map(|_| ())
    }
    fn cuFuncSetSharedMemConfig(function: CUfunction, _config: c_uint) {
        resolve(function).map(|_| ())
    }
    fn cuFuncGetModule(to: *mut CUmodule, function: CUfunction) {
        out(to, resolve(function)?.module_handle)
    }
    fn cuFuncGetName(to: *mut *const c_char, function: CUfunction) {
        // The text lives as long as the handle, as the API promises.
        out(to, resolve(function)?.name.as_ptr())
    }
    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) {
        let function = resolve(function)?;
        let module = function.module()?;
        let param = *function.kernel(&module).params.get(index).ok_or(Code::INVALID_VALUE)?;
        out_opt(offset, param.offset as usize);
        out_opt(size, param.size as usize);
        Ok(())
    }
    fn cuFuncLoad(function: CUfunction) {
        resolve(function).map(|_| ())
    }
    fn cuFuncIsLoaded(state: *mut c_int, function: CUfunction) {
        resolve(function)?;
        out(state, 1)
    }
    fn cuFuncSetBlockShape(function: CUfunction, x: c_int, y: c_int, z: c_int) {
        // It tells `cuLaunchGrid`, which is refused; PyCUDA calls it before `cuLaunchKernel`, which has a block of its own.
        resolve(function)?;
        if [x, y, z].iter().any(|&size| size <= 0) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }
}
