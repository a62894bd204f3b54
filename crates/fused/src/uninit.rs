use std::mem::MaybeUninit;

/// `len` elements, each of which `write` writes. Memory that is about to be overwritten is not cleared first: large results are written
/// once and not twice.
///
/// # Safety
/// `write` must set every element.
pub unsafe fn written<T>(len: usize, write: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut values = Vec::with_capacity(len);
    write(&mut values.spare_capacity_mut()[..len]);
    // SAFETY: there is room for `len` elements, and the caller promises that they are set.
    unsafe { values.set_len(len) };
    values
}

/// Elements that are set, as elements to be written over.
///
/// # Safety
/// Only elements that are set may be written there.
pub unsafe fn overwritten<T: Copy>(values: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: the layout is the same, and the caller promises that all elements stay set.
    unsafe { &mut *(values as *mut [T] as *mut [MaybeUninit<T>]) }
}
