//! Memory that will be overwritten and is not cleared first, so that large results are written once instead of twice.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

static POISON: AtomicBool = AtomicBool::new(false);

/// Sets whether new memory is filled with 0xff bytes, which are NaN as floats, so that a test sees what an operation
/// has not written.
#[doc(hidden)]
pub fn poison_uninitialised(on: bool) {
    POISON.store(on, Ordering::Relaxed);
}

/// Whether [`poison_uninitialised`] is on.
#[inline]
pub(crate) fn poisoned() -> bool {
    POISON.load(Ordering::Relaxed)
}

/// Capacity for elements, none of which is set.
pub struct Room<T> {
    values: Vec<T>,
    len: usize,
}

impl<T> Room<T> {
    /// Room for `len` elements.
    pub fn new(len: usize) -> Self {
        let mut room = Self { values: Vec::with_capacity(len), len };
        if poisoned() {
            // SAFETY: the capacity is `len` elements.
            unsafe { room.elements().as_mut_ptr().write_bytes(0xff, len) };
        }
        room
    }

    /// The memory of all elements.
    pub fn elements(&mut self) -> &mut [MaybeUninit<T>] {
        &mut self.values.spare_capacity_mut()[..self.len]
    }

    /// Returns the elements.
    ///
    /// # Safety
    /// All elements must be set.
    pub unsafe fn set(mut self) -> Vec<T> {
        // SAFETY: the capacity is `len` elements, and the caller guarantees that they are set.
        unsafe { self.values.set_len(self.len) };
        self.values
    }
}

/// Returns `len` elements, each written by `write`.
///
/// # Safety
/// `write` must set every element.
pub unsafe fn written<T>(len: usize, write: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut room = Room::new(len);
    write(room.elements());
    // SAFETY: the caller guarantees it.
    unsafe { room.set() }
}

/// Returns initialized elements as memory to write.
///
/// # Safety
/// Only initialized elements may be written there.
pub unsafe fn overwritten<T: Copy>(values: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: the layout is the same, and the caller guarantees that all elements stay initialized.
    unsafe { &mut *(values as *mut [T] as *mut [MaybeUninit<T>]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_is_nan_where_memory_is_poisoned() {
        poison_uninitialised(true);
        // SAFETY: `new` has set all elements, because it poisons them.
        let values = unsafe { Room::<f32>::new(9).set() };
        poison_uninitialised(false);
        assert!(values.len() == 9 && values.iter().all(|value| value.is_nan()));
    }
}
