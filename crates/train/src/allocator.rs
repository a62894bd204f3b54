//! Counts the allocations of a rank's threads, so that a run can report the memory of its activations.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::CString;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

thread_local! {
    /// The counter of the rank that this thread works for.
    static COUNTER: Cell<Option<&'static AtomicIsize>> = const { Cell::new(None) };
}

/// The file that says that an allocation has failed, and the number to write into it.
static FAILURE: OnceLock<(CString, &AtomicU64)> = OnceLock::new();

/// Writes a number, as it then is, into this file when an allocation fails, which ends the process without a message that
/// another one could read.
pub(crate) fn note_failure(file: &Path, number: &'static AtomicU64) {
    if let Ok(path) = CString::new(file.as_os_str().as_encoded_bytes()) {
        let _ = FAILURE.set((path, number));
    }
}

/// Returns a block, and notes if there is none. Allocates nothing itself.
fn noted(block: *mut u8) -> *mut u8 {
    if block.is_null()
        && let Some((path, number)) = FAILURE.get()
    {
        let (mut left, mut digits, mut first) = (number.load(Ordering::Relaxed), [0; 20], 20);
        while left > 0 || first == digits.len() {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        let digits = &digits[first..];
        // SAFETY: system calls with a string that ends with a zero, with the file that they opened, and with bytes of this
        // function.
        unsafe {
            let file = libc::open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY | libc::O_NOFOLLOW, 0o600);
            libc::write(file, digits.as_ptr().cast(), digits.len());
            libc::close(file);
        }
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

#[cfg(test)]
#[test]
fn a_failed_allocation_leaves_the_number_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let step: &'static AtomicU64 = Box::leak(Box::default());
    note_failure(&folder.path().join("no-memory"), step);
    for number in [0, 7, 1234] {
        step.store(number, Ordering::Relaxed);
        noted(std::ptr::null_mut());
        assert_eq!(std::fs::read_to_string(folder.path().join("no-memory")).unwrap(), number.to_string());
    }
}
