//! The functions of NCCL, loaded at run time.
//!
//! Results are plain numbers here: a newer library may return one that no enumeration of this crate has.

use crate::NcclError;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// A communicator's handle.
pub type Handle = *mut c_void;
/// A stream's handle.
pub type Stream = *mut c_void;
/// An address in a GPU's memory.
pub type Address = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Id(pub [u8; 128]);

/// `ncclConfig_t` of NCCL 2.18, and the first field that later versions add, which lies where this one would have
/// padding. A library copies as many bytes as `size` says and chooses the rest itself.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
}

impl Config {
    /// The configuration of a communicator whose calls do not block.
    pub fn non_blocking() -> Self {
        let undefined = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 2 * 10_000 + 18 * 100,
            blocking: 0,
            cga_cluster_size: undefined,
            min_ctas: undefined,
            max_ctas: undefined,
            net_name: std::ptr::null(),
            split_share: undefined,
            traffic_class: undefined,
        }
    }
}

/// Success.
pub const SUCCESS: c_int = 0;
/// The call goes on; `ncclCommGetAsyncError` tells when it has ended.
pub const IN_PROGRESS: c_int = 7;

macro_rules! library {
    ($($field:ident = $symbol:literal ($($arg:ty),*) -> $result:ty;)*) => {
        /// The functions, by the names of their symbols.
        pub struct Library {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl Library {
            fn of(library: *mut c_void) -> Result<Self, NcclError> {
                // SAFETY: the library is open, and the types are those of NCCL's documentation.
                unsafe {
                    Ok(Self {$(
                        $field: {
                            let function: unsafe extern "C" fn($($arg),*) -> $result =
                                std::mem::transmute(symbol(library, $symbol)?);
                            function
                        },
                    )*})
                }
            }
        }
    };
}

library! {
    get_version = c"ncclGetVersion" (*mut c_int) -> c_int;
    get_unique_id = c"ncclGetUniqueId" (*mut Id) -> c_int;
    init_rank_config = c"ncclCommInitRankConfig" (*mut Handle, c_int, Id, c_int, *const Config) -> c_int;
    get_async_error = c"ncclCommGetAsyncError" (Handle, *mut c_int) -> c_int;
    abort = c"ncclCommAbort" (Handle) -> c_int;
    finalize = c"ncclCommFinalize" (Handle) -> c_int;
    destroy = c"ncclCommDestroy" (Handle) -> c_int;
    error_string = c"ncclGetErrorString" (c_int) -> *const c_char;
    last_error = c"ncclGetLastError" (Handle) -> *const c_char;
    group_start = c"ncclGroupStart" () -> c_int;
    group_end = c"ncclGroupEnd" () -> c_int;
    all_reduce = c"ncclAllReduce" (Address, Address, usize, c_int, c_int, Handle, Stream) -> c_int;
    reduce_scatter = c"ncclReduceScatter" (Address, Address, usize, c_int, c_int, Handle, Stream) -> c_int;
    all_gather = c"ncclAllGather" (Address, Address, usize, c_int, Handle, Stream) -> c_int;
    send = c"ncclSend" (Address, usize, c_int, c_int, Handle, Stream) -> c_int;
    recv = c"ncclRecv" (Address, usize, c_int, c_int, Handle, Stream) -> c_int;
}

/// The names under which the library is looked for: that of Debian's package and of PyPI's wheels first.
const NAMES: [&CStr; 2] = [c"libnccl.so.2", c"libnccl.so"];

impl Library {
    /// Returns the library, which is loaded once.
    pub fn get() -> Result<&'static Self, NcclError> {
        static LIBRARY: OnceLock<Result<Library, NcclError>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, NcclError> {
        let mut reasons = vec![];
        for name in NAMES {
            // SAFETY: the name ends in zero. NCCL runs no code of ours when it is loaded.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !library.is_null() {
                return Self::of(library);
            }
            // SAFETY: `dlopen` has just failed, so there is a message.
            reasons.push(unsafe { text(libc::dlerror()) });
        }
        Err(NcclError::Missing(reasons.join("; ")))
    }

    /// Returns an error that names a failed call.
    pub fn error(&self, call: &'static str, card: usize, code: c_int, handle: Handle) -> NcclError {
        // SAFETY: both texts end in zero; a null handle is allowed.
        let (words, last) = unsafe { (text((self.error_string)(code)), text((self.last_error)(handle))) };
        let last = if last.is_empty() { last } else { format!(": {last}") };
        NcclError::Call { call, card, code, text: words, last }
    }
}

/// Returns the version of the library: 22803 is 2.28.3.
pub fn version() -> Result<i32, NcclError> {
    let (library, mut version) = (Library::get()?, 0);
    // SAFETY: the place is valid.
    match unsafe { (library.get_version)(&mut version) } {
        SUCCESS => Ok(version),
        code => Err(library.error("ncclGetVersion", 0, code, std::ptr::null_mut())),
    }
}

unsafe fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, NcclError> {
    // SAFETY: the caller's.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(NcclError::TooOld(name.to_string_lossy().into_owned())) } else { Ok(found) }
}

/// Copies a text, which may be null.
unsafe fn text(from: *const c_char) -> String {
    // SAFETY: the caller's.
    let text = if from.is_null() { CString::default() } else { unsafe { CStr::from_ptr(from) }.to_owned() };
    text.to_string_lossy().into_owned()
}
