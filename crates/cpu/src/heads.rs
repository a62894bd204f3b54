//! Views of the rows of attention heads in place, at any distance from each other.

use crate::element::Element;
use crate::gemm::Matrix;

/// The rows of heads of a `[b, heads, t, width]` tensor, in place. The elements of a row are contiguous.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: &'a [T],
    /// Strides from a sequence, a head and a position to the next.
    strides: [usize; 3],
    width: usize,
}

impl<'a, T: Element> View<'a, T> {
    /// A view with these strides from a sequence, a head and a position to the next.
    pub fn new(data: &'a [T], strides: [usize; 3], width: usize) -> Self {
        Self { data, strides, width }
    }

    /// Returns the rows of one head as `E`, which is `T` or f32: in place, or widened into `room`.
    pub fn rows<'w, E: Element>(&self, [b, head]: [usize; 2], t: usize, room: &'w mut Vec<E>) -> Matrix<'w, E>
    where
        'a: 'w,
    {
        let data = &self.data[b * self.strides[0] + head * self.strides[1]..];
        if let Some(data) = T::as_elements(data) {
            return Matrix { data, row_stride: self.strides[2], col_stride: 1 };
        }
        assert!(E::IS_F32, "rows are converted to f32 only");
        room.resize(t * self.width, E::from_f32(0.0));
        let wide: &mut [f32] = bytemuck::cast_slice_mut(room);
        for (row, wide) in wide.chunks_exact_mut(self.width.max(1)).enumerate() {
            T::widen(&data[row * self.strides[2]..][..self.width], wide);
        }
        Matrix::new(room, self.width)
    }
}

/// Rows of heads to write, in place; each task writes the rows of its own heads.
#[derive(Clone, Copy)]
pub struct Target<T> {
    first: *mut T,
    strides: [usize; 3],
    width: usize,
}

// SAFETY: by the contract of `new`, threads write rows of different heads.
unsafe impl<T: Element> Sync for Target<T> {}

impl<T: Element> Target<T> {
    /// A target with these strides from a sequence, a head and a position to the next.
    ///
    /// # Safety
    /// All rows must be in memory that is valid for writes while the target is used, and no two of them may overlap.
    /// The methods may be called for places of these rows only, and for each head by one thread at a time.
    pub unsafe fn new(first: *mut T, strides: [usize; 3], width: usize) -> Self {
        Self { first, strides, width }
    }

    /// Returns where to write a head's rows in f32, with the stride of rows: the target itself, or `wide`, from which
    /// [`put`](Self::put) copies.
    pub fn rows(&self, [b, head]: [usize; 2], t: usize, wide: &mut Vec<f32>) -> (*mut f32, usize) {
        if T::IS_F32 {
            return (self.place([b, head], 0).cast(), self.strides[2]);
        }
        wide.resize(t * self.width, 0.0);
        (wide.as_mut_ptr(), self.width)
    }

    /// Rounds the rows in `wide` into the target, if they were written there.
    pub fn put(&self, place: [usize; 2], wide: &[f32]) {
        if !T::IS_F32 {
            for (row, wide) in wide.chunks_exact(self.width.max(1)).enumerate() {
                self.put_row(place, row, wide);
            }
        }
    }

    /// Writes one row.
    pub fn put_row(&self, place: [usize; 2], row: usize, values: &[f32]) {
        assert!(values.len() == self.width);
        let to = self.place(place, row);
        for (i, value) in values.iter().enumerate() {
            // SAFETY: by the contract of `new`, the row is in bounds and only this thread writes it.
            unsafe { to.add(i).write(T::from_f32(*value)) }
        }
    }

    fn place(&self, [b, head]: [usize; 2], row: usize) -> *mut T {
        // SAFETY: by the contract of `new`, the position is in bounds.
        unsafe { self.first.add(b * self.strides[0] + head * self.strides[1] + row * self.strides[2]) }
    }
}
