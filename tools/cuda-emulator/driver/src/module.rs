//! The functions that load and unload modules, and that find what is in them.

use crate::abi::{CUcontext, CUdeviceptr, CUfunction, CUmodule};
use crate::call::{api, out, out_opt, unsupported};
use crate::captures::forbid_unsafe;
use crate::contexts::current;
use crate::engine::engine;
use crate::errors::{Answer, Code};
use crate::image::{self, Log};
use crate::modules::{load, modules};
use std::ffi::{c_char, c_int, c_uint, c_void};

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
    crate::profile::waited();
    engine().wait(&engine().tails(module.context.handle));
    module.forget();
    Ok(())
}

/// Loads what lies at `image` into the current context.
unsafe fn load_image(to: *mut CUmodule, image: *const c_void, log: Log) -> Answer {
    let context = current()?;
    forbid_unsafe(&context)?;
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
