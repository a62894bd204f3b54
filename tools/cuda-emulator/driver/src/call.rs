//! How each function of the API is entered: state of the driver, panics, tracing, and what is not supported.

use crate::abi::CUresult;
use crate::errors::{Answer, Code};
use crate::say::{say, say_once};
use crate::settings::settings;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};

/// Process that called `cuInit`; 0 before. A child of `fork` has no worker threads, so it counts as not initialized.
pub static INITIALIZED: AtomicI32 = AtomicI32::new(0);

/// Defines functions of the API. The body answers `Answer`; those marked `early` may be called before `cuInit`. After `|`
/// stands a second symbol whose default stream is that of the thread; the name before `;` is the default stream.
macro_rules! api {
    () => {};
    (early fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::call::api!(@one true $name ($($arg: $ty),*) $body);
        $crate::call::api!($($rest)*);
    };
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::call::api!(@one false $name ($($arg: $ty),*) $body);
        $crate::call::api!($($rest)*);
    };
    (fn $name:ident | $of_thread:ident ($default:ident; $($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::call::api!(@one false $name ($($arg: $ty),*) { let $default = $crate::abi::CU_STREAM_LEGACY; $body });
        $crate::call::api!(@one false $of_thread ($($arg: $ty),*) { let $default = $crate::abi::CU_STREAM_PER_THREAD; $body });
        $crate::call::api!($($rest)*);
    };
    (@one $early:literal $name:ident ($($arg:ident: $ty:ty),*) $body:block) => {
        #[doc = concat!("`", stringify!($name), "` of the driver API.")]
        ///
        /// # Safety
        /// Pointers are null or point to what the API's documentation says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::abi::CUresult {
            // SAFETY: null is answered with an error; for the rest the client vouches, as it does to any driver.
            #[allow(unused_unsafe)]
            $crate::call::enter(stringify!($name), $early, || -> $crate::errors::Answer { unsafe { $body } })
        }
    };
}
pub(crate) use api;

/// Runs the body of the function `name` and turns its answer into a code.
pub fn enter(name: &str, early: bool, body: impl FnOnce() -> Answer) -> CUresult {
    let code = if !early && !is_initialized() {
        Code::NOT_INITIALIZED.0
    } else {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => 0,
            Ok(Err(code)) => code.0,
            Err(_) => {
                say(&format!("{name}: the emulator itself failed, see the panic above"));
                Code::UNKNOWN.0
            }
        }
    };
    if settings().trace {
        say(&format!("{:?} {name} = {code}", std::thread::current().id()));
    }
    code
}

/// Whether this process has called `cuInit`.
pub fn is_initialized() -> bool {
    let process = INITIALIZED.load(Ordering::Acquire);
    // SAFETY: `getpid` has no preconditions.
    process != 0 && process == unsafe { libc::getpid() }
}

/// Says once that `what` is not supported, and answers so.
pub fn unsupported<T>(what: &str) -> Answer<T> {
    say_once(&format!("{what} is not supported"));
    Err(Code::NOT_SUPPORTED)
}

/// Says why an argument is refused, and answers `code`.
pub fn refuse<T>(code: Code, why: &str) -> Answer<T> {
    say(&format!("{why} ({})", code.name()));
    Err(code)
}

/// Writes `value` where the client wants it; null is an invalid value.
///
/// # Safety
/// `to` is null or writable.
pub unsafe fn out<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the client vouches for the rest.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes `value` if the client gave a place for it.
///
/// # Safety
/// `to` is null or writable.
pub unsafe fn out_opt<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as above.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads a text of the client.
///
/// # Safety
/// `text` is null or ends in a zero byte.
pub unsafe fn text(text: *const c_char) -> Answer<String> {
    if text.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Reads `count` values of the client.
///
/// # Safety
/// `from` is null or has `count` values.
pub unsafe fn values<T: Copy>(from: *const T, count: usize) -> Answer<Vec<T>> {
    if count > 0 && from.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: not null, and the client vouches for the length.
    Ok((0..count).map(|index| unsafe { from.add(index).read_unaligned() }).collect())
}
