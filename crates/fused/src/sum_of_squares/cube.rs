//! The kernels of [`sum_of_squares`](super).
