//! The functions that find kernels by handle, and that ask and set their attributes.

use crate::abi::{CUfunction, CUmodule};
use crate::call::{api, out, out_opt};
use crate::contexts::current;
use crate::errors::{Answer, Code};
use crate::modules::{Function, functions};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;

/// The kernel of a handle, which may be one of a library.
///
/// # Errors
/// There is no such kernel.
pub fn resolve(handle: CUfunction) -> Answer<Arc<Function>> {
    functions().get(handle).or_else(|_| functions().get(crate::library::function(handle)?))
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
