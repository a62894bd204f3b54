//! Messages to the user.

use crate::abi::Code;
use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Says why a call fails, on stderr and for `ncclGetLastError`, and returns its code.
pub fn refuse<T>(code: Code, why: &str) -> Result<T, Code> {
    eprintln!("emulated NCCL: {why}");
    LAST.with_borrow_mut(|last| *last = CString::new(why).unwrap_or_default());
    Err(code)
}

/// The last message of this thread.
pub fn last() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
