//! First forms of functions under their own symbols, for programs that look names up without a suffix, as Taichi does.
//!
//! Only the forms whose arguments are those of the second one. The others have 32-bit addresses and sizes.

use crate::abi::{CUcontext, CUdevice, CUevent, CUgraph, CUgraphExec, CUgraphNode, CUlinkState, CUresult, CUstream};
use std::ffi::{c_char, c_uint, c_void};

/// Defines each function as a call of its second form.
macro_rules! same {
    ($($name:ident => $module:ident::$second:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the driver API: the same as [`", stringify!($second), "`][crate::", stringify!($module), "::", stringify!($second), "].")]
        ///
        /// # Safety
        /// Pointers are null or point to what the API's documentation says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            // SAFETY: the caller's.
            unsafe { crate::$module::$second($($arg),*) }
        }
    )*};
}

same! {
    cuCtxCreate => context::cuCtxCreate_v2(to: *mut CUcontext, flags: c_uint, device: CUdevice);
    cuCtxDestroy => context::cuCtxDestroy_v2(context: CUcontext);
    cuCtxDetach => context::cuCtxDestroy_v2(context: CUcontext);
    cuCtxPopCurrent => context::cuCtxPopCurrent_v2(to: *mut CUcontext);
    cuCtxPushCurrent => context::cuCtxPushCurrent_v2(context: CUcontext);
    cuDevicePrimaryCtxRelease => context::cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxReset => context::cuDevicePrimaryCtxReset_v2(device: CUdevice);
    cuDevicePrimaryCtxSetFlags => context::cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
    cuEventDestroy => event::cuEventDestroy_v2(event: CUevent);
    cuGraphInstantiate => graph::cuGraphInstantiate_v2(
        to: *mut CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, log: *mut c_char, len: usize
    );
    cuLinkCreate => link::cuLinkCreate_v2(
        count: c_uint, options: *const c_uint, values: *const usize, to: *mut CUlinkState
    );
    cuLinkAddData => link::cuLinkAddData_v2(
        state: CUlinkState, kind: c_uint, data: *const c_void, size: usize, name: *const c_char,
        count: c_uint, options: *const c_uint, values: *const usize
    );
    cuLinkAddFile => link::cuLinkAddFile_v2(
        state: CUlinkState, kind: c_uint, path: *const c_char,
        count: c_uint, options: *const c_uint, values: *const usize
    );
    cuMemHostRegister => host::cuMemHostRegister_v2(address: usize, bytes: usize, flags: c_uint);
    cuStreamDestroy => stream::cuStreamDestroy_v2(stream: CUstream);
    cuStreamWaitValue32 => stream::cuStreamWaitValue32_v2(stream: CUstream, at: u64, value: u32, flags: c_uint);
    cuStreamWaitValue64 => stream::cuStreamWaitValue64_v2(stream: CUstream, at: u64, value: u64, flags: c_uint);
    cuStreamWriteValue32 => stream::cuStreamWriteValue32_v2(stream: CUstream, at: u64, value: u32, flags: c_uint);
    cuStreamWriteValue64 => stream::cuStreamWriteValue64_v2(stream: CUstream, at: u64, value: u64, flags: c_uint);
}

/// `cuStreamBeginCapture` of the driver API: its second form with the mode of the first, which is global.
///
/// # Safety
/// None: handles are checked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture(stream: CUstream) -> CUresult {
    const GLOBAL: c_uint = 0;
    // SAFETY: the caller's.
    unsafe { crate::capture::cuStreamBeginCapture_v2(stream, GLOBAL) }
}
