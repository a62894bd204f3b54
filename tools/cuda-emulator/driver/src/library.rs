//! Libraries: modules that are loaded into each context when one of their kernels is first used there.

use crate::abi::{CUcontext, CUdevice, CUdeviceptr, CUfunction, CUkernel, CUlibrary, CUmodule};
use crate::call::{api, out, out_opt, text};
use crate::context::primary;
use crate::contexts::{Context, current};
use crate::errors::{Answer, Code};
use crate::handles::{Table, fresh};
use crate::image::{self, Log};
use crate::module::unload;
use crate::modules::{Module, functions, load, modules};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

/// A library.
pub struct Library {
    handle: CUlibrary,
    text: String,
    modules: Mutex<HashMap<CUcontext, CUmodule>>,
    kernels: Mutex<HashMap<String, CUkernel>>,
}

/// A kernel of a library.
struct Kernel {
    library: CUlibrary,
    name: CString,
}

fn libraries() -> &'static Table<Library> {
    static LIBRARIES: Table<Library> = Table::new(Code::INVALID_HANDLE);
    &LIBRARIES
}

fn kernels() -> &'static Table<Kernel> {
    static KERNELS: Table<Kernel> = Table::new(Code::INVALID_HANDLE);
    &KERNELS
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Library {
    fn module(&self, context: &Arc<Context>, log: Log) -> Answer<Arc<Module>> {
        let mut loaded = locked(&self.modules);
        if let Some(module) = loaded.get(&context.handle).and_then(|&module| modules().get(module).ok()) {
            return Ok(module);
        }
        let module = load(context.clone(), &self.text, true, log)?;
        loaded.insert(context.handle, module.handle);
        Ok(module)
    }

    /// The handle of a kernel that the library has, the same each time.
    fn kernel(&self, name: &str) -> CUkernel {
        let make = |_| Kernel { library: self.handle, name: CString::new(name).unwrap_or_default() };
        let add = || {
            let handle = fresh();
            kernels().add_at(handle, make);
            handle
        };
        *locked(&self.kernels).entry(name.to_owned()).or_insert_with(add)
    }
}

impl Kernel {
    fn function(&self, context: &Arc<Context>) -> Answer<CUfunction> {
        let module = libraries().get(self.library)?.module(context, Log::default())?;
        module.function(&self.name.to_string_lossy())
    }
}

/// The kernel of a library in the current context.
///
/// # Errors
/// There is no such kernel.
pub fn function(kernel: CUkernel) -> Answer<CUfunction> {
    function_in(kernel, &current()?)
}

/// The kernel of a library in a context.
///
/// # Errors
/// There is no such kernel.
pub fn function_in(kernel: CUkernel, context: &Arc<Context>) -> Answer<CUfunction> {
    kernels().get(kernel)?.function(context)
}

/// The kernel in the primary context of a card.
fn on(kernel: CUkernel, device: CUdevice) -> Answer<Arc<crate::modules::Function>> {
    let context = primary(crate::card::card(device)?);
    functions().get(kernels().get(kernel)?.function(&context)?)
}

fn add(to: *mut CUlibrary, text: String, log: Log) -> Answer {
    let library =
        libraries().add(|handle| Library { handle, text, modules: Mutex::default(), kernels: Mutex::default() });
    // What is wrong with the text shows here, where a context is current.
    if let Ok(context) = current()
        && let Err(code) = library.module(&context, log)
    {
        libraries().remove(library.handle)?;
        return Err(code);
    }
    // SAFETY: checked for null.
    unsafe { out(to, library.handle) }
}

#[rustfmt::skip]
api! {
    fn cuLibraryLoadData(
        to: *mut CUlibrary, image: *const c_void,
        options: *const c_uint, values: *const usize, count: c_uint,
        _library_options: *const c_uint, _library_values: *const usize, _library_count: c_uint,
    ) {
        let log = Log::read(count, options, values)?;
        add(to, image::text(image, log)?, log)
    }
    fn cuLibraryLoadFromFile(
        to: *mut CUlibrary, path: *const c_char,
        options: *const c_uint, values: *const usize, count: c_uint,
        _library_options: *const c_uint, _library_values: *const usize, _library_count: c_uint,
    ) {
        let log = Log::read(count, options, values)?;
        let mut bytes = std::fs::read(text(path)?).map_err(|_| Code::FILE_NOT_FOUND)?;
        bytes.extend([0; 4]);
        add(to, image::text(bytes.as_ptr().cast(), log)?, log)
    }
    fn cuLibraryUnload(library: CUlibrary) {
        let library = libraries().remove(library)?;
        kernels().remove_all(|kernel| kernel.library == library.handle);
        let loaded = std::mem::take(&mut *locked(&library.modules));
        // A context that was destroyed has taken its modules along.
        loaded.into_values().for_each(|module| {
            let _ = unload(module);
        });
        Ok(())
    }
    fn cuLibraryGetKernel(to: *mut CUkernel, library: CUlibrary, name: *const c_char) {
        let (library, name) = (libraries().get(library)?, text(name)?);
        library.module(&current()?, Log::default())?.function(&name)?;
        out(to, library.kernel(&name))
    }
    fn cuLibraryEnumerateKernels(to: *mut CUkernel, count: c_uint, library: CUlibrary) {
        let library = libraries().get(library)?;
        let module = library.module(&current()?, Log::default())?;
        for (index, kernel) in module.code().kernels().iter().take(count as usize).enumerate() {
            if to.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            out(to.add(index), library.kernel(&kernel.name))?;
        }
        Ok(())
    }
    fn cuLibraryGetKernelCount(count: *mut c_uint, library: CUlibrary) {
        let module = libraries().get(library)?.module(&current()?, Log::default())?;
        out(count, module.code().kernels().len() as c_uint)
    }
    fn cuLibraryGetModule(to: *mut CUmodule, library: CUlibrary) {
        out(to, libraries().get(library)?.module(&current()?, Log::default())?.handle)
    }
    fn cuLibraryGetGlobal(address: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) {
        let module = libraries().get(library)?.module(&current()?, Log::default())?;
        let (at, size) = module.variable(&text(name)?)?;
        out_opt(address, at);
        out_opt(bytes, size);
        Ok(())
    }
    fn cuKernelGetFunction(to: *mut CUfunction, kernel: CUkernel) {
        out(to, function(kernel)?)
    }
    fn cuKernelGetLibrary(to: *mut CUlibrary, kernel: CUkernel) {
        out(to, kernels().get(kernel)?.library)
    }
    fn cuKernelGetName(to: *mut *const c_char, kernel: CUkernel) {
        let kernel = kernels().get(kernel)?;
        out(to, kernel.name.as_ptr())
    }
    fn cuKernelGetAttribute(value: *mut c_int, number: c_uint, kernel: CUkernel, device: CUdevice) {
        out(value, on(kernel, device)?.attribute(number)?)
    }
    fn cuKernelSetAttribute(number: c_uint, value: c_int, kernel: CUkernel, device: CUdevice) {
        on(kernel, device)?.set_attribute(number, value)
    }
    fn cuKernelSetCacheConfig(kernel: CUkernel, _config: c_uint, device: CUdevice) {
        on(kernel, device).map(|_| ())
    }
    fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize) {
        let function = functions().get(function(kernel)?)?;
        let module = function.module()?;
        let param = *function.kernel(&module).params.get(index).ok_or(Code::INVALID_VALUE)?;
        out_opt(offset, param.offset as usize);
        out_opt(size, param.size as usize);
        Ok(())
    }
}
