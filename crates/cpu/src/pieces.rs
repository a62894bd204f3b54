//! A slice that the tasks of a loop write concurrently, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice from which tasks take disjoint ranges.
#[derive(Clone, Copy)]
pub struct Pieces<'a, T> {
    first: *mut T,
    len: usize,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts go to different threads.
unsafe impl<T: Send> Sync for Pieces<'_, T> {}

impl<'a, T> Pieces<'a, T> {
    /// Parts of these values, which nothing else uses in the meantime.
    pub fn new(values: &'a mut [T]) -> Self {
        Self { first: values.as_mut_ptr(), len: values.len(), memory: PhantomData }
    }

    /// The first element, for tasks whose parts are not ranges.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.first
    }

    /// Returns the elements of a range.
    ///
    /// # Safety
    /// No other range in use may overlap this one.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn take(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is in bounds, and the caller guarantees that nothing else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(range.start), range.len()) }
    }

    /// Returns part `i` of the parts of length `len`; the last part may be shorter.
    ///
    /// # Safety
    /// No other range in use may overlap this one.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, i: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller guarantees it.
        unsafe { self.take(i * len..self.len.min((i + 1) * len)) }
    }
}
