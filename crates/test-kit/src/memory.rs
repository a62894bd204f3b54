//! An allocator that counts what a test program holds. A program that installs it has tests that run one at a time.
//!
//! ```
//! use test_kit::memory::{Counting, held, most_held, restart};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! let before = held();
//! restart();
//! drop(Vec::<u8>::with_capacity(1000));
//! assert!(most_held() - before >= 1000 && held() < before + 1000);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts for all threads together, because one may free what another allocates.
#[derive(Debug)]
pub struct Counting;

fn add(bytes: usize) {
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    MOST.fetch_max(held, Relaxed);
    LARGEST.fetch_max(bytes, Relaxed);
}

// SAFETY: every call is forwarded to `System` unchanged. Counting never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size);
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(block, layout, new_size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the bytes that are allocated now.
pub fn held() -> usize {
    HELD.load(Relaxed)
}

/// Returns the most bytes that were allocated at once since the last [`restart`].
pub fn most_held() -> usize {
    MOST.load(Relaxed)
}

/// Returns the bytes of the largest request since the last [`restart`].
pub fn largest_block() -> usize {
    LARGEST.load(Relaxed)
}

/// Resets the peak and the largest request.
pub fn restart() {
    MOST.store(held(), Relaxed);
    LARGEST.store(0, Relaxed);
}
