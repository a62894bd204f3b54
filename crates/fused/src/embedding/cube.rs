//! The kernels of [`embedding`](super).
