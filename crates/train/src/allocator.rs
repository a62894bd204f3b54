//! Counts the allocations of a rank's threads, so that a run can report the memory of its activations.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::CString;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicIsize, Ordering};

thread_local! {
    /// The counter of the rank that this thread works for.
    static COUNTER: Cell<Option<&'static AtomicIsize>> = const { Cell::new(None) };
}

/// The file that says that an allocation has failed.
static FAILURE: OnceLock<CString> = OnceLock::new();

/// Creates this file when an allocation fails, which ends the process without a message that another one could read.
pub(crate) fn note_failure(file: &Path) {
    if let Ok(path) = CString::new(file.as_os_str().as_encoded_bytes()) {
        let _ = FAILURE.set(path);
    }
}

/// Returns a block, and notes if there is none. Allocates nothing itself.
fn noted(block: *mut u8) -> *mut u8 {
    if block.is_null()
        && let Some(path) = FAILURE.get()
    {
        // SAFETY: system calls with a string that ends with a zero, and with the file that they opened.
        unsafe { libc::close(libc::open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY | libc::O_NOFOLLOW, 0o600)) };
    }
    block
}

/// An allocator that counts, for threads that have called [`count_for`].
pub struct Counting<A>(pub A);

/// Adds this thread's allocations to `counter` from now on, and subtracts what it frees.
pub fn count_for(counter: &'static AtomicIsize) {
    COUNTER.set(Some(counter));
}

/// Bytes allocated and not freed by the threads that share this thread's counter. Negative if they have freed
/// allocations of other threads; only differences between two calls are meaningful.
pub fn allocated() -> isize {
    COUNTER.get().map_or(0, |counter| counter.load(Ordering::Relaxed))
}

fn add(bytes: isize) {
    if let Some(counter) = COUNTER.get() {
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded to `A` unchanged, and so is the result. The counter is a thread-local without a
// destructor and never allocates.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        noted(unsafe { self.0.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        noted(unsafe { self.0.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size as isize - layout.size() as isize);
        noted(unsafe { self.0.realloc(block, layout, new_size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        unsafe { self.0.dealloc(block, layout) }
    }
}

/// Tests count allocations as the program does.
#[cfg(test)]
#[global_allocator]
static OF_TESTS: Counting<std::alloc::System> = Counting(std::alloc::System);
