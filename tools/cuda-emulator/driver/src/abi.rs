//! Types of the driver API as C lays them out.
//!
//! Handles are numbers here: a client may only store them and hand them back.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Result code; 0 is success.
pub type CUresult = c_int;
/// Ordinal of a card.
pub type CUdevice = c_int;
/// Address in the memory of a card, or of registered host memory.
pub type CUdeviceptr = u64;
/// Handle of a context.
pub type CUcontext = usize;
/// Handle of a stream; 0 is the default stream.
pub type CUstream = usize;
/// Handle of an event.
pub type CUevent = usize;
/// Handle of a module.
pub type CUmodule = usize;
/// Handle of a kernel in a module.
pub type CUfunction = usize;
/// Handle of a library.
pub type CUlibrary = usize;
/// Handle of a kernel in a library.
pub type CUkernel = usize;
/// Handle of a graph.
pub type CUgraph = usize;
/// Handle of a node in a graph.
pub type CUgraphNode = usize;
/// Handle of an executable graph.
pub type CUgraphExec = usize;
/// Handle of a pool of memory.
pub type CUmemoryPool = usize;
/// Handle of bytes that are made apart from addresses.
pub type CUmemGenericAllocationHandle = u64;
/// Handle of a link in progress.
pub type CUlinkState = usize;
/// Function that a stream calls on the host.
pub type CUhostFn = unsafe extern "C" fn(*mut c_void);
/// Function that a stream calls on the host, in the older form.
pub type CUstreamCallback = unsafe extern "C" fn(CUstream, CUresult, *mut c_void);
/// Function from a block's size to the dynamic shared memory that it needs.
pub type CUoccupancyB2DSize = unsafe extern "C" fn(c_int) -> usize;

/// The legacy default stream by name.
pub const CU_STREAM_LEGACY: CUstream = 1;
/// The default stream of the calling thread by name.
pub const CU_STREAM_PER_THREAD: CUstream = 2;
/// Kind of memory: host, device, array, unified.
pub const MEMORY_HOST: c_uint = 1;
/// Device memory.
pub const MEMORY_DEVICE: c_uint = 2;
/// An array, which has no address.
pub const MEMORY_ARRAY: c_uint = 3;
/// Either; the address tells.
pub const MEMORY_UNIFIED: c_uint = 4;

/// A copy of rows.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, non_snake_case)]
pub struct CUDA_MEMCPY2D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcMemoryType: c_uint,
    pub srcHost: usize,
    pub srcDevice: CUdeviceptr,
    pub srcArray: usize,
    pub srcPitch: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstMemoryType: c_uint,
    pub dstHost: usize,
    pub dstDevice: CUdeviceptr,
    pub dstArray: usize,
    pub dstPitch: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
}

/// A copy of planes of rows; the form between cards has contexts in the reserved fields.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs, non_snake_case)]
pub struct CUDA_MEMCPY3D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: c_uint,
    pub srcHost: usize,
    pub srcDevice: CUdeviceptr,
    pub srcArray: usize,
    pub srcContext: usize,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: c_uint,
    pub dstHost: usize,
    pub dstDevice: CUdeviceptr,
    pub dstArray: usize,
    pub dstContext: usize,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// One attribute of a launch.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CUlaunchAttribute {
    pub id: c_uint,
    pub pad: [u8; 4],
    /// A union of 64 bytes: integers at its start, or two handles.
    pub value: [u32; 16],
}

/// A launch as `cuLaunchKernelEx` takes it.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, non_snake_case)]
pub struct CUlaunchConfig {
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub hStream: CUstream,
    pub attrs: *const CUlaunchAttribute,
    pub numAttrs: c_uint,
}

/// Where memory lies: kind (1: a card) and ordinal.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct CUmemLocation {
    pub kind: c_uint,
    pub id: c_int,
}

/// Properties of a pool.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CUmemPoolProps {
    pub alloc_type: c_uint,
    pub handle_types: c_uint,
    pub location: CUmemLocation,
    pub win32: *mut c_void,
    pub max_size: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

/// Properties of bytes that are made apart from addresses.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CUmemAllocationProp {
    pub alloc_type: c_uint,
    pub handle_types: c_uint,
    pub location: CUmemLocation,
    pub win32: *mut c_void,
    pub flags: [u8; 8],
}

/// Access of a card to a pool.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: c_uint,
}

/// 16 bytes that name a card or a table.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CUuuid(pub [u8; 16]);

/// A text that ends in a zero byte, at compile time.
pub const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text must end in its only zero byte"),
    }
}

/// Copies `text` with its zero byte into a buffer of `len` bytes, cut where it is too long.
///
/// # Safety
/// `buffer` is null or has `len` bytes.
pub unsafe fn copy_text(text: &str, buffer: *mut c_char, len: usize) {
    if buffer.is_null() || len == 0 {
        return;
    }
    let bytes = &text.as_bytes()[..text.len().min(len - 1)];
    // SAFETY: at most `len` bytes are written.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len());
        *buffer.add(bytes.len()) = 0;
    }
}
