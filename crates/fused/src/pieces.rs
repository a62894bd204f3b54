//! Memory that the tasks of a loop write, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice of which tasks take disjoint ranges.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<'a, T> {
    first: *mut T,
    len: usize,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts go to different threads.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    pub fn new(values: &'a mut [T]) -> Self {
        Self { first: values.as_mut_ptr(), len: values.len(), memory: PhantomData }
    }

    /// The first element, for tasks whose parts are no ranges.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.first
    }

    /// # Safety
    /// No other range that is in use overlaps this one.
    ///
    /// # Panics
    /// If the range is not inside.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn take(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is inside, and the caller promises that it is free.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(range.start), range.len()) }
    }

    /// Part `i` of parts of `len`, the last of which may be shorter.
    ///
    /// # Safety
    /// No other range that is in use overlaps this one.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, i: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.take(i * len..self.len.min((i + 1) * len)) }
    }
}
