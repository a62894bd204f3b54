//! Counts what the threads of a rank allocate, so that a run can say what its activations take.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

thread_local! {
    /// The counter of the rank that this thread computes for.
    static COUNTER: Cell<Option<&'static AtomicIsize>> = const { Cell::new(None) };
}

/// An allocator that counts, for threads that have asked for it with [`count_for`].
pub struct Counting<A>(pub A);

/// From now on this thread's allocations add to `counter`, and what it frees is subtracted.
pub fn count_for(counter: &'static AtomicIsize) {
    COUNTER.set(Some(counter));
}

/// Bytes that the threads which count together with this one have allocated and not freed. Below zero where they have
/// freed what others had allocated: a difference of two calls is what tells.
pub fn allocated() -> isize {
    COUNTER.get().map_or(0, |counter| counter.load(Ordering::Relaxed))
}

fn add(bytes: isize) {
    if let Some(counter) = COUNTER.get() {
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to `A` as it came. The counter is a thread-local without a destructor and never allocates.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size as isize - layout.size() as isize);
        unsafe { self.0.realloc(block, layout, new_size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        unsafe { self.0.dealloc(block, layout) }
    }
}

/// Tests count as the program does.
#[cfg(test)]
#[global_allocator]
static OF_TESTS: Counting<std::alloc::System> = Counting(std::alloc::System);
