//! NVIDIA's library.

use crate::say::say;
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The address of a function of `libnvrtc.so.12`. Null if there is no such library or function. `name` ends in a NUL.
pub fn symbol(name: &str) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        // SAFETY: the name ends in zero; NVRTC's constructors have no conditions.
        let library = unsafe { libc::dlopen(c"libnvrtc.so.12".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: dlopen has just failed in this thread, so there is a message.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            say(&format!("{}; install NVRTC 12, or put its folder into LD_LIBRARY_PATH", why.to_string_lossy()));
        }
        library as usize
    });
    let Some(name) = CStr::from_bytes_with_nul(name.as_bytes()).ok().filter(|_| library != 0) else {
        return std::ptr::null_mut();
    };
    // SAFETY: a library that dlopen has given, and that is never closed.
    unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) }
}

/// The file of NVIDIA's library.
pub fn file() -> Option<PathBuf> {
    // SAFETY: `Dl_info` is plain data, and `dladdr` accepts any address.
    unsafe {
        let mut found = std::mem::zeroed::<libc::Dl_info>();
        let known = libc::dladdr(symbol("nvrtcVersion\0"), &raw mut found) != 0 && !found.dli_fname.is_null();
        known.then(|| OsStr::from_bytes(CStr::from_ptr(found.dli_fname).to_bytes()).into())
    }
}

/// Declares functions of NVRTC, which return an `nvrtcResult`.
macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("NVIDIA's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The conditions of NVRTC's documentation.
        pub unsafe fn $name($($arg: $type),*) -> std::ffi::c_int {
            static FOUND: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
            let found = *FOUND.get_or_init(|| $crate::real::symbol(concat!(stringify!($name), "\0")) as usize);
            if found == 0 {
                return $crate::real::INTERNAL_ERROR;
            }
            // SAFETY: the function has these types in NVRTC's documentation; the caller vouches for the rest.
            unsafe {
                let found: unsafe extern "C" fn($($type),*) -> std::ffi::c_int = std::mem::transmute(found);
                found($($arg),*)
            }
        }
    )*};
}
pub(crate) use real;

/// `NVRTC_ERROR_INTERNAL_ERROR`.
pub const INTERNAL_ERROR: i32 = 11;
