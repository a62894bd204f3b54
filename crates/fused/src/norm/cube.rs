//! The kernels of [`norm`](super).
